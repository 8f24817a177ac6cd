"""Log lines: for people on a terminal, JSON elsewhere; always on stderr."""

import contextlib
import sys
from typing import TextIO, cast

import structlog


class Stderr:
    """What cannot be written there is lost. The disk is full, or the terminal or whoever read it is gone: no
    reason for a control plane or a gateway to stop working."""

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()


def set_up(*, json: bool | None = None) -> None:
    as_json = not sys.stderr.isatty() if json is None else json
    last = structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=True)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso" if as_json else "%H:%M:%S", utc=as_json),
            structlog.processors.format_exc_info,
            last,
        ],
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, Stderr())),
        cache_logger_on_first_use=True,
    )


def quiet() -> None:
    """Only errors: for commands that tell their story in another way."""
    import logging

    set_up()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
