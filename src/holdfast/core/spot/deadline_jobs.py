"""Jobs with a deadline: which way does each go on, and what follows from it for its node?

`deadline_safety` chooses the way (spot, on demand, or waiting) and says until when it is safe; here it is
asked, with what the world knows: how much work is saved, what runs where, what spot and on demand cost now,
how spot comes and goes, and how long nodes on demand take. A change is an action, `TakeWay`, so that it is
journalled and told. A way says what is *bought*, not what is used: a job runs wherever there is room already,
on a node that suits. Waiting, nothing is ordered for it; on spot, only spot; on demand, only on demand.

A job that runs on the wrong kind of node is moved when there is room on the right one (stopped, with its
grace, so that it saves a checkpoint; its seat is then empty and `schedule` fills it). Until then it goes on
where it is. One that waits keeps no node that costs something and that nobody else uses, and takes none such;
room beside others is free.

A node on demand that was ordered is counted on. It may come sooner than was feared, and then waiting looks
safe for longer, but beside a node that is paid for.

How spot comes and goes is taken from the best spot offer's memory, on the hypotheses of `onoff.SPOT_GRID`,
each of those of the memory counted to its nearest. Refused: a second memory for jobs alone. It would know
less.
"""

from functools import lru_cache

import numpy as np

from holdfast.core.market import offers
from holdfast.core.market.offer_history import GRID
from holdfast.core.placement import placement
from holdfast.core.plan.draft import Draft, Unmet
from holdfast.core.plan.request import ask_for, is_kept_by_waiting
from holdfast.core.spot import deadline_safety
from holdfast.core.spot.deadline_safety import Progress
from holdfast.model import action as do
from holdfast.model.course import Way
from holdfast.model.replica import LIVE, Phase, Replica, Slot, State, slot_id
from holdfast.model.units import MINUTE, NEVER, Millis, seconds
from holdfast.model.workload import Job, Workload
from holdfast.model.world import World
from holdfast.reliability.onoff import SPOT_GRID, Floats

READY_TWICE = 2  # on demand is given twice its usual time to come
ASK_AGAIN_MS = 10 * MINUTE
MARGIN_MS = MINUTE  # many turns; what it takes to be sure that the old copy is gone comes on top


def update(draft: Draft) -> None:
    names = draft.workloads()
    if draft.look["pool"] or draft.world.agenda.room_freed:
        names.update(dict.fromkeys(draft.world.courses))
    for name in names:
        workload = draft.world.workloads.get(name)
        if workload is None or name not in draft.world.courses:
            continue
        slot = draft.world.slots.get(slot_id(name, 0))
        _declare_late(draft, workload, slot)
        if slot is not None and slot.phase is Phase.OPEN and not workload.paused:
            _steer(draft, workload, slot)


def _declare_late(draft: Draft, workload: Workload, slot: Slot | None) -> None:
    """Once, so that it is in the history; whatever keeps the job, pauses and failures too."""
    assert isinstance(workload.shape, Job)
    course = draft.world.courses[workload.name]
    deadline = course.begun + workload.shape.deadline_ms
    if draft.now < deadline or course.missed == deadline or (slot is not None and slot.phase is Phase.DONE):
        return
    left = max(0, workload.shape.work_ms - (slot.progress_ms if slot is not None else 0))
    why = f"its deadline has passed with {seconds(left)} of work not saved"
    if workload.paused:
        why += "; it is paused"
    elif slot is not None and slot.phase is Phase.FAILED:
        why += "; it was given up"
    draft.add(do.DeclareLate(workload=workload.name, deadline=deadline, why=why))


def _steer(draft: Draft, workload: Workload, slot: Slot) -> None:
    known, found = draft.world.courses[workload.name], choose(draft, workload, slot)
    draft.ways[workload.name] = found.way
    if found.way is not known.way or draft.now >= known.ask_at:
        draft.add(
            do.TakeWay(
                workload=workload.name,
                way=found.way,
                safe_until=found.safe_until,
                ask_at=found.ask_at,
                why=found.why,
            )
        )


def shift(draft: Draft) -> None:
    """What runs on another kind of node than its way says moves when there is room, or is ordered a node."""
    for name, way in draft.ways.items():
        workload = draft.world.workloads[name]
        replica = running(draft.world, workload)
        if replica is None or replica.id in draft.ended or replica.state not in LIVE:
            continue
        home = draft.world.nodes[replica.node]
        if way is Way.WAIT:
            if is_kept_by_waiting(draft, home):
                draft.stop(replica, workload, "waiting is cheaper than going on here")
        elif home.spot is not (way is Way.SPOT) and home.price_micro_usd:
            _move(draft, workload, replica, way)


def _move(draft: Draft, workload: Workload, replica: Replica, way: Way) -> None:
    ask = ask_for(draft, workload, 1, (replica.node,), again=True, without=replica.slot)
    room = draft.room
    spots = placement.place_where(room, ask, spot=way is Way.SPOT)
    for spot in spots:  # it is taken when its seat is empty
        room.give(room.row[spot.node], workload.needs.resources, spot.devices)
    if spots:
        draft.stop(replica, workload, f"it goes on {way}")
    elif draft.quotas.new_nodes(workload, replica.slot) != 0:
        draft.unmet.append(Unmet(workload, 1))


# what the world knows


def choose(draft: Draft, workload: Workload, slot: Slot) -> deadline_safety.Course:
    job = terms(draft, workload)
    if job is None:
        only = _only(draft, workload)
        return deadline_safety.Course(only, f"only {only} can be had", 0, draft.now + ASK_AGAIN_MS, {})
    return deadline_safety.course(
        job, progress(draft, workload, slot), draft.now, outlook(job), spot_weights(draft, workload)
    )


def _only(draft: Draft, workload: Workload) -> Way:
    """What runs on demand stays there, though no more of it can be had."""
    replica = running(draft.world, workload)
    stays = replica is not None and not draft.world.nodes[replica.node].spot
    paid = stays or _cheapest(draft, workload, spot=False) is not None
    return Way.ON_DEMAND if paid else Way.SPOT


outlook = lru_cache(maxsize=32)(deadline_safety.outlook_of)


def terms(draft: Draft, workload: Workload) -> deadline_safety.Job | None:
    """None: there is nothing to choose between."""
    assert isinstance(workload.shape, Job)
    spot, paid = (_cheapest(draft, workload, spot=spot) for spot in (True, False))
    if spot is None or paid is None:
        return None
    course, leases = draft.world.courses[workload.name], draft.world.policy.leases
    return deadline_safety.Job(
        work_ms=workload.shape.work_ms,
        begun=course.begun,
        deadline=course.begun + workload.shape.deadline_ms,
        restart_ms=workload.move_cost_ms,
        on_demand_ready_ms=_ready_ms(draft, workload),
        checkpoint_ms=workload.checkpoint_ms or workload.shape.work_ms,
        spot_price=spot,
        on_demand_price=paid,
        margin_ms=MARGIN_MS + workload.stop_grace_ms + leases.lease_ms + leases.margin_ms,
    )


def _cheapest(draft: Draft, workload: Workload, *, spot: bool) -> int | None:
    rows = _suiting(draft, workload, spot=spot)
    return int(draft.market.ints["price"][rows].min()) if len(rows) else None


def _suiting(draft: Draft, workload: Workload, *, spot: bool) -> offers.Ints:
    """Offers that can never be paid are none. What is spent at the moment changes and does not count."""
    table, budget = draft.market, draft.world.policy.budget
    most = {
        name: min(
            NEVER if limit is None else limit
            for limit in (pool.price_max_micro_usd, pool.budget.hour_micro_usd, budget.hour_micro_usd)
        )
        for name, pool in draft.world.pools.items()
    }
    found = offers.suits(table, workload.needs) & (table.bools["spot"] if spot else ~table.bools["spot"])
    rows: offers.Ints = np.flatnonzero(found & offers.within(table, most))
    return rows


def _ready_ms(draft: Draft, workload: Workload) -> Millis:
    """Rounded up to minutes, so that one more launch does not change a job's terms."""
    rows = _suiting(draft, workload, spot=False)
    ready = float(offers.outlook(draft.market, draft.now).ready_ms[rows].min())
    return (int(READY_TWICE * ready) // MINUTE + 1) * MINUTE


def progress(draft: Draft, workload: Workload, slot: Slot) -> Progress:
    replica, world = running(draft.world, workload), draft.world
    if replica is None or replica.state not in LIVE:
        return _ordered(draft, workload, slot)
    way = Way.SPOT if world.nodes[replica.node].spot else Way.ON_DEMAND
    worked = draft.now - replica.ready_at if replica.state is State.READY else 0
    unsaved = max(0, replica.progress_ms + worked - slot.progress_ms)
    restart = max(0, workload.move_cost_ms - (draft.now - replica.placed_at))
    there = way is Way.SPOT or _is_there(draft, workload)
    return Progress(slot.progress_ms, unsaved, way, restart, there)


def _ordered(draft: Draft, workload: Workload, slot: Slot) -> Progress:
    """It runs nowhere. What was ordered on demand is on its way, or stands here."""
    course, there = draft.world.courses[workload.name], _is_there(draft, workload)
    if course.way is not Way.ON_DEMAND:
        return Progress(slot.progress_ms, 0, Way.WAIT, 0, there)
    late = 0 if _has_room(draft, workload) else course.since + _ready_ms(draft, workload) - draft.now
    return Progress(slot.progress_ms, 0, Way.ON_DEMAND, max(0, late) + workload.move_cost_ms, there)


def _has_room(draft: Draft, workload: Workload) -> bool:
    """On a node on demand, now."""
    room, ask = draft.room, ask_for(draft, workload, 1, (), again=True)
    spots = placement.place_where(room, ask, spot=False)
    for spot in spots:
        room.give(room.row[spot.node], workload.needs.resources, spot.devices)
    return bool(spots)


def running(world: World, workload: Workload) -> Replica | None:
    names = world.of_slot.get(slot_id(workload.name, 0), ())
    return next((world.replicas[name] for name in names if world.replicas[name].state in LIVE), None)


def _is_there(draft: Draft, workload: Workload) -> bool:
    """A spot node may be asked for now. Asking is the only way to know, and to be refused costs nothing: the
    offer then backs off, and until it may be asked again it is away."""
    rows = _suiting(draft, workload, spot=True)
    return bool((draft.market.ints["retry_at"][rows] <= draft.now).any())


def spot_weights(draft: Draft, workload: Workload) -> Floats:
    """What is believed of how spot comes and goes: of the offer that is likeliest to be there for long."""
    rows = _suiting(draft, workload, spot=True)
    expected = offers.outlook(draft.market, draft.now)
    best = rows[int(np.argmax(expected.there[rows] * (expected.weights[rows] @ GRID.stays)))]
    return on_spot_grid(expected.weights[best])


def on_spot_grid(weights: Floats) -> Floats:
    found = np.zeros(len(SPOT_GRID.stays))
    np.add.at(found, NEAREST, weights)
    return found


def _nearest() -> offers.Ints:
    far = np.abs(np.log(GRID.stays[:, None] / SPOT_GRID.stays)) + np.abs(
        np.log(GRID.aways[:, None] / SPOT_GRID.aways)
    )
    found: offers.Ints = np.argmin(far, axis=1)
    return found


NEAREST = _nearest()
