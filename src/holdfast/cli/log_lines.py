"""Log lines: for people on a terminal, JSON elsewhere; always on stderr."""

import sys

import structlog


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
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def quiet() -> None:
    """Only errors: for commands that tell their story in another way."""
    import logging

    set_up()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
