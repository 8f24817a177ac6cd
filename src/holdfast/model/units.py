"""Units. Instants and durations are integer milliseconds, money is integer micro-dollars."""

from typing import Final

Instant = int
Millis = int
MicroUsd = int

SECOND: Final = 1_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
NEVER: Final = 1 << 62


def seconds(ms: int) -> str:
    """A duration for people: `2.1 s`, `95 s`, `3.5 min`, `7.2 h`, `90 days`."""
    if ms < 10 * SECOND:
        return f"{ms / SECOND:.1f} s"
    if ms < 2 * MINUTE:
        return f"{ms / SECOND:.0f} s"
    if ms < 2 * HOUR:
        return f"{ms / MINUTE:.1f} min"
    if ms < 4 * DAY:
        return f"{ms / HOUR:.1f} h"
    return f"{ms / DAY:.3g} days"


def many(count: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def usd(micro: int) -> str:
    return f"${micro / 1_000_000:,.2f}"
