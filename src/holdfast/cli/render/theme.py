"""How things look on a terminal: few colours, each with one meaning, and nothing that moves without need.

Green is well, yellow is in doubt or on its way, red is lost, and what nobody needs to read is dim. Where
nobody watches (a pipe, a file) there are neither colours nor bars, and no line is cut.
"""

import re
import sys
import textwrap
import time
from collections.abc import Iterable
from datetime import datetime, tzinfo
from io import StringIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from holdfast.api.shapes import Audited, Line, Resources
from holdfast.cli.render.escape import CONTROL, shown
from holdfast.model.units import DAY, HOUR, MINUTE, SECOND

WIDTH_OF_PIPES = 1000
BAR = 6

VERDICTS = {"alive": ("●", "green"), "suspect": ("◐", "yellow"), "unreachable": ("◌", "magenta")}
VERDICTS |= {"dead": ("✕", "red")}
STATES = {"ready": "", "lost": "red", "failed": "red", "done": "green"}
UNUSUAL = "yellow"  # any other state: on its way from one to another
SEATS = {"ready": ("●", "green"), "done": ("✓", "green"), "lost": ("✕", "red"), "failed": ("✕", "red")}
SEATS |= {"pending": ("○", "yellow"), "closed": ("·", "dim"), "paused": ("‖", "dim")}
ON_ITS_WAY = ("◐", "yellow")
KINDS = {"verdict": "yellow", "action": "cyan", "held": "magenta", "finding": "yellow", "user": "bold"}
AUDITED = {"login": "red", "denied": "red", "lost": "red", "token": "yellow", "order": "bold"}
OUTCOMES = {"created": "green", "changed": "yellow", "unchanged": "dim", "deleted": "red"}


class TerminalConsole(Console):
    """Rich's console, whose text is never obeyed by the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control is None and CONTROL.search(segment.text):
                yield Segment(shown(segment.text), segment.style)
            else:
                yield segment


def console() -> Console:
    return TerminalConsole(highlight=False)


def show(what: RenderableType) -> None:
    """On stdout, for a person or for a pipe."""
    if sys.stdout.isatty():
        console().print(what)
    else:
        print(plain(what))


def plain(what: RenderableType, width: int = WIDTH_OF_PIPES) -> str:
    paper = StringIO()
    Console(file=paper, width=width, highlight=False, color_system=None).print(what)
    return "\n".join(line.rstrip() for line in paper.getvalue().rstrip().splitlines())


def natural(name: str) -> list[tuple[int, str]]:
    """To sort by: local-2 comes before local-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def hanging(first: str, text: str, width: int) -> str:
    """A line that goes on below its own text, and not below what stands before it."""
    room = max(20, width - len(first))
    parts = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False)
    return first + ("\n" + " " * len(first)).join(parts)


def width() -> int:
    """Where nobody watches, no line is cut."""
    return console().width if sys.stdout.isatty() else WIDTH_OF_PIPES


def marked(mark: tuple[str, str], word: str) -> Text:
    return Text.assemble(mark, " ", word)


def verdict(word: str) -> Text:
    return marked(VERDICTS.get(word, ("?", "yellow")), word)


def state(word: str) -> Text:
    return Text(word, STATES.get(word, UNUSUAL))


def seat(state: str) -> tuple[str, str]:
    return SEATS.get(state, ON_ITS_WAY)


def bar(share_used: float, share_promised: float) -> Text:
    """Full: really used. Half: promised to replicas. Light: free."""
    used = round(BAR * min(1.0, max(0.0, share_used)))
    promised = max(used, round(BAR * min(1.0, max(0.0, share_promised))))
    colour = "red" if share_used > 0.95 else "green"
    return Text.assemble(
        ("█" * used, colour), ("▓" * (promised - used), "blue"), ("░" * (BAR - promised), "bright_black")
    )


def amount(resources: Resources) -> str:
    parts = [f"{resources.cpu_milli / 1000:g} cpu", memory(resources.memory_mib)]
    if resources.gpu_milli:
        parts.append(f"{resources.gpu_milli / 1000:g} {resources.gpu_kind or 'gpu'}")
    return ", ".join(parts)


def memory(mib: int) -> str:
    return f"{mib / 1024:.3g} GiB" if mib >= 1024 else f"{mib} MiB"


def ago(ms: int) -> str:
    """A length of time in one short word: `12s`, `3m`, `5h`, `9d`."""
    for unit, name in ((DAY, "d"), (HOUR, "h"), (MINUTE, "m")):
        if ms >= 2 * unit:
            return f"{ms // unit}{name}"
    return f"{max(0, ms) // SECOND}s"


def clock(at_ms: int, now_ms: int | None = None, zone: tzinfo | None = None) -> str:
    """The time of day, with the day if it was another; in the local zone if no other is given."""
    now = time.time() if now_ms is None else now_ms / 1000
    then, today = datetime.fromtimestamp(at_ms / 1000, zone), datetime.fromtimestamp(now, zone)
    hour = then.strftime("%H:%M:%S")
    return hour if then.date() == today.date() else f"{then.strftime('%Y-%m-%d')} {hour}"


def line(told: Line, zone: tzinfo | None = None) -> Text:
    return Text.assemble(
        (clock(told.at_ms, zone=zone), "dim"),
        "  ",
        (f"{told.kind:<8}", KINDS.get(told.kind, "")),
        " ",
        (f"{told.subject:<14}", "bold" if told.kind == "verdict" else ""),
        " ",
        told.text,
        (f"  by {told.actor}" if told.actor else "", "dim"),
    )


def audited(record: Audited, zone: tzinfo | None = None) -> Text:
    who = " ".join(word for word in (record.actor, f"({record.token})" if record.token else "") if word)
    return Text.assemble(
        (clock(record.at_ms, zone=zone), "dim"),
        "  ",
        (f"{record.kind:<7}", AUDITED.get(record.kind, "")),
        f" {who or 'unknown':<24} {record.origin:<15} ",
        f"{record.subject}: {record.text}" if record.subject else record.text,
        (f"  {record.count} times" if record.count > 1 else "", "bold"),
    )


def lines(told: Iterable[Line]) -> Text:
    return Text("\n").join(line(one) for one in told)
