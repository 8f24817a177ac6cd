"""A workload as a file would say it: the way back from `workload.documents`.

What is as usual is left out, as people do. To read what is written here gives the same workload again, but
for its version, which no file says.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import yaml

from holdfast.core.workloads.apply import kind
from holdfast.files.fleet import scale_schema
from holdfast.files.fleet.scale_schema import DAYS
from holdfast.files.struct_schema import default_of, plain
from holdfast.files.values import show_duration, show_memory
from holdfast.files.workload.workload_schema import SHELL, WorkloadDocument
from holdfast.model.program import Probe, Program
from holdfast.model.resources import Resources
from holdfast.model.scale import Scale, Window
from holdfast.model.workload import DEFAULT_PROJECT, Job, Needs, Service, Shape, Sweep, Training, Workload

Fields = dict[str, Any]
MINUTES_OF_DAY = 24 * 60


def text(fields: Fields) -> str:
    """YAML, in the order of the fields."""
    dumped: str = yaml.dump(
        fields, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=100
    )
    return dumped


class _Dumper(yaml.SafeDumper):
    """Lines of a script stay lines, and nothing is said by reference."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _word(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    """In quotes where a reader would take a character for the end of a line."""
    plain = all(part.isprintable() for part in value.split("\n"))
    style = ("|" if "\n" in value else None) if plain else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _word)


def fields(workload: Workload) -> Fields:
    needs = workload.needs
    told = {
        "kind": kind(workload.shape),
        "name": workload.name,
        "project": workload.project if workload.project != DEFAULT_PROJECT else "",
        **_shape(workload.shape),
        **_program(workload.program),
        **_needs(needs),
        "priority": workload.priority,
        "checkpoint": _time(workload.checkpoint_ms),
        "move_cost": _time(workload.move_cost_ms),
        "stop_grace": _time(workload.stop_grace_ms),
        "after": list(workload.after),
        "restart": struct(workload.restart),
        "paused": workload.paused,
    }
    usual = {name: _usual(name) for name in told}
    always = ("kind", "name", *_shape(workload.shape))
    return {name: value for name, value in told.items() if name in always or value not in (None, usual[name])}


def _usual(name: str) -> object:
    """What a field is that is left out, as a file would say it."""
    value = WorkloadDocument.model_fields[name].get_default(call_default_factory=True)
    if name in ("checkpoint", "move_cost", "stop_grace"):
        return _time(value)
    if name == "memory":
        return _said(show_memory, value)
    if name == "cpus":
        return _thousandths(value)
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, msgspec.Struct):
        return struct(value)
    return value


def _shape(shape: Shape) -> Fields:
    told: Fields
    match shape:
        case Service():
            told = {
                "replicas": shape.replicas,
                "standby": shape.standby or None,
                "availability": shape.availability or None,
                "mix": None if shape.mix is None else struct(shape.mix),
                "scale": None if shape.scale is None else _scale(shape.scale),
                "serves": None if shape.serves is None else struct(shape.serves),
            }
        case Job():
            deadline, work = shape.deadline_ms, shape.work_ms
            told = {"standby": shape.standby or None, "deadline": _time(deadline) if deadline else None}
            told["work"] = _time(work) if work else None
        case Training():
            told = {
                "nodes_min": shape.nodes_min,
                "nodes_max": shape.nodes_max,
                "standby": shape.standby or None,
            }
        case Sweep():
            told = {"tasks": shape.tasks, "parallel": shape.parallel or None}
    return {name: value for name, value in told.items() if value is not None}


def _program(program: Program | None) -> Fields:
    if program is None:
        return {}
    command = program.command
    by_shell = command[: len(SHELL)] == SHELL and len(command) == len(SHELL) + 1
    return {
        "command": command[-1] if by_shell else list(command),
        "env": dict(program.env),
        "workdir": program.workdir,
        "ready": _probe(program.ready),
        "alive": _probe(program.alive),
        "tell": program.tell,
    }


def _probe(probe: Probe | None) -> Fields | None:
    return None if probe is None else struct(probe)


def _needs(needs: Needs) -> Fields:
    of: Resources = needs.resources
    return {
        "cpus": _thousandths(of.cpu_milli),
        "memory": _said(show_memory, of.memory_mib),
        "gpus": _thousandths(of.gpu_milli),
        "gpu_kind": of.gpu_kind,
        "labels": dict(needs.labels),
        "tolerates": list(needs.tolerates),
        "spot": needs.spot,
        "spread": str(needs.spread),
        "spread_over": str(needs.spread_over),
    }


def struct(of: msgspec.Struct) -> Fields:
    """A table that was made from a struct (`mirror`): what of it is not as usual."""
    told: Fields = {}
    for field in msgspec.structs.fields(of):
        value = getattr(of, field.name)
        if value == default_of(field):
            continue
        told[plain(field.name)] = _time(value) if field.name.endswith("_ms") else _listed(value)
    return told


def _listed(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _scale(scale: Scale) -> Fields:
    told = struct(scale)
    told |= {"min": scale.min, "max": scale.max, "per_replica": _by_signal(scale.per_replica.items())}
    if "policy" in told:
        told["policy"] = str(scale.policy)
    if "schedule" in told:
        told["schedule"] = [_window(window) for window in scale.schedule]
    if "query" in told:
        told["query"] = _by_signal(scale.query.items())
    if told.pop("utc_offset_minutes", 0):
        told["utc_offset"] = _offset(scale.utc_offset_minutes)
    return told


def _by_signal(pairs: Iterable[tuple[str, Any]]) -> Fields:
    return {str(signal): value for signal, value in pairs}


def _window(window: Window) -> Fields:
    def told() -> Iterator[tuple[str, Any]]:
        yield "replicas", window.replicas
        if len(window.days) < len(DAYS):
            yield "days", ", ".join(DAYS[day] for day in window.days)
        if window.start_minute:
            yield "start", _said(scale_schema.show_minute, window.start_minute)
        if window.end_minute != MINUTES_OF_DAY:
            yield "end", _said(scale_schema.show_minute, window.end_minute)

    return dict(told())


def _offset(minutes: int) -> str:
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"


def _time(ms: int) -> str:
    return _said(show_duration, ms)


def _said(show: Callable[[int], str], value: int) -> str:
    """Without the quotes, which YAML has no need of."""
    word: str = json.loads(show(value))
    return word


def _thousandths(milli: int) -> float | int:
    return milli // 1000 if milli % 1000 == 0 else milli / 1000
