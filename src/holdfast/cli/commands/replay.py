"""`holdfast replay`: decide again what a journal says was decided, and tell what would differ."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import output
from holdfast.cli.commands.serve import Database, Dir
from holdfast.cli.options import Json

if TYPE_CHECKING:
    from holdfast.adapters.stores import SqlStore
    from holdfast.core.replay import Difference, Replay
    from holdfast.model.action import Action

BATCH = 5_000  # entries read at once


def replay(
    dir: Dir = Path(".holdfast"),
    database: Database = "",
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=0, help="Tell at most N of them.")] = 10,
    json: Json = False,
) -> None:
    """Decide again what a journal says was decided.

    With this version of holdfast, by the journal of a control plane, of which nothing is changed. Tells what
    would differ; exit 1 if anything does."""
    import asyncio

    from holdfast.ports.errors import PortError

    file = dir / "holdfast.db"
    if not database and not file.exists():
        output.fail([f"there is no journal in {dir}"], "name another folder with --dir, or a --database")
    try:
        done, found = asyncio.run(_replay(database or f"sqlite:///{file}"))
    except PortError as error:
        output.fail([f"the journal cannot be read: {error}"], "look at --database", output.FAILED)
    if json:
        output.as_json(_summary(done, found, limit))
    else:
        _print(done, found, limit)
    if found:
        raise typer.Exit(output.FAILED)


async def _replay(url: str) -> "tuple[Replay, list[Difference]]":
    from holdfast.adapters.stores import read_store
    from holdfast.cli.render.progress import progress

    store = await read_store(url)
    try:
        done = await _beginning(store)
        found: list[Difference] = []
        total = await store.length()
        with progress(lambda: done.entry, total, "entries"):
            while entries := await store.read(done.entry, BATCH):
                found += filter(None, map(done.feed, entries))
        return done, found
    finally:
        await store.close()


async def _beginning(store: "SqlStore") -> "Replay":
    """All of it, or what is left since the oldest snapshot."""
    from holdfast.adapters.stores.store import Pruned
    from holdfast.core.replay import Replay
    from holdfast.core.state import snapshot
    from holdfast.model.world import World

    try:
        await store.read(0, 1)
    except Pruned:
        found = None
        before = 0
        while (each := await store.latest(before)) is not None and each.length:
            before = each.length
            with contextlib.suppress(snapshot.UnknownSnapshot):  # damaged: the journal goes back beyond it
                found = Replay(snapshot.load(each.body), each.length)
        if found is None:
            raise
        for last in await store.read(found.entry - 1, 1):
            found.begin(last.at)
        return found
    return Replay(World())


def _summary(done: "Replay", found: "list[Difference]", limit: int) -> dict[str, object]:
    return {
        "entries": done.entry,
        "from": done.began_at,
        "until": done.at,
        "looks": done.looks,
        "actions": done.actions,
        "differences": len(found),
        "first": [
            {
                "entry": each.entry,
                "at": each.at,
                "then": [_told(action) for action in each.only_then],
                "now": [_told(action) for action in each.only_now],
            }
            for each in found[:limit]
        ],
    }


def _print(done: "Replay", found: "list[Difference]", limit: int) -> None:
    from holdfast.cli.render import theme
    from holdfast.model.units import many, seconds

    over = f"{done.entry:,} entries over {seconds(done.at - done.began_at)}"
    said = f"{over}: {many(done.looks, 'look')}, {many(done.actions, 'action')}"
    if not found:
        print(f"{said}, and all would be decided the same again")
        return
    print(f"{said}, and {many(len(found), 'look')} would end otherwise")
    for each in found[:limit]:
        print(f"\n#{each.entry}  {theme.clock(each.at)}")
        for action in each.only_then:
            print(f"  then  {_told(action)}")
        for action in each.only_now:
            print(f"  now   {_told(action)}")
        if not (each.only_then or each.only_now):
            print("  the same in another order, or something else is held back")
    if len(found) > limit:
        print(f"\nand {len(found) - limit} more: --limit {len(found)}")


def _told(action: "Action") -> str:
    from holdfast.core.explain.history import say_action

    return "  ".join(say_action(action, action.why))
