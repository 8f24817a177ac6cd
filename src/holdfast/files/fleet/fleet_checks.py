"""Do the fields of a pool or a workload agree? Limits in order, no circles, only what its kind has."""

import re
from collections.abc import Iterator, Sequence

from holdfast.core.workloads.dependencies import circle
from holdfast.files.fleet.fleet_schema import Kind, PoolFields, WorkloadFields
from holdfast.files.fleet.scale_schema import ScaleForm
from holdfast.files.problem import Problem
from holdfast.model.scale import Signal

SHAPE_FIELDS: dict[Kind, tuple[str, ...]] = {
    Kind.SERVICE: ("replicas", "availability", "standby", "scale", "mix", "serves"),
    Kind.JOB: ("standby", "deadline", "work"),
    Kind.TRAINING: ("nodes_min", "nodes_max", "standby"),
    Kind.SWEEP: ("tasks", "parallel"),
}
KIND_FIELDS = tuple(dict.fromkeys(name for names in SHAPE_FIELDS.values() for name in names))
ADDRESS = re.compile(r"https?://[^\s/]+(/\S*)?")
MUST_HAVE: dict[Kind, str] = {Kind.TRAINING: "nodes_min", Kind.SWEEP: "tasks"}


def repeated(table: str, names: list[str]) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for number, name in enumerate(names):
        if name in first:
            where = f"{table}[{number}].name"
            yield Problem(where, f'expected a name of its own, got "{name}" again', f'Try: name = "{name}-2"')
        first.setdefault(name, number)


def pool_limits(where: str, pool: PoolFields) -> Iterator[Problem]:
    if pool.min is not None and pool.max is not None and pool.min > pool.max:
        text = f"expected at most max ({pool.max}), got {pool.min}"
        yield Problem(f"{where}min", text, f"Try: min = {pool.max}")
    if pool.max is not None and pool.reserve.nodes > pool.max:
        text = f"expected at most max ({pool.max}), got {pool.reserve.nodes}"
        yield Problem(f"{where}reserve.nodes", text, f"Try: nodes = {pool.max}")
    if pool.standby_covers >= 1:
        text = "expected a share below 100 %, got all: no number of nodes covers everything"
        yield Problem(f"{where}standby_covers", text, 'Try: standby_covers = "99%"')
    if len(set(pool.zones)) < len(pool.zones):
        yield Problem(f"{where}zones", "expected each zone once, got one twice")


def shape_problems(where: str, workload: WorkloadFields) -> Iterator[Problem]:
    own = SHAPE_FIELDS[workload.kind]
    for name in KIND_FIELDS:
        if name in workload.model_fields_set and name not in own:
            text = f"expected no such field in a {workload.kind}, got one"
            yield Problem(f"{where}{name}", text, f"A {workload.kind} has: {', '.join(own)}")
    needed = MUST_HAVE.get(workload.kind)
    if needed and getattr(workload, needed) is None:
        text = f"expected a whole number of at least 1 in a {workload.kind}, got nothing"
        yield Problem(f"{where}{needed}", text, f"Try: {needed} = 2")
    yield from deadline_problems(where, workload)


def number_problems(where: str, workload: WorkloadFields) -> Iterator[Problem]:
    least, most = workload.nodes_min, workload.nodes_max
    if least is not None and most is not None and least > most:
        text = f"expected at most nodes_max ({most}), got {least}"
        yield Problem(f"{where}nodes_min", text, f"Try: nodes_min = {most}")
    if workload.availability is not None and not 0 < workload.availability < 1:
        text = f"expected a share above 0 and below 1, got {workload.availability:g}"
        yield Problem(f"{where}availability", text, 'Try: availability = "99.9%"')
    yield from scale_problems(f"{where}scale.", workload.scale)


def deadline_problems(where: str, workload: WorkloadFields) -> Iterator[Problem]:
    deadline, work = workload.deadline, workload.work
    if deadline is not None and work is None:
        text = "expected how long the job takes without interruption, got nothing"
        yield Problem(f"{where}work", text, "Try: work = 48h")
    if work is not None and deadline is None:
        text = "expected a deadline beside the work, got none"
        yield Problem(f"{where}deadline", text, "Try: deadline = 52h")
    if deadline is not None and work is not None and work + workload.move_cost > deadline:
        text = "expected a deadline that the work and one start fit in, got less"
        yield Problem(f"{where}deadline", text, "Try: a later deadline")


def scale_problems(where: str, scale: ScaleForm | None) -> Iterator[Problem]:
    if scale is None:
        return
    if scale.min > scale.max:
        yield Problem(
            f"{where}min", f"expected at most max ({scale.max}), got {scale.min}", "Try: a larger max"
        )
    if not 0.5 <= scale.confidence < 1:
        text = f"expected a share from 50 % to below 100 %, got {scale.confidence:g}"
        yield Problem(f"{where}confidence", text, 'Try: confidence = "98%"')
    if not 0 < scale.target <= 1:
        text = f"expected a share above 0 % and up to 100 %, got {scale.target:g}"
        yield Problem(f"{where}target", text, 'Try: target = "70%"')
    if scale.query and not scale.prometheus:
        text = "expected where the queries are asked, got nothing"
        yield Problem(f"{where}prometheus", text, "Try: prometheus = http://127.0.0.1:9090")
    yield from _never_met(where, scale)
    for signal in scale.query:
        if signal not in scale.per_replica and signal not in (Signal.QUEUE, Signal.OLDEST_WAIT):
            text = f"expected a signal that is in per_replica, got {signal}"
            yield Problem(f"{where}query", text, f"Try: per_replica = {{ {signal}: 10 }}")


def _never_met(where: str, scale: ScaleForm) -> Iterator[Problem]:
    """What would be taken and come to nothing."""
    wanted = {"fallback": scale.fallback}
    wanted |= {f"schedule[{number}].replicas": each.replicas for number, each in enumerate(scale.schedule)}
    for name, count in wanted.items():
        if count > scale.max:
            text = f"expected at most max ({scale.max}), got {count}"
            yield Problem(f"{where}{name}", text, "Try: a larger max")
    if scale.prometheus and not ADDRESS.fullmatch(scale.prometheus):
        text = f'expected an address such as http://127.0.0.1:9090, got "{scale.prometheus}"'
        yield Problem(f"{where}prometheus", text, "Try: prometheus = http://127.0.0.1:9090")


def circles(workloads: Sequence[tuple[str, WorkloadFields]]) -> Iterator[Problem]:
    """Each told once, at the first workload of it. A workload comes with its place in the file."""
    waits = {workload.name: workload.after for _, workload in workloads}
    told: set[str] = set()
    for where, workload in workloads:
        found = circle(waits, workload.name)
        if found and workload.name not in told:
            told.update(found)
            text = f"expected an order without circles, got {' -> '.join(found)}"
            yield Problem(f"{where}after", text, f'Try: leave out "{found[1]}"')
