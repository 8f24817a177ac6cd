"""Which nodes should these replicas go to?

The rule, in order. What must hold: the node is open, the replica fits, kind, labels, taints and spot allow
it, a required spread is kept. Then the failure domain with the fewest copies, and in it the node with the
fewest. Then what costs nothing before what does. Then the node where the placement strands the least GPU;
among equals the one with the fewest free GPUs, and for work without GPUs a node that has none; one in use
before one that is not, and filled up before the next, and of those not in use the cheapest. Then the lowest
row: the same question always has the same answer, which replaying a journal depends on. Warm standby nodes
come last, and only for who may use them.

Money and spread meet where a domain that costs has fewer copies than one that is free. Another domain is
worth its price as long as one domain would take more than half of the copies with it; beyond that a free node
that holds none of them is taken first. Half is also what `consolidate` stops at. Whoever was promised an
availability is spread evenly whatever it costs (`even`): the sums behind the promise count on every domain.
Refused: the evenest spread always. A fleet that has three nodes of its own and rents in three zones kept
renting beside idle machines, for a fourth copy that nobody had asked to be anywhere in particular.

A GPU is stranded when its node has no CPU or memory left to feed it, or when shares have been cut from it so
that nobody who wants a whole one can have it. `usable` says how much of a node's free GPU the next typical
asks could still use: no more than there is, and no more than CPU and memory can feed at the usual amount for
each GPU. The score is what a placement takes from the usable beyond its own GPUs.

A GPU of a kind that others ask for by its name is lost to them when somebody takes it who could use any. So
each kind costs up to `NAMED` more, in proportion to what replicas that name their kind use of it, against
what is free of it; where no replica names a kind nothing changes. On made-up mixes where half of the classes
name one (tuned on 24 draws, 0.15 to 0.5 did alike) first fit was ahead by 0.4 points without this, and is
behind by 0.1 with it. Refused: to spare the kind of which least is free, named or not. It drives work from
small nodes to large ones, and cost 0.6 to 1.9 points where no kind is named.

This is the idea of fragmentation gradient descent (Weng et al., USENIX ATC 2023) with another measure. Theirs
asks of each class of a task mix "could one more run here?", which is blind until the last step before a node
is spoilt; ours counts how much could run, so it slopes all the way. On the trace of that paper ours fills 96
% of the GPUs, theirs (as we rewrote it) 95, best fit 93, random 89 (`python -m bench place`); and it needs
four columns where theirs needs each GPU under each class.

No rule that sees one ask at a time is the best on every draw. On families of made-up mixes
(`bench/_mixes.py`) each of first fit, best fit, dot product and random loses to another somewhere; on the
mean of a family ours is at least as good as the best of them but for noise (`bench/RESULTS.md`).

Refused: learning the mix. Mixes of 5 to 60 classes taken from the trace itself gave 95.8 to 95.9 %; learning
CPU and memory for each GPU from what runs lost 1 to 2 points on made-up mixes with much of either; `TYPICAL`,
the common shape of rented GPU machines, gives 96.0. It is the best of four guesses tried on that trace, the
others gave 95.5 to 96.0, so do not read much into the last digit. Refused: scoring again after every copy of
one ask. It might now and then find a better node for the next copy (we have not measured how often), but as
it is a whole gang costs one look at the columns.
"""

import heapq
from collections import Counter
from typing import TypeVar, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.model.place import Level
from holdfast.model.resources import GPU, Resources
from holdfast.model.room import FILL_ORDER_BITS, Bools, Ints, Room
from holdfast.model.workload import Needs, Spread

Floats = NDArray[np.float64]
Number = TypeVar("Number", int, Ints)


class Ask(msgspec.Struct, frozen=True):
    needs: Needs
    count: int = 1
    at_least: int = 1  # fewer than this is none at all
    beside: tuple[str, ...] = ()  # nodes that already hold copies of the workload, once for each copy
    avoid: tuple[str, ...] = ()  # nodes not to use
    use_standby: bool = False  # warm standby nodes too, when no other has room
    one_per_node: bool = False  # members of a gang
    even: bool = False  # over all failure domains, also those that cost more


class Spot(msgspec.Struct, frozen=True):
    node: str
    devices: tuple[int, ...] = ()


class Typical(msgspec.Struct, frozen=True):
    """What a GPU is usually asked for together with."""

    cpu_milli: int = 8_000
    memory_mib: int = 32_768
    shares: float = 0.3  # of the asks are for less than one GPU


class Lanes(msgspec.Struct, frozen=True):
    """The rows in the order of their failure domains: a lane is one domain, and contiguous."""

    row_at: Ints
    at_of_row: Ints
    lane_of_row: Ints
    starts: Ints
    bounds: list[int]


TYPICAL = Typical()
NOWHERE = np.iinfo(np.int64).max
MEMO_MAX = 256
SHARED = 1 << 60  # a copy that is already on the node outweighs everything about the node itself
SHARED_MAX = 6
COSTS = 1 << 57  # what costs outweighs all else about the node: the stranded GPU is less than half of it
NAMED = 300  # thousandths of a GPU: worth of a kind beyond that of others if all of it is asked for by name
RATHER_NOT = 1 << 32  # copies: a lane that waits until the others are used


def place_where(room: Room, ask: Ask, *, spot: bool) -> list[Spot]:
    """As `place`, on spot nodes only, or on others only."""
    open_ = room.open
    room.open = open_ & (room.spot if spot else ~room.spot)
    try:
        return place(room, ask)
    finally:
        room.open = open_


def place(room: Room, ask: Ask, typical: Typical = TYPICAL) -> list[Spot]:
    """Takes room for up to `count` replicas and says where; for fewer than `at_least` it takes nothing."""
    if broken(ask.needs.resources):
        return []
    spots: list[Spot] = []
    for standby in (False, True) if ask.use_standby else (False,):
        if len(spots) < ask.count:
            spots += _place_on(room, beside(ask, spots), ask.count - len(spots), typical, standby=standby)
    if len(spots) < ask.at_least:
        for spot in spots:
            room.give(room.row[spot.node], ask.needs.resources, spot.devices)
        return []
    return spots


def beside(ask: Ask, spots: list[Spot]) -> Ask:
    """The same ask when these spots have been taken for it."""
    nodes = (*ask.beside, *(spot.node for spot in spots))
    return msgspec.structs.replace(ask, beside=nodes) if spots else ask


def _place_on(room: Room, ask: Ask, count: int, typical: Typical, *, standby: bool) -> list[Spot]:
    rows = np.flatnonzero(fitting(room, ask, standby=standby))
    if not len(rows):
        return []
    key = _keys(room, ask.needs.resources, rows, typical)
    if ask.needs.spread is not Spread.NONE and ask.beside:
        key = key + SHARED * np.minimum(_copies_by_row(room, ask)[rows], SHARED_MAX)
    return _one(room, ask, rows, key) if count == 1 else _many(room, ask, rows, key, count)


def broken(needs: Resources) -> bool:
    """More than one GPU, but not a whole number of them: nothing can hold it."""
    return needs.gpu_milli > GPU and needs.gpu_milli % GPU != 0


# ---- what must hold


def allowed(room: Room, needs: Needs) -> Bools:
    """The rows whose kind, labels, taints and spot allow it, however full they are."""
    kind = needs.resources.gpu_kind if needs.resources.gpu_milli else ""
    key = ("allowed", kind, tuple(sorted(needs.labels.items())), needs.tolerates, needs.spot)
    found = room.memo.get(key)
    if found is None:
        found = kind_allows(room, needs) & labels_allow(room, needs) & taints_allow(room, needs)
        found &= spot_allows(room, needs)
        _remember(room, key, found)
    return cast(Bools, found)


def kind_allows(room: Room, needs: Needs) -> Bools:
    asked = needs.resources
    return _by_set([not asked.gpu_milli or asked.takes_kind(kind) for (kind,) in room.kinds.value], room.kind)


def labels_allow(room: Room, needs: Needs) -> Bools:
    wanted = {f"{key}={value}" for key, value in needs.labels.items()}
    return _by_set([wanted.issubset(pairs) for pairs in room.label_sets.value], room.labels)


def taints_allow(room: Room, needs: Needs) -> Bools:
    tolerated = {"", *needs.tolerates}
    return _by_set([tolerated.issuperset(taints) for taints in room.taint_sets.value], room.taints)


def spot_allows(room: Room, needs: Needs) -> Bools:
    return ~room.spot | needs.spot


def gpu_fits(room: Room, gpu_milli: int) -> Bools:
    return room.gpu_whole >= gpu_milli // GPU if gpu_milli >= GPU else room.gpu_part >= gpu_milli


def _by_set(verdicts: list[bool], column: Ints) -> Bools:
    """A verdict on each distinct value, read by row."""
    return np.array(verdicts or [False])[column]


def fitting(room: Room, ask: Ask, *, standby: bool) -> Bools:
    """The rows that could take one replica of the ask."""
    needs = ask.needs.resources
    fits = allowed(room, ask.needs) & room.open
    fits &= room.standby if standby else ~room.standby
    fits &= room.cpu >= needs.cpu_milli
    fits &= room.memory >= needs.memory_mib
    if needs.gpu_milli:
        fits &= gpu_fits(room, needs.gpu_milli)
    for node in (*ask.avoid, *(ask.beside if ask.one_per_node else ())):
        if node in room.row:
            fits[room.row[node]] = False
    if ask.needs.spread is Spread.REQUIRE and ask.beside:
        fits &= ~crowded(room, ask)
    return fits


# ---- which is best


def usable(cpu: Ints, memory: Ints, whole: Ints, free: Ints, typical: Typical) -> Floats:
    """How much of the free GPU the next typical asks could use, in thousandths."""
    fed = np.minimum(cpu * (GPU / typical.cpu_milli), memory * (GPU / typical.memory_mib))
    by_wholes, by_shares = np.minimum(whole * float(GPU), fed), np.minimum(free, fed)
    by_wholes *= 1 - typical.shares
    by_shares *= typical.shares
    return cast(Floats, by_wholes + by_shares)


def _keys(room: Room, needs: Resources, rows: Ints, typical: Typical) -> Ints:
    """One number a row, the smaller the better: whether it costs, what it would strand, then the order of
    filling."""
    order = room.fill_order[rows] + COSTS * (room.price[rows] > 0)
    if not needs.gpu_milli:
        return order
    loss = _loss(room, needs, rows, typical)
    if any(room.kind_named) and (not needs.gpu_kind or "|" in needs.gpu_kind):
        loss += _named(room)[room.kind[rows]]
    return cast(Ints, order + (loss << FILL_ORDER_BITS))


def _named(room: Room) -> Ints:
    """By kind of GPU, how much is lost when one is taken that replicas which name their kind may need."""
    pairs = zip(room.kind_named, room.kind_free, strict=True)
    lost: Ints = np.array([NAMED * named // max(1, named + free) for named, free in pairs], np.int64)
    return lost


def _loss(room: Room, needs: Resources, rows: Ints, typical: Typical) -> Ints:
    """Usable GPU that would be lost beyond what is asked for; less than nothing where the placement mends."""
    cpu, memory = room.cpu[rows], room.memory[rows]
    whole, free = room.gpu_whole[rows], room.gpu_free[rows]
    before = usable(cpu, memory, whole, free, typical)
    cut = needs.gpu_milli // GPU if needs.gpu_milli >= GPU else room.gpu_broken[rows] < needs.gpu_milli
    cpu -= needs.cpu_milli
    memory -= needs.memory_mib
    before -= usable(cpu, memory, whole - cut, free - needs.gpu_milli, typical)
    return np.rint(before - needs.gpu_milli).astype(np.int64)


# ---- the spread


def lanes(room: Room, needs: Needs) -> Lanes:
    level = None if needs.spread is Spread.NONE else needs.spread_over
    key = ("lanes", level)
    found = room.memo.get(key)
    if found is None:
        found = _make_lanes(_domain(room, level))
        _remember(room, key, found)
    return cast(Lanes, found)


def _domain(room: Room, level: Level | None) -> Ints:
    if level is None:
        return np.zeros(len(room.ids), np.int64)
    return np.arange(len(room.ids)) if level is Level.NODE else room.domain[level]


def _make_lanes(domain: Ints) -> Lanes:
    row_at = np.argsort(domain, kind="stable")
    at_of_row = np.empty_like(row_at)
    at_of_row[row_at] = np.arange(len(row_at))
    _, starts, lane = np.unique(domain[row_at], return_index=True, return_inverse=True)
    return Lanes(row_at, at_of_row, lane[at_of_row], starts, [*starts.tolist(), len(row_at)])


def _copies(room: Room, ask: Ask) -> dict[int, int]:
    """How many copies each lane has already."""
    if not ask.beside or ask.needs.spread is Spread.NONE:
        return {}
    lane_of_row = lanes(room, ask.needs).lane_of_row
    return Counter(int(lane_of_row[room.row[node]]) for node in ask.beside if node in room.row)


def _copies_by_row(room: Room, ask: Ask) -> Ints:
    copies = np.zeros(len(room.ids), np.int64)
    for node in ask.beside:
        if node in room.row:
            copies[room.row[node]] += 1
    return copies


def crowded(room: Room, ask: Ask) -> Bools:
    """The rows whose failure domain has a copy already."""
    lane = lanes(room, ask.needs)
    return (_crowd(_copies(room, ask), len(lane.starts)) > 0)[lane.lane_of_row]


def most_in_one(copies: int) -> int:
    """So many of the copies may be in one failure domain before another is worth its price."""
    return max(1, copies // 2)


class Thrift(msgspec.Struct, frozen=True):
    """Which lanes are taken first, beyond having few copies: those where a free node has none of them, up to
    so many copies each."""

    most: int  # 0: there is nothing to save

    @classmethod
    def of(cls, room: Room, ask: Ask, rows: Ints, count: int) -> "Thrift":
        costs = room.price[rows] > 0
        mixed = bool(costs.any()) and not bool(costs.all())
        if not mixed or ask.even or ask.needs.spread is not Spread.PREFER:
            return cls(0)
        return cls(most_in_one(len(ask.beside) + count))

    def rank(self, crowd: Number, best: Number) -> Number:
        """Of lanes with so many copies and this best key: the smallest is next."""
        if not self.most:
            return crowd
        return crowd + RATHER_NOT * ((best >= COSTS) | (crowd >= self.most))


def _one(room: Room, ask: Ask, rows: Ints, key: Ints) -> list[Spot]:
    copies = _copies(room, ask)
    if copies:
        lane = lanes(room, ask.needs)
        crowd = _crowd(copies, len(lane.starts))[lane.lane_of_row[rows]]
        crowd = Thrift.of(room, ask, rows, 1).rank(crowd, key)
        fewest: Bools = crowd == crowd.min()
        rows, key = rows[fewest], key[fewest]
    return [_take(room, int(rows[key.argmin()]), ask.needs.resources)]


def _many(room: Room, ask: Ask, rows: Ints, key: Ints, count: int) -> list[Spot]:
    """The lanes wait in a heap, the one with the fewest copies and then the best row in front."""
    lane, needs = lanes(room, ask.needs), ask.needs.resources
    thrift = Thrift.of(room, ask, rows, count)
    line = np.full(len(room.ids), NOWHERE)
    line[lane.at_of_row[rows]] = key
    first = _first_lanes(lane, line, _copies(room, ask), thrift, count)
    heap = [(rank, *_front(lane, line, index), crowd, index) for rank, crowd, index in first]
    heapq.heapify(heap)
    spots: list[Spot] = []
    while heap and len(spots) < count:
        _, best, row, crowd, index = heap[0]
        spots.append(_take(room, row, needs))
        at = lane.at_of_row[row]
        if ask.one_per_node or not _still_fits(room, row, needs):
            line[at] = NOWHERE
            best, row = _front(lane, line, index)
        elif ask.needs.spread is not Spread.NONE:
            line[at] = min(int(line[at]) + SHARED, NOWHERE - 1)  # the next copy rather goes to another node
            best, row = _front(lane, line, index)
        if best == NOWHERE or ask.needs.spread is Spread.REQUIRE:
            heapq.heappop(heap)
        else:
            crowd += ask.needs.spread is Spread.PREFER
            rank = thrift.rank(crowd, best)
            heapq.heapreplace(heap, (rank, best, row, crowd, index))
    return spots


def _front(lane: Lanes, line: Ints, index: int) -> tuple[int, int]:
    """The key and the row of the best in a lane."""
    at = lane.bounds[index] + int(line[lane.bounds[index] : lane.bounds[index + 1]].argmin())
    return int(line[at]), int(lane.row_at[at])


def _first_lanes(
    lane: Lanes, line: Ints, copies: dict[int, int], thrift: Thrift, count: int
) -> list[tuple[int, int, int]]:
    """The lanes that could be used, with their rank and copies: never more than `count`, for one is not
    needed before all that stand in front of it have been used once."""
    best = np.minimum.reduceat(line, lane.starts)
    crowd = _crowd(copies, len(best))
    rank = thrift.rank(crowd, best)
    found = np.flatnonzero(best < NOWHERE)
    if len(found) > count and (copies or thrift.most):
        level = np.partition(rank[found], count - 1)[count - 1]
        sure, found = found[rank[found] < level], found[rank[found] == level]
        found = np.concatenate([sure, _smallest(best, found, count - len(sure))])
    else:
        found = _smallest(best, found, count)
    return list(zip(rank[found].tolist(), crowd[found].tolist(), found.tolist(), strict=True))


def _smallest(best: Ints, among: Ints, count: int) -> Ints:
    """The `count` smallest, of equal ones the first (`argpartition` leaves that to the build of numpy)."""
    if len(among) <= count:
        return among
    value = best[among]
    edge = np.partition(value, count - 1)[count - 1]
    under = among[value < edge]
    return np.concatenate([under, among[value == edge][: count - len(under)]])


def _crowd(copies: dict[int, int], size: int) -> Ints:
    crowd = np.zeros(size, np.int64)
    for lane, number in copies.items():
        crowd[lane] = number
    return crowd


def _take(room: Room, row: int, needs: Resources) -> Spot:
    devices = room.pick_devices(row, needs.gpu_milli)
    room.take(row, needs, devices)
    return Spot(room.ids[row], devices)


def _still_fits(room: Room, row: int, needs: Resources) -> bool:
    gpu = needs.gpu_milli
    return bool(
        room.cpu[row] >= needs.cpu_milli
        and room.memory[row] >= needs.memory_mib
        and (room.gpu_whole[row] >= gpu // GPU if gpu >= GPU else room.gpu_part[row] >= gpu)
    )


def _remember(room: Room, key: tuple[object, ...], value: object) -> None:
    if len(room.memo) >= MEMO_MAX:
        room.memo.clear()
    room.memo[key] = value


# ---- why nothing fits


def why_not(room: Room, ask: Ask) -> str:
    """Why the ask (or the rest of it) finds no room, in words; nothing when all of it does."""
    if broken(ask.needs.resources):
        return f"{ask.needs.resources.gpu_milli / GPU:g} GPUs are neither whole ones nor a share of one"
    if not room.row:
        return "there are no nodes"
    trial = room.copy()
    spots = place(trial, msgspec.structs.replace(ask, at_least=1))
    if len(spots) >= ask.count:
        return ""
    reasons = ", ".join(_reasons(trial, beside(ask, spots)))
    fitted = f"room for {len(spots)} of {ask.count}; " if spots else ""
    return f"{fitted}{len(room.row)} node{'s' if len(room.row) > 1 else ''}: {reasons}"


def _reasons(room: Room, ask: Ask) -> list[str]:
    """Each node is counted once, under the first thing that is in the way; the most frequent first."""
    left = np.zeros(len(room.ids), np.bool_)
    left[list(room.row.values())] = True
    found: list[tuple[int, str]] = []
    for bad, one, many in _obstacles(room, ask, left):
        hit = left & bad
        number = int(hit.sum())
        if number:
            left &= ~hit
            found.append((number, f"{number} {one if number == 1 else many}"))
    return [text for _, text in sorted(found, key=lambda reason: -reason[0])]


def _obstacles(room: Room, ask: Ask, among: Bools) -> list[tuple[Bools, str, str]]:
    """What can be in the way: the rows where it is, and how to say it of one and of many."""
    needs, asked = ask.needs, ask.needs.resources
    kind = asked.gpu_kind.replace("|", " or ") or "gpu"
    labels = ", ".join(f"{key}={value}" for key, value in sorted(needs.labels.items()))
    level, required = needs.spread_over, needs.spread is Spread.REQUIRE
    copy = f"in a {level} that has a copy already" if level is not Level.NODE else "holding a copy already"
    no_gpu = (room.gpu_all == 0) & bool(asked.gpu_milli)
    return [
        (~room.open, "is closed", "are closed"),
        (room.standby & (not ask.use_standby), "is a warm standby", "are warm standbys"),
        (_rows(room, ask.avoid), "is to be avoided", "are to be avoided"),
        (no_gpu | ~kind_allows(room, needs), f"has no {kind}", f"have no {kind}"),
        (~labels_allow(room, needs), f"is not labelled {labels}", f"are not labelled {labels}"),
        (~taints_allow(room, needs), "has a taint it does not tolerate", "have taints it does not tolerate"),
        (~spot_allows(room, needs), "is a spot node", "are spot nodes"),
        (crowded(room, ask) & required, f"is {copy}", f"are {copy}"),
        (
            _rows(room, ask.beside if ask.one_per_node else ()),
            "has a member already",
            "have a member already",
        ),
        *_shortages(room, asked, among),
    ]


def _shortages(room: Room, asked: Resources, among: Bools) -> list[tuple[Bools, str, str]]:
    gpu_free = room.gpu_whole * GPU if asked.gpu_milli >= GPU else room.gpu_part
    cases = [
        (room.cpu, asked.cpu_milli, "too little cpu", 1000, ""),
        (room.memory, asked.memory_mib, "too little memory", 1, " MiB"),
        (gpu_free, asked.gpu_milli, "too little gpu", GPU, ""),
    ]
    found = []
    for free, need, what, unit, name in cases:
        short = free < need
        most = int(free[short & among & room.open].max(initial=0))
        text = f"{what} free (largest {most / unit:.10g}{name}, {need / unit:.10g} needed)"
        found.append((short, f"has {text}", f"have {text}"))
    return found


def _rows(room: Room, nodes: tuple[str, ...]) -> Bools:
    found = np.zeros(len(room.ids), np.bool_)
    found[[room.row[node] for node in nodes if node in room.row]] = True
    return found
