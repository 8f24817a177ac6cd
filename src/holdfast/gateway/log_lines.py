"""Log lines of workers: they look as those of their keeper do, and go where those go."""

import contextlib
import sys
from typing import TextIO, cast

import structlog


def are_json() -> bool:
    return isinstance(structlog.get_config()["processors"][-1], structlog.processors.JSONRenderer)


class Stderr:
    """What cannot be written there is lost: no reason to stop working."""

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()


def set_up(*, as_json: bool) -> None:
    last = structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=False)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso" if as_json else "%H:%M:%S", utc=as_json),
            structlog.processors.format_exc_info,
            last,
        ],
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, Stderr())),
    )
