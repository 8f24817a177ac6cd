"""`holdfast audit`: who came in, who was refused, and who changed what."""

import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import output
from holdfast.cli.client.with_client import talks

if TYPE_CHECKING:
    from holdfast.api.shapes import Audited
    from holdfast.cli.client.http import Client
    from holdfast.cli.commands.events import Asked

USUAL, PAGE = 50, 1000  # records
ASK_EVERY_S = 1.0


@talks
def audit(
    api: "Client",
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as it happens.")] = False,
    actor: Annotated[
        str, typer.Option("--actor", metavar="NAME", help="Only of this token: its note or its id.")
    ] = "",
    since: Annotated[
        str, typer.Option("--since", metavar="TIME", help="From then on: 2h (ago), 2026-11-18T10:00.")
    ] = "",
    until: Annotated[
        str, typer.Option("--until", metavar="TIME", help="Up to then; a date alone: to its end.")
    ] = "",
    zone: Annotated[
        str, typer.Option("--zone", metavar="NAME", help="Of times, read and shown: utc, Europe/Berlin.")
    ] = "local",
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", metavar="N", min=1, help="The last N.", show_default="50; with --since or --until, all"
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON: one list; with -f, one object a line.")
    ] = False,
) -> None:
    """Show the audit log: log-ins, tokens, refusals, orders."""
    from holdfast.cli.commands.events import asked_of
    from holdfast.cli.render import instants, theme

    asked = asked_of(since, until, zone, limit, follow=follow, usual=USUAL)
    params = {"actor": actor, "since_ms": asked.since_ms or "", "until_ms": asked.until_ms or ""}
    records = _records(api, params, asked.limit)
    if json and not follow:
        output.as_json(records)
        return
    if asked.says_zone:
        at_ms = records[-1].at_ms if records else round(time.time() * 1000)
        print(f"times are in {instants.called(asked.zone, at_ms)}", file=sys.stderr)
    if not records and not follow:
        theme.show("the audit log has no such record")
    for record in records:
        _print(record, asked, json=json)
    if follow:
        last = max((record.seq for record in records), default=0)
        for record in _following(api, actor, last):
            _print(record, asked, json=json)


def _records(api: "Client", params: "Mapping[str, object]", limit: int) -> "list[Audited]":
    """The newest, page by page."""
    from holdfast.api.shapes import Audited
    from holdfast.cli.client import http

    found: list[Audited] = []
    while len(found) < limit:
        count, before = min(PAGE, limit - len(found)), found[0].seq if found else ""
        page = http.read(api.get("/v1/audit", limit=count, before=before, **params), list[Audited])
        found = [*page, *found]
        if len(page) < count:
            break
    return found


def _following(api: "Client", actor: str, last: int) -> "Iterator[Audited]":
    from holdfast.api.shapes import Audited
    from holdfast.cli.client import http

    told = False
    while True:
        time.sleep(ASK_EVERY_S)
        try:
            page = http.read(api.get("/v1/audit", actor=actor, after=last or "", limit=PAGE), list[Audited])
            told = False
        except http.Unanswered as error:
            if not error.may_pass:
                raise
            if not told:
                print(f"{error}; trying again", file=sys.stderr, flush=True)
            told = True
            continue
        yield from page
        last = max((record.seq for record in page), default=last)


def _print(record: "Audited", asked: "Asked", *, json: bool) -> None:
    if json:
        output.as_json(record)
    else:
        from holdfast.cli.render import theme

        theme.show(theme.audited(record, asked.zone))
    sys.stdout.flush()
