"""What does it mean to apply a workload that is there already?

The question is what must be started anew. The rule: the version rises when what runs changes (the program, or
what a replica needs of its node), and then running copies are replaced; everything else (how many, priority,
restarts, what it waits for) counts from now on and disturbs nobody. An apply that changes nothing is no event
at all: the old workload itself comes back.

A workload keeps its kind for life: a copy that may run twice cannot become one that must not while the old
ones run. Refused: deciding by the version that a file gives. People forget to raise it, and then the old
program runs on under a file that says otherwise.

How far copies are to be apart is not part of what runs: `balance` brings them apart by and by.
"""

from msgspec.structs import replace

from holdfast.core.differences import percent
from holdfast.model.workload import Job, Service, Shape, Sweep, Training, Workload


class Refused(ValueError):
    """It cannot be done as asked; `hint` says what can."""

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.hint = hint


class KindChanged(Refused):
    """A workload cannot become one of another kind."""


class CannotScale(Refused):
    """The number of its copies is not what decides."""


def revise(old: Workload | None, new: Workload) -> Workload:
    """The workload to journal; `old` itself if nothing changed."""
    if old is None:
        return new
    if type(old.shape) is not type(new.shape):
        before, after = kind(old.shape), kind(new.shape)
        text = f"{old.name} is a {before} and cannot become a {after}: delete it first"
        raise KindChanged(text, f"holdfast delete {old.name}")
    new = replace(new, version=old.version + (_runs(old) != _runs(new)))
    return old if new == old else new


def kind(shape: Shape) -> str:
    return str(type(shape).__struct_config__.tag)


def _runs(workload: Workload) -> tuple[object, ...]:
    """What a running copy would have to be started anew for."""
    needs = workload.needs
    return workload.program, needs.resources, needs.labels, set(needs.tolerates), needs.spot


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
