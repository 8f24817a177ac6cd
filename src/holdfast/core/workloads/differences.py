"""What changed, as a person would say it?

Asked when somebody applies what is there already, for the answer and for history. The rule: a field that
differs is named with what it was and what it is, in its unit. What may be a secret (an environment variable,
a setting of a provider, a command with a password among its arguments) is named without its value. The
version of a workload is left out: it follows from the rest.

Refused: a difference of the two files. Their order, comments and defaults differ without meaning anything.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import fields

from holdfast.model.gateway import Key, Limits
from holdfast.model.policy import Policy
from holdfast.model.pool import Offer, Pool
from holdfast.model.program import Probe, Program
from holdfast.model.project import Project
from holdfast.model.resources import GPU
from holdfast.model.units import seconds
from holdfast.model.workload import Needs, Serves, Workload


def differences(old: Workload | None, new: Workload) -> list[str]:
    """Nothing for a workload that is new."""
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


def pool_differences(old: Pool | None, new: Pool) -> list[str]:
    if old is None:
        return []
    return [
        *_offers(old.offers, new.offers),
        *_pairs("label", old.labels, new.labels, shown=True),
        *_pairs("setting", old.settings, new.settings, shown=False),  # values may be secrets
        *_fields(old, new, skip=("name", "offers", "labels", "settings")),
    ]


def _offers(old: Iterable[Offer], new: Iterable[Offer]) -> Iterator[str]:
    was, now = ({offer.name: offer for offer in offers} for offers in (old, new))
    yield from (f"offer {name} added" for name in now if name not in was)
    yield from (f"offer {name} removed" for name in was if name not in now)
    for name in was:
        if name in now:
            yield from _fields(was[name], now[name], f"offer {name} ")


def policy_differences(old: Policy, new: Policy) -> list[str]:
    return list(_fields(old, new))


def project_differences(old: Project | None, new: Project) -> list[str]:
    return list(_fields(old or Project(new.name), new))


def limits_differences(old: Limits, new: Limits) -> list[str]:
    return list(_fields(old, new))


def key_differences(old: Key, new: Key) -> list[str]:
    """Never its hash; what became of it (suspended, replaced) its line says by itself."""
    shown = ("owner", "team", "note", "models", "exempt")
    return [
        *_fields(old, new, skip=tuple(name for name in old.__struct_fields__ if name not in shown)),
        *_fields(old.limits, new.limits),
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
            yield f"{before}{_plainly(name)} {_said(name, was)} -> {_said(name, now)}"


def _said(name: str, value: Any) -> str:
    unit = next((unit for unit in UNITS if name.endswith(unit)), "")
    return SAID.get(name, UNITS.get(unit, _plain))(value)


def _plainly(name: str) -> str:
    """Without its unit, which is said with the value."""
    if name in WORDS:
        return WORDS[name]
    return next((name.removesuffix(unit) for unit in UNITS if name.endswith(unit)), name)


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
            yield f"{_plainly(field.name)} {_said(field.name, found)}"


def _duration(ms: int) -> str:
    return seconds(ms) if ms else "none"


def _usd(micro: int | None) -> str:
    return "none" if micro is None else f"${micro / 1_000_000:.6g}"


def _serves(serves: Serves | None) -> str:
    if serves is None:
        return "nothing"
    said = {"models": serves.models, "hosts": serves.hosts, "prefixes": serves.prefixes}
    words = [f"{name} {', '.join(of)}" for name, of in said.items() if of]
    words += [
        f"{name} {of}" for name, of in (("probe", serves.probe), ("concurrent", serves.concurrent)) if of
    ]
    return f"({'; '.join(words) or 'its name'})"


def _of(unit: int) -> Callable[[int | None], str]:
    return lambda count: "none" if count is None else f"{count / unit:g}"


# Behind the name of a field. Where it stands for another word than the name without it, that word.
UNITS: dict[str, Callable[[Any], str]] = {"_ms": _duration, "_micro_usd": _usd}
WORDS = {"cpu_milli": "cpus", "gpu_milli": "gpus", "memory_mib": "memory in MiB"}
SAID: dict[str, Callable[[Any], str]] = {
    "cpu_milli": _of(1_000),
    "gpu_milli": _of(GPU),
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
