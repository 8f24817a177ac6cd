"""`holdfast keys`: who may ask a gateway for models, and for how much."""

import sys
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from holdfast.cli import completion, output
from holdfast.cli.client.with_client import talks_of_keys
from holdfast.cli.commands.gateway.limits import (
    Concurrent,
    Requests,
    RequestsBurst,
    Tokens,
    TokensBurst,
    TokensTotal,
    given_limits,
)
from holdfast.cli.options import Json

if TYPE_CHECKING:
    from holdfast.cli.client.http import Client

app = typer.Typer(help="Who may ask for models, and for how much.", rich_markup_mode=None)

Id = Annotated[
    str,
    typer.Argument(metavar="ID", help="As `holdfast keys list` shows it.", autocompletion=completion.key_ids),
]


@app.callback(invoke_without_command=True)
def keys(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("create")
@talks_of_keys
def create(
    api: "Client",
    id: Annotated[str, typer.Option("--id", metavar="NAME", help="How reports call it; drawn.")] = "",
    owner: Annotated[str, typer.Option("--owner", metavar="TEXT", help="Whom to ask about it.")] = "",
    team: Annotated[
        str,
        typer.Option(
            "--team", metavar="NAME", help="Whose limits it shares.", autocompletion=completion.teams
        ),
    ] = "",
    new_team: Annotated[
        bool, typer.Option("--new-team", help="The team has neither limits nor keys yet.")
    ] = False,
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="What it is for.")] = "",
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="NAME",
            help="It may use this one; llama-*: all that begin so. Several; all.",
            autocompletion=completion.models,
        ),
    ] = None,
    new_model: Annotated[
        bool, typer.Option("--new-model", help="No service answers for such a model yet.")
    ] = False,
    ttl: Annotated[str, typer.Option("--ttl", metavar="TIME", help="Good for so long; for ever.")] = "",
    tokens_per_min: Tokens = None,
    requests_per_min: Requests = None,
    concurrent: Concurrent = None,
    tokens_total: TokensTotal = None,
    tokens_burst: TokensBurst = None,
    requests_burst: RequestsBurst = None,
    json: Json = False,
) -> None:
    """Make a key. Its secret is printed once; only its hash is kept."""
    limits = given_limits(
        tokens_per_min=tokens_per_min,
        requests_per_min=requests_per_min,
        concurrent=concurrent,
        tokens_total=tokens_total,
        tokens_burst=tokens_burst,
        requests_burst=requests_burst,
    )
    lasts = {"ttl_ms": output.duration(ttl, "--ttl")} if ttl else {}
    wanted = {"id": id, "owner": owner, "team": team, "note": note, "models": models or [], **lasts}
    new = {name: True for name, said in (("new_team", new_team), ("new_model", new_model)) if said}
    _show_made(api.post("/v1/keys", {**wanted, **new, "limits": limits}), json)


@app.command("list")
@talks_of_keys
def list_keys(api: "Client", json: Json = False) -> None:
    """List the keys there are, without their secrets."""
    body = api.get("/v1/keys")
    if json:
        output.raw(body)
        return
    from holdfast.cli.client import http
    from holdfast.cli.render import theme
    from holdfast.cli.render.tables import keys as tables_keys

    found = http.read(body, list[tables_keys.KeyShown])
    theme.show(tables_keys.keys(found) if found else "no keys")


@app.command("rotate")
@talks_of_keys
def rotate(
    api: "Client",
    id: Id,
    grace: Annotated[
        str,
        typer.Option(
            "--grace",
            metavar="TIME",
            help="The old one is good for so long; 0s: it ends now.",
            show_default="`1d`",
        ),
    ] = "",
    json: Json = False,
) -> None:
    """Make a key that takes the place of another, with the same rights. Both are good for a while."""
    lasts = {"grace_ms": output.duration(grace, "--grace", least_ms=0)} if grace else {}
    _show_made(api.post(f"{_path(id)}/rotate", lasts), json)


@app.command("suspend")
@talks_of_keys
def suspend(
    api: "Client",
    id: Id,
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="What its bearer is told.")] = "",
    json: Json = False,
) -> None:
    """Let a key do nothing until it is restored."""
    body = api.post(f"{_path(id)}/suspend", {"why": why})
    _done(body, f"key {id} is suspended; holdfast keys restore {id} undoes it", json)


@app.command("restore")
@talks_of_keys
def restore(api: "Client", id: Id, json: Json = False) -> None:
    """Undo a suspension or a clamp. For a day it is not judged again."""
    body = api.post(f"{_path(id)}/restore", {})
    how = "no longer held back, but it has expired" if not json and _has_ended(body) else "good again"
    _done(body, f"key {id} is {how}", json)


@app.command("delete")
@talks_of_keys
def delete(api: "Client", id: Id, json: Json = False) -> None:
    """Make a key worthless, for good."""
    _done(api.delete(_path(id)), f"key {id} is deleted", json)


@app.command("report")
@talks_of_keys
def report(api: "Client", json: Json = False) -> None:
    """Say which keys seem to work for nobody, or for somebody else, and why."""
    body = api.get("/v1/keys/report")
    if json:
        output.raw(body)
        return
    from holdfast.cli.client import http
    from holdfast.cli.render import theme
    from holdfast.cli.render.tables import keys as tables_keys
    from holdfast.core.gateway.key_audit.audit import Row

    found = http.read(body, list[Row])
    theme.show(tables_keys.report(found) if found else "no keys")


def _path(id: str) -> str:
    return f"/v1/keys/{quote(id, safe='')}"


def _show_made(body: bytes, json: bool) -> None:
    if json:
        output.raw(body)
        return
    from holdfast.cli.client import http
    from holdfast.cli.render.tables import keys as tables_keys

    made = http.read(body, tables_keys.KeyMade)
    print(made.secret)
    print(f"key {made.key.id}: keep it, it is not shown again", file=sys.stderr)
    print(f"limits: {tables_keys.in_force(made.key) or tables_keys.UNLIMITED}", file=sys.stderr)


def _done(body: bytes, text: str, json: Any) -> None:
    if json:
        output.raw(body)
    else:
        print(text)


def _has_ended(body: bytes) -> bool:
    import time

    from holdfast.cli.client import http
    from holdfast.cli.render.tables import keys as tables_keys

    ends = http.read(body, tables_keys.KeyShown).expires_ms
    return ends is not None and ends <= time.time() * 1_000
