"""Instants as people write them, and as they read them: so long ago, a date, a date and a time; with a zone,
or in the local one.

A date alone is its first moment as a beginning, and its last as an end: `--since 2026-11-18 --until
2026-11-18` is that day. What a clock that is put back shows twice is taken for the first time.
"""

import re
import time
from datetime import datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

from holdfast.cli import output

EXPECTED = "a duration such as 2h (ago), a date, or a date and a time such as 2026-11-18T10:00+02:00"
DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
DURATION = re.compile(r"[\d.]+\s*[a-z][\d.a-z\s]*")
LOCAL, UTC = "local", "utc"


def zone(name: str) -> tzinfo | None:
    """None: the local one."""
    if name.lower() == LOCAL:
        return None
    try:
        return ZoneInfo("UTC" if name.lower() == UTC else name)
    except (KeyError, ValueError, OSError):
        output.fail(
            [f"--zone: there is no zone called {name}"], "--zone Europe/Berlin, --zone utc or --zone local"
        )


def instant(
    text: str, option: str, zone: tzinfo | None, *, end: bool = False, now: float | None = None
) -> int:
    """Milliseconds since 1970."""
    word = text.strip()
    if DURATION.fullmatch(word):
        ago = output.duration(word, option)
        return max(1, round((time.time() if now is None else now) * 1000) - ago)
    try:
        found = datetime.fromisoformat(word)
        if end and DATE.fullmatch(word):
            found += timedelta(days=1)
        found = (
            found if found.tzinfo is not None else found.replace(tzinfo=zone) if zone else found.astimezone()
        )
        return max(1, round(found.timestamp() * 1000))
    except (ValueError, OverflowError, OSError):
        output.fail([f"{option}: expected {EXPECTED}, got {text}"], f"{option} 2h")


def called(zone: tzinfo | None, at_ms: int) -> str:
    """`CET, UTC+01:00`: what the zone is called at that time."""
    there = (
        datetime.fromtimestamp(at_ms / 1000, zone)
        if zone
        else datetime.fromtimestamp(at_ms / 1000).astimezone()
    )
    offset = there.strftime("%z")
    name = there.tzname() or ""
    full = f"UTC{offset[:3]}:{offset[3:5]}"
    return full if name in ("", full) or name[:1] in "+-" else f"{name}, {full}" if name != "UTC" else "UTC"
