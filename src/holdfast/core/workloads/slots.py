"""Which seats does each workload have?

The question: the user wants five replicas and two standbys; which slots should exist? The rule: exactly
those, numbered from zero; a slot that is no longer wanted is emptied and then removed, highest number first.
A workload that is paused or deleted keeps nothing running; one that waits for others (`after`) gets its seats
when they are done, or ready if they are services.

A service with an availability target does not say how many: `redundancy` does, from measured failure rates
and prices, when the workload changes and every few minutes, as the rates are measured.
"""

from collections.abc import Iterator
from itertools import islice

from msgspec.structs import replace

from holdfast.core.plan.draft import Draft
from holdfast.core.workloads import redundancy_inputs
from holdfast.model import action as do
from holdfast.model.replica import LIVE, Phase, Role, State, slot_id
from holdfast.model.scale import Scale
from holdfast.model.workload import Service, Sweep, Workload, standbys, wanted
from holdfast.model.world import World

SEATS_AT_ONCE = 2_000  # of one workload in one turn, which must stay short; the rest follow in the next ones


def update(draft: Draft) -> None:
    names = dict.fromkeys(draft.look["workload"])
    if "balance" in draft.look["fleet"]:  # rates are measured all the time: is it still enough, or too much?
        names.update(draft.world.promised)
    for name in names:
        workload = draft.world.workloads.get(name)
        if workload is None:
            _clear(draft, name, "the workload was deleted", remove=True)
        elif workload.paused:
            _clear(draft, name, "the workload is paused", remove=False)
        elif may_start(draft.world, workload):
            _match(draft, *sized(draft, workload))


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
    actives = [world.slots[slot] for slot in slots if world.slots[slot].role is Role.ACTIVE]
    return bool(actives) and all(not slot.down_since for slot in actives)


def _match(draft: Draft, workload: Workload, because: str) -> None:
    world = draft.world
    have = world.of_workload.get(workload.name, {})
    if _may_add(world, workload, have):
        for role, number, count in islice(_missing(workload, have), SEATS_AT_ONCE):
            slot = slot_id(workload.name, number, role)
            why = f"{workload.name} wants {count} {role}{because}"
            draft.add(do.AddSlot(slot=slot, workload=workload.name, index=number, role=role, why=why))
    for slot_name in reversed(list(have)):
        held = world.slots[slot_name]
        limit = wanted(workload) if held.role is Role.ACTIVE else standbys(workload)
        finished = held.role is Role.STANDBY and not _is_service(workload) and settled(world, workload.name)
        if held.index >= limit or finished or held.phase is Phase.CLOSED:
            _empty(draft, slot_name, workload, f"not wanted any more{because}")


def _missing(workload: Workload, have: dict[str, None]) -> Iterator[tuple[Role, int, int]]:
    for role, count in ((Role.ACTIVE, wanted(workload)), (Role.STANDBY, standbys(workload))):
        for number in range(count):
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


def _clear(draft: Draft, name: str, why: str, *, remove: bool) -> None:
    for slot in list(draft.world.of_workload.get(name, {})):
        _empty(draft, slot, draft.world.workloads.get(name), why, remove=remove)


def _empty(draft: Draft, slot: str, workload: Workload | None, why: str, *, remove: bool = True) -> None:
    """Stops what is in the slot; removes the slot when nothing is left that could run."""
    world = draft.world
    if remove and world.slots[slot].phase is not Phase.CLOSED:
        draft.add(do.CloseSlot(slot=slot, why=why))
        draft.filled[slot] = ""  # nothing else may fill it in this plan
    for name in world.of_slot.get(slot, ()):
        if world.replicas[name].state in LIVE:
            draft.stop(world.replicas[name], workload, why)
    lost_only = all(
        world.replicas[name].state is State.LOST and not world.replicas[name].exclusive
        for name in world.of_slot.get(slot, ())
    )
    if remove and lost_only and world.slots[slot].phase is Phase.CLOSED:
        draft.add(do.RemoveSlot(slot=slot, why=why))
