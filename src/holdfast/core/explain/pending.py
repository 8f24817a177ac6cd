"""Why is this seat empty, and what would fill it?

The same questions in the same order as `schedule` and `gang` ask them, with an answer in words at the first
one that stops them: paused, waits for others, given up, backs off, the old copy may still run, as many run as
may, no room. Where there is no room, `placement.why_not` counts the nodes by what is in the way, each pool
says why it launches nothing, and `remedies` tries what would help.

Nothing here decides: the functions that do are called on a draft that nobody carries out. Refused: keeping
the reasons of the last turn. They would be exact for that turn and stale the moment after it, and every turn
would pay for words that are seldom read.

Seats that wait for the same reason are one answer: a sweep of ten thousand tasks asks placement once.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from holdfast.core.disruption import migrate
from holdfast.core.explain import remedies
from holdfast.core.health import fencing
from holdfast.core.placement import placement
from holdfast.core.placement.bin_packing import Apart, Bin
from holdfast.core.placement.placement import Ask
from holdfast.core.plan import reserve
from holdfast.core.plan.draft import NOBODY, Draft
from holdfast.core.plan.request import ask_for
from holdfast.core.provisioning import launch
from holdfast.core.timeouts import lease_over_at
from holdfast.core.workloads import dependencies, gang
from holdfast.core.workloads import slots as workload_slots
from holdfast.model.market import key_of
from holdfast.model.node import Node, NodeState
from holdfast.model.pool import Offer, Pool
from holdfast.model.replica import Phase, Replica, Role, Slot, State, last_of
from holdfast.model.units import HOUR, Instant, many, seconds
from holdfast.model.verdict import Level
from holdfast.model.workload import Job, Service, Sweep, Training, Workload
from holdfast.model.world import Gang, World

PAST_MS = HOUR  # so long it is told what failed, and was not asked for again

NAMES_SHOWN = 5
AGAIN = "tried again in"


class Waiting(msgspec.Struct, frozen=True):
    """Seats that are empty for one reason; no seats: the workload as a whole."""

    slots: tuple[str, ...]
    because: tuple[str, ...]
    would_help: tuple[str, ...] = ()


def waiting(
    world: World,
    workload: Workload,
    now: Instant,
    *,
    advise: bool = True,
    unlisted: Mapping[str, str] = NOBODY,
) -> list[Waiting]:
    """All that keeps seats of the workload empty. Advice costs a placement for each thing that is tried.
    `unlisted`: pools that could not be asked what they offer, and why."""
    draft = Draft(world, now, unlisted)
    slots = [world.slots[name] for name in world.of_workload.get(workload.name, ())]
    given_up = [slot for slot in slots if slot.phase is Phase.FAILED]
    found = [_given_up(slot) for slot in given_up]
    empty = [slot for slot in slots if slot.id in world.waiting.get(workload.name, ())]
    whole = _whole(draft, workload)
    if whole is not None:
        return [*found, msgspec.structs.replace(whole, slots=_ids(empty))]
    actives = [slot for slot in empty if slot.role is Role.ACTIVE]
    if isinstance(workload.shape, Training) and actives:
        found.append(_gang(draft, workload, actives, advise=advise))
        empty = [slot for slot in empty if slot.role is not Role.ACTIVE]
    return [*found, *_seats(draft, workload, empty, advise=advise), *_rollout(draft, workload, advise=advise)]


def rollout(world: World, workload: Workload, now: Instant) -> list[Waiting]:
    """What keeps a new version from coming, although the old one serves."""
    return list(_rollout(Draft(world, now), workload, advise=False))


def _ids(slots: list[Slot]) -> tuple[str, ...]:
    return tuple(slot.id for slot in slots)


# what stops a whole workload


def _whole(draft: Draft, workload: Workload) -> Waiting | None:
    world, name = draft.world, workload.name
    if workload.paused:
        return Waiting((), (f"{name} is paused",), (f"holdfast resume {name}",))
    if not workload_slots.may_start(world, workload):
        others = [other for other in workload.after if not workload_slots.settled(world, other)]
        because = tuple(_unsettled(world, other) for other in others)
        gone = [other for other in others if other not in world.workloads]
        helps = [f"apply {other} again, or {name} without it" for other in gone]
        failed = (other for other in others if dependencies.trouble(world, other) == "failed")
        return Waiting((), because, (*helps, *(f"holdfast logs {other}" for other in failed)))
    return None


def _unsettled(world: World, name: str) -> str:
    other, trouble = world.workloads.get(name), dependencies.trouble(world, name)
    which = f"{name}, which {trouble}," if trouble else name
    if other is None:
        return f"it waits for {name}, which was deleted"
    if isinstance(other.shape, Service):
        return f"it starts when {which} is ready"
    left = len(world.undone.get(name, ()))
    of = f", of which {left} {'is' if left == 1 else 'are'} not" if not isinstance(other.shape, Job) else ""
    return f"it starts when {which} is done{of if left else ''}"


# what stops a seat


def _given_up(slot: Slot) -> Waiting:
    helps = (f"holdfast logs {slot.workload}", "apply a program that is mended")
    return Waiting((slot.id,), (f"it was given up: {slot.why}",), helps)


def _seats(draft: Draft, workload: Workload, empty: list[Slot], *, advise: bool) -> Iterator[Waiting]:
    """Those with a reason of their own, then those that only lack room."""
    own: dict[str, list[Slot]] = {}
    left: list[Slot] = []
    for slot in empty:
        why = _own(draft, workload, slot)
        if why:
            own.setdefault(why, []).append(slot)
        else:
            left.append(slot)
    for why, slots in own.items():
        logs = (f"holdfast logs {workload.name}",) if slots[0].failures else ()
        yield Waiting(_ids(slots), (why,), logs)
    if not left:
        return
    admitted = draft.quotas.admit(workload, left)
    if len(admitted) < len(left):
        ids = {slot.id for slot in admitted}
        beyond = [slot for slot in left if slot.id not in ids]
        yield Waiting(_ids(beyond), (draft.quotas.why(workload),), (_larger_quota(workload),))
        left = admitted
        if not left:
            return
    most = _at_once(draft.world, workload)
    if most <= 0:
        assert isinstance(workload.shape, Sweep)
        parallel = workload.shape.parallel
        more = f"holdfast scale {workload.name} {parallel + 1}"
        yield Waiting(_ids(left), (f"as many run as may at a time: {parallel}",), (more,))
        return
    quota = draft.quotas.of(workload)
    by_node = quota is not None and quota.by_node
    moving = [slot for slot in left if by_node and draft.quotas.counted(slot.id)]
    ids = {slot.id for slot in moving}
    for slots in (moving, [slot for slot in left if slot.id not in ids]):
        if slots:
            again, moves = any(slot.epoch for slot in slots), slots is moving
            ask = ask_for(draft, workload, min(len(slots), most), (), again=again, moves=moves)
            yield _room(draft, workload, slots, ask, advise=advise, moves=moves)


def _larger_quota(workload: Workload) -> str:
    return f"a larger quota of project {workload.project}, which admins set"


def _own(draft: Draft, workload: Workload, slot: Slot) -> str:
    if draft.now < slot.retry_at:
        return _backs_off(slot, draft.now)
    if workload.exclusive and draft.may_run(slot.id):
        return _may_still_run(draft, slot)
    return ""


def _backs_off(slot: Slot, now: Instant) -> str:
    return f"{_failed(slot)}: {AGAIN} {seconds(slot.retry_at - now)}"


def _failed(slot: Slot) -> str:
    times = "once" if slot.failures == 1 else f"{slot.failures} times in a row"
    return f"its program failed {times} ({slot.why})"


def _may_still_run(draft: Draft, slot: Slot) -> str:
    if draft.now < draft.unaccounted_until:
        left = within(draft.unaccounted_until - draft.now)
        return f"the journal was restored from a copy: one that it does not know of may run; it cannot {left}"
    copies = (draft.world.replicas[name] for name in draft.world.of_slot.get(slot.id, ()))
    return "; ".join(may_still_run(draft.world, copy, draft.now) for copy in copies)


def may_still_run(world: World, replica: Replica, now: Instant) -> str:
    """What is known of a copy that is not wanted any more, and when it will surely be gone."""
    where = f"{replica.id} on {replica.node}"
    if replica.state is State.STOPPING:
        return f"{where} is stopping, and is killed {within(replica.deadline - now)}"
    if replica.state is not State.LOST:
        return f"{where} is {replica.state}"
    if not replica.exclusive:
        return f"{where} was lost and may serve on until its node is back"
    if not fencing.lease_proves(world, replica):
        why = "its shim was killed there" if replica.unproven else "nothing there ends it with its lease"
        return f"{where} may still run, and {why}: it is gone when its provider or an operator says so"
    over = lease_over_at(world, replica.node)
    return (
        f"{where} may still run: it is surely gone when its lease is over, {within(over - now)}, "
        "or when its provider confirms that the node is gone"
    )


def within(ms: int) -> str:
    return f"in {seconds(ms)}" if ms > 0 else "now"


def _at_once(world: World, workload: Workload) -> int:
    """How many more of a sweep may run; of others, as many as there are."""
    shape = workload.shape
    if isinstance(shape, Sweep) and shape.parallel:
        return shape.parallel - len(world.held.get(workload.name, ()))
    return len(world.of_workload.get(workload.name, ()))


# what stops a new version


def _rollout(draft: Draft, workload: Workload, *, advise: bool) -> Iterator[Waiting]:
    """The seats of the old copies whose turn it is and whose successor has no place, or failed."""
    if workload.exclusive or workload.paused:
        return
    first = f"version {workload.version} cannot take over from version"
    for old in migrate.next_to_roll(draft.world, workload):
        slot = draft.world.slots[old.slot]
        if draft.now < slot.retry_at:
            logs = (f"holdfast logs {last_of(slot)}",)
            failed, again = _failed(slot), f"{AGAIN} {seconds(slot.retry_at - draft.now)}"
            yield Waiting((slot.id,), (f"{first} {old.version}: {failed}", again), logs)
            continue
        if not draft.quotas.admit(workload, [slot]):
            why = (f"{first} {old.version}", draft.quotas.why(workload))
            yield Waiting((slot.id,), why, (_larger_quota(workload),))
            continue
        ask = migrate.successors(draft, old, workload)[-1]
        if placement.why_not(draft.room, ask):
            yield _room(draft, workload, [slot], ask, f"{first} {old.version}", advise=advise, moves=True)


# gangs


def _gang(draft: Draft, workload: Workload, empty: list[Slot], *, advise: bool) -> Waiting:
    world, shape = draft.world, workload.shape
    assert isinstance(shape, Training)
    slots = gang.active_slots(world, workload)
    members = gang.live_members(draft, workload)
    seated = {member.slot for member in members}
    late = [slot for slot in slots if slot.phase is Phase.OPEN and draft.now < slot.retry_at]
    if late:
        why = tuple(f"{slot.id}: {_backs_off(slot, draft.now)}" for slot in late[:NAMES_SHOWN])
        return Waiting(_ids(empty), ("the gang starts together", *why))
    lost = [slot for slot in slots if slot.id not in seated and draft.may_run(slot.id)]
    if lost:
        why = tuple(_may_still_run(draft, slot) for slot in lost[:NAMES_SHOWN])
        return Waiting(_ids(empty), ("the gang meets again when no lost member can run", *why))
    nodes = [member.node for member in members]
    least = max(1, shape.nodes_min - len(members))
    if len(gang.within_quota(draft, workload, empty)) < least:
        reason = draft.quotas.why(workload, least) or draft.quotas.why_nodes(workload, least)
        size = f"the gang needs {many(least, 'more member')}" if members else f"it starts with {least}"
        return Waiting(_ids(empty), (f"{size}: {reason}",), (_larger_quota(workload),))
    known = world.gangs.get(workload.name, Gang())
    ask = gang.ask_for(draft, workload, len(empty), least, nodes, again=known.generation > 0)
    if members:
        grows_at = known.since + world.policy.replicas.gang_grow_ms
        sizes = f"the gang runs with {len(members)} of {shape.nodes_min} to {shape.nodes_max} members"
        first = f"{sizes}, and grows {within(grows_at - draft.now)}"
    else:
        first = f"the gang starts with at least {many(least, 'member')}"
    return _room(draft, workload, empty, ask, first, advise=advise)


# room


def _room(
    draft: Draft,
    workload: Workload,
    slots: list[Slot],
    ask: Ask,
    *first: str,
    advise: bool,
    moves: bool = False,
) -> Waiting:
    """`moves`: something is in the seats, so no quota keeps them from a node."""
    why = placement.why_not(draft.room, ask)
    if not why:
        return Waiting(_ids(slots), (*first, _why_not_yet(draft.world, workload, slots)))
    because = [*first, f"no room: {why}", *_closed(draft.world)]
    if not moves and (quota := draft.quotas.why_nodes(workload)):
        because.append(quota)
    if draft.leaving:
        because.append(f"{many(len(draft.world.stopping), 'replica')} on the way out still hold room")
    pools = list(_pools(draft, workload, ask, moves=moves))
    because += [f"pool {supply.pool} {supply.text}" for supply in pools]
    if not advise:
        return Waiting(_ids(slots), tuple(because))
    helps = remedies.remedies(draft.world, draft.room, ask, workload, draft.now)
    helps += [supply.would_help for supply in pools if supply.would_help]
    if not helps and not any(supply.comes for supply in pools):
        helps.append(f"a node with {remedies.asked(ask.needs)}")
    return Waiting(_ids(slots), tuple(because), tuple(helps))


def _why_not_yet(world: World, workload: Workload, slots: list[Slot]) -> str:
    """There is room for it, and yet it is not there."""
    if (
        isinstance(workload.shape, Training)
        and world.held.get(workload.name)
        and slots[0].role is Role.ACTIVE
    ):
        return "there is room for it to grow"
    first = [
        name
        for name, empty in world.waiting.items()
        if empty and name in world.workloads and world.workloads[name].priority > workload.priority
    ]
    if world.stopping and first:
        return f"there is room, but it is being made for {', '.join(first[:NAMES_SHOWN])}, which goes first"
    return "there is room: it is placed at the next turn"


def _closed(world: World) -> Iterator[str]:
    """Why nodes that are there take nothing."""
    room = world.room
    shut = [world.nodes[name] for name, row in room.row.items() if not room.open[row] and name in world.nodes]
    reasons: dict[str, list[str]] = {}
    for node in shut:
        reasons.setdefault(why_closed(node), []).append(node.id)
    for why, names in reasons.items():
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        yield f"closed: {', '.join(names[:NAMES_SHOWN])}{more}: {why}"


def why_closed(node: Node) -> str:
    """Why nothing new goes there; empty: something may."""
    if node.state is not NodeState.READY:
        return f"{node.state} by hand" if node.by_hand else str(node.state)
    if node.verdict.level is not Level.ALIVE:
        return str(node.verdict.level)
    return node.leaves_because if node.deadline else ""


class Supply(msgspec.Struct, frozen=True):
    """What a pool does for a seat without room."""

    pool: str
    text: str
    would_help: str = ""
    comes: bool = False  # a node is on its way, or will be at the next turn


def _pools(draft: Draft, workload: Workload, ask: Ask, *, moves: bool) -> Iterator[Supply]:
    apart = Apart.of(draft.world, ask.needs, draft.copies_at(workload.name))
    for pool in draft.world.pools.values():
        supply = _pool(draft, workload, pool, ask, apart)
        if not isinstance(supply, Supply):
            supply = _launches_for(draft, workload, pool, supply, 0 if moves else ask.at_least)
        yield supply


def _launches_for(
    draft: Draft, workload: Workload, pool: Pool, suiting: list[Offer], at_least: int
) -> Supply:
    """`at_least`: seats that a quota may be too small for; 0: something is in them."""
    refuses = draft.quotas.refuses_launch
    refusals = [refuses(workload, each.price_micro_usd, at_least) if at_least else "" for each in suiting]
    if all(refusals):
        return Supply(pool.name, f"launches none for it: {refusals[0]}", _larger_quota(workload))
    return launches(draft, pool, [each for each, no in zip(suiting, refusals, strict=True) if not no])


def _pool(
    draft: Draft, workload: Workload, pool: Pool, ask: Ask, apart: Apart | None
) -> Supply | list[Offer]:
    """What it does, or the offers of which it might launch one."""
    needs, tally = ask.needs, launch.Tally(draft.world, pool.name)
    coming = [node for node in tally.coming if Bin.of(node).suits(needs)]
    kept = reserve.kept_from(draft, workload.priority)
    if not coming and any(name in draft.world.in_pool[pool.name] for name in kept):
        helps = f"a priority of {pool.reserve.priority} or more"
        return Supply(pool.name, f"keeps {many(pool.reserve.nodes, 'node')} for others", helps)
    if coming:
        names = ", ".join(node.id for node in coming[:NAMES_SHOWN])
        return Supply(pool.name, f"has {many(len(coming), 'node')} on the way: {names}", comes=True)
    suiting = [offer for offer in draft.world.offers[pool.name] if Bin.new(pool, offer).suits(needs)]
    apart_too = [offer for offer in suiting if apart is None or apart.allows(offer.place)]
    if pool.name in draft.unlisted and not apart_too:
        unknown = f"whether it has something for {remedies.asked(needs)} is not known"
        return Supply(pool.name, f"{unasked(draft.unlisted[pool.name])}; {unknown}")
    if not pool.can_launch or not draft.world.offers[pool.name]:
        helps = f"a node with {remedies.asked(needs)} that joins pool {pool.name}"
        return Supply(pool.name, "launches no nodes: they join by themselves", helps)
    if not suiting:
        return Supply(pool.name, f"has no offer for {remedies.asked(needs)}")
    if not apart_too:
        return Supply(pool.name, f"has no offer in another {needs.spread_over}")
    if 0 < pool.max - len(draft.world.in_pool.get(pool.name, ())) <= launch.kept(pool, workload.priority):
        helps = f"a priority of {pool.reserve.priority} or more"
        return Supply(pool.name, f"keeps its last {many(pool.reserve.nodes, 'node')} for others", helps)
    return apart_too


def unasked(why: str) -> str:
    return f"could not be asked what it offers: {why}"


def launches(draft: Draft, pool: Pool, suiting: Sequence[Offer]) -> Supply:
    """May the pool launch one more of these offers, and if not, why?"""
    world, now = draft.world, draft.now
    state, nodes = world.pool_states[pool.name], len(world.in_pool.get(pool.name, ()))
    if state.deleted_at:
        return Supply(pool.name, "is being deleted")
    if nodes >= pool.max:
        helps = f"raise max of pool {pool.name} from {pool.max} to {nodes + 1}"
        return Supply(pool.name, f"has {nodes} of at most {many(pool.max, 'node')}", helps)
    if now < state.retry_at:
        return Supply(pool.name, f"backs off for another {seconds(state.retry_at - now)}: {state.why}")
    refusals = [draft.purse.refuses(pool, offer.price_micro_usd) for offer in suiting]
    if all(refusals):
        return Supply(pool.name, f"may not launch one: {refusals[0]}", "a larger budget or ceiling")
    paid = [offer for offer, refusal in zip(suiting, refusals, strict=True) if not refusal]
    records = [world.records.get(key_of(pool.name, offer.name)) for offer in paid]
    soonest = min(records, key=lambda record: record.retry_at if record else 0)
    if soonest is not None and now < soonest.retry_at:
        return Supply(pool.name, f"asks again in {seconds(soonest.retry_at - now)}: {soonest.why}")
    return Supply(pool.name, "may launch one", comes=True)


def trouble(world: World, name: str, now: Instant) -> str:
    """What is wrong with a pool now: it goes away, it backs off, or what it last asked for failed and it has
    not asked since. That is told with its age, and not for ever."""
    state = world.pool_states[name]
    if state.deleted_at:
        left = many(len(world.in_pool[name]), "node")
        return f"it is being deleted, {left} left" + (
            f": {_aged(state.why, state.why_at, now)}" if state.why else ""
        )
    if now < state.retry_at:
        return f"it asks again in {seconds(state.retry_at - now)}: {state.why}"
    records = [world.records.get(key_of(name, offer.name)) for offer in world.offers[name]]
    failed = [record for record in records if record is not None and record.failures_in_a_row]
    waiting = [record for record in failed if now < record.retry_at]
    if waiting:
        soonest = min(waiting, key=lambda record: record.retry_at)
        offer = soonest.key.partition("/")[2]
        return f"{offer} is asked for again in {seconds(soonest.retry_at - now)}: {soonest.why}"
    past = [(state.why_at, state.why), *((record.why_at, record.why) for record in failed)]
    at, why = max(past)
    return _aged(why, at, now) if why and now - at < PAST_MS else ""


def _aged(why: str, at: Instant, now: Instant) -> str:
    return f"{seconds(now - at)} ago: {why}"
