"""`holdfast token`: who may talk to the control plane."""

import enum
import os
import sys
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from holdfast.cli import completion, output
from holdfast.cli.client.with_client import talks
from holdfast.cli.options import Json

if TYPE_CHECKING:
    from holdfast.cli.client.http import Client

app = typer.Typer(help="Who may talk to the control plane.", rich_markup_mode=None)


class Role(enum.StrEnum):
    ADMIN = "admin"
    OPERATOR = "operator"
    READ = "read"
    GATEWAY = "gateway"
    SIGNALS = "signals"
    JOIN = "join"


OF_PROJECTS = (Role.READ, Role.OPERATOR, Role.SIGNALS)  # others are for the whole fleet


@app.callback(invoke_without_command=True)
def token(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("create")
@talks
def create(
    api: "Client",
    role: Annotated[
        Role,
        typer.Option(
            "--role",
            metavar="admin|operator|read|gateway|signals|join",
            help="What it lets its bearer do.",
        ),
    ],
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="For whom it is.")] = "",
    pool: Annotated[
        str,
        typer.Option("--pool", metavar="NAME", help="join: the only pool.", autocompletion=completion.pools),
    ] = "",
    node: Annotated[str, typer.Option("--node", metavar="NAME", help="join: the only name.")] = "",
    uses: Annotated[
        int,
        typer.Option("--uses", metavar="N", min=1, max=10_000, help="join: so many nodes may join with it."),
    ] = 1,
    ttl: Annotated[
        str, typer.Option("--ttl", "--expires", metavar="TIME", help="Good for so long; for ever.")
    ] = "",
    json: Json = False,
) -> None:
    """Make a token. It is printed once; only its hash is kept. With --project it is for that alone."""
    import msgspec

    from holdfast.api.shapes import TokenMade
    from holdfast.cli.client import http
    from holdfast.wire.pin import with_pin

    lasts = {"ttl_ms": output.duration(ttl, "--ttl")} if ttl else {}
    several = {"uses": uses} if uses > 1 else {}
    if (
        api.server.project
        and role not in OF_PROJECTS
        and api.server.project != os.environ.get("HOLDFAST_PROJECT")
    ):
        why = f"a token of the role {role} is for the whole fleet, and not for project {api.server.project}"
        output.fail([why], "leave out --project, or make one of the role operator, read or signals")
    of = {"project": api.server.project} if api.server.project and role in OF_PROJECTS else {}
    wanted = {"role": str(role), "note": note, "pool": pool, "node": node, **of, **several, **lasts}
    body = api.post("/v1/tokens", wanted)
    made = http.read(body, TokenMade)
    if json:  # `token` is what goes into a header; `with_pin` is what others are given
        output.as_json({**msgspec.json.decode(body), "with_pin": with_pin(made.token, made.ca_pin)})
        return
    print(with_pin(made.token, made.ca_pin))
    only = f", project {of['project']} only" if of else ""
    print(f"token {made.id} ({made.role}{only}): keep it, it is not shown again", file=sys.stderr)
    for line in _uses_of(made.role, api.server.urls, pool):
        print(line, file=sys.stderr)


def _uses_of(role: str, urls: tuple[str, ...], pool: str) -> list[str]:
    """What its bearer does with it on another machine."""
    from holdfast.cli.client.address import stays_here

    if all(stays_here(url) for url in urls):
        return []
    where = ",".join(urls)
    if role == Role.JOIN:
        words = f"--pool {pool or 'POOL'} --place PROVIDER/REGION/ZONE/RACK --token-file FILE"
        return [f"on the node: holdfast agent --join {where} {words}"]
    if role == Role.GATEWAY:
        return [f"where the gateway runs: holdfast gateway --control {where} --token-file FILE"]
    return [f"on another machine: holdfast login {where}"]


@app.command("list")
@talks
def list_tokens(api: "Client", json: Json = False) -> None:
    """List the tokens there are, without their secrets."""
    body = api.get("/v1/tokens")
    if json:
        output.raw(body)
        return
    from holdfast.api.shapes import TokenShown
    from holdfast.cli.client import http
    from holdfast.cli.render import theme
    from holdfast.cli.render.tables import fleet

    found = http.read(body, list[TokenShown])
    theme.show(fleet.tokens(found) if found else "no tokens")


@app.command("revoke")
@talks
def revoke(
    api: "Client",
    id: Annotated[str, typer.Argument(metavar="ID", help="As `holdfast token list` shows it.")],
    json: Json = False,
) -> None:
    """Make a token worthless."""
    body = api.delete(f"/v1/tokens/{quote(id, safe='')}")
    if json:
        output.raw(body)
    else:
        print(f"token {id} is revoked")
