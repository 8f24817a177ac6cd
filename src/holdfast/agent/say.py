"""What an agent tells whoever reads its output: one line an event, for eyes or as JSON.

structlog would cost 6 MB and 90 ms at each start, of 40 MB and a second that an agent may have; these lines
look the same.
"""

import contextlib
import json
import sys
import time
from typing import TextIO

from holdfast.agent import own_log

LONGEST = 2_000  # characters of one value: a line stays a line


class Log:
    def __init__(self, *, as_json: bool = False, to: TextIO | None = None) -> None:
        self._json, self._to = as_json, to

    def info(self, event: str, **words: object) -> None:
        self._line("info", event, words)

    def warning(self, event: str, **words: object) -> None:
        self._line("warning", event, words)

    def _line(self, level: str, event: str, words: dict[str, object]) -> None:
        at = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at * 1000) % 1000:03d}Z"
        if self._json:
            line = json.dumps({"timestamp": stamp, "level": level, "event": event, **words}, default=str)
        else:
            line = " ".join((stamp, f"{level:<7}", event, *(f"{k}={_shown(v)}" for k, v in words.items())))
        with contextlib.suppress(OSError, ValueError):  # nobody reads us any more: no reason to stop working
            print(line, file=self._to or sys.stderr, flush=True)
        if self._to is None:
            own_log.keep_short()


def _shown(value: object) -> str:
    text = str(value)[:LONGEST]
    plain = text and not any(c.isspace() or c in "\"'=" or not c.isprintable() for c in text)
    return text if plain else json.dumps(text, ensure_ascii=False)
