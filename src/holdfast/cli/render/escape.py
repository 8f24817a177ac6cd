"""Text of programs, nodes and other people, made harmless for a terminal.

A terminal obeys control characters: they move the cursor, set the title, answer into the keyboard buffer. So
where the output is a terminal they are shown (`\\x1b`), all but line ends and tabs, whatever they came in: a
log, an error, a name. Those of rich, for colours, are not text
and pass (`look.TerminalConsole`). In a pipe or a file nothing
is changed: what reads there is no terminal, and a log must stay what was written.

A carriage return is shown as well, unless it ends a line: it would let a line of one replica pass for a line
of another.
"""

import re
import sys
from typing import TextIO

# C0 but for tab and line feed, DEL, C1, and what turns the direction of text around
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def shown(text: str) -> str:
    """With every control character visible."""
    return CONTROL.sub(lambda found: _name(found[0]), text.replace("\r\n", "\n"))


def _name(character: str) -> str:
    return repr(character)[1:-1]


def for_output(text: str, out: TextIO | None = None) -> str:
    """As it may be written to `out`, stdout if no other is given."""
    return shown(text) if is_terminal(out or sys.stdout) else text


def is_terminal(out: TextIO | None) -> bool:
    return out is not None and out.isatty()  # None: it was closed
