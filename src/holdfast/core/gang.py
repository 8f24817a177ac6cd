"""When does a gang start, go on without a member, wait, or grow?

A training is a gang: between `nodes_min` and `nodes_max` members start together or not at all. It has a
generation, which changes whenever its membership does; all members of a generation know each other.

Losing a member. The gang as a whole is exclusive: it meets again (a new generation) only when every copy of
the lost member is provably gone, because a stray member of the old generation could still write checkpoints.
Then, in this order: a warm standby takes the seat; else another node takes it; else the gang goes on with
fewer, if at least `nodes_min` are left; else the survivors stop and the whole gang waits for room. It does
not sit on part of its nodes while it waits: two gangs that each hold half of what the other needs would wait
for ever. The survivors keep their processes and nodes; they resume from the last common checkpoint.

Growing costs every member a restart, so it happens at most every `gang_grow_ms`.
"""

from holdfast.core import placement, preempt, seats
from holdfast.core.draft import Draft, Unmet
from holdfast.model import action as do
from holdfast.model.replica import LIVE, Phase, Replica, Role, Slot
from holdfast.model.workload import Training, Workload
from holdfast.model.world import Gang, World


def recover(draft: Draft, workload: Workload) -> None:
    world, shape = draft.world, workload.shape
    assert isinstance(shape, Training)
    slots = active_slots(world, workload)
    open_ = [slot for slot in slots if slot.phase is Phase.OPEN]
    if not open_ or workload.paused or not seats.may_start(world, workload):
        return
    if any(slot.failures >= workload.restart.limit for slot in open_):
        _give_up(draft, workload, open_)
        return
    if any(draft.now < slot.retry_at for slot in open_):
        return
    gang = world.gangs.get(workload.name, Gang())
    members = live_members(draft, workload)
    done = len(slots) - len(open_)
    missing = [
        slot for slot in open_ if slot.id in gang.members and not any(m.slot == slot.id for m in members)
    ]
    if members and not missing:
        _grow(draft, workload, gang, members, open_)
    elif any(draft.may_run(slot.id) for slot in open_ if not any(m.slot == slot.id for m in members)):
        draft.unmet.append(
            Unmet(workload, len(missing) or len(open_))
        )  # wait for proof, but order the room now
    elif members:
        _mend(draft, workload, gang, members, missing, done)
    else:
        _start(draft, workload, gang, open_, done)


def active_slots(world: World, workload: Workload) -> list[Slot]:
    slots = (world.slots[slot] for slot in world.of_workload.get(workload.name, ()))
    return [slot for slot in slots if slot.role is Role.ACTIVE]


def live_members(draft: Draft, workload: Workload) -> list[Replica]:
    world = draft.world
    names = (name for slot in active_slots(world, workload) for name in world.of_slot[slot.id])
    return [world.replicas[n] for n in names if world.replicas[n].state in LIVE and n not in draft.ended]


def ask_for(
    workload: Workload, count: int, at_least: int, beside: list[str], *, again: bool
) -> placement.Ask:
    return placement.Ask(
        needs=workload.needs,
        count=count,
        at_least=at_least,
        beside=tuple(beside),
        avoid=tuple(beside),
        use_standby=again,
        one_per_node=True,
    )


def _start(draft: Draft, workload: Workload, gang: Gang, open_: list[Slot], done: int) -> None:
    shape = workload.shape
    assert isinstance(shape, Training)
    at_least = max(1, shape.nodes_min - done)
    again = gang.generation > 0
    ask = ask_for(workload, len(open_), at_least, [], again=again)
    spots = placement.place(draft.room, ask)
    if not spots:
        _make_room(draft, workload, ask, at_least)
        return
    why = f"a gang of {len(spots)} of {shape.nodes_min}..{shape.nodes_max} fits"
    for slot, spot in zip(open_, spots, strict=False):
        draft.place(slot, workload, spot, why, gang=gang.generation + 1)


def _make_room(draft: Draft, workload: Workload, ask: placement.Ask, at_least: int) -> None:
    world = draft.world
    if world.stopping:
        draft.floor = max(draft.floor, workload.priority)
    elif world.policy.replicas.preempt and not world.brakes:
        for name in preempt.victims_for_gang(
            world, draft.room, ask, workload.priority, frozenset(draft.ended), draft.now
        ):
            replica = world.replicas[name]
            why = f"the gang {workload.name} has priority {workload.priority}"
            draft.stop(replica, world.workloads.get(replica.workload), why, cause="preemption")
            draft.floor = max(draft.floor, workload.priority)
    draft.unmet.append(Unmet(workload, at_least, at_least))


def _mend(
    draft: Draft, workload: Workload, gang: Gang, members: list[Replica], missing: list[Slot], done: int
) -> None:
    """Fill the empty seats, or go on with fewer, or stop."""
    shape = workload.shape
    assert isinstance(shape, Training)
    generation = gang.generation + 1
    kept = [member.id for member in members]
    beside = [member.node for member in members]
    left = []
    for slot in missing:
        warm = draft.standby_of(workload.name)
        if warm is not None:
            draft.promote(
                warm, slot, f"{slot.id} was lost, {warm.id} is warm on {warm.node}", gang=generation
            )
            beside.append(warm.node)
            continue
        spots = placement.place(draft.room, ask_for(workload, 1, 1, beside, again=True))
        if spots:
            draft.place(
                slot, workload, spots[0], f"{slot.id} was lost: its place in the gang", gang=generation
            )
            beside.append(spots[0].node)
        else:
            left.append(slot)
    size = len(members) + len(missing) - len(left)
    if size + done >= shape.nodes_min:
        why = f"{missing[0].why}; the gang goes on with {size} of {shape.nodes_max}"
        draft.add(do.RegroupGang(workload=workload.name, generation=generation, members=tuple(kept), why=why))
    else:
        for member in members:
            draft.stop(member, workload, f"only {size} members are left, {shape.nodes_min} are needed")
    if left:
        draft.unmet.append(Unmet(workload, len(left)))


def _grow(draft: Draft, workload: Workload, gang: Gang, members: list[Replica], open_: list[Slot]) -> None:
    empty = [slot for slot in open_ if not draft.world.of_slot[slot.id]]
    if not empty:
        return
    if draft.now - gang.since < draft.world.policy.replicas.gang_grow_ms:
        return
    beside = [member.node for member in members]
    spots = placement.place(draft.room, ask_for(workload, len(empty), 1, beside, again=False))
    for slot, spot in zip(empty, spots, strict=False):
        draft.place(slot, workload, spot, "there is room for a larger gang", gang=gang.generation + 1)
    if spots:
        size = len(members) + len(spots)
        draft.add(
            do.RegroupGang(
                workload=workload.name,
                generation=gang.generation + 1,
                members=tuple(member.id for member in members),
                why=f"the gang grows to {size}",
            )
        )


def _give_up(draft: Draft, workload: Workload, open_: list[Slot]) -> None:
    worst = max(open_, key=lambda slot: slot.failures)
    for member in live_members(draft, workload):
        draft.stop(member, workload, f"{worst.id} failed too often")
    for slot in open_:
        why = f"{worst.id} failed {worst.failures} times in a row: {worst.why}"
        draft.add(do.GiveUpSlot(slot=slot.id, why=why, cause=worst.why))
