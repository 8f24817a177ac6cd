"""`holdfast limits`: how much teams and models, and all together, may take."""

import sys
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from holdfast.cli import completion, output
from holdfast.cli.client.with_client import talks_of_keys
from holdfast.cli.options import Json

if TYPE_CHECKING:
    from holdfast.cli.client.http import Client

app = typer.Typer(help="How much teams, models and all together may take.", rich_markup_mode=None)

Tokens = Annotated[
    int | None,
    typer.Option(
        "--tokens-per-min", metavar="N", min=0, help="Prompt and answer together.", show_default=False
    ),
]
Requests = Annotated[
    int | None, typer.Option("--requests-per-min", metavar="N", min=0, help="Requests.", show_default=False)
]
Concurrent = Annotated[
    int | None,
    typer.Option("--concurrent", metavar="N", min=0, help="Requests at a time.", show_default=False),
]
TokensTotal = Annotated[
    int | None,
    typer.Option(
        "--tokens-total",
        metavar="N",
        min=0,
        help="A budget that does not come back by itself.",
        show_default=False,
    ),
]
TokensBurst = Annotated[
    int | None,
    typer.Option(
        "--tokens-burst",
        metavar="N",
        min=0,
        help="The most tokens at once.",
        show_default="what a minute brings",
    ),
]
RequestsBurst = Annotated[
    int | None,
    typer.Option(
        "--requests-burst",
        metavar="N",
        min=0,
        help="The most requests at once.",
        show_default="what a minute brings",
    ),
]


@app.callback(invoke_without_command=True)
def limits(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("list")
@talks_of_keys
def list_limits(api: "Client", json: Json = False) -> None:
    """List what is limited. The limits of single keys are in `holdfast keys list`."""
    body = api.get("/v1/limits")
    if json:
        output.raw(body)
        return
    from holdfast.cli.client import http
    from holdfast.cli.render import theme
    from holdfast.cli.render.tables import keys
    from holdfast.model.gateway import Limits

    found = http.read(body, dict[str, Limits])
    theme.show(keys.limits(found) if found else "nothing is limited, but for single keys")


@app.command("set")
@talks_of_keys
def set_limits(
    api: "Client",
    scope: Annotated[
        str,
        typer.Argument(
            metavar="SCOPE",
            help="global, team:NAME, model:NAME, key:ID, or two: team:NAME/model:NAME.",
            autocompletion=completion.scopes,
        ),
    ],
    tokens_per_min: Tokens = None,
    requests_per_min: Requests = None,
    concurrent: Concurrent = None,
    tokens_total: TokensTotal = None,
    tokens_burst: TokensBurst = None,
    requests_burst: RequestsBurst = None,
    unlimited: Annotated[bool, typer.Option("--unlimited", help="Take all its limits away.")] = False,
    json: Json = False,
) -> None:
    """Say anew what a scope may take, all of it: what is left out is not limited any more."""
    wanted = given_limits(
        tokens_per_min=tokens_per_min,
        requests_per_min=requests_per_min,
        concurrent=concurrent,
        tokens_total=tokens_total,
        tokens_burst=tokens_burst,
        requests_burst=requests_burst,
    )
    if bool(wanted) is unlimited:
        output.fail(
            ["expected limits, or --unlimited"], f"holdfast limits set {scope} --tokens-per-min 100000"
        )
    body = api.put(f"/v1/limits/{quote(scope, safe=':/')}", wanted)
    if json:
        output.raw(body)
        return
    from holdfast.api.shapes import Done
    from holdfast.cli.client import http
    from holdfast.cli.render.tables import keys
    from holdfast.model.gateway import Limits

    words = keys.words(http.read(_encoded(wanted), Limits))
    print(f"{scope}: {words or 'not limited'}")
    _, but, why = http.read(body, Done).done.partition(", but ")
    if but:  # a misspelt team, or a model that nobody serves
        print(f"note: {why}", file=sys.stderr)
    if api.server.is_gateway and (not scope.startswith("key:") or "/" in scope):
        print("this holds until the gateway starts anew: to keep it, write it in its file", file=sys.stderr)


@app.command("reset")
@talks_of_keys
def reset_limits(
    api: "Client",
    scope: Annotated[
        str,
        typer.Argument(
            metavar="SCOPE",
            help="As `holdfast limits list` shows it, or key:ID.",
            autocompletion=completion.scopes,
        ),
    ],
    json: Json = False,
) -> None:
    """Forget what was used of the limits of a scope. A budget is whole again; limits a minute owe nothing."""
    body = api.post(f"/v1/reset-limits/{quote(scope, safe=':/')}")
    if json:
        output.raw(body)
        return
    print(f"{scope}: what was used of it is forgotten")


def given_limits(**values: int | None) -> dict[str, int]:
    return {name: value for name, value in values.items() if value is not None}


def _encoded(wanted: dict[str, int]) -> bytes:
    import msgspec

    return msgspec.json.encode(wanted)
