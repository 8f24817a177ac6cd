"""What an apply means: what is started anew, what only counts from now on, and how a person is told."""

from typing import Any

import pytest
from msgspec.structs import fields, replace

from holdfast.core.workloads.apply import (
    CannotScale,
    KindChanged,
    Refused,
    paused,
    revise,
    scaled,
)
from holdfast.core.workloads.differences import differences
from holdfast.model.place import Level
from holdfast.model.program import Probe, Program
from holdfast.model.resources import GPU, Resources
from holdfast.model.scale import Scale, Signal
from holdfast.model.workload import (
    Job,
    Needs,
    Restart,
    Serves,
    Service,
    Shape,
    Spread,
    Sweep,
    Training,
    Workload,
)

PROGRAM = Program(("serve", "--port", "80"), env={"A": "1", "B": "2"})
WEB = Workload("web", Service(2), program=PROGRAM, version=3)
NEEDS = WEB.needs


def program(**changes: Any) -> dict[str, Any]:
    return {"program": replace(PROGRAM, **changes)}


def needs(**changes: Any) -> dict[str, Any]:
    return {"needs": replace(NEEDS, **changes)}


def asking(**changes: Any) -> dict[str, Any]:
    return needs(resources=replace(NEEDS.resources, **changes))


def restart(**changes: Any) -> dict[str, Any]:
    return {"restart": replace(Restart(), **changes)}


# A change, the words for it, and whether what runs is started anew.
CHANGES: list[tuple[dict[str, Any], list[str], bool]] = [
    ({"shape": Service(3)}, ["replicas 2 -> 3"], False),
    ({"shape": Service(2, standby=1)}, ["standby 0 -> 1"], False),
    ({"shape": Service(2, availability=0.999)}, ["availability none -> 99.9 %"], False),
    ({"priority": 5}, ["priority 0 -> 5"], False),
    ({"checkpoint_ms": 60_000}, ["checkpoint none -> 60 s"], False),
    ({"move_cost_ms": 1_000}, ["move_cost 30 s -> 1.0 s"], False),
    ({"stop_grace_ms": 20_000}, ["stop_grace 10 s -> 20 s"], False),
    ({"after": ("job", "db")}, ["after none -> job, db"], False),
    ({"paused": True}, ["paused"], False),
    ({"project": "vision"}, ["project default -> vision"], False),
    (restart(limit=3), ["restart limit 10 -> 3"], False),
    (restart(backoff_ms=500), ["restart backoff 1.0 s -> 0.5 s"], False),
    (needs(spread=Spread.REQUIRE), ["spread prefer -> require"], False),
    (needs(spread_over=Level.RACK), ["spread_over zone -> rack"], False),
    (asking(cpu_milli=2_500), ["cpus 1 -> 2.5"], True),
    (asking(memory_mib=1024), ["memory 512 -> 1024 MiB"], True),
    (asking(gpu_milli=GPU, gpu_kind="h100"), ["gpus 0 -> 1", "gpu kind any -> h100"], True),
    (needs(labels={"disk": "ssd"}), ["label disk=ssd added"], True),
    (needs(tolerates=("gpu",)), ["tolerates none -> gpu"], True),
    (needs(spot=False), ["spot yes -> no"], True),
    (program(command=("serve",)), ["command changed"], True),
    (
        program(env={"A": "9", "C": "3"}),
        ["environment variable A changed", "environment variable B removed", "environment variable C added"],
        True,
    ),
    (program(workdir="srv"), ["workdir its own -> srv"], True),
    (program(ready=Probe(tcp=True)), ["readiness probe added"], True),
    (program(alive=Probe(http="/")), ["liveness probe added"], True),
    (program(tell="USR1"), ["signal none -> USR1"], True),
    ({"program": None}, ["program removed"], True),
]


@pytest.mark.parametrize(("change", "words", "anew"), CHANGES, ids=[", ".join(w) for _, w, _ in CHANGES])
def test_a_change_is_told_in_words_and_the_version_rises_if_what_runs_changes(
    change: dict[str, Any], words: list[str], anew: bool
) -> None:
    new = replace(WEB, version=1, **change)
    revised = revise(WEB, new)
    assert revised == replace(new, version=4 if anew else 3)
    assert differences(WEB, revised) == differences(WEB, new) == words


def test_every_field_of_a_workload_has_a_case() -> None:
    changed = {name for change, _, _ in CHANGES for name in change}
    assert changed == {field.name for field in fields(Workload)} - {"name", "version"}


def test_values_of_the_environment_are_not_told() -> None:
    new = replace(WEB, **program(env={"A": "hunter2", "B": "2", "SECRET": "swordfish"}))
    assert not any("hunter2" in text or "swordfish" in text for text in differences(WEB, new))


def test_labels_are_told_with_their_values() -> None:
    old = replace(WEB, **needs(labels={"disk": "ssd", "net": "fast"}))
    new = replace(WEB, **needs(labels={"disk": "hdd"}))
    assert differences(old, new) == ["label disk ssd -> hdd", "label net=fast removed"]


def test_what_a_service_answers_for_counts_at_once_and_is_told_in_words() -> None:
    new = replace(WEB, shape=replace(WEB.shape, serves=Serves(("a", "b"), concurrent=8)))
    assert revise(WEB, new).version == WEB.version
    assert differences(WEB, new) == ["serves nothing -> (models a, b; concurrent 8)"]
    other = replace(WEB, shape=replace(WEB.shape, serves=Serves()))
    assert differences(new, other) == ["serves (models a, b; concurrent 8) -> (its name)"]


def test_what_is_paused_is_told_as_resumed() -> None:
    assert differences(replace(WEB, paused=True), WEB) == ["resumed"]


def test_a_probe_that_changed_and_one_that_went_are_told() -> None:
    old = replace(WEB, **program(ready=Probe(tcp=True), alive=Probe(tcp=True)))
    new = replace(WEB, **program(ready=Probe(http="/")))
    assert differences(old, new) == ["readiness probe changed", "liveness probe removed"]


def test_what_is_new_is_taken_as_it_is() -> None:
    assert revise(None, WEB) is WEB
    assert differences(None, WEB) == []


@pytest.mark.parametrize("version", [1, 3, 99])
def test_an_apply_that_changes_nothing_gives_the_old_workload_itself(version: int) -> None:
    same = replace(WEB, version=version, program=replace(PROGRAM, env={"B": "2", "A": "1"}))
    assert revise(WEB, same) is WEB
    assert differences(WEB, same) == []


def test_the_order_of_what_is_tolerated_starts_nothing_anew() -> None:
    old = replace(WEB, **needs(tolerates=("a", "b")))
    assert revise(old, replace(old, **needs(tolerates=("b", "a")))).version == old.version


SHAPES: list[Shape] = [Service(1), Job(), Training(1, 2), Sweep(3)]


@pytest.mark.parametrize("new", SHAPES)
@pytest.mark.parametrize("old", SHAPES)
def test_a_workload_keeps_its_kind_for_life(old: Shape, new: Shape) -> None:
    before, after = Workload("x", old), Workload("x", new)
    if type(old) is type(new):
        assert revise(before, after) is before
    else:
        with pytest.raises(KindChanged, match="delete it first") as refused:
            revise(before, after)
        assert refused.value.hint == "holdfast delete x"


def test_the_refusal_names_both_kinds() -> None:
    with pytest.raises(KindChanged, match=r"^web is a service and cannot become a job: delete it first$"):
        revise(WEB, Workload("web", Job()))


@pytest.mark.parametrize(
    ("shape", "count", "becomes"),
    [
        (Service(2, standby=1), 5, Service(5, standby=1)),
        (Service(2), 0, Service(0)),
        (Sweep(100, parallel=3), 7, Sweep(100, parallel=7)),
        (Training(2, 4, standby=1), 8, Training(2, 8, standby=1)),
        (Training(2, 4), 2, Training(2, 2)),
    ],
)
def test_scaling_changes_the_number_and_starts_nothing_anew(shape: Shape, count: int, becomes: Shape) -> None:
    workload = replace(WEB, shape=shape)
    assert scaled(workload, count) == replace(workload, shape=becomes)
    assert revise(workload, scaled(workload, count)).version == workload.version


def test_scaling_to_what_it_is_changes_nothing() -> None:
    assert scaled(WEB, 2) is WEB


@pytest.mark.parametrize(
    ("shape", "count", "says", "hint"),
    [
        (Job(), 2, "exactly one", "sweep"),
        (Service(2, availability=0.999), 3, "availability target of 99.9 %", "change the target"),
        (Service(2, scale=Scale(max=5)), 3, "grows and shrinks with its load, from 1 to 5", "min and max"),
        (Service(2), -1, "cannot have -1 copies", "pause"),
        (Sweep(9, parallel=2), 0, "cannot have 0 copies", "pause"),  # 0 would mean: as many as fit
        (Training(2, 4), 1, "at least 2 nodes", "nodes_min"),
        (Training(2, 4), 0, "cannot have 0 copies", "pause"),
    ],
)
def test_what_cannot_be_scaled_is_refused_with_a_way_out(
    shape: Shape, count: int, says: str, hint: str
) -> None:
    with pytest.raises(CannotScale, match=says) as refused:
        scaled(replace(WEB, shape=shape), count)
    assert isinstance(refused.value, Refused)
    assert hint in refused.value.hint


def test_pausing_and_resuming_change_nothing_else() -> None:
    assert paused(WEB, True) == replace(WEB, paused=True)
    assert paused(paused(WEB, True), False) == WEB
    assert paused(WEB, False) is WEB


def test_needs_have_the_defaults_these_tests_count_on() -> None:
    assert Needs(Resources(1000, 512), spot=True, spread=Spread.PREFER, spread_over=Level.ZONE) == NEEDS


def test_a_change_of_how_it_scales_is_told_field_by_field() -> None:
    """It was told as Python writes a struct, twice."""
    before = Scale(0, 3, {Signal.IN_FLIGHT: 8.0})
    after = replace(before, idle_ms=5_000, per_replica={Signal.IN_FLIGHT: 4.0})
    old, new = (replace(WEB, shape=Service(1, scale=scale)) for scale in (before, after))
    assert differences(old, new) == [
        "scale.per_replica in_flight 8.0 -> in_flight 4.0",
        "scale.idle 10.0 min -> 5.0 s",
    ]
    never = replace(WEB, shape=Service(1))
    assert differences(never, old) == ["scale none -> (min 0, max 3, per_replica in_flight 8.0)"]
