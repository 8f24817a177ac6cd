"""`holdfast events`: what happened, and with -f what happens."""

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import complete, say
from holdfast.cli.talk import talks

if TYPE_CHECKING:
    from holdfast.api.shapes import Line
    from holdfast.cli.client import Client

AGAIN_S = (0.2, 0.5, 1.0, 2.0, 5.0)
SILENT_S = 30.0  # the server says something at least every 10


@talks
def events(
    api: "Client",
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as it happens.")] = False,
    node: Annotated[
        str, typer.Option("--node", metavar="NAME", help="Only of it.", autocompletion=complete.nodes)
    ] = "",
    workload: Annotated[
        str, typer.Option("--workload", metavar="NAME", help="Only of it.", autocompletion=complete.workloads)
    ] = "",
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=1000, help="The last N.")] = 50,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON: one list; with -f, one object a line.")
    ] = False,
) -> None:
    """Tell what happened, the latest last. Verdicts, actions with their reasons, what people did."""
    from holdfast.api.shapes import Line
    from holdfast.cli import client, look

    body = api.get("/v1/events", node=node, workload=workload, limit=limit)
    lines = client.read(body, list[Line])[-limit:]  # an entry is given whole, and may have several lines
    if not lines:
        _must_be_known(api, node=node, workload=workload)
    if json and not follow:
        say.as_json(lines)
        return
    for line in lines:
        _print(line, json=json)
    if not lines and not follow:
        look.show("nothing has happened")
    if follow:
        last = str(max((line.seq for line in lines), default=0))
        for line in following(api, last, node=node, workload=workload):
            _print(line, json=json)


def _must_be_known(api: "Client", **names: str) -> None:
    """A name that there neither is nor was is misspelt: what can be explained has at least a history."""
    for kind, name in names.items():
        if name:
            api.get(f"/v1/explain/{kind}", name=name)


def _print(line: "Line", *, json: bool) -> None:
    if json:
        say.as_json(line)
    else:
        from holdfast.cli import look

        look.show(look.line(line))
    sys.stdout.flush()


def following(api: "Client", last: str, *, node: str = "", workload: str = "") -> Iterator["Line"]:
    """Lines after this id, for as long as somebody takes them. A broken connection is made anew."""
    from holdfast.api.shapes import Line
    from holdfast.cli import client

    failures = 0
    while True:
        try:
            for id, data in _stream(api, last, node, workload):
                failures = 0
                yield client.read(data, Line)
                last = id
            lost = "the control plane closed the stream"
        except client.Unanswered as error:
            if not error.may_pass:
                raise
            lost = str(error)
        if not failures:
            print(f"{lost}; trying again", file=sys.stderr, flush=True)
        time.sleep(AGAIN_S[min(failures, len(AGAIN_S) - 1)])
        failures += 1


def _stream(api: "Client", last: str, node: str, workload: str) -> Iterator[tuple[str, bytes]]:
    """One connection's worth of server-sent events: id and data."""
    import httpx

    from holdfast.cli import client

    headers = {"Accept": "text/event-stream", "Last-Event-ID": last}
    try:
        with api.stream("/v1/events", headers, silent_s=SILENT_S, node=node, workload=workload) as response:
            yield from parsed(response.iter_lines())
    except httpx.HTTPError as error:
        raise client.lost(error) from None


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
