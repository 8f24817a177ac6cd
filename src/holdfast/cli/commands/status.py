"""`holdfast status`: the fleet on one page, once or as it changes."""

import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import output
from holdfast.cli.client.with_client import talks
from holdfast.cli.options import Json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from holdfast.cli.client.http import Client

EVERY_S = 1.0
EVENTS = 8


@talks
def status(
    api: "Client",
    watch: Annotated[bool, typer.Option("-w", "--watch", help="Stay, and show changes; q ends.")] = False,
    json: Json = False,
) -> None:
    """Show the fleet on one page. Workloads, nodes, and what happened lately; trouble first."""
    if json:
        output.raw(api.get("/v1/status"))
        return
    from holdfast.cli.render import theme

    if watch and sys.stdout.isatty():
        _watch(api)
    elif watch:
        output.fail(["-w needs a terminal"], "holdfast status --json", output.BAD_INPUT)
    else:
        theme.show(_page(api, None))


def _page(api: "Client", rows: int | None) -> "RenderableType":
    from holdfast.api.shapes import Line, Status
    from holdfast.cli.client import http
    from holdfast.cli.render import status_page

    found = http.read(api.get("/v1/status"), Status)
    events = http.read(api.get("/v1/events", limit=EVENTS), list[Line])
    return status_page.page(found, events[-EVENTS:], bars=sys.stdout.isatty(), rows=rows)


def _watch(api: "Client") -> None:
    """A control plane that is away for a moment leaves the last page on the screen, and a word about it."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from holdfast.cli.client import http
    from holdfast.cli.render import theme

    terminal = theme.console()
    page: RenderableType = _page(api, terminal.height)
    live = Live(page, console=terminal, screen=True, auto_refresh=False)
    with _keys():
        try:  # as a context, an impatient Ctrl-C would leave the other screen on
            live.start(refresh=True)
            while not _pressed(EVERY_S):
                try:
                    page = shown = _page(api, terminal.height)
                except http.Unanswered as error:
                    if not error.may_pass:
                        raise
                    shown = Group(Text(f"{error}; this was the fleet:", "red"), page)
                live.update(shown, refresh=True)
        finally:
            live.stop()


@contextmanager
def _keys() -> Iterator[None]:
    """Keys arrive one by one and unseen, if there is a keyboard."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _pressed(wait_s: float) -> bool:
    """Was q pressed within this time?"""
    if not sys.stdin.isatty():
        time.sleep(wait_s)
        return False
    ready, _, _ = select.select([sys.stdin], [], [], wait_s)
    return bool(ready) and sys.stdin.read(1).lower() in ("q", "\x1b", "")
