"""`holdfast login`: lets this machine talk to a control plane on another.

What the commands need is put where they look for it: the address, the token, and the certificate of the
fleet's own authority if it has one. The token is taken from a prompt or from a pipe, for a command line is
read by other users and kept in a history. Nothing is written before the control plane has answered.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import output

if TYPE_CHECKING:
    from holdfast.cli.client.address import Server

PROMPT = "token: "


def login(
    url: Annotated[str, typer.Argument(metavar="URL", help="Of the control plane, or of several (a,b).")],
    ca_pin: Annotated[
        str,
        typer.Option("--ca-pin", metavar="sha256:HEX", help="Of its own authority; most tokens carry it."),
    ] = "",
    ca: Annotated[
        str, typer.Option("--ca", metavar="FILE", help="Certificates that its own must be signed by.")
    ] = "",
    dir: Annotated[
        Path,
        typer.Option(
            "--dir",
            metavar="DIR",
            help="Where it is kept; in another place, commands below its parent find it.",
        ),
    ] = Path("~/.holdfast"),
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Plain http, also to another machine.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
) -> None:
    """Remember a control plane on another machine. Its address, a token, and the authority to trust are kept.
    The token is read from $HOLDFAST_TOKEN, a pipe or a prompt."""
    from holdfast.cli.client import address
    from holdfast.cli.client.http import Unanswered

    folder = dir.expanduser()
    if (folder / "holdfast.db").exists():
        output.fail([f"a control plane keeps its own files in {folder}"], "give another --dir")
    try:
        secret, authority = _given(url, ca_pin, ca, insecure=insecure)
        server = address.server(url, secret, ca, insecure, environment={}, folder=Path("/"))
        role = _checked(server, authority)
        _keep(folder, server, authority)
    except address.BadAddress as error:
        output.fail([str(error)], error.hint)
    except Unanswered as error:
        output.fail(
            error.errors, error.hint, output.BAD_INPUT if 400 <= error.status < 500 else output.FAILED
        )
    except OSError as error:
        output.fail([f"{folder} cannot be used: {error.strerror}"], "give another --dir", output.FAILED)
    if json:
        output.as_json({"url": server.urls[0], "dir": str(folder), "trusts": bool(authority)})
    else:
        print(f"{folder} remembers {', '.join(server.urls)}{role}")


def _given(url: str, ca_pin: str, ca: str, *, insecure: bool) -> tuple[str, str]:
    """The secret, and the certificate of the fleet's authority; empty: --ca, or those of the system."""
    from holdfast.cli.client.http import Unanswered
    from holdfast.wire import pin

    token = _token()
    if pin.is_damaged(token):
        raise Unanswered(["the token is not whole: what is behind its dot is no pin"], "copy all of it", 400)
    secret, carried = pin.split(token)
    try:
        wanted = pin.read_pin(ca_pin) if ca_pin else carried
    except ValueError as error:
        raise Unanswered([f"--ca-pin: {error}"], "holdfast token create says it", 400) from None
    return secret, _fetched(url, wanted, insecure=insecure) if wanted and not ca else ""


def _token() -> str:
    if found := os.environ.get("HOLDFAST_TOKEN", ""):
        return found
    if sys.stdin.isatty():
        import getpass

        return getpass.getpass(PROMPT)
    return sys.stdin.readline()


def _fetched(url: str, wanted: str, *, insecure: bool) -> str:
    from holdfast.cli.client import address
    from holdfast.cli.client.http import Client

    server = address.server(url, insecure=insecure, environment={}, folder=Path("/"))
    return Client(server._replace(pin=wanted)).authority()


def _checked(server: "Server", authority: str) -> str:
    """What it answers, in words. A token of a role that reads nothing is a good one too."""
    import tempfile

    from holdfast.cli.client.http import Client, Unanswered

    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(authority)
        file.flush()
        api = Client(server._replace(authority=file.name if authority else ""))
        try:
            api.get("/v1/status")
        except Unanswered as error:
            if error.status not in (403, 503):
                raise
            return ": a token that reads nothing" if error.status == 403 else ""
        finally:
            api.close()
    return ""


def _keep(folder: Path, server: "Server", authority: str) -> None:
    from holdfast.cli.client.address import AUTHORITY, GIVEN
    from holdfast.ports import private_folder

    private_folder.close_to_others((folder / AUTHORITY).parent)
    private_folder.close_to_others(folder)
    given = Path(server.ca).read_text(encoding="utf-8") if server.ca else ""
    files = {AUTHORITY: authority, GIVEN: given, "token": server.token, "url": ",".join(server.urls)}
    for name, text in files.items():
        path = folder / name
        if not text:
            path.unlink(missing_ok=True)
            continue
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(text.rstrip("\n") + "\n")
