"""Which empty seats are filled, in which order, and how?

The order of recovery: higher priority first, then what has been down the longest. For each seat: a warm
standby is promoted if there is one; else it is placed where there is room (a warm standby node only for work
that was running before); else lower priorities may be preempted; else it becomes demand for capacity.

What must wait: an exclusive seat whose old copy could still run (see `fencing`); a seat whose program failed
by itself and backs off; one that failed too often, which is given up with its reason, because restarting a
broken program elsewhere is no availability. Losing a node is never counted as a failure of the program. A
program that failed is tried on another node, if there is one: that is how `repair` learns whether the program
or the node is broken.

Gangs have a module of their own.
"""

from collections.abc import Collection
from itertools import islice

from msgspec.structs import replace

from holdfast.core.placement import placement, preempt
from holdfast.core.plan.draft import Draft, Unmet
from holdfast.core.plan.request import ask_for
from holdfast.core.workloads import gang
from holdfast.core.workloads import slots as workload_slots
from holdfast.model import action as do
from holdfast.model.course import Way
from holdfast.model.replica import Role, Slot
from holdfast.model.units import NEVER, seconds
from holdfast.model.workload import Service, Sweep, Training, Workload
from holdfast.model.world import World

FRONT = 64
AT_ONCE = 1_000  # seats of one workload in one turn; the next turn goes on


def recover(draft: Draft) -> None:
    for workload in in_order(draft):
        if workload.priority < draft.floor:
            continue  # the room that others are giving up now is for somebody more important
        if isinstance(workload.shape, Training):
            gang.recover(draft, workload)
        _fill(draft, workload)


def in_order(draft: Draft) -> list[Workload]:
    """The workloads that have seats to fill and a reason to look at them now."""
    world = draft.world
    names = draft.workloads()
    if world.agenda.room_freed or draft.look["pool"] or draft.leaving:
        # there is room, or a pool may launch again, or those for whom room is being made must come first
        names.update({name: None for name, waiting in world.waiting.items() if waiting})
    found = [world.workloads[name] for name in names if name in world.workloads]
    return sorted(found, key=lambda w: (-w.priority, _down_longest(world, w), w.name))


def _down_longest(world: World, workload: Workload) -> int:
    """Seats wait in the order in which they were emptied, so the front of the line is enough."""
    front = islice(world.waiting.get(workload.name, {}), FRONT)
    return min((world.slots[slot].down_since for slot in front), default=NEVER)


def _fill(draft: Draft, workload: Workload) -> None:
    world = draft.world
    if workload.paused or not workload_slots.may_start(world, workload):
        return
    ready: list[Slot] = []
    blocked: list[str] = []
    exclusive, gang_seats = workload.exclusive, isinstance(workload.shape, Training)
    at_most = allowed(world, workload)
    for slot_id in worth_a_look(draft, workload):
        slot = world.slots[slot_id]
        if slot_id in draft.filled or (gang_seats and slot.role is Role.ACTIVE):
            continue
        if slot.failures >= workload.restart.limit:
            why = f"its program failed {slot.failures} times in a row: {slot.why}"
            draft.add(do.GiveUpSlot(slot=slot_id, why=why, cause=slot.why))
        elif draft.now < slot.retry_at:
            continue
        elif exclusive and draft.may_run(slot_id):
            blocked.append(slot_id)
        elif len(ready) < at_most:
            ready.append(slot)
        else:
            break
    ready = draft.quotas.admit(workload, _promote(draft, workload, ready))
    if ready:
        _place(draft, workload, ready)
    if blocked and draft.quotas.new_nodes(workload, blocked[0]) != 0:
        draft.unmet.append(Unmet(workload, len(blocked), moves=True))


def worth_a_look(draft: Draft, workload: Workload) -> Collection[str]:
    """Its empty seats; where the quota has no room for one more, those of them that changed, and those in
    which something still is: what only waits for the quota must not be walked through in every turn."""
    waiting = draft.world.waiting.get(workload.name, {})
    held, changed = draft.world.held.get(workload.name, {}), draft.changed_of(workload.name)
    unaccounted = workload.exclusive and draft.now < draft.unaccounted_until
    if unaccounted or len(held) + len(changed) >= len(waiting) or not draft.quotas.is_full(workload):
        return waiting
    return [slot for slot in dict.fromkeys((*held, *changed)) if slot in waiting]


def allowed(world: World, workload: Workload) -> int:
    """How many more may run at once: for a sweep, up to its `parallel`; and how many one turn looks at."""
    if not isinstance(workload.shape, Sweep) or not workload.shape.parallel:
        return AT_ONCE
    return min(AT_ONCE, workload.shape.parallel - len(world.held.get(workload.name, ())))


def waits(world: World, workload: Workload) -> int:
    """Its empty seats that would take room if there were any: tasks beyond `parallel` would not."""
    if workload.paused or not workload_slots.may_start(world, workload):
        return 0
    return max(0, min(len(world.waiting.get(workload.name, ())), allowed(world, workload)))


def _promote(draft: Draft, workload: Workload, ready: list[Slot]) -> list[Slot]:
    """Seats that were filled before get what is warm, the warm replicas that were ready first in front."""
    left, warm = [], iter(draft.standbys_of(workload.name))
    for slot in ready:
        heir = next(warm, None) if slot.role is Role.ACTIVE and slot.epoch else None
        if heir is None:
            left.append(slot)
        else:
            draft.promote(heir, slot, f"{slot.id} is down, {heir.id} is warm on {heir.node}")
    return left


def _place(draft: Draft, workload: Workload, ready: list[Slot]) -> None:
    """Seats that failed before try to avoid the node they failed on; the others go together, which is
    quicker."""
    wary = [slot for slot in ready if slot.failures and slot.last_node]
    easy = [slot for slot in ready if not (slot.failures and slot.last_node)]
    quota = draft.quotas.of(workload)
    batches = [[slot] for slot in easy] if quota is not None and quota.by_node else [easy]
    left, vain = list[Slot](), set[tuple[bool, bool]]()
    for batch in (batch for batch in batches if batch):
        alike = bool(batch[0].epoch), draft.quotas.counted(batch[0].id)
        unplaced = batch if alike in vain else _place_together(draft, workload, batch, ())
        if unplaced:  # nor is there room for others like it
            vain.add(alike)
        left += unplaced
    for slot in wary:
        unplaced = _place_together(draft, workload, [slot], (slot.last_node,))
        left += _place_together(draft, workload, [slot], ()) if unplaced else []
    if left:
        _make_room(draft, workload, left)


def _place_together(
    draft: Draft, workload: Workload, slots: list[Slot], avoid: tuple[str, ...]
) -> list[Slot]:
    again = any(slot.epoch for slot in slots)
    moves = all(draft.quotas.counted(slot.id) for slot in slots)
    ask = ask_for(draft, workload, len(slots), avoid, again=again, moves=moves)
    spots = _mixed(draft, workload, ask) if workload.name in draft.world.mixed else []
    if draft.ways.get(workload.name) is Way.SPOT:
        spots = placement.place_where(draft.room, ask, spot=True)
    spots += placement.place(draft.room, _rest(ask, spots))
    for slot, spot in zip(slots, spots, strict=False):
        draft.place(slot, workload, spot, _why(draft, slot))
    return slots[len(spots) :]


def _rest(ask: placement.Ask, spots: list[placement.Spot]) -> placement.Ask:
    return placement.beside(replace(ask, count=ask.count - len(spots)), spots) if spots else ask


def _mixed(draft: Draft, workload: Workload, ask: placement.Ask) -> list[placement.Spot]:
    """As many as are missing on demand go there, and the others to spot, as far as there is room."""
    assert isinstance(workload.shape, Service)
    assert workload.shape.mix is not None
    homes = (draft.world.nodes[name] for name in draft.copies_at(workload.name))
    missing = max(0, workload.shape.mix.on_demand - sum(not home.spot for home in homes))
    paid = placement.place_where(draft.room, replace(ask, count=min(missing, ask.count)), spot=False)
    return paid + placement.place_where(draft.room, _rest(ask, paid), spot=True)


def _why(draft: Draft, slot: Slot) -> str:
    if not slot.epoch:
        return f"{slot.id} is new"
    down = seconds(draft.now - slot.down_since) if slot.down_since else "0.0 s"
    return f"{slot.id} has been down for {down}"


def _make_room(draft: Draft, workload: Workload, slots: list[Slot]) -> None:
    """Preempt lower priorities, or ask for capacity."""
    world = draft.world
    left = len(slots)
    patient = draft.ways.get(workload.name) is Way.WAIT or not preempt.may_find(world, workload.priority)
    if world.policy.replicas.preempt and not world.brakes and not draft.leaving and not patient:
        spoken_for = frozenset(draft.ended)
        for slot in draft.quotas.may_stop_for(workload, slots):
            moves = draft.quotas.counted(slot.id)
            ask = ask_for(draft, workload, 1, (), again=bool(slot.epoch), moves=moves)
            victims = preempt.victims(world, draft.room, ask, workload.priority, spoken_for, draft.now)
            if not victims:
                break
            left -= 1
            spoken_for |= set(victims)
            for name in victims:
                replica = world.replicas[name]
                owner = world.workloads.get(replica.workload)
                why = f"{slot.id} has priority {workload.priority} over {owner.priority if owner else 0}"
                draft.stop(replica, owner, why, cause="preemption")
    moves = any(draft.quotas.counted(slot.id) for slot in slots)  # and may go to any node
    if left < len(slots) or (draft.leaving if moves else draft.leaving_for(workload)):
        draft.floor = max(draft.floor, workload.priority)
    _demand(draft, workload, slots, left)


def _demand(draft: Draft, workload: Workload, slots: list[Slot], left: int) -> None:
    """Capacity for the last of these seats, `left` of them."""
    again, tried = any(slot.epoch for slot in slots), left == len(slots)
    quota = draft.quotas.of(workload)
    if quota is not None and quota.by_node:
        moving = sum(draft.quotas.counted(slot.id) for slot in slots[len(slots) - left :])
        new = draft.quotas.new_nodes(workload)
        left = left - moving if new is None else min(left - moving, new)  # each may need a node of its own
        if moving:
            draft.unmet.append(Unmet(workload, moving, again=again, tried=tried, moves=True))
    if left:
        draft.unmet.append(Unmet(workload, left, again=again, tried=tried))
