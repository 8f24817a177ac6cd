"""A world read back is the world that was written: its entries, its indexes, their order, its future.

The worlds are those of random walks and of the stories in `scenarios`, cut off anywhere.
"""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.core import check
from holdfast.core.market import offers
from holdfast.core.state import fold
from holdfast.core.state.snapshot import dump, load
from holdfast.files.scenario import scenario_file as files
from holdfast.model.event import Event
from holdfast.model.plan import Plan
from holdfast.model.world import World
from holdfast.sim.run import Simulation
from tests.property.test_core_properties import WHOLE, WORKLOADS, Walk, numbers

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"
STORIES = (
    "gang-with-a-standby",
    "priorities-and-preemption",
    "thundering-return",
    "drain-and-rolling-update",
    "gray-node",
    "a-pipeline",
)
Journal = Sequence[Event | Plan]


def everything(world: World) -> dict[str, object]:
    """All there is in the world, in its order; but what is only noted for a look, and names of the gone."""
    seen: dict[str, object] = {}
    for name, value in vars(world).items():
        if name in ("joined_in", "dead_in", "serving"):
            seen[name] = {key: count for key, count in value.items() if count not in (0, (0, 0))}
        elif name not in ("room", "market", "agenda"):
            seen[name] = _plain(value)
    room, rows = world.room, sorted(world.room.row.values())
    for column in (*room.CHANGING, *room.FIXED):
        seen[f"room.{column}"] = getattr(room, column)[rows].tolist()
    for name in room.SUMS:
        sums = zip(room.kinds.value, getattr(room, name), strict=False)
        seen[f"room.{name}"] = {kind: milli for kind, milli in sums if milli}
    for level in room.domain:
        seen[f"room.{level}"] = room.domain[level][rows].tolist()
    numbered = (room.kinds, room.label_sets, room.taint_sets, *room.domains.values())
    seen["room.names"] = [(list(each.number.items()), each.value) for each in numbered]
    seen["room.rows"] = (room.row, room.ids, room.unused)
    seen["due"] = world.agenda.due
    table = offers.listed(world)
    seen["market"] = (list(table.row.items()), list(table.offers.items()), table.log_weights.tolist())
    columns = [*table.floats.values(), *(table.ints[name] for name in ("price", "at", "retry_at"))]
    seen["market.columns"] = [column.tolist() for column in columns]
    return seen


def _plain(value: object) -> object:
    if not isinstance(value, dict):
        return value
    if all(isinstance(inner, dict) for inner in value.values()):  # an index of ordered sets
        return {key: list(names) for key, names in value.items() if names}
    return list(value.items())


def assert_same(one: dict[str, object], other: dict[str, object]) -> None:
    assert {name: (one[name], other[name]) for name in other if one[name] != other[name]} == {}


def folded(journal: Journal, world: World | None = None) -> World:
    world = world or World()
    for entry in journal:
        fold.apply(world, entry)
    return world


def assert_read_back(world: World) -> None:
    body = dump(world)
    before, again = everything(world), load(body)
    assert_same(everything(again), before)
    assert dump(again) == body
    assert check.inconsistencies(again) == []
    assert everything(world) == before


def assert_goes_on_as_the_whole(journal: Journal, cut: int) -> None:
    whole = folded(journal)
    again = folded(journal[cut:], load(dump(folded(journal[:cut]))))
    assert_same(everything(again), everything(whole))
    assert check.inconsistencies(again) == []


@given(st.lists(st.tuples(numbers, numbers, numbers), max_size=40), st.floats(0, 1))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_happened_the_world_is_read_back_and_goes_on(
    steps: list[tuple[int, int, int]], share: float
) -> None:
    walk = Walk()
    for step in steps:
        walk.step(*step)
    assert_read_back(walk.world)
    assert_goes_on_as_the_whole(walk.play.journal, int(share * len(walk.play.journal)))


@pytest.mark.parametrize("seed", range(4))
def test_a_long_life_is_read_back_at_every_tenth_step(seed: int) -> None:
    dice = random.Random(seed)
    walk = Walk()
    for workload in WORKLOADS[seed % 2 :: 2]:
        walk.play.apply(workload)
    for number in range(200):
        walk.step(dice.randrange(WHOLE), dice.randrange(WHOLE), dice.randrange(WHOLE))
        if number % 10 == 0:
            assert_read_back(walk.world)
    for _ in range(5):
        assert_goes_on_as_the_whole(walk.play.journal, dice.randrange(len(walk.play.journal)))


@pytest.mark.parametrize("name", STORIES)
def test_a_story_goes_on_from_a_snapshot_as_from_its_beginning(name: str) -> None:
    sim = Simulation(files.read(SCENARIOS / f"{name}.toml"))
    sim.run()
    journal = sim.store.entries
    assert len(journal) > 20
    assert_read_back(folded(journal))
    for share in (0.1, 0.35, 0.6, 0.9):
        assert_goes_on_as_the_whole(journal, int(share * len(journal)))
