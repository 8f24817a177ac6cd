"""Waiting for something to become true, with a word on how far it is.

A control plane that changes hands is a reason to ask again, not to give up: only the time-out ends the wait,
or that it cannot become true any more (`Missed`).
"""

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from holdfast.cli import output
from holdfast.cli.client.http import Unanswered

EVERY_S = 0.2
FOR_EVER_MS = 0
DURATION = re.compile(r"\b[\d.,]+ ?(ms|s|min|h|d)\b")


class Seen(NamedTuple):
    """One look."""

    done: bool
    how_far: str
    settling: bool = False  # true already, and watched for a moment: time decides, and not a change


Look = Callable[[], Seen]
Pause = Callable[[float], None]  # until something may have changed, or so many seconds at most


class Missed(Unanswered):
    """It cannot become true any more."""

    def __init__(self, error: str, hint: str = "", program: int | None = None) -> None:
        super().__init__([error], hint, status=1)
        self.program = program  # the exit code of the program that failed, where that is why


def until(look: Look, timeout_ms: int, what: str, hint: str = "", pause: Pause | None = None) -> str:
    """How far it is at last, for the command to say: said here as well, it would be read twice. Ends the
    command with exit code 3 when the time is over."""
    ends = time.monotonic() + timeout_ms / 1000 if timeout_ms != FOR_EVER_MS else float("inf")
    with _progress() as tell:
        seen = _seen(look)
        while not seen.done and (left := ends - time.monotonic()) > 0:
            tell(seen.how_far)
            if pause is None or seen.settling:
                time.sleep(min(EVERY_S, left))
            else:
                pause(left)
            seen = _seen(look)
    if not seen.done:
        output.fail([f"{what} after {timeout_ms / 1000:g} s: {seen.how_far}"], hint, output.TIMED_OUT)
    return seen.how_far


def _seen(look: Look) -> Seen:
    try:
        return look()
    except Unanswered as error:
        if not error.may_pass:
            raise
        return Seen(False, str(error), settling=True)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """One line that changes on a terminal; elsewhere a line for each change. That time goes by is none."""
    if sys.stderr.isatty():
        from rich.text import Text

        from holdfast.cli.render.theme import TerminalConsole

        with TerminalConsole(stderr=True, highlight=False).status("") as line:
            yield lambda text: line.update(Text(text))
        return
    told = [""]

    def tell(text: str) -> None:
        if (timeless := DURATION.sub("...", text)) != told[0]:
            print(text, file=sys.stderr, flush=True)
            told[0] = timeless

    yield tell
