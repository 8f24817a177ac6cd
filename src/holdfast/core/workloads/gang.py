"""When does a gang start, go on without a member, wait, or grow?

A training is a gang: between `nodes_min` and `nodes_max` members start together or not at all. It has a
generation, which changes whenever its membership does. Most frameworks fix ranks, world size and addresses
when a process starts, so in a new generation every member is started anew, where it is and under a new epoch;
only programs that ask for a signal (`tell`) keep running and are notified.

A generation starts in two steps. Each agent ends what ran before, reserves a port and reports it; when the
last port is known, all programs start with the same list of members. So nobody starts beside a member of an
older generation, ranks are a permutation, and no address is missing. A port that is lost between the two
steps ends its member, and a member that ends makes a new generation: there is no state to get stuck in.
Refused: ports chosen by the plan. It cannot know what else listens on a node, and a collision would have to
be found and repaired in the same way.

Losing a member. The gang as a whole is exclusive: it meets again (a new generation) only when every copy of
the lost member is provably gone, because a stray member of the old generation could still write checkpoints.
Then, in this order: a warm standby takes the seat; else another node takes it; else the gang goes on with
fewer, if at least `nodes_min` are left; else the survivors stop and the whole gang waits for room. It does
not sit on part of its nodes while it waits: two gangs that each hold half of what the other needs would wait
for ever. The survivors keep their nodes, and resume from the last common checkpoint.

When one member fails, the others usually fail with it, because their connections break. Only the first
failure of a generation counts against the program (`fold_events`).

Frameworks end with a barrier, so a member that ends well says that all have: then nothing is started any
more, and what is empty, or has not begun, is closed.

Growing costs every member a restart, so it happens at most every `gang_grow_ms`.
"""

from holdfast.core.placement import placement, preempt
from holdfast.core.plan import reserve
from holdfast.core.plan.draft import Draft, Unmet
from holdfast.core.workloads import slots as workload_slots
from holdfast.model import action as do
from holdfast.model.replica import LIVE, Phase, Replica, Role, Slot, State
from holdfast.model.workload import Spread, Training, Workload
from holdfast.model.world import Gang, World


def recover(draft: Draft, workload: Workload) -> None:
    world, shape = draft.world, workload.shape
    assert isinstance(shape, Training)
    slots = active_slots(world, workload)
    open_ = [slot for slot in slots if slot.phase is Phase.OPEN]
    if not open_ or workload.paused or not workload_slots.may_start(world, workload):
        return
    members = live_members(draft, workload)
    seated = {member.slot for member in members}
    if any(slot.phase is Phase.DONE for slot in slots):
        _finish(draft, workload, open_, members)
        return
    if any(slot.failures >= workload.restart.limit for slot in open_):
        _give_up(draft, workload, open_)
        return
    if any(draft.now < slot.retry_at for slot in open_):
        return
    gang = world.gangs.get(workload.name, Gang())
    missing = [slot for slot in open_ if slot.id in gang.members and slot.id not in seated]
    left = any(slot not in seated for slot in gang.members)  # lost, or not wanted any more
    if members and not left:
        _grow(draft, workload, gang, members, open_)
    elif any(draft.may_run(slot.id) for slot in slots if slot.id not in seated):
        wanted = len(missing) or len(open_) - len(members)
        draft.unmet.append(Unmet(workload, wanted))  # wait for proof, but order the room now
    elif members:
        _mend(draft, workload, gang, members, missing)
    else:
        _start(draft, workload, gang, open_)


def _finish(draft: Draft, workload: Workload, open_: list[Slot], members: list[Replica]) -> None:
    """One member ran to its end: so has the training. Nothing is started for it any more; members that still
    run will end by themselves, empty seats are taken away, and those that wait for their peers do so in
    vain."""
    complete = draft.world.gangs.get(workload.name, Gang()).complete
    vain = {} if complete else {each.slot: each for each in members if each.state is not State.READY}
    for slot in open_:
        if slot.id in vain or not draft.may_run(slot.id):
            draft.add(do.CloseSlot(slot=slot.id, why="the training is done"))
        if slot.id in vain:
            draft.stop(vain[slot.id], workload, "the training is done")


def active_slots(world: World, workload: Workload) -> list[Slot]:
    slots = (world.slots[slot] for slot in world.of_workload.get(workload.name, ()))
    return [slot for slot in slots if slot.role is Role.ACTIVE]


def live_members(draft: Draft, workload: Workload) -> list[Replica]:
    world = draft.world
    names = (name for slot in active_slots(world, workload) for name in world.of_slot[slot.id])
    return [world.replicas[n] for n in names if world.replicas[n].state in LIVE and n not in draft.ended]


def ask_for(
    draft: Draft, workload: Workload, count: int, at_least: int, beside: list[str], *, again: bool
) -> placement.Ask:
    apart = workload.needs.spread is Spread.REQUIRE
    return placement.Ask(
        needs=workload.needs,
        count=count,
        at_least=at_least,
        beside=(*draft.copies_at(workload.name), *beside) if apart else tuple(beside),
        avoid=(
            *beside,
            *reserve.kept_from(draft, workload.priority),
            *draft.quotas.kept_from(workload, draft.room),
        ),
        use_standby=again,
        one_per_node=True,
    )


def _start(draft: Draft, workload: Workload, gang: Gang, open_: list[Slot]) -> None:
    shape = workload.shape
    assert isinstance(shape, Training)
    open_ = within_quota(draft, workload, open_)
    if len(open_) < shape.nodes_min:
        return
    ask = ask_for(draft, workload, len(open_), shape.nodes_min, [], again=gang.generation > 0)
    places = placement.place(draft.room, ask)
    spots = draft.quotas.trim(workload, places)
    if len(spots) < shape.nodes_min:
        if len(places) < shape.nodes_min:  # else it is not room that is missing
            _make_room(draft, workload, ask, shape.nodes_min)
        return
    why = f"a gang of {len(spots)} of {shape.nodes_min}..{shape.nodes_max} fits"
    for slot, spot in zip(open_, spots, strict=False):
        draft.place(slot, workload, spot, why, gang=gang.generation + 1)


def within_quota(draft: Draft, workload: Workload, slots: list[Slot]) -> list[Slot]:
    """Those that its project may have, if each member takes a node that it has not yet."""
    new = draft.quotas.new_nodes(workload)
    admitted = draft.quotas.admit(workload, slots)[:new]
    return admitted[: draft.quotas.by_money(workload, len(admitted))]


def _make_room(draft: Draft, workload: Workload, ask: placement.Ask, at_least: int) -> None:
    world = draft.world
    if draft.leaving:
        if draft.leaving_for(workload):
            draft.floor = max(draft.floor, workload.priority)
    elif world.policy.replicas.preempt and not world.brakes:
        for name in preempt.victims_for_gang(
            world,
            draft.room,
            ask,
            workload.priority,
            frozenset(draft.ended),
            draft.now,
            may=lambda spots: len(draft.quotas.trim(workload, spots)) == len(spots),
        ):
            replica = world.replicas[name]
            why = f"the gang {workload.name} has priority {workload.priority}"
            draft.stop(replica, world.workloads.get(replica.workload), why, cause="preemption")
            draft.floor = max(draft.floor, workload.priority)
    draft.unmet.append(Unmet(workload, at_least, at_least))


def _mend(draft: Draft, workload: Workload, gang: Gang, members: list[Replica], missing: list[Slot]) -> None:
    """Fill the empty seats, or go on with fewer, or stop: all of it or nothing."""
    shape = workload.shape
    assert isinstance(shape, Training)
    warm = draft.standbys_of(workload.name)[: len(missing)]
    nodes = [replica.node for replica in (*members, *warm)]
    cold = within_quota(draft, workload, missing[len(warm) :])
    at_least = max(1, shape.nodes_min - len(nodes))
    ask = ask_for(draft, workload, len(cold), at_least, nodes, again=True)
    spots = draft.quotas.trim(workload, placement.place(draft.room, ask)) if cold else []
    size = len(nodes) + len(spots)
    if len(spots) < len(cold):
        draft.unmet.append(Unmet(workload, len(cold) - len(spots)))
    if size < shape.nodes_min:
        for member in members:
            draft.stop(member, workload, f"only {size} members are left, {shape.nodes_min} are needed")
        return
    generation = gang.generation + 1
    for slot, standby in zip(missing, warm, strict=False):
        why = f"{slot.id} was lost, {standby.id} is warm on {standby.node}"
        draft.promote(standby, slot, why, gang=generation, restart=workload.regroups_by_restart)
    for slot, spot in zip(cold, spots, strict=False):
        draft.place(slot, workload, spot, f"{slot.id} was lost: its place in the gang", gang=generation)
    _regroup(draft, workload, generation, members, f"{_lost(missing)}; the gang goes on with {size}")


def _lost(missing: list[Slot]) -> str:
    return missing[0].why if missing else "fewer members are wanted"


def _regroup(draft: Draft, workload: Workload, generation: int, members: list[Replica], why: str) -> None:
    shape = workload.shape
    assert isinstance(shape, Training)
    kept = tuple(member.id for member in members)
    why = f"{why} of {shape.nodes_max}"
    restart = workload.regroups_by_restart
    draft.add(
        do.RegroupGang(workload=workload.name, generation=generation, members=kept, restart=restart, why=why)
    )


def _grow(draft: Draft, workload: Workload, gang: Gang, members: list[Replica], open_: list[Slot]) -> None:
    empty = within_quota(draft, workload, [slot for slot in open_ if not draft.world.of_slot[slot.id]])
    if not empty or draft.now - gang.since < draft.world.policy.replicas.gang_grow_ms:
        return
    nodes = [member.node for member in members]
    spots = placement.place(draft.room, ask_for(draft, workload, len(empty), 1, nodes, again=False))
    spots = draft.quotas.trim(workload, spots)
    generation = gang.generation + 1
    for slot, spot in zip(empty, spots, strict=False):
        draft.place(slot, workload, spot, "there is room for a larger gang", gang=generation)
    if spots:
        why = f"there is room: the gang grows to {len(members) + len(spots)}"
        _regroup(draft, workload, generation, members, why)


def _give_up(draft: Draft, workload: Workload, open_: list[Slot]) -> None:
    worst = max(open_, key=lambda slot: slot.failures)
    for member in live_members(draft, workload):
        draft.stop(member, workload, f"{worst.id} failed too often")
    for slot in open_:
        why = f"{worst.id} failed {worst.failures} times in a row: {worst.why}"
        draft.add(do.GiveUpSlot(slot=slot.id, why=why, cause=worst.why))
