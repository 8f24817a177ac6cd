"""What is there once more, or as it was: `retry`, `restart`, `rollback`, and `get`, which prints what is
applied."""

import enum
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import completion
from holdfast.cli import output as say
from holdfast.cli.client.with_client import talks
from holdfast.cli.commands.operations import WorkloadName
from holdfast.cli.options import Json, WaitForWork, WorkTimeout

if TYPE_CHECKING:
    from holdfast.cli.client.http import Client

Workloads = Annotated[
    list[str],
    typer.Argument(metavar="WORKLOAD", help="Which workloads.", autocompletion=completion.workloads),
]


class Form(enum.StrEnum):
    YAML = "yaml"
    JSON = "json"


@talks
def retry(api: "Client", workload: WorkloadName, json: Json = False) -> None:
    """Start again what failed of a workload. A job that was given up, the tasks of a sweep that were, and
    what rests after a failure; what is done or runs is left alone."""
    _ordered(api, workload, "retry", json=json)


@talks
def restart(
    api: "Client",
    workload: WorkloadName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before work is stopped.")] = False,
    wait: WaitForWork = False,
    timeout: WorkTimeout = "",
    json: Json = False,
) -> None:
    """Start a workload anew. A service is replaced one copy after the other and serves on; a job, a training
    or a sweep is stopped, and starts from its last checkpoint or, if it was done, from the beginning."""
    from holdfast.api.shapes import Workload
    from holdfast.cli.client import goals, http
    from holdfast.cli.commands.apply import wait_for

    patience_ms = say.duration(timeout, "--timeout") if timeout else None
    kind = http.read(api.get(goals.path("workload", workload)), Workload).kind if wait or not yes else ""
    if not yes and kind != "service":
        _confirm(workload, kind)
    _ordered(api, workload, "restart", json=json)
    if wait:
        print(wait_for(api, workload, kind, patience_ms), file=sys.stderr)


def _confirm(workload: str, kind: str) -> None:
    if not sys.stdin.isatty():
        what = f"{workload} is a {kind}: what runs of it is stopped, and what is done runs again"
        say.fail([what], f"holdfast restart {workload} --yes")
    typer.confirm(f"Stop what runs of the {kind} {workload}, and start it anew?", abort=True, err=True)


@talks
def rollback(
    api: "Client",
    workload: WorkloadName,
    to: Annotated[
        int | None,
        typer.Option(
            "--to",
            metavar="VERSION",
            min=1,
            help="What ran under this version.",
            show_default="the last one that was another",
            autocompletion=completion.versions,
        ),
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="Only say which versions there are, and what changed.")
    ] = False,
    wait: WaitForWork = False,
    timeout: WorkTimeout = "",
    json: Json = False,
) -> None:
    """Run what ran under an earlier version of a workload. It becomes a new version; how many there are of
    it, its priority and the like stay as they are now."""
    from holdfast.api.shapes import Workload
    from holdfast.cli.client import goals, http
    from holdfast.cli.commands.apply import wait_for

    patience_ms = say.duration(timeout, "--timeout") if timeout else None
    if list_:
        _versions(api, workload, json=json)
        return
    _ordered(api, workload, "rollback", {"version": to}, json=json)
    if wait:
        kind = http.read(api.get(goals.path("workload", workload)), Workload).kind
        print(wait_for(api, workload, kind, patience_ms), file=sys.stderr)


def _versions(api: "Client", workload: str, *, json: bool) -> None:
    from holdfast.api.shapes import Version
    from holdfast.cli.client import goals, http
    from holdfast.cli.render import theme
    from holdfast.cli.render.rows import Rows

    body = api.get(f"{goals.path('workload', workload)}/versions")
    if json:
        say.raw(body)
        return
    rows = Rows("VERSION", "UNTIL")
    for one in http.read(body, list[Version]):
        until = theme.clock(one.until_ms) if one.until_ms is not None else "runs now"
        rows.add(str(one.version), until, remark=", ".join(one.changes) or " ".join(one.command))
    theme.show(rows)


def _ordered(api: "Client", workload: str, order: str, body: object = None, *, json: bool) -> None:
    from holdfast.api.shapes import Applied
    from holdfast.cli.client import goals, http

    answer = api.post(f"{goals.path('workload', workload)}/{order}", body)
    if json:
        say.raw(answer)
        return
    applied = http.read(answer, Applied)
    words = ", ".join(applied.changes) or "runs that already: nothing changes"
    version = f" (version {applied.version})" if order != "retry" and applied.outcome == "changed" else ""
    print(f"{workload}: {words}{version}")


@talks
def get(
    api: "Client",
    workloads: Workloads,
    output: Annotated[
        Form, typer.Option("--output", "-o", metavar="|".join(Form), help="As a file, or as JSON.")
    ] = Form.YAML,
    json: Json = False,
) -> None:
    """Print workloads as they are applied. To apply what is printed changes nothing. It has the values of
    environment variables, so it takes an operator's token."""
    from holdfast.api.shapes import Written
    from holdfast.cli.client import goals, http

    found = [
        http.read(api.get(f"{goals.path('workload', name)}/spec"), Written)
        for name in dict.fromkeys(workloads)
    ]
    if json or output is Form.JSON:
        say.as_json(found[0].fields if len(found) == 1 else [one.fields for one in found])
    else:
        print("---\n".join(one.file for one in found), end="")
