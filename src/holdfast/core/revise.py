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

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import fields, replace

from holdfast.model.program import Probe, Program
from holdfast.model.resources import GPU
from holdfast.model.units import seconds
from holdfast.model.workload import Job, Needs, Serves, Service, Shape, Sweep, Training, Workload


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


# in words


def differences(old: Workload | None, new: Workload) -> list[str]:
    """What changed, as a person would say it; nothing for a workload that is new. The version is left out: it
    follows from the rest."""
    if old is None:
        return []
    return [
        *_fields(old.shape, new.shape),
        *_needs(old.needs, new.needs),
        *_program(old.program, new.program),
        *_fields(old.restart, new.restart, "restart "),
        *_fields(old, new, skip=("name", "shape", "needs", "program", "restart", "version", "paused")),
        *([] if old.paused is new.paused else ["paused" if new.paused else "resumed"]),
    ]


def percent(share: float) -> str:
    return f"{share * 100:.10g} %"


def _fields(old: object, new: object, before: str = "", skip: tuple[str, ...] = ()) -> Iterator[str]:
    """The fields of two structs of one type that differ, by their names and units."""
    for field in fields(old):  # type: ignore[arg-type]
        name = field.name
        was, now = getattr(old, name), getattr(new, name)
        if name in skip or was == now:
            continue
        if name not in SAID and isinstance(was, Struct) and type(was) is type(now):
            yield from _fields(was, now, f"{before}{name}.")
        else:
            yield f"{before}{name.removesuffix('_ms')} {_said(name, was)} -> {_said(name, now)}"


def _said(name: str, value: Any) -> str:
    return SAID.get(name, _duration if name.endswith("_ms") else _plain)(value)


def _plain(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name} {each}" for name, each in value.items()) or "none"
    if isinstance(value, Struct):
        return f"({', '.join(_described(value)) or 'as usual'})"
    return "none" if value is None else str(value)


def _described(value: Struct) -> Iterator[str]:
    """What of it is not as usual."""
    for field in fields(value):
        found = getattr(value, field.name)
        usual = field.default_factory() if callable(field.default_factory) else field.default
        if found != usual:
            yield f"{field.name.removesuffix('_ms')} {_said(field.name, found)}"


def _duration(ms: int) -> str:
    return seconds(ms) if ms else "none"


def _serves(serves: Serves | None) -> str:
    if serves is None:
        return "nothing"
    said = {"models": serves.models, "hosts": serves.hosts, "prefixes": serves.prefixes}
    words = [f"{name} {', '.join(of)}" for name, of in said.items() if of]
    words += [
        f"{name} {of}" for name, of in (("probe", serves.probe), ("concurrent", serves.concurrent)) if of
    ]
    return f"({'; '.join(words) or 'its name'})"


SAID: dict[str, Callable[[Any], str]] = {
    "availability": lambda target: percent(target) if target else "none",
    "serves": _serves,
    "parallel": lambda count: str(count) if count else "as many as fit",
}


def _needs(old: Needs, new: Needs) -> Iterator[str]:
    was, now = old.resources, new.resources
    if was.cpu_milli != now.cpu_milli:
        yield f"cpus {was.cpu_milli / 1000:g} -> {now.cpu_milli / 1000:g}"
    if was.memory_mib != now.memory_mib:
        yield f"memory {was.memory_mib} -> {now.memory_mib} MiB"
    if was.gpu_milli != now.gpu_milli:
        yield f"gpus {was.gpu_milli / GPU:g} -> {now.gpu_milli / GPU:g}"
    if was.gpu_kind != now.gpu_kind:
        yield f"gpu kind {was.gpu_kind or 'any'} -> {now.gpu_kind or 'any'}"
    yield from _pairs("label", old.labels, new.labels, shown=True)
    yield from _fields(old, new, skip=("resources", "labels"))


def _program(old: Program | None, new: Program | None) -> Iterator[str]:
    if old is None or new is None:
        if old is not new:
            yield "program added" if old is None else "program removed"
        return
    if old.command != new.command:
        yield "command changed"
    yield from _pairs("environment variable", old.env, new.env, shown=False)  # values may be secrets
    if old.workdir != new.workdir:
        yield f"workdir {old.workdir or 'its own'} -> {new.workdir or 'its own'}"
    yield from _probe("readiness probe", old.ready, new.ready)
    yield from _probe("liveness probe", old.alive, new.alive)
    if old.tell != new.tell:
        yield f"signal {old.tell or 'none'} -> {new.tell or 'none'}"


def _probe(name: str, old: Probe | None, new: Probe | None) -> Iterator[str]:
    if old != new:
        yield f"{name} {'added' if old is None else 'removed' if new is None else 'changed'}"


def _pairs(name: str, old: dict[str, str], new: dict[str, str], *, shown: bool) -> Iterator[str]:
    for key in sorted(old.keys() | new.keys()):
        was, now = old.get(key), new.get(key)
        if was == now:
            continue
        if was is None:
            yield f"{name} {key}{f'={now}' if shown else ''} added"
        elif now is None:
            yield f"{name} {key}{f'={was}' if shown else ''} removed"
        else:
            yield f"{name} {key}{f' {was} -> {now}' if shown else ' changed'}"
