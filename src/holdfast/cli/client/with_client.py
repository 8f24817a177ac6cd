"""Commands that talk to a control plane: they all take the same options, and fail in the same way."""

import functools
import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from holdfast.cli import output

if TYPE_CHECKING:
    from holdfast.cli.client.address import Server
    from holdfast.cli.client.http import Client

Url = Annotated[
    str, typer.Option("--url", metavar="URL", help="The control plane, or several (a,b); $HOLDFAST_URL.")
]
Token = Annotated[str, typer.Option("--token", metavar="TOKEN", help="Who we are; $HOLDFAST_TOKEN.")]
Ca = Annotated[
    str,
    typer.Option("--ca", metavar="FILE", help="Certificates that its own must be signed by; $HOLDFAST_CA."),
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Trust any certificate, and plain http.")]
Project = Annotated[
    str,
    typer.Option("--project", metavar="NAME", help="See and change only what is of it; $HOLDFAST_PROJECT."),
]
CONNECTION: dict[str, tuple[Any, object]] = {
    "url": (Url, ""),
    "token": (Token, ""),
    "ca": (Ca, ""),
    "insecure": (Insecure, False),
    "project": (Project, ""),
}


GATEWAY: dict[str, tuple[Any, object]] = {
    "gateway": (
        Annotated[
            str,
            typer.Option(
                "--gateway",
                metavar="URL",
                help="The admin address of a gateway that works alone.",
                show_default="the file `admin-url` of a gateway's folder here or above",
            ),
        ],
        "",
    )
}


def talks(command: Callable[..., None]) -> Callable[..., None]:
    """Gives the command a client as its first argument, and itself the options that say to whom."""
    return _talks(command, CONNECTION)


def talks_of_keys(command: Callable[..., None]) -> Callable[..., None]:
    """The same for what a gateway that works alone knows too."""
    return _talks(command, GATEWAY | CONNECTION)


def _talks(command: Callable[..., None], options: dict[str, tuple[Any, object]]) -> Callable[..., None]:
    inside = inspect.signature(command)
    own = list(inside.parameters.values())[1:]
    hints = get_type_hints(command, _LATER, include_extras=True)

    @functools.wraps(command)
    def with_client(**given: Any) -> None:
        to = {name: given.pop(name) for name in options}
        with_server(command, to, given)

    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
        for name, (hint, default) in options.items()
    ]
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[p.name]) for p in own]
    setattr(with_client, "__signature__", inside.replace(parameters=[*parameters, *shared]))  # noqa: B010
    with_client.__annotations__ = {p.name: p.annotation for p in [*parameters, *shared]}
    del with_client.__wrapped__
    return with_client


_LATER: dict[str, Any] = {"Client": object}


def _ask(command: Callable[..., None], api: "Client", given: dict[str, Any]) -> None:
    try:
        command(api, **given)
    finally:
        api.close()


def _ask_for_keys(command: Callable[..., None], server: "Server", given: dict[str, Any]) -> None:
    """Keys are a gateway's own or the control plane's: who was asked is said where nobody named them, and
    with whatever they refuse."""
    from holdfast.cli.client import http

    if server.because:
        print(f"asking {server.called}{server.because}", file=sys.stderr)
    try:
        _ask(command, http.Client(server), given)
    except http.Unanswered as error:
        if error.status:
            error.errors = [f"{text} (asked: {server.called})" for text in error.errors]
        raise


def _warned(server: "Server") -> "Server":
    from holdfast.cli.client import address

    for url in server.urls:
        if address.is_plain_http(url):
            print(f"warning: {url} is plain http: all in between can read the token", file=sys.stderr)
        elif server.insecure and not address.stays_here(url):
            print(f"warning: whoever answers at {url} gets the token: --insecure", file=sys.stderr)
    return server


def with_server(command: Callable[..., None], to: dict[str, Any], given: dict[str, Any]) -> None:
    from holdfast.cli.client import address, http

    try:
        if "gateway" in to:
            _ask_for_keys(command, _warned(address.keeper_of_keys(**to)), given)
        else:
            _ask(command, http.Client(_warned(address.server(**to))), given)
    except address.BadAddress as error:
        output.fail([str(error)], error.hint)
    except http.Unanswered as error:
        output.fail(
            error.errors, error.hint, output.BAD_INPUT if 400 <= error.status < 500 else output.FAILED
        )
