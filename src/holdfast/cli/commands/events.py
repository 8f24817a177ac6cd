"""`holdfast events`: what happened, and with -f what happens."""

import sys
import time
from collections.abc import Iterator
from datetime import tzinfo
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from holdfast.cli import completion, output
from holdfast.cli.client.with_client import talks

if TYPE_CHECKING:
    from holdfast.api.shapes import Line
    from holdfast.cli.client.http import Client

AGAIN_S = (0.2, 0.5, 1.0, 2.0, 5.0)
USUAL, PAGE, ALL_MAX = 50, 1000, 100_000  # lines
SILENT_S = 30.0  # the server says something at least every 10


@talks
def events(
    api: "Client",
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as it happens.")] = False,
    node: Annotated[
        str, typer.Option("--node", metavar="NAME", help="Only of it.", autocompletion=completion.nodes)
    ] = "",
    workload: Annotated[
        str,
        typer.Option("--workload", metavar="NAME", help="Only of it.", autocompletion=completion.workloads),
    ] = "",
    since: Annotated[
        str,
        typer.Option(
            "--since",
            metavar="TIME",
            help="From then on: 2h (ago), 2026-11-18, 2026-11-18T10:00, 2026-11-18T10:00+02:00.",
        ),
    ] = "",
    until: Annotated[
        str, typer.Option("--until", metavar="TIME", help="Up to then; a date alone: to its end.")
    ] = "",
    zone: Annotated[
        str,
        typer.Option("--zone", metavar="NAME", help="Of times, read and shown: utc, Europe/Berlin."),
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
    """Tell what happened, the latest last. Verdicts, actions with their reasons, what people did."""
    from holdfast.cli.render import theme

    asked = asked_of(since, until, zone, limit, follow=follow)
    lines = _lines(api, asked, node=node, workload=workload)
    if not lines:
        _must_be_known(api, node=node, workload=workload)
    if json and not follow:
        output.as_json(lines)
        return
    if asked.says_zone:
        _say_zone(asked, lines)
    for line in lines:
        _print(line, asked.zone, json=json)
    if not lines and not follow:
        theme.show(f"nothing has happened{' in that time' if asked.since_ms or asked.until_ms else ''}")
    if follow:
        last = str(max((line.seq for line in lines), default=0))
        for line in following(api, last, node=node, workload=workload):
            _print(line, asked.zone, json=json)


class Asked(NamedTuple):
    """Of which time, how many lines, and in which zone they are shown."""

    zone: tzinfo | None
    since_ms: int
    until_ms: int
    limit: int
    says_zone: bool


def asked_of(
    since: str, until: str, zone: str, limit: int | None, *, follow: bool, usual: int = USUAL
) -> Asked:
    from holdfast.cli.render import instants

    if follow and until:
        output.fail(["what is followed has no end: -f goes with --since, not with --until"], "leave out one")
    found = instants.zone(zone)
    since_ms = instants.instant(since, "--since", found) if since else 0
    until_ms = instants.instant(until, "--until", found, end=True) if until else 0
    if until_ms and since_ms >= until_ms:
        output.fail([f"--until {until} is not after --since {since}"], "both are times; 2h is two hours ago")
    most = limit or (ALL_MAX if since or until else usual)
    return Asked(found, since_ms, until_ms, most, bool(since or until or zone != instants.LOCAL))


def _say_zone(asked: Asked, lines: "list[Line]") -> None:
    """On stderr, so that what is piped stays lines of history."""
    from holdfast.cli.render import instants

    at_ms = lines[-1].at_ms if lines else asked.until_ms or asked.since_ms or round(time.time() * 1000)
    print(f"times are in {instants.called(asked.zone, at_ms)}", file=sys.stderr)


def _lines(api: "Client", asked: Asked, *, node: str, workload: str) -> "list[Line]":
    """The newest, page by page. An entry is given whole, and may have several lines."""
    from holdfast.api.shapes import Line
    from holdfast.cli.client import http

    about = {"node": node, "workload": workload}
    about |= {"since_ms": str(asked.since_ms or ""), "until_ms": str(asked.until_ms or "")}
    lines: list[Line] = []
    while len(lines) < asked.limit:
        count = min(PAGE, asked.limit - len(lines))
        before = lines[0].seq if lines else ""
        page = http.read(api.get("/v1/events", limit=count, before=before, **about), list[Line])
        lines = [*page, *lines]
        if len(page) < count or asked.limit <= PAGE:
            break
    if len(lines) >= ALL_MAX:
        print(f"these are the last {ALL_MAX:,} lines: there are more", file=sys.stderr)
    return lines[-asked.limit :]


def _must_be_known(api: "Client", **names: str) -> None:
    """A name that there neither is nor was is misspelt: what can be explained has at least a history."""
    for kind, name in names.items():
        if name:
            api.get(f"/v1/explain/{kind}", name=name)


def _print(line: "Line", zone: tzinfo | None, *, json: bool) -> None:
    if json:
        output.as_json(line)
    else:
        from holdfast.cli.render import theme

        theme.show(theme.line(line, zone))
    sys.stdout.flush()


def following(api: "Client", last: str, *, node: str = "", workload: str = "") -> Iterator["Line"]:
    """Lines after this id, for as long as somebody takes them. A broken connection is made anew."""
    from holdfast.api.shapes import Line
    from holdfast.cli.client import http

    failures = 0
    while True:
        try:
            for id, data in _stream(api, last, node, workload):
                failures = 0
                yield http.read(data, Line)
                last = id
            lost = "the control plane closed the stream"
        except http.Unanswered as error:
            if not error.may_pass:
                raise
            lost = str(error)
        if not failures:
            output.note(f"{lost}; trying again")
        time.sleep(AGAIN_S[min(failures, len(AGAIN_S) - 1)])
        failures += 1


def _stream(api: "Client", last: str, node: str, workload: str) -> Iterator[tuple[str, bytes]]:
    """One connection's worth of server-sent events: id and data."""
    import httpx

    from holdfast.cli.client import http

    headers = {"Accept": "text/event-stream", "Last-Event-ID": last}
    try:
        with api.stream("/v1/events", headers, silent_s=SILENT_S, node=node, workload=workload) as response:
            yield from parsed(response.iter_lines())
    except httpx.HTTPError as error:
        raise http.lost(error) from None


def parsed(lines: Iterator[str]) -> Iterator[tuple[str, bytes]]:
    """Server-sent events. An event that was cut off is none."""
    id, data = "", list[str]()
    for line in lines:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                yield id, "\n".join(data).encode()
            data = []
        elif name == "id":
            id = value
        elif name == "data":
            data.append(value)
