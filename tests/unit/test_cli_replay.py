"""`holdfast replay`: what it says of a journal that holds, of one that does not, and of none."""

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.adapters.stores import SqlStore, open_store
from holdfast.core.replay import Replay
from holdfast.core.state import fold, snapshot
from holdfast.core.turn import Entry
from holdfast.files.scenario import scenario_file as files
from holdfast.model import action as do
from holdfast.model.plan import Plan
from holdfast.model.world import World
from holdfast.ports.store import Snapshot
from holdfast.sim.run import Simulation

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    sim = Simulation(files.read(ROOT / "scenarios" / "one-node-dies.toml"))
    sim.run()
    return sim.store.entries


def keep(folder: Path, entries: Sequence[Entry], *, pruned_after: int = 0) -> None:
    """A journal of these, as a control plane writes it."""

    async def write() -> None:
        store, _ = await open_store(f"sqlite:///{folder / 'holdfast.db'}")
        try:
            generation = (await store.lead("cp", "http://cp", 10_000)).generation
            await store.append(generation, 0, tuple(entries))
            if pruned_after:
                await prune(store, generation, entries, pruned_after)
        finally:
            await store.close()

    folder.mkdir(exist_ok=True)
    asyncio.run(write())


async def prune(store: SqlStore, generation: int, entries: Sequence[Entry], after: int) -> None:
    for length in (after, len(entries)):
        world = World()
        for entry in entries[:length]:
            fold.apply(world, entry)
        await store.save(generation, Snapshot(length, snapshot.dump(world)))
    assert await store.prune(entries[-1].at + 1)


def replay(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast.cli.main", "replay", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr
    return done


def test_a_journal_is_decided_the_same_again_and_not_changed(tmp_path: Path, entries: list[Entry]) -> None:
    keep(tmp_path, entries)
    before = (tmp_path / "holdfast.db").read_bytes()
    done = replay("--dir", tmp_path)
    assert done.returncode == 0, done.stdout
    assert "all would be decided the same again" in done.stdout
    assert f"{len(entries)} entries" in done.stdout
    assert (tmp_path / "holdfast.db").read_bytes() == before


def test_what_would_be_decided_otherwise_is_told(tmp_path: Path, entries: list[Entry]) -> None:
    placed = next(
        number
        for number, entry in enumerate(entries)
        if isinstance(entry, Plan) and any(isinstance(action, do.PlaceReplica) for action in entry.actions)
    )
    plan = entries[placed]
    assert isinstance(plan, Plan)
    keep(tmp_path, [*entries[:placed], replace(plan, actions=plan.actions[:-1])])
    done = replay("--dir", tmp_path, "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["differences"] == 1
    (first,) = found["first"]
    assert first["entry"] == placed + 1
    assert first["then"] == []
    assert [type(plan.actions[-1]).__name__ in told for told in first["now"]] == [True]
    told = replay("--database", f"sqlite:///{tmp_path / 'holdfast.db'}").stdout
    assert f"#{placed + 1}" in told
    assert f"now   {first['now'][0]}" in told


def test_of_a_pruned_journal_what_is_left_is_decided_again(tmp_path: Path, entries: list[Entry]) -> None:
    after = len(entries) // 2
    keep(tmp_path, entries, pruned_after=after)
    done = replay("--dir", tmp_path, "--json")
    assert done.returncode == 0, done.stdout
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["entries"], found["differences"]) == (len(entries), 0)
    assert found["looks"] == sum(isinstance(entry, Plan) for entry in entries[after:])


def test_a_snapshot_in_the_middle_of_what_one_thing_led_to_is_begun_from_as_well(
    entries: list[Entry],
) -> None:
    acted = [n for n, entry in enumerate(entries, 1) if isinstance(entry, Plan) and entry.actions]
    for length in acted:
        world = World()
        for entry in entries[:length]:
            fold.apply(world, entry)
        again = Replay(snapshot.load(snapshot.dump(world)), length)
        again.begin(entries[length - 1].at)
        assert [found for entry in entries[length:] if (found := again.feed(entry))] == []


def test_a_damaged_snapshot_costs_what_lies_before_the_next(tmp_path: Path, entries: list[Entry]) -> None:
    keep(tmp_path, entries, pruned_after=len(entries) // 2)
    with sqlite3.connect(tmp_path / "holdfast.db") as raw:
        raw.execute("update snapshots set body = x'00' where length = (select min(length) from snapshots)")
    raw.close()
    done = replay("--dir", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["looks"] == 0, "the newest is of the last entry"


def test_what_has_no_journal_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "holdfast.db").touch()
    done = replay("--dir", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: the journal cannot be read: there is no journal in it\nhint: ")


@pytest.mark.parametrize("words", [["--dir", "nowhere"], ["--database", "sqlite:///nowhere.db"]])
def test_where_there_is_no_journal_none_is_made(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = replay(*words)
    assert done.returncode in (1, 2)
    assert done.stderr.startswith("error: ")
    assert "hint: " in done.stderr
    assert list(tmp_path.iterdir()) == []
