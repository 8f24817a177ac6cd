"""`holdfast gateway`: the way in for those who ask for models."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import say


def gateway(
    config: Annotated[
        Path, typer.Option("--config", "-c", metavar="FILE", help="What it leads to: gateway.yaml.")
    ] = Path("gateway.yaml"),
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
    check: Annotated[
        bool, typer.Option("--check", help="Only read the file, and say what is wrong.")
    ] = False,
    log_json: Annotated[
        bool | None, typer.Option("--log-json/--log-text", help="JSON unless on a terminal.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the URLs as JSON when it serves.")] = False,
) -> None:
    """Run a gateway until SIGINT or SIGTERM; requests that run then may end."""
    import asyncio
    import sys

    import msgspec

    from holdfast import wiring
    from holdfast.cli import log_lines
    from holdfast.files import gateway as files
    from holdfast.files.problem import FileProblem
    from holdfast.gateway.serve import gateway as serving_of

    try:
        wanted = files.read(config, dir.absolute())
    except FileProblem as problem:
        say.fail(problem.lines(), "docs/reference/gateway-file.md")
    given = {"port": port, "admin_port": admin_port, "workers": workers}
    wanted = msgspec.structs.replace(
        wanted, **{name: value for name, value in given.items() if value is not None}
    )
    if check:
        print(f"{config} is good: {len(wanted.services)} services, {len(wanted.keys)} keys")
        return
    log_lines.set_up(json=log_json)

    async def work(stop: asyncio.Event) -> None:
        async with serving_of(wanted) as serving:
            if json:
                say.as_json({"url": serving.url, "admin_url": serving.admin_url})
            else:
                print(f"gateway  {serving.url}/v1\nadmin    {serving.admin_url}", file=sys.stderr)
            await stop.wait()

    with _told(dir):
        wiring.run(work)


@contextmanager
def _told(dir: Path) -> Iterator[None]:
    """Why it cannot run, for a person."""
    from holdfast.gateway.keeper import CannotListen, CannotStart
    from holdfast.gateway.keyring import Damaged

    try:
        yield
    except CannotListen as error:
        say.fail([str(error)], error.hint)
    except CannotStart as error:
        say.fail([str(error)], "they say above why", say.FAILED)
    except Damaged as error:
        say.fail([str(error)], "put it back from a copy, or move it away to begin without it", say.FAILED)
    except OSError as error:
        say.fail([f"{dir} cannot be used: {error.strerror}"], "give another --dir", say.FAILED)
