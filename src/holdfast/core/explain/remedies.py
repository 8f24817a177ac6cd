"""What would make room for this?

The rule: try it. Each remedy is one change (a node opened again, one thing asked for less, a condition let
go, a priority raised) made on a copy of the room and given to the real `placement`; only what then finds a
place is named, with the number at which it does. So no advice is given that would not help.

Only single changes are tried. Refused: searching for the cheapest set of changes. It is a puzzle for each
seat, and a person who is told two things that both must change reads neither.
"""

from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from holdfast.core.placement import placement, preempt
from holdfast.core.placement.placement import Ask
from holdfast.model.node import NodeState
from holdfast.model.resources import GPU
from holdfast.model.room import Bools, Ints, Room
from holdfast.model.units import Instant
from holdfast.model.workload import Needs, Spread, Workload
from holdfast.model.world import World

LESS_MIN = {"cpu_milli": 100, "memory_mib": 64, "gpu_milli": 10}  # less is no help to anybody
PRIORITY_MAX = 1 << 31


def asked(needs: Needs) -> str:
    """What a node must have, in words: `4 cpu, 512 MiB, labelled disk=ssd`."""
    labels = ", ".join(f"{key}={value}" for key, value in sorted(needs.labels.items()))
    return f"{needs.resources}{f', labelled {labels}' if labels else ''}{'' if needs.spot else ', not spot'}"


def remedies(world: World, room: Room, ask: Ask, workload: Workload, now: Instant) -> list[str]:
    """For one more replica than fits, or for the fewest that a gang starts with."""
    room = room.copy()
    spots = placement.place(room, replace(ask, at_least=1))
    missing = max(1, ask.at_least - len(spots))
    ask = replace(placement.beside(ask, spots), count=missing, at_least=missing)
    return [
        *_uncordon(world, room, ask),
        *_ask_less(room, ask),
        *_let_go(world, room, ask),
        *_outrank(world, room, ask, workload, now),
    ]


def _fits(room: Room, ask: Ask) -> list[placement.Spot]:
    return placement.place(room.copy(), ask)


def _uncordon(world: World, room: Room, ask: Ask) -> Iterator[str]:
    """Nodes that a person closed."""
    states = (NodeState.CORDONED, NodeState.DRAINING)
    names = (*world.cordoned, *world.draining)
    shut = {n for n in names if world.nodes[n].by_hand and world.nodes[n].state in states and n in room.row}
    trial = room.copy()
    for name in shut:
        trial.open[room.row[name]] = True
    if shut:
        used = dict.fromkeys(spot.node for spot in placement.place(trial, ask) if spot.node in shut)
        yield from (f"holdfast uncordon {name}" for name in used)


def _ask_less(room: Room, ask: Ask) -> Iterator[str]:
    columns = {
        "cpu_milli": ("cpus", 1000, "", room.cpu),
        "memory_mib": ("memory", 1, " MiB", room.memory),
        "gpu_milli": ("gpus", GPU, "", _gpu_free(room)),
    }
    for field, (name, unit, suffix, free) in columns.items():
        wanted = getattr(ask.needs.resources, field)
        rows = _otherwise_fine(room, ask, field)
        free = np.sort(free[rows])[::-1]
        most = int(free[ask.at_least - 1]) if len(free) >= ask.at_least else 0
        if LESS_MIN[field] <= most < wanted and _fits(room, _needing(ask, field, most)):
            yield f"lower {name} from {wanted / unit:g} to {most / unit:g}{suffix}"


def _gpu_free(room: Room) -> Ints:
    """What one ask could have of each node: whole GPUs, or the largest share of one."""
    return np.where(room.gpu_whole > 0, room.gpu_whole * GPU, room.gpu_part)


def _needing(ask: Ask, field: str, amount: int) -> Ask:
    return replace(ask, needs=replace(ask.needs, resources=replace(ask.needs.resources, **{field: amount})))


def _otherwise_fine(room: Room, ask: Ask, field: str) -> Bools:
    """The rows where nothing else than this is in the way."""
    needs = _needing(ask, field, 0).needs.resources
    fine = placement.allowed(room, ask.needs) & room.open
    fine &= (room.cpu >= needs.cpu_milli) & (room.memory >= needs.memory_mib)
    fine &= placement.gpu_fits(room, needs.gpu_milli)
    if not ask.use_standby:
        fine &= ~room.standby
    for name in (*ask.avoid, *(ask.beside if ask.one_per_node else ())):
        if name in room.row:
            fine[room.row[name]] = False
    if ask.needs.spread is Spread.REQUIRE and ask.beside:
        fine &= ~placement.crowded(room, ask)
    return fine


def _let_go(world: World, room: Room, ask: Ask) -> Iterator[str]:
    """Conditions that could be dropped."""
    needs = ask.needs
    if needs.labels and _fits(room, replace(ask, needs=replace(needs, labels={}))):
        labels = ", ".join(f"{key}={value}" for key, value in sorted(needs.labels.items()))
        yield f"label a node {labels}, or ask for no label"
    taints = {taint for each in room.taint_sets.value for taint in each if taint}
    spots = _fits(room, replace(ask, needs=replace(needs, tolerates=(*needs.tolerates, *sorted(taints)))))
    if spots:
        met = {taint for spot in spots for taint in world.nodes[spot.node].taints}
        yield f"tolerate the taint {', '.join(sorted(met - set(needs.tolerates)))}"
    if not needs.spot and _fits(room, replace(ask, needs=replace(needs, spot=True))):
        yield "allow spot nodes"
    if needs.spread is Spread.REQUIRE and _fits(
        room, replace(ask, needs=replace(needs, spread=Spread.PREFER))
    ):
        yield f"a node in another {needs.spread_over}, or spread: prefer instead of require"
    kind = needs.resources.gpu_kind
    spots = _fits(room, _needing_any_kind(ask)) if kind else []
    if spots:
        other = world.nodes[spots[0].node].capacity.gpu_kind
        yield f"accept GPUs of the kind {other}"


def _needing_any_kind(ask: Ask) -> Ask:
    return replace(ask, needs=replace(ask.needs, resources=replace(ask.needs.resources, gpu_kind="")))


def _outrank(world: World, room: Room, ask: Ask, workload: Workload, now: Instant) -> Iterator[str]:
    """Who would have to give way, if it were more important."""
    if world.brakes or not world.policy.replicas.preempt:
        return
    slots = world.of_workload.get(workload.name, ())
    own = frozenset(name for slot in slots for name in world.of_slot[slot])
    choose = preempt.victims_for_gang if ask.at_least > 1 else preempt.victims
    owners = {world.replicas[name].workload for name in choose(world, room, ask, PRIORITY_MAX, own, now)}
    ranks = [world.workloads[name].priority for name in owners if name in world.workloads]
    if ranks and max(ranks) >= workload.priority:
        yield f"raise its priority above {max(ranks)}: {', '.join(sorted(owners))} would give way"
