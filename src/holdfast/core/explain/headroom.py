"""What is free, what of it can be used, and how much more would fit?

Free room is a sum, and sums mislead: eight free GPUs on eight nodes are no room for a replica that wants
four. So three things are told beside the sum. *Together*: how many asks for 1, 2, 4 and 8 GPUs of a kind
would find a node. *Stranded*: what of the free GPU the next typical asks could not use, because its node has
no CPU or memory left to feed it or because shares have been cut from it; that is `placement.usable`, the
measure by which replicas are placed. *Unusable*: CPU and GPU that are free on nodes where not one more
replica of any workload that there is would fit.

How many more of each workload would fit is asked of the real `placement` on a copy of the room, up to
`MORE_MAX` and each alone: the numbers do not add up. Workloads of the same shape are asked for once. Warm
standby nodes are not free: they are told apart, with what comes and what leaves.

Refused: one figure for fragmentation. It would order fleets, and tell nobody what does not fit.
"""

from collections.abc import Iterator

import msgspec
import numpy as np
from msgspec.structs import replace

from holdfast.core.placement import placement
from holdfast.core.plan.draft import Draft
from holdfast.core.plan.request import ask_for
from holdfast.core.workloads import gang, schedule
from holdfast.model.node import COMING, NodeState
from holdfast.model.place import Level
from holdfast.model.resources import GPU
from holdfast.model.room import Bools, Room
from holdfast.model.units import Instant, many
from holdfast.model.workload import Spread, Training, Workload
from holdfast.model.world import World

TOGETHER = (1, 2, 4, 8)  # GPUs of one replica, as people ask for them
MORE_MAX = 100  # counted no further
NAMES_SHOWN = 4


class Free(msgspec.Struct, frozen=True):
    """The nodes of one pool in one zone with one kind of GPU."""

    pool: str
    zone: str
    gpu_kind: str
    nodes: int  # that are here
    open: int  # and take new replicas
    cpu_milli: int
    memory_mib: int
    gpus: int  # that nobody uses
    shares_milli: int  # what is left of GPUs that somebody uses
    standby: int  # warm nodes, not counted as open
    coming: int
    leaving: int  # drained or being terminated


class Kind(msgspec.Struct, frozen=True):
    """How the free GPUs of one kind lie."""

    kind: str
    gpus: int  # that nobody uses, on open nodes
    shares_milli: int
    largest: int  # free together on one node
    together: dict[int, int]  # asks for so many GPUs -> how many of them would find a node
    stranded_milli: int


class Fit(msgspec.Struct, frozen=True):
    workload: str
    more: int  # replicas that would fit now, at most `MORE_MAX`
    waiting: int  # seats that are empty for want of room


class Headroom(msgspec.Struct, frozen=True):
    free: tuple[Free, ...]
    kinds: tuple[Kind, ...]
    fits: tuple[Fit, ...]
    cpu_milli: int
    cpu_milli_unusable: int  # where nothing that is asked for fits
    gpu_milli_unusable: int


def headroom(world: World, now: Instant) -> Headroom:
    draft = Draft(world, now)
    open_ = _open(draft.room)
    useless = open_ & ~_useful(draft)
    return Headroom(
        free=tuple(free(world)),
        kinds=tuple(kinds(draft.room)),
        fits=tuple(fits(draft)),
        cpu_milli=int(draft.room.cpu[open_].sum()),
        cpu_milli_unusable=int(draft.room.cpu[useless].sum()),
        gpu_milli_unusable=int(draft.room.gpu_free[useless].sum()),
    )


def _open(room: Room) -> Bools:
    rows: Bools = room.open & ~room.standby
    return rows


# ---- what is free


def free(world: World) -> Iterator[Free]:
    groups: dict[tuple[str, str, str], list[str]] = {}
    for name, node in world.nodes.items():
        key = (node.pool, node.place.domain(Level.ZONE), node.capacity.gpu_kind)
        groups.setdefault(key, []).append(name)
    open_ = _open(world.room)
    for (pool, zone, kind), names in sorted(groups.items()):
        yield _free(world, pool, zone, kind, names, open_)


def _free(world: World, pool: str, zone: str, kind: str, names: list[str], open_: Bools) -> Free:
    room, nodes = world.room, [world.nodes[name] for name in names]
    rows = [row for name in names if (row := room.row.get(name)) is not None and open_[row]]
    gpus = int(room.gpu_whole[rows].sum())
    leaving = (NodeState.DRAINING, NodeState.TERMINATING)
    coming = sum(node.state in COMING for node in nodes)
    return Free(
        pool=pool,
        zone=zone,
        gpu_kind=kind,
        nodes=len(nodes) - coming,
        open=len(rows),
        cpu_milli=int(room.cpu[rows].sum()),
        memory_mib=int(room.memory[rows].sum()),
        gpus=gpus,
        shares_milli=int(room.gpu_free[rows].sum()) - gpus * GPU,
        standby=sum(node.standby and node.state is NodeState.READY for node in nodes),
        coming=coming,
        leaving=sum(node.state in leaving for node in nodes),
    )


# ---- how it lies


def kinds(room: Room) -> Iterator[Kind]:
    open_ = _open(room)
    for number, (kind,) in enumerate(room.kinds.value):
        rows = np.flatnonzero(open_ & (room.kind == number) & (room.gpu_all > 0))
        if not len(rows):
            continue
        whole, some = room.gpu_whole[rows], room.gpu_free[rows]
        usable = placement.usable(room.cpu[rows], room.memory[rows], whole, some, placement.TYPICAL)
        yield Kind(
            kind=kind,
            gpus=int(whole.sum()),
            shares_milli=int(some.sum() - whole.sum() * GPU),
            largest=int(whole.max()),
            together={size: int((whole // size).sum()) for size in TOGETHER},
            stranded_milli=int(some.sum() - usable.sum()),
        )


# ---- what fits


def fits(draft: Draft) -> Iterator[Fit]:
    world, known = draft.world, {}
    for workload in world.workloads.values():
        ask = _one_more(draft, workload)
        key = msgspec.json.encode(ask)
        if key not in known:
            known[key] = len(placement.place(draft.room.copy(), replace(ask, count=MORE_MAX)))
        yield Fit(workload.name, known[key], schedule.waits(world, workload))


def _one_more(draft: Draft, workload: Workload) -> placement.Ask:
    """A spread that is only preferred changes where, and not how many: without it, equals are asked for
    once."""
    if isinstance(workload.shape, Training):
        nodes = [member.node for member in gang.live_members(draft, workload)]
        return gang.ask_for(draft, workload, 1, 1, nodes, again=False)
    ask = ask_for(draft, workload, 1, (), again=False)
    if ask.needs.spread is Spread.REQUIRE:
        return ask
    return replace(ask, needs=replace(ask.needs, spread=Spread.NONE), beside=())


def _useful(draft: Draft) -> Bools:
    """Rows where one more replica of anything fits, its spread aside."""
    found = np.zeros(len(draft.room.ids), np.bool_)
    shapes = {msgspec.json.encode(w.needs): w.needs for w in draft.world.workloads.values()}
    for needs in shapes.values():
        ask = placement.Ask(replace(needs, spread=Spread.NONE))
        found |= placement.fitting(draft.room, ask, standby=False)
    return found


# ---- in words


def tell(room: Headroom) -> list[str]:
    nodes, open_ = sum(row.nodes for row in room.free), sum(row.open for row in room.free)
    told = [_sum(room, nodes, open_)]
    for kind in room.kinds:
        told += _scattered(kind)
    told += _unusable(room)
    full = [fit.workload for fit in room.fits if not fit.more]
    if full:
        told.append(f"not one more replica of {_some(full)} would fit")
    return told


def _sum(room: Headroom, nodes: int, open_: int) -> str:
    memory_mib = sum(row.memory_mib for row in room.free)
    parts = [f"{_number(room.cpu_milli / 1000)} cpus", f"{_number(memory_mib / 1024)} GiB"]
    parts += [f"{many(kind.gpus, 'GPU')} ({kind.kind or 'any kind'})" for kind in room.kinds]
    standby, coming, leaving = (
        sum(getattr(row, what) for row in room.free) for what in ("standby", "coming", "leaving")
    )
    more = [f"{count} {what}" for count, what in ((standby, "standing by"), (coming, "coming")) if count]
    more += [f"{leaving} leaving"] if leaving else []
    beside = f"; {', '.join(more)}" if more else ""
    return f"{open_} of {many(nodes, 'node')} open, with {', '.join(parts)} free{beside}"


def _scattered(kind: Kind) -> Iterator[str]:
    """The smallest ask that the sum could meet and no node can."""
    name = kind.kind or "GPUs"
    for size in TOGETHER:
        if kind.gpus >= size and not kind.together[size]:
            yield f"{kind.gpus} {name} are free, but no node has {size} together"
            break
    if kind.stranded_milli >= GPU:
        stranded = f"{kind.stranded_milli / GPU:.1f} of the free {name}"
        yield f"{stranded} are stranded: too little CPU or memory beside them, or cut into shares"


def _unusable(room: Headroom) -> Iterator[str]:
    if not room.fits:
        return
    parts = []
    if room.cpu_milli_unusable:
        parts.append(f"{_number(room.cpu_milli_unusable / 1000)} cpus")
    if room.gpu_milli_unusable:
        parts.append(f"{_number(room.gpu_milli_unusable / GPU)} GPUs")
    if parts:
        yield f"{' and '.join(parts)} are free where nothing that is asked for fits"


def _number(value: float) -> str:
    """`0.5`, `12`, `1,200`."""
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return f"{', '.join(names[:NAMES_SHOWN])}{more}"
