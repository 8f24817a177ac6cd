"""Which workloads may another wait for, and what is wrong with those it waits for?

The question is asked when workloads are applied, and when somebody asks why one does not start. The rule: a
name in `after` is that of a workload that is there or comes in the same apply, and no workload waits for
itself by way of others. One that is deleted later holds those that have not started, because nobody can say
that its work was done; so does one that failed. Both are named as the reason.

Refused: to take a name that nobody knows for something that comes later. A misspelt name would either start
at once or wait for ever, and neither can be told from what was meant. Refused as well: to forbid deleting
what others wait for. It would make deleting depend on an order, and the reason is shown where it holds.
"""

from collections.abc import Iterable, Iterator, Mapping

from holdfast.core.spelling import did_you_mean
from holdfast.model.replica import Phase
from holdfast.model.workload import Workload
from holdfast.model.world import World


def problems(
    world: World, applied: Iterable[Workload], visible: Iterable[str] | None = None
) -> Iterator[str]:
    """What keeps these from being applied together. A name that a workload waits for already may be gone: the
    same file can be applied again. `visible`: names that are there for whoever applies them; None: all."""
    new = {workload.name: workload for workload in applied}
    waits = {workload.name: workload.after for workload in (world.workloads | new).values()}
    there = waits.keys() if visible is None else new.keys() | set(visible)
    told: set[str] = set()
    for name, workload in new.items():
        old = world.workloads.get(name)
        for other in workload.after:
            if other not in there and (old is None or other not in old.after):
                hint = did_you_mean(other, there - {name})
                yield f"{name}.after: there is no workload {other}{f'. {hint}' if hint else ''}"
        found = circle(waits, name)
        if found and name not in told:
            told.update(found)
            yield f"{name}.after: expected an order without circles, got {' -> '.join(found)}"


def circle(waits: Mapping[str, tuple[str, ...]], start: str) -> list[str]:
    """A way from the start back to it, if there is one."""
    came_from: dict[str, str] = {}
    todo = [start]
    while todo:
        name = todo.pop()
        for other in waits.get(name, ()):
            if other == start:
                way = [start, name]
                while way[-1] != start:
                    way.append(came_from[way[-1]])
                return way[::-1]
            if other not in came_from:
                came_from[other] = name
                todo.append(other)
    return []


def trouble(world: World, name: str) -> str:
    """Why what waits for this workload will not start by itself; empty: it may."""
    if name not in world.workloads:
        return "was deleted"
    slots = (world.slots[slot] for slot in world.of_workload.get(name, ()))
    return "failed" if any(slot.phase is Phase.FAILED for slot in slots) else ""
