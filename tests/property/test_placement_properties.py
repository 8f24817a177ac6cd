"""What must hold wherever replicas are placed, whom they displace, and however they are moved."""

from collections import Counter
from collections.abc import Callable

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.disruption.rebalance import moves
from holdfast.core.placement.placement import (
    Ask,
    Spot,
    place,
    why_not,
)
from holdfast.core.placement.preempt import victims
from holdfast.model.node import Node
from holdfast.model.place import Level
from holdfast.model.policy import BalancePolicy, Policy
from holdfast.model.resources import GPU, Resources
from holdfast.model.room import Room
from holdfast.model.units import HOUR
from holdfast.model.workload import Needs, Spread
from holdfast.model.world import World
from tests.build import node, room, run, service, world

quick = settings(deadline=None, max_examples=80)  # a busy machine is not a failure

LEVELS = st.sampled_from([Level.ZONE, Level.RACK, Level.NODE])
NAMES = [f"n{number}" for number in range(12)]

MACHINES = [
    (2, 2048, 0, ""),
    (8, 8192, 0, ""),
    (4, 8192, 1, "t4"),
    (8, 8192, 2, "h100"),
    (8, 2048, 4, "h100"),
]
TRAITS: list[Callable[[Node], Node]] = [
    lambda plain: plain,
    lambda plain: msgspec.structs.replace(plain, taints=("batch",)),
    lambda plain: msgspec.structs.replace(plain, spot=True, price_micro_usd=500_000),
    lambda plain: msgspec.structs.replace(plain, standby=True),
]


def fleet_of(shapes: list[tuple[tuple[int, int, int, str], str, Callable[[Node], Node]]]) -> tuple[Node, ...]:
    return tuple(
        trait(node(name, cpu=cpu, memory=memory, gpus=gpus, kind=kind, zone=where[0], rack=where[1]))
        for name, ((cpu, memory, gpus, kind), where, trait) in zip(NAMES, shapes, strict=False)
    )


nodes = st.lists(
    st.tuples(
        st.sampled_from(MACHINES), st.sampled_from(["ax", "ay", "bx", "by", "cx"]), st.sampled_from(TRAITS)
    ),
    min_size=1,
    max_size=12,
).map(fleet_of)
resources = st.builds(
    Resources,
    cpu_milli=st.sampled_from([0, 500, 1000, 3000]),
    memory_mib=st.sampled_from([0, 512, 3000]),
    gpu_milli=st.sampled_from([0, 0, 300, 500, 1000, 2000]),
    gpu_kind=st.sampled_from(["", "h100", "h100|t4"]),
)
asked_needs = st.builds(
    Needs,
    resources=resources,
    tolerates=st.sampled_from([(), ("batch",)]),
    spot=st.booleans(),
    spread=st.sampled_from(list(Spread)),
    spread_over=LEVELS,
)
asks = st.builds(
    Ask,
    needs=asked_needs,
    count=st.integers(1, 9),
    at_least=st.integers(1, 4),
    beside=st.lists(st.sampled_from(NAMES), max_size=3).map(tuple),
    avoid=st.lists(st.sampled_from(NAMES), max_size=2).map(tuple),
    use_standby=st.booleans(),
    one_per_node=st.booleans(),
)
closed = st.sets(st.sampled_from(NAMES), max_size=3)


def state(found: Room) -> list[list[object]]:
    columns = [getattr(found, name).tolist() for name in Room.CHANGING]
    return columns + [list(getattr(found, name)) for name in Room.SUMS]


def domain(found: Node, level: Level) -> str:
    return found.id if level is Level.NODE else found.place.domain(level)


def fill(found: Room, many: list[Ask]) -> list[tuple[Ask, list[Spot]]]:
    return [(ask, place(found, ask)) for ask in many]


@quick
@given(nodes, closed, st.lists(asks, max_size=8))
def test_no_node_and_no_gpu_is_ever_given_out_twice(
    fleet: tuple[Node, ...], shut: set[str], many: list[Ask]
) -> None:
    found = room(fleet, shut)
    placed = fill(found, many)
    cpu, memory, gpu = Counter[str](), Counter[str](), Counter[tuple[str, int]]()
    for ask, spots in placed:
        asked = ask.needs.resources
        for spot in spots:
            cpu[spot.node] += asked.cpu_milli
            memory[spot.node] += asked.memory_mib
            assert len(spot.devices) == -(-asked.gpu_milli // GPU)
            for device in spot.devices:
                gpu[spot.node, device] += asked.gpu_milli // len(spot.devices)
    for each in fleet:
        assert cpu[each.id] <= each.capacity.cpu_milli
        assert memory[each.id] <= each.capacity.memory_mib
        row = found.row[each.id]
        assert found.cpu[row] == each.capacity.cpu_milli - cpu[each.id]
        assert found.memory[row] == each.capacity.memory_mib - memory[each.id]
        for device in range(each.capacity.gpu_milli // GPU):
            assert found.devices[row, device] == GPU - gpu[each.id, device] >= 0
        assert all(device < each.capacity.gpu_milli // GPU for name, device in gpu if name == each.id)


@quick
@given(nodes, closed, st.lists(asks, min_size=1, max_size=5))
def test_only_nodes_that_may_be_used_are_used(
    fleet: tuple[Node, ...], shut: set[str], many: list[Ask]
) -> None:
    by_name = {each.id: each for each in fleet}
    for ask, spots in fill(room(fleet, shut), many):
        for spot in spots:
            used = by_name[spot.node]
            assert spot.node not in shut
            assert spot.node not in ask.avoid
            assert set(used.taints) <= set(ask.needs.tolerates)
            assert ask.needs.spot or not used.spot
            assert ask.use_standby or not used.standby
            assert ask.needs.resources.within(used.capacity)


@quick
@given(nodes, asks)
def test_a_required_spread_is_never_broken(fleet: tuple[Node, ...], ask: Ask) -> None:
    ask = msgspec.structs.replace(ask, needs=msgspec.structs.replace(ask.needs, spread=Spread.REQUIRE))
    by_name = {each.id: each for each in fleet}
    level = ask.needs.spread_over
    there = {domain(by_name[name], level) for name in ask.beside if name in by_name}
    used = [domain(by_name[spot.node], level) for spot in place(room(fleet), ask)]
    assert len(set(used)) == len(used)
    assert not there & set(used)


@quick
@given(nodes, asks)
def test_a_preferred_spread_leaves_no_domain_with_room_two_copies_behind(
    fleet: tuple[Node, ...], ask: Ask
) -> None:
    """As long as the emptier domain could have taken the copy."""
    ask = msgspec.structs.replace(
        ask, needs=msgspec.structs.replace(ask.needs, spread=Spread.PREFER), at_least=1, use_standby=False
    )
    found, by_name, level = room(fleet), {each.id: each for each in fleet}, ask.needs.spread_over
    crowd = Counter(domain(by_name[name], level) for name in ask.beside if name in by_name)
    spots = place(found, ask)
    before = Counter(crowd)
    crowd.update(domain(by_name[spot.node], level) for spot in spots)
    beside = (*ask.beside, *(spot.node for spot in spots))
    for spot in place(found, msgspec.structs.replace(ask, count=1, beside=beside)):
        emptiest = domain(by_name[spot.node], level)
        grown = [name for name in crowd if crowd[name] > before[name]]
        assert all(crowd[name] <= max(crowd[emptiest] + 1, before[name]) for name in grown)


@quick
@given(nodes, closed, asks)
def test_a_gang_is_placed_whole_or_leaves_no_trace(fleet: tuple[Node, ...], shut: set[str], ask: Ask) -> None:
    found = room(fleet, shut)
    before = state(found)
    spots = place(found, ask)
    assert len(spots) <= ask.count
    assert len(spots) >= ask.at_least or spots == []
    if not spots:
        assert state(found) == before
    if ask.one_per_node:
        assert len({spot.node for spot in spots}) == len(spots)
        assert not {spot.node for spot in spots} & set(ask.beside)


@quick
@given(nodes, closed, st.lists(asks, max_size=6))
def test_giving_back_what_was_taken_restores_the_room(
    fleet: tuple[Node, ...], shut: set[str], many: list[Ask]
) -> None:
    found = room(fleet, shut)
    before = state(found)
    for ask, spots in fill(found, many):
        for spot in spots:
            found.give(found.row[spot.node], ask.needs.resources, spot.devices)
    assert state(found) == before


@quick
@given(nodes, closed, st.lists(asks, max_size=6))
def test_the_same_question_has_the_same_answer(
    fleet: tuple[Node, ...], shut: set[str], many: list[Ask]
) -> None:
    assert fill(room(fleet, shut), many) == fill(room(fleet, shut).copy(), many)


@quick
@given(nodes, closed, asks)
def test_there_is_a_reason_exactly_when_something_did_not_fit(
    fleet: tuple[Node, ...], shut: set[str], ask: Ask
) -> None:
    found = room(fleet, shut)
    before = state(found)
    reason = why_not(found, ask)
    assert state(found) == before
    fits = len(place(found, msgspec.structs.replace(ask, at_least=1))) == ask.count
    assert bool(reason) is not fits


def populated(fleet: tuple[Node, ...], asked: list[tuple[Needs, int, int]]) -> World:
    built = world(fleet, Policy(balance=BalancePolicy(moves_max=3, imbalance=0.05)))
    for number, (needs, count, priority) in enumerate(asked):
        name = f"w{number}"
        loose = msgspec.structs.replace(
            needs, spread=Spread.NONE
        )  # badly spread, so that there is work to do
        workload = service(name, needs, priority=priority, move_cost_ms=0)
        for spot in place(built.room.copy(), Ask(loose, count=count)):
            run(built, workload, [spot.node])
    return built


# Fleets and services with nothing special about them: most examples have something to move or to stop.
plain_nodes = st.lists(
    st.tuples(
        st.sampled_from([*MACHINES[1:2] * 3, *MACHINES]),
        st.sampled_from(["ax", "ay", "bx", "cx"]),
        st.just(TRAITS[0]),
    ),
    min_size=3,
    max_size=8,
).map(fleet_of)
plain_needs = st.builds(
    Needs,
    resources=st.builds(
        Resources,
        cpu_milli=st.sampled_from([1000, 1500, 3000]),
        memory_mib=st.sampled_from([256, 2000]),
        gpu_milli=st.sampled_from([0, 0, 0, 500, 1000]),
    ),
    spread=st.sampled_from(list(Spread)),
    spread_over=LEVELS,
)
services = st.lists(st.tuples(plain_needs, st.integers(1, 5), st.integers(0, 3)), min_size=3, max_size=9)
plain_asks = st.builds(
    Ask, needs=plain_needs, beside=st.lists(st.sampled_from(NAMES[:4]), max_size=2).map(tuple)
)


@quick
@given(plain_nodes, services, plain_asks, st.integers(1, 4))
def test_victims_are_lesser_and_make_enough_room(
    fleet: tuple[Node, ...], asked: list[tuple[Needs, int, int]], ask: Ask, priority: int
) -> None:
    built = populated(fleet, asked)
    names = victims(built, built.room, ask, priority)
    assert names == victims(built, built.room, ask, priority)
    if not names:
        return
    assert place(built.room.copy(), ask) == []
    found = built.room.copy()
    for name in names:
        replica = built.replicas[name]
        assert built.workloads[replica.workload].priority < priority
        found.give(found.row[replica.node], replica.needs, replica.devices)
    assert place(found, ask)


@quick
@given(plain_nodes, services)
def test_rebalancing_comes_to_rest(fleet: tuple[Node, ...], asked: list[tuple[Needs, int, int]]) -> None:
    built = populated(fleet, asked)
    for _ in range(200):
        found = moves(built, built.room.copy(), HOUR)
        if not found:
            return
        for move in found:
            carry_out(built, move.replica, move.to, move.devices)
        assert np.all(built.room.cpu >= 0)
        assert np.all(built.room.devices >= 0)
    raise AssertionError("it never comes to rest")


def carry_out(built: World, name: str, to: str, devices: tuple[int, ...]) -> None:
    replica = built.replicas[name]
    built.room.give(built.room.row[replica.node], replica.needs, replica.devices)
    built.room.take(built.room.row[to], replica.needs, devices)
    del built.on_node[replica.node][name]
    built.on_node[to][name] = None
    built.replicas[name] = msgspec.structs.replace(replica, node=to, devices=devices)
