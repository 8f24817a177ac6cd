"""The dry run: what the real loop would do on a copy, if all went well, and what would still wait."""

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.explain import dry_run
from holdfast.core.explain.dry_run import (
    STEPS_MAX,
    WAITING_MAX,
    Preview,
    Step,
    twin,
)
from holdfast.core.state import fold
from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.plan import Plan
from holdfast.model.units import HOUR, SECOND
from holdfast.model.verdict import Level
from holdfast.model.workload import Job, Service, Sweep, Training, Workload
from holdfast.model.world import World
from tests.build import needs
from tests.play import Play
from tests.property.test_snapshot_properties import assert_same, everything


def played(*names: str, **rules: Any) -> Play:
    play = Play(**{"max": len(names), **rules})
    play.tell(ev.LeaderChanged(at=play.now - HOUR, leader="cp", generation=1))
    play.join(*names)
    play.settle()
    return play


def applied(play: Play, *workloads: Workload) -> Preview:
    events = [ev.WorkloadApplied(at=play.now, workload=workload) for workload in workloads]
    return dry_run.preview(play.world, events, play.now)


def shown(found: Preview) -> list[str]:
    return [f"{step.action} {step.subject} {step.text}".strip() for step in found.steps]


def all_of(world: World) -> dict[str, object]:
    changed = {kind: list(names) for kind, names in world.agenda.changed.items()}
    return {**everything(world), "changed": changed, "freed": world.agenda.room_freed}


def test_what_would_be_placed_is_told_with_its_reason() -> None:
    found = applied(played("a"), Workload("web", Service(2)))
    assert found.steps == (
        Step("PlaceReplica", "web/0.1", "on a", "web/0 is new"),
        Step("PlaceReplica", "web/1.1", "on a", "web/1 is new"),
    )
    assert found.pending == ()


def test_nothing_applied_to_a_world_at_rest_changes_nothing() -> None:
    play = played("a")
    play.apply(Workload("web", Service(1)))
    play.obey()
    assert dry_run.preview(play.world, [], play.now) == Preview((), ())
    assert applied(play, play.world.workloads["web"]) == Preview((), ())


def test_a_launch_is_pretended_to_succeed_and_its_work_to_be_placed() -> None:
    found = applied(played(max=2), Workload("web", Service(1), needs(8)))
    assert shown(found) == ["LaunchNode pool-1 std", "PlaceReplica web/0.1 on pool-1"]
    assert found.pending == ()


def test_what_would_still_wait_is_told_with_its_reason() -> None:
    found = applied(played("a"), Workload("web", Service(2), needs(8)))
    assert shown(found) == ["PlaceReplica web/0.1 on a"]
    (text,) = found.pending
    assert text.startswith("web/1: no room: 1 node: 1 has too little cpu free (largest 0, 8 needed)")
    assert "pool pool has 1 of at most 1 node" in text


def test_a_workload_that_waits_for_another_is_pending_by_its_name() -> None:
    found = applied(played("a"), Workload("job", Job()), Workload("web", Service(1), after=("job",)))
    assert found.pending == ("web: it starts when job is done",)


def test_preemption_is_played_to_its_end() -> None:
    play = played("a")
    play.apply(Workload("low", Service(1), needs(8)))
    play.obey()
    found = applied(play, Workload("high", Service(1), needs(8), priority=5))
    assert shown(found) == ["StopReplica low/0.1", "PlaceReplica high/0.1 on a"]
    assert [text for text in found.pending if text.startswith("low/0: no room")]


def test_a_rolling_update_is_played_to_its_end() -> None:
    play = played("a", "b")
    play.apply(Workload("web", Service(3)))
    play.obey()
    found = applied(play, replace(play.world.workloads["web"], version=2))
    actions = [step.action for step in found.steps]
    assert actions == ["PlaceReplica", "StopReplica"] * 3
    assert found.pending == ()


def test_deleting_stops_what_runs() -> None:
    play = played("a")
    play.apply(Workload("web", Service(1)))
    play.obey()
    found = dry_run.preview(play.world, [ev.WorkloadDeleted(at=play.now, workload="web")], play.now)
    assert shown(found) == ["CloseSlot web/0", "StopReplica web/0.1"]


def test_an_order_is_played_too() -> None:
    play = played("a", "b")
    play.apply(Workload("web", Service(1)))
    play.obey()
    home = play.replica("web/0.1").node
    drain = ev.OperatorOrdered(at=play.now, order=ev.Order.DRAIN, node=home, deadline=play.now + HOUR)
    other = {"a": "b", "b": "a"}[home]
    assert shown(dry_run.preview(play.world, [drain], play.now)) == [
        f"PlaceReplica web/0.2 on {other}",
        "StopReplica web/0.1",
    ]


def test_a_gang_is_placed_together_or_told_why_not() -> None:
    assert len(applied(played("a", "b"), Workload("gang", Training(2, 2), needs(8))).steps) == 2
    found = applied(played("a", "b"), Workload("gang", Training(3, 3), needs(8)))
    assert found.steps == ()
    assert found.pending[0].startswith("gang/0, gang/1, gang/2: the gang starts with at least 3 members")


def test_what_must_wait_for_a_lease_waits_here_too() -> None:
    play = played("a", "b")
    play.apply(Workload("job", Job()))
    play.obey()
    home = play.replica("job/0.1").node
    play.judge(home, Level.DEAD)
    found = dry_run.preview(play.world, [], play.now)
    assert not [step for step in found.steps if step.action == "PlaceReplica"]
    assert any("may still run" in text for text in found.pending)


def test_nothing_is_pretended_of_a_node_in_doubt() -> None:
    play = played("a")
    play.apply(Workload("web", Service(1)))
    play.settle()
    play.judge("a", Level.SUSPECT)
    found = applied(play, replace(play.world.workloads["web"], shape=Service(0)))
    assert shown(found) == ["CloseSlot web/0", "StopReplica web/0.1"]  # and the seat is never removed


def test_what_the_brake_would_hold_is_told() -> None:
    play = played("a", "b", "c")
    play.judge("a", Level.DEAD)
    play.now += 5 * 60 * SECOND
    play.turn()  # peers are asked a last time, and do not answer
    engaged = do.EngageBrake(scope="fleet", why="3 of 3 in doubt")
    fold.accept(play.world, Plan(play.world.plans + 1, play.now, (engaged,)))
    play.now += play.world.policy.detection.ask_again_ms
    found = dry_run.preview(play.world, [], play.now)
    assert any(text.startswith("TerminateNode a is held: brake on fleet") for text in found.pending)


def test_questions_and_bookkeeping_are_left_out() -> None:
    play = played("a", "b")
    play.judge("a", Level.SUSPECT)
    found = applied(play, Workload("web", Service(1)))
    assert {step.action for step in found.steps} == {"PlaceReplica"}


def test_it_ends_though_there_is_more_to_do_than_is_shown() -> None:
    nodes = tuple(f"n{number}" for number in range(30))
    found = applied(played(*nodes), Workload("many", Sweep(STEPS_MAX + 200), needs(0.1, memory=1)))
    assert len(found.steps) == STEPS_MAX
    assert any("more would follow" in text for text in found.pending)


def test_a_roll_that_takes_too_many_turns_is_cut_off_and_said_so() -> None:
    play = played("a", "b", "c")
    play.apply(Workload("web", Service(60), needs(0.1, memory=1)))
    play.obey()
    found = applied(play, replace(play.world.workloads["web"], version=2))
    assert 0 < len(found.steps) < 120
    assert any("not at rest" in text for text in found.pending)


def test_only_so_many_that_wait_are_told_and_the_ones_asked_for_are_first() -> None:
    play = played("a")
    play.apply(*(Workload(f"w{number}", Service(1), needs(99)) for number in range(WAITING_MAX + 3)))
    play.obey()
    found = applied(play, Workload("mine", Service(1), needs(99)))
    assert found.pending[0].startswith("mine/0: no room")
    assert found.pending[-1] == "and 4 more workloads with empty seats"


@pytest.fixture
def busy() -> Play:
    """Something in every state."""
    play = played("a", "b", "c", "d", max=8, min=5, standby=1)
    play.apply(
        Workload("web", Service(3)), Workload("job", Job(), needs(4)), Workload("big", Job(), needs(99))
    )
    play.obey()
    play.apply(Workload("gang", Training(2, 3), needs(4)))
    play.settle()
    play.judge("d", Level.DEAD)
    play.tell(ev.OperatorOrdered(at=play.now, order=ev.Order.CORDON, node="c"))
    play.settle()
    play.tell(ev.WorkloadDeleted(at=play.now, workload="web"))  # and the agenda is not empty
    return play


def test_the_world_is_not_changed(busy: Play) -> None:
    before = all_of(busy.world)
    found = applied(busy, Workload("web", Service(9), needs(2)), Workload("x", Job()))
    assert found.steps
    assert_same(all_of(busy.world), before)


def test_a_twin_is_the_same_and_goes_its_own_way(busy: Play) -> None:
    before = all_of(busy.world)
    copy = twin(busy.world)
    assert_same(all_of(copy), before)
    for name in list(copy.nodes):
        fold.observe(copy, ev.NodeTerminated(at=busy.now, node=name))
    for number in range(100):  # more than there are rows
        joined = ev.NodeJoined(
            at=busy.now,
            node=f"new-{number}",
            pool="pool",
            offer="std",
            place=replace(busy.world.pools["pool"].offers[0].place, rack=f"r{number}"),
            capacity=busy.world.pools["pool"].offers[0].capacity,
        )
        fold.observe(copy, joined)
    assert len(copy.nodes) == 100
    assert_same(all_of(busy.world), before)
