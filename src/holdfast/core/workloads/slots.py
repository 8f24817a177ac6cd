"""Which seats does each workload have?

The question: the user wants five replicas and two standbys; which slots should exist? The rule: exactly
those, numbered from zero; a slot that is no longer wanted is emptied and then removed, highest number first.
A workload that is paused or deleted keeps nothing running; one that waits for others (`after`) gets its seats
when they are done, or ready if they are services.

A turn must stay short, however much is wanted: so many seats are made, closed and removed in one, of all
workloads together, and those that are looked at in it have equal shares of that. So a workload of five seats
has them at once beside one of a hundred thousand. What is over follows in the next turns (`fold.accept` notes
it). What is stopped is stopped at once. Whether a workload has just the seats that it wants is seen by their
number and the sum of their indexes, without a walk.

A service with an availability target does not say how many: `redundancy` does, from measured failure rates
and prices, when the workload changes and every few minutes, as the rates are measured.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice

from msgspec.structs import replace

from holdfast.core.plan.draft import Draft
from holdfast.core.workloads import redundancy_inputs
from holdfast.model import action as do
from holdfast.model.replica import LIVE, Phase, Role, Slot, State, line_of, slot_id
from holdfast.model.scale import Scale
from holdfast.model.workload import Service, Sweep, Workload, standbys, wanted
from holdfast.model.world import World


def update(draft: Draft) -> None:
    names = dict.fromkeys(draft.look["workload"])
    if "balance" in draft.look["fleet"]:  # rates are measured all the time: is it still enough, or too much?
        names.update(draft.world.promised)
    for number, name in enumerate(names):
        workload = draft.world.workloads.get(name)
        share = -(-draft.seats_left // (len(names) - number))
        if workload is None:
            slots = draft.world.of_workload.get(name, ())
            _empty(draft, name, slots, lambda slot: True, share, "the workload was deleted")
        elif workload.paused:
            _stop(draft, _held(draft.world, name), workload, "the workload is paused")
        elif may_start(draft.world, workload):
            _match(draft, *sized(draft, workload), share)


def sized(draft: Draft, workload: Workload) -> tuple[Workload, str]:
    """The workload with its numbers filled in from its load and its availability target, and why."""
    shape, because = workload.shape, ""
    if isinstance(shape, Service) and shape.scale is not None:
        count, why = by_load(draft.world, workload.name, shape, shape.scale)
        shape, because = replace(shape, replicas=count), f": {why}"
    if isinstance(shape, Service) and shape.availability:
        shape, why = redundancy_inputs.resized(draft.world, replace(workload, shape=shape), draft.now)
        because = f"{because}: {why}"
    return replace(workload, shape=shape) if because else workload, because


def by_load(world: World, name: str, shape: Service, scale: Scale) -> tuple[int, str]:
    """As many as were judged to be needed, within its bounds; before anything is known, as it was written."""
    demand = world.demands.get(name)
    if demand is None:
        return min(max(shape.replicas, scale.min), scale.max), "nothing is known of its load yet"
    return min(max(demand.wanted, scale.min), scale.max), demand.why


def may_start(world: World, workload: Workload) -> bool:
    """Waiting for others is for the first start only: what runs is kept up whatever becomes of them."""
    if not workload.after:
        return True
    slots = world.of_workload.get(workload.name, ())
    begun = any(world.slots[slot].phase is not Phase.CLOSED for slot in slots)
    return begun or all(settled(world, name) for name in workload.after)


def settled(world: World, name: str) -> bool:
    """Done; or, for a service, ready."""
    other, slots = world.workloads.get(name), world.of_workload.get(name, {})
    if other is None:  # it was deleted, and nobody can say that its work was done
        return False
    if not isinstance(other.shape, Service):
        return bool(slots) and not world.undone[name]
    if world.numbered.get(line_of(name, Role.ACTIVE)) is None:
        return False
    return all(
        world.slots[slot].role is not Role.ACTIVE or not world.slots[slot].down_since for slot in slots
    )


def _match(draft: Draft, workload: Workload, because: str, share: int) -> None:
    """`share`: so many seats may change."""
    world, name = draft.world, workload.name
    have = world.of_workload.get(name, {})
    if is_as_wanted(world, workload):
        return
    before = draft.seats_left
    if _may_add(world, workload, have):
        for role, number, count in islice(_missing(world, workload, have), share):
            slot = slot_id(name, number, role)
            why = f"{name} wants {count} {role}{because}"
            draft.add(do.AddSlot(slot=slot, workload=name, index=number, role=role, why=why))

    left, leaves = share - (before - draft.seats_left), partial(_leaves, world, workload)
    _empty(draft, name, reversed(have), leaves, left, f"not wanted any more{because}")


def is_as_wanted(world: World, workload: Workload) -> bool:
    """Its seats are those that it wants: numbered from zero, none too few or too many, none closed. So many
    different numbers have a sum that small only if none is left out."""
    name, service = workload.name, _is_service(workload)
    for role, count in ((Role.ACTIVE, wanted(workload)), (Role.STANDBY, standbys(workload))):
        if world.numbered.get(line_of(name, role), (0, 0)) != (count, count * (count - 1) // 2):
            return False
    finished = bool(standbys(workload)) and not service and settled(world, name)
    return name not in world.closed and not finished


def _leaves(world: World, workload: Workload, slot: Slot) -> bool:
    limit = wanted(workload) if slot.role is Role.ACTIVE else standbys(workload)
    finished = slot.role is Role.STANDBY and not _is_service(workload) and settled(world, workload.name)
    return slot.index >= limit or finished or slot.phase is Phase.CLOSED


def _missing(world: World, workload: Workload, have: dict[str, None]) -> Iterator[tuple[Role, int, int]]:
    for role, count in ((Role.ACTIVE, wanted(workload)), (Role.STANDBY, standbys(workload))):
        there, total = world.numbered.get(line_of(workload.name, role), (0, 0))
        whole = total == there * (there - 1) // 2  # from zero on, without a gap
        for number in range(there if whole else 0, count):
            if slot_id(workload.name, number, role) not in have:
                yield role, number, count


def _may_add(world: World, workload: Workload, have: dict[str, None]) -> bool:
    """Jobs and trainings that are done, or nearly, get no more seats; a sweep may be given more tasks."""
    if not have or isinstance(workload.shape, Service | Sweep):
        return True
    phases = [world.slots[slot].phase for slot in have]
    return Phase.OPEN in phases and Phase.DONE not in phases


def _is_service(workload: Workload) -> bool:
    return isinstance(workload.shape, Service)


def _held(world: World, name: str) -> list[str]:
    """Its seats in which something is, in their order."""
    held = [world.slots[slot] for slot in world.held.get(name, ()) if slot in world.slots]
    return [slot.id for slot in sorted(held, key=lambda slot: (slot.role is Role.STANDBY, slot.index))]


def _empty(
    draft: Draft, name: str, slots: Iterable[str], leaves: Callable[[Slot], bool], share: int, why: str
) -> None:
    """Removes the seats that leave, as soon as nothing is left in them that could run, a share of them in
    this turn; what is in them is stopped now, in all of them."""
    world, workload = draft.world, draft.world.workloads.get(name)
    least = draft.seats_left - share
    for slot in slots:
        if draft.seats_left <= least:
            break
        if leaves(world.slots[slot]):
            _remove(draft, world.slots[slot], workload, why)
    else:
        return
    _stop(draft, (slot for slot in _held(world, name) if leaves(world.slots[slot])), workload, why)


def _remove(draft: Draft, slot: Slot, workload: Workload | None, why: str) -> None:
    world = draft.world
    if slot.phase is not Phase.CLOSED:
        draft.add(do.CloseSlot(slot=slot.id, why=why))
        draft.filled[slot.id] = ""  # nothing else may fill it in this plan
    _stop(draft, (slot.id,), workload, why)
    copies = [world.replicas[name] for name in world.of_slot.get(slot.id, ())]
    lost_only = all(copy.state is State.LOST and not copy.exclusive for copy in copies)
    if lost_only and slot.phase is Phase.CLOSED:
        draft.add(do.RemoveSlot(slot=slot.id, why=why))


def _stop(draft: Draft, slots: Iterable[str], workload: Workload | None, why: str) -> None:
    world = draft.world
    for slot in slots:
        for name in world.of_slot.get(slot, ()):
            if world.replicas[name].state in LIVE:
                draft.stop(world.replicas[name], workload, why)
