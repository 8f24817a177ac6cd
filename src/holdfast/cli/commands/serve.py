"""`holdfast serve`: a control plane. Several may run on one database; one of them leads."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import completion, output

Dir = Annotated[
    Path, typer.Option("--dir", metavar="DIR", envvar="HOLDFAST_DIR", help="Where its files are kept.")
]
Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where to listen.")]
Name = Annotated[
    str,
    typer.Option(
        "--name",
        metavar="NAME",
        show_default="that of --url, or HOST:PORT",
        help="Of this control plane; unique.",
    ),
]
Url = Annotated[
    str, typer.Option("--url", metavar="URL", help="Where agents and other control planes reach it.")
]
TlsCert = Annotated[Path | None, typer.Option("--tls-cert", metavar="FILE", help="Certificate chain (PEM).")]
TlsKey = Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="Its key (PEM).")]
OwnCa = Annotated[
    bool,
    typer.Option(
        "--own-ca", help="TLS by an authority of its own, as it is beyond this machine without --tls-cert."
    ),
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Listen beyond this machine without TLS.")]
Database = Annotated[
    str,
    typer.Option(
        "--database",
        metavar="URL",
        envvar="HOLDFAST_DATABASE",
        show_default="SQLite in --dir",
        help="sqlite:///FILE or postgresql://USER@HOST/NAME.",
    ),
]
Port = Annotated[int, typer.Option("--port", metavar="N", min=0, max=65535, help="0: any that is free.")]
NewFleet = Annotated[bool, typer.Option("--new-fleet", help="Begin another fleet in a --dir that had one.")]
NewToken = Annotated[
    bool,
    typer.Option("--new-token", help="Put another admin token into DIR/token; the first ends. It was lost."),
]
AllowLocal = Annotated[
    bool,
    typer.Option(
        "--allow-local",
        help="Let pools have nodes on this machine. What runs there can read all that this user can.",
    ),
]
LogJson = Annotated[bool | None, typer.Option("--log-json/--log-text", help="JSON unless on a terminal.")]
Json = Annotated[bool, typer.Option("--json", help="Print the URL as JSON when it serves.")]
ProviderProfiles = Annotated[
    Path | None,
    typer.Option(
        "--provider-profiles",
        metavar="FILE",
        show_default="DIR/providers.yaml",
        help="Which programs, files and accounts of this machine pools may use; read again when it changes.",
    ),
]
InheritEnv = Annotated[
    list[str] | None,
    typer.Option(
        "--inherit-env",
        metavar="NAME",
        autocompletion=completion.variables,
        help="A variable that local nodes and what runs there find besides the usual ones; repeatable.",
    ),
]
LeaderTimeout = Annotated[
    float,
    typer.Option(
        "--leader-timeout",
        metavar="SECONDS",
        min=2,
        max=60,
        help="Another leads when the leader was not heard for this long. The same for all of a database;"
        " longer where that is slow.",
    ),
]

TokenRate = Annotated[
    float,
    typer.Option(
        "--token-rate",
        metavar="N",
        min=1,
        max=100_000,
        help="Rate limit: requests a second of one token; of a gateway's, ten times as many.",
    ),
]
TokenStreams = Annotated[
    int,
    typer.Option("--token-streams", metavar="N", min=1, max=192, help="Open streams of one token."),
]


def serve(
    host: Host = "127.0.0.1",
    port: Port = 7700,
    dir: Dir = Path(".holdfast"),
    database: Database = "",
    name: Name = "",
    url: Url = "",
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    own_ca: OwnCa = False,
    insecure: Insecure = False,
    provider_profiles: ProviderProfiles = None,
    allow_local: AllowLocal = False,
    inherit_env: InheritEnv = None,
    leader_timeout: LeaderTimeout = 3,
    token_rate: TokenRate = 100,
    token_streams: TokenStreams = 32,
    new_fleet: NewFleet = False,
    new_token: NewToken = False,
    log_json: LogJson = None,
    json: Json = False,
) -> None:
    """Run a control plane until SIGINT or SIGTERM. Workloads go on without it. It answers nobody without a
    token; the first one is put into DIR/token, where other commands find it."""
    import asyncio

    from holdfast import wiring
    from holdfast.api.token_limits import TokenLimits
    from holdfast.cli import log_lines

    log_lines.set_up(json=log_json)
    settings = wiring.Settings(
        state=dir.absolute(),
        host=host,
        port=port,
        name=name,
        url=url,
        database=database,
        certificate=tls_cert,
        key=tls_key,
        own_ca=own_ca,
        insecure=insecure,
        new_fleet=new_fleet,
        new_token=new_token,
        leader_ttl_ms=round(leader_timeout * 1000),
        limits=TokenLimits(token_rate, token_streams),
        provider_profiles=provider_profiles,
        allow_local=allow_local,
        inherit_env=names_of(inherit_env),
    )

    async def work(stop: asyncio.Event) -> None:
        async with wiring.control_plane(settings) as plane:
            if json:
                output.as_json({"url": plane.url, "name": plane.name})
            await stop.wait()

    run(work)


def names_of(variables: list[str] | None) -> tuple[str, ...]:
    from holdfast.adapters.providers.inherited import may_be_inherited

    for name in variables or ():
        if not may_be_inherited(name):
            output.fail(
                [f"--inherit-env: {name} is no variable to pass on"], "a name, not HOLDFAST_... and without ="
            )
    return tuple(variables or ())


def run(work: object, hurry: object = None) -> None:
    """Runs a server; what keeps it from starting is an error with a hint."""
    from holdfast import wiring
    from holdfast.ports.errors import PortError

    try:
        wiring.run(work, hurry)  # type: ignore[arg-type]
    except wiring.CannotStart as error:
        output.fail([str(error)], error.hint)
    except PortError as error:
        hint = "look at --database; without it, the database is in --dir"
        output.fail([f"the database cannot be used: {error}"], hint, output.FAILED)
