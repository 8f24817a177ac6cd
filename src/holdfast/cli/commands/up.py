"""`holdfast up`: a control plane and a few local nodes, in one process tree that ends with Ctrl-C; and so do
nodes of other pools that it launched."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from holdfast.cli import output
from holdfast.cli.commands.serve import (
    Dir,
    InheritEnv,
    LeaderTimeout,
    NewFleet,
    Port,
    ProviderProfiles,
    names_of,
    run,
)

if TYPE_CHECKING:
    import asyncio

    from holdfast.control.plane import Plane
    from holdfast.model.pool import Pool
    from holdfast.model.told import Told

TRY = ("holdfast apply examples/web.yaml", "holdfast status", "holdfast chaos kill NODE")


def up(
    nodes: Annotated[int, typer.Option("--nodes", metavar="N", min=1, max=100, help="Local nodes.")] = 3,
    cpus: Annotated[float, typer.Option("--cpus", metavar="N", min=0.1, help="Each pretends to have.")] = 4,
    memory: Annotated[str, typer.Option("--memory", metavar="SIZE", help="Each pretends to have.")] = "4GiB",
    port: Port = 7700,
    dir: Dir = Path(".holdfast"),
    provider_profiles: ProviderProfiles = None,
    inherit_env: InheritEnv = None,
    new_fleet: NewFleet = False,
    leader_timeout: LeaderTimeout = 3,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not tell what happens.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON line when it is ready.")] = False,
) -> None:
    """Keep a small fleet on this machine. Try everything on it, kill its nodes, see what happens. Ctrl-C ends
    all that it launched, also machines of pools that were applied to it, within two minutes; a second one
    does not wait for them. A closed terminal and SIGTERM do the same. What could not be ended is named, and
    is found again by the next start with the same --dir. For machines that are to outlive the control plane
    there is `holdfast serve`."""
    import asyncio
    from functools import partial

    from holdfast import wiring
    from holdfast.cli import log_lines
    from holdfast.control.leaving import Leaving

    log_lines.quiet()
    local, leaving = pool(nodes, cpus, memory), Leaving(partial(_say, err=json))
    settings = wiring.Settings(
        state=dir.absolute(),
        port=port,
        pools=(local,),
        leaving=leaving,
        new_fleet=new_fleet,
        provider_profiles=provider_profiles,
        allow_local=True,
        inherit_env=names_of(inherit_env),
        leader_ttl_ms=round(leader_timeout * 1000),
    )

    async def work(stop: asyncio.Event) -> None:
        with wiring.only_one(settings.state):
            async with wiring.control_plane(settings) as plane, asyncio.TaskGroup() as group:
                telling = group.create_task(_talk(plane, local, stop, quiet=quiet or json, json=json))
                await stop.wait()
                telling.cancel()
                if not json:
                    _say("\nstopping: nodes and what runs on them end too")
        if not json:
            _say("stopped")

    run(work, leaving.hurry)
    if leaving.left:
        lines = [f"{node} could not be ended: {why}" for node, why in leaving.left.items()]
        output.fail(lines, f"holdfast up --dir {dir} finds it again; or end it where it runs", output.FAILED)


def _say(text: str, *, err: bool = False) -> None:
    """Also when nobody reads any more, the terminal is gone or the disk is full: what is to be ended is."""
    import sys

    file = sys.stderr if err else sys.stdout
    try:
        print(text, file=file, flush=True)
    except OSError:
        _to_nobody(file)


def _to_nobody(file: TextIO) -> None:
    """What is left in it would be written when Python ends, and fail once more."""
    import os

    nobody = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nobody, file.fileno())
    os.close(nobody)


def pool(nodes: int, cpus: float, memory: str) -> "Pool":
    """Three zones in turn, and room for replacements while dead nodes are cleared away."""
    from holdfast.files.values import MEMORY
    from holdfast.model.place import Place
    from holdfast.model.pool import Offer, Pool
    from holdfast.model.resources import Resources

    try:
        mib = MEMORY.read(memory)
    except ValueError:
        output.fail([f"--memory: expected {MEMORY.expected}, got {memory}"], f"--memory {MEMORY.example}")
    assert isinstance(mib, int)
    capacity = Resources(round(cpus * 1000), mib)
    offers = tuple(Offer(f"zone-{zone}", Place("local", "here", zone), capacity) for zone in "abc")
    return Pool("local", "local", offers, min=nodes, max=2 * nodes + 2)


async def _talk(plane: "Plane", local: "Pool", stop: "asyncio.Event", *, quiet: bool, json: bool) -> None:
    """`| head` has seen enough, or the terminal is gone: then we end as with Ctrl-C, and leave nothing."""
    import sys

    try:
        await _tell(plane, local, quiet=quiet, json=json)
    except OSError:
        _to_nobody(sys.stdout)
        stop.set()


async def _tell(plane: "Plane", local: "Pool", *, quiet: bool, json: bool) -> None:
    """Says when it is ready, then what happens."""
    import asyncio

    from holdfast.cli.render import theme
    from holdfast.ports.errors import PortError

    while sum(node.joined_at > 0 for node in plane.world.nodes.values()) < local.min:
        await asyncio.sleep(0.02)
    names = sorted(plane.world.nodes, key=theme.natural)
    if json:
        output.as_json({"url": plane.url, "nodes": names})
    else:
        print(theme.hanging("", f"serving {plane.url} with nodes {', '.join(names)}", theme.width()))
        print("try: " + "\n     ".join([*way_in(), *TRY]), flush=True)
    seen, last = plane.length, dict[str, str]()
    while True:
        length = await plane.wait_for(seen, 10)
        if length > seen and not quiet:
            try:
                lines = await plane.store.history(since=seen, limit=1000)
            except PortError:  # told when the store answers again
                await asyncio.sleep(1)
                continue
            for told in lines:
                if news(told, last):
                    output.out(line(told, theme.width()), flush=True)
        seen = max(seen, length)


def news(told: "Told", last: dict[str, str]) -> bool:
    """What is asked again and answered again in the same words is told once."""
    key = f"{told.subject} {told.text.split()[0]}"
    repeated = last.get(key) == told.text
    last[key] = told.text
    return not repeated


def line(told: "Told", width: int) -> str:
    from datetime import datetime

    from holdfast.cli.render import theme

    clock = datetime.fromtimestamp(told.at / 1000).strftime("%H:%M:%S.%f")[:-4]
    return theme.hanging(f"{clock}  {told.kind:<8} {told.subject:<12} ", told.text, width)


def way_in() -> list[str]:
    """`make up` runs it from an environment that the reader's next shell is not in."""
    import shutil
    import sys

    script = Path(sys.executable).parent / "activate"
    if shutil.which("holdfast") or not script.exists():
        return []
    here = Path.cwd()
    return [f". {script.relative_to(here) if script.is_relative_to(here) else script}"]
