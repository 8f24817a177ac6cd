"""`holdfast gateway`: the way in for those who ask for models."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import output

if TYPE_CHECKING:
    from holdfast.gateway.behind import Behind
    from holdfast.gateway.settings import Gateway

FILE = Path("gateway.yaml")
COMPILE = "python -m holdfast.gateway.compile"
TRY = "--config examples/gateway.yaml, or --control http://127.0.0.1:7700 to follow a control plane"


def gateway(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help="What it leads to; gateway.yaml if alone."),
    ] = None,
    control: Annotated[
        str,
        typer.Option("--control", metavar="URL", help="The control plane to follow; several with commas."),
    ] = "",
    token: Annotated[
        str, typer.Option("--token", metavar="TOKEN", help="Of the role gateway, or $HOLDFAST_TOKEN.")
    ] = "",
    token_file: Annotated[
        Path | None, typer.Option("--token-file", metavar="FILE", help="A file with it.")
    ] = None,
    ca: Annotated[
        str, typer.Option("--ca", metavar="FILE", help="Who vouches for the control plane (PEM).")
    ] = "",
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="What the control plane calls it; machine:port.")
    ] = "",
    dir: Annotated[
        Path,
        typer.Option("--dir", metavar="DIR", envvar="HOLDFAST_GATEWAY_DIR", help="Where its files are kept."),
    ] = Path(".holdfast-gateway"),
    port: Annotated[
        int | None,
        typer.Option("--port", metavar="N", min=0, max=65535, help="Instead of the file's; 0: any."),
    ] = None,
    admin_port: Annotated[
        int | None,
        typer.Option("--admin-port", metavar="N", min=0, max=65535, help="The same for the second."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", min=1, max=256, help="Instead of the file's.")
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", help="Plain http beyond this machine: to be reached by, and to follow --control."
        ),
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only read the file, and say what is wrong.")
    ] = False,
    log_json: Annotated[
        bool | None, typer.Option("--log-json/--log-text", help="JSON unless on a terminal.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the URLs as JSON when it serves.")] = False,
) -> None:
    """Run a gateway until SIGINT or SIGTERM."""
    import msgspec

    behind = _behind(control, _read(token, token_file), ca, name, insecure=insecure)
    wanted = _settings(config, dir.absolute(), alone=behind is None)
    given = {"port": port, "admin_port": admin_port, "workers": workers}
    wanted = msgspec.structs.replace(
        wanted, **{field: value for field, value in given.items() if value is not None}
    )
    if insecure:
        wanted = msgspec.structs.replace(wanted, insecure=True)
    if check:
        _check_exposed(config or FILE, wanted)
        _say_good(config if behind is not None else config or FILE, wanted, json=json)
        return
    _serve(wanted, behind, log_json=log_json, json=json)


def _check_exposed(file: Path, wanted: "Gateway") -> None:
    from holdfast.gateway.exposed import exposed

    found = list(exposed(wanted))
    if found:
        output.fail([f"{file}: {field}: {text}" for field, text, _ in found], found[0][2])


def _say_good(file: Path | None, wanted: "Gateway", *, json: bool) -> None:
    services, keys = len(wanted.services), len(wanted.keys)
    if json:
        output.as_json({"good": True, "file": str(file or ""), "services": services, "keys": keys})
    elif file is None:
        print("no file is given, so there is nothing to check: all comes from the control plane")
    else:
        found = f"{services} service{'s' * (services != 1)}, {keys} key{'s' * (keys != 1)}"
        print(f"{file} is good: {found}")


def _settings(config: Path | None, state: Path, *, alone: bool) -> "Gateway":
    from holdfast.files.gateway import gateway_file as files
    from holdfast.files.problem import FileProblem

    if config is None and not alone:
        return files.bare(state)
    if config is None and not FILE.exists():
        output.fail([f"expected a file with --config, or --control, got neither, and no {FILE} is here"], TRY)
    try:
        wanted = files.read(config or FILE, state, alone=alone)
    except FileProblem as problem:
        output.fail(problem.lines(), "docs/reference/gateway-file.md")
    _warn_of_readers(config or FILE, wanted)
    if not alone and (wanted.keys or wanted.limits):
        wrong = f"{config}: expected no keys and no limits, for these are the control plane's, got some"
        output.fail([wrong], "leave them out, and make them there")
    return wanted


def _warn_of_readers(file: Path, wanted: "Gateway") -> None:
    """A file without credentials may be anybody's to read, and one with them is often mounted as it is: so a
    warning, where a file that is nothing but a secret is refused."""
    from holdfast.ports import secret_file

    text = file.read_text(encoding="utf-8", errors="replace")
    sent = {upstream.credential for service in wanted.services for upstream in service.upstreams}
    if not any(each in text for each in sent if each):
        return
    try:
        secret_file.check(file)
    except secret_file.Exposed as error:
        output.note(f"warning: {error}, and there are credentials in it")
        output.note(f"hint: chmod 600 {file}, or credential: env:NAME")


def _serve(wanted: "Gateway", behind: "Behind | None", *, log_json: bool | None, json: bool) -> None:
    """Requests that run at the end may end, unless somebody is in a hurry."""
    import asyncio
    import sys

    from holdfast import wiring
    from holdfast.cli import log_lines
    from holdfast.gateway import native
    from holdfast.gateway.keeper import CLOSE_WITHIN_S
    from holdfast.gateway.serve import gateway as serving_of

    log_lines.set_up(json=log_json)
    hurry = asyncio.Event()

    async def work(stop: asyncio.Event) -> None:
        with wiring.only_one(wanted.state, "gateway"):
            await serve(stop)

    async def serve(stop: asyncio.Event) -> None:
        async with serving_of(wanted, behind, stop, hurry) as serving:
            if json:
                found = {"url": serving.url, "admin_url": serving.admin_url, "compiled": native.is_there()}
                output.as_json(found)
            else:
                how = "compiled" if native.is_there() else f"interpreted: {COMPILE} makes them quicker"
                print(f"gateway  {serving.url}/v1\nadmin    {serving.admin_url}", file=sys.stderr)
                print(f"workers  {len(serving.keeper.seats)}, {how}", file=sys.stderr)
            await stop.wait()
            if running := serving.keeper.in_flight:
                what = "1 request runs" if running == 1 else f"{running} requests run"
                how = f"and may end, for up to {CLOSE_WITHIN_S:.0f} s; Ctrl-C again ends it now"
                print(f"ending: {what} {how}", file=sys.stderr)

    with _told(wanted.state):
        wiring.run(work, hurry)


@contextmanager
def _told(state: Path) -> Iterator[None]:
    """Why it cannot run, for a person."""
    from holdfast import wiring
    from holdfast.gateway.keeper import CannotListen, CannotStart
    from holdfast.gateway.keyring import Damaged
    from holdfast.gateway.plane import Denied
    from holdfast.gateway.watch import Stopped

    try:
        yield
    except Stopped:
        return
    except wiring.CannotStart as error:
        output.fail([str(error)], error.hint)
    except CannotListen as error:
        output.fail([str(error)], error.hint)
    except CannotStart as error:
        output.fail([str(error)], "they say above why", output.FAILED)
    except Damaged as error:
        output.fail(
            [str(error)], "put it back from a copy, or move it away to begin without it", output.FAILED
        )
    except Denied as error:
        output.fail([str(error)], error.hint)
    except OSError as error:
        output.fail([f"{state} cannot be used: {error.strerror}"], "give another --dir", output.FAILED)


def _behind(control: str, token: str, ca: str, name: str, *, insecure: bool) -> "Behind | None":
    import ssl

    from holdfast.cli.client.address import (
        BadAddress,
        BadToken,
        PlainHttp,
        server,
    )
    from holdfast.gateway.behind import Behind

    if not control:
        return None
    try:
        found = server(control, token, ca, insecure)
    except BadToken as error:
        output.fail([str(error)], error.hint)
    except BadAddress as error:
        hint = error.hint if isinstance(error, PlainHttp) else "--control http://127.0.0.1:7700"
        output.fail([f"--control: {error}"], hint)
    try:
        ssl.create_default_context(cafile=found.ca or None)
    except OSError as error:
        output.fail([f"--ca {found.ca}: expected certificates, got: {error.strerror or error}"], "--ca FILE")
    return Behind(found.urls, found.token, found.ca, name, found.authority, found.pin)


def _read(token: str, file: Path | None) -> str:
    from holdfast.ports import secret_file

    if file is None:
        return token
    if token:
        output.fail(["--token and --token-file say the same thing twice"], "give one of them")
    try:
        return secret_file.read(file)
    except secret_file.Exposed as error:
        output.fail([f"--token-file: {error}"], error.hint)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        output.fail([f"--token-file: {file} cannot be read: {why}"], "look at --token-file")
