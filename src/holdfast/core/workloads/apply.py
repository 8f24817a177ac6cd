"""What does it mean to apply a workload that is there already?

The question is what must be started anew. The rule: the version rises when what runs changes (the program, or
what a replica needs of its node), and then running copies are replaced; everything else (how many, priority,
restarts, what it waits for) counts from now on and disturbs nobody. An apply that changes nothing is no event
at all: the old workload itself comes back.

A workload keeps its kind for life: a copy that may run twice cannot become one that must not while the old
ones run. Refused: deciding by the version that a file gives. People forget to raise it, and then the old
program runs on under a file that says otherwise.

A rollback is a change like any other: what ran under an earlier version runs again, as a new version, and
what is not part of a version (how many, priority) stays as it is now. Refused: to bring back the whole file
of that time. Whoever rolls back a bad program in the night does not want last month's number of copies.

How far copies are to be apart is not part of what runs: `rebalance` brings them apart by and by.
"""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from holdfast.core.workloads.differences import percent
from holdfast.model.replica import Phase, Slot
from holdfast.model.workload import Job, Service, Shape, Sweep, Training, Version, Workload


class Refused(ValueError):
    """It cannot be done as asked; `hint` says what can."""

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.hint = hint


class KindChanged(Refused):
    """A workload cannot become one of another kind."""


class CannotScale(Refused):
    """The number of its copies is not what decides."""


class CannotRetry(Refused):
    """There is nothing to start again, or it would not start."""


class NoSuchVersion(Refused):
    """Nothing is known of it any more."""


def revise(old: Workload | None, new: Workload) -> Workload:
    """The workload to journal; `old` itself if nothing changed."""
    if old is None:
        return new
    if type(old.shape) is not type(new.shape):
        before, after = kind(old.shape), kind(new.shape)
        text = f"{old.name} is a {before} and cannot become a {after}: delete it first"
        raise KindChanged(text, f"holdfast delete {old.name}")
    new = replace(new, version=old.version + (old.runs != new.runs))
    return old if new == old else new


def kind(shape: Shape) -> str:
    return str(type(shape).__struct_config__.tag)


def scaled(workload: Workload, count: int) -> Workload:
    """With this many copies: replicas of a service, members of a training, tasks of a sweep at a time."""
    name, shape = workload.name, workload.shape
    least = 0 if isinstance(shape, Service) else 1
    if count < least:
        raise CannotScale(f"{name} cannot have {count} copies", f"to stop it: holdfast pause {name}")
    match shape:
        case Service(availability=target) if target:
            text = f"{name} has an availability target of {percent(target)}, which decides how many there are"
            raise CannotScale(text, "change the target, or apply it without one")
        case Service(scale=scale) if scale is not None:
            text = f"{name} grows and shrinks with its load, from {scale.min} to {scale.max}"
            raise CannotScale(text, "change min and max of its `scale`, or apply it without one")
        case Service():
            return _with_shape(workload, replace(shape, replicas=count))
        case Training(nodes_min=fewest):
            if count < fewest:
                text = f"{name} needs at least {fewest} nodes, {count} are too few"
                raise CannotScale(text, "apply it with a smaller nodes_min")
            return _with_shape(workload, replace(shape, nodes_max=count))
        case Sweep():
            return _with_shape(workload, replace(shape, parallel=count))
        case Job():
            raise CannotScale(
                f"{name} is a job: there is exactly one of it",
                "a sweep runs many tasks, a service many copies",
            )


def _with_shape(workload: Workload, shape: Shape) -> Workload:
    return workload if shape == workload.shape else replace(workload, shape=shape)


def paused(workload: Workload, pause: bool) -> Workload:
    return workload if workload.paused is pause else replace(workload, paused=pause)


def check_retry(workload: Workload, slots: Iterable[Slot]) -> tuple[str, ...]:
    """The seats that would start again."""
    _check_running(workload, "retry")
    failed = [slot.id for slot in slots if slot.phase is Phase.FAILED or (slot.failures and _is_open(slot))]
    if not failed:
        hint = f"to run it once more: holdfast restart {workload.name}"
        raise CannotRetry(f"nothing of {workload.name} has failed", hint)
    return tuple(failed)


def _is_open(slot: Slot) -> bool:
    return slot.phase is Phase.OPEN


def check_restart(workload: Workload) -> None:
    _check_running(workload, "restart")


def _check_running(workload: Workload, what: str) -> None:
    if workload.paused:
        text = f"{workload.name} is paused: there is nothing to {what}"
        raise CannotRetry(text, f"holdfast resume {workload.name}")


def rolled_back(workload: Workload, versions: Sequence[Version], to: int | None = None) -> Workload:
    """With what ran under version `to`, or under the last one that was another; the same if that is what
    runs."""
    if to == workload.version:
        return workload
    found = [version for version in versions if version.number == to or to is None]
    if not found:
        known = ", ".join(str(version.number) for version in versions)
        what = (
            f"of {workload.name} there is no version {to}"
            if to
            else f"{workload.name} has no earlier version"
        )
        raise NoSuchVersion(what, f"known are: {known}" if known else "nothing earlier is known of it")
    return revise(workload, at_version(workload, found[-1]))


def at_version(workload: Workload, version: Version) -> Workload:
    old = version.needs
    needs = replace(
        workload.needs, resources=old.resources, labels=old.labels, tolerates=old.tolerates, spot=old.spot
    )
    return replace(workload, needs=needs, program=version.program)
