"""The ladder for nodes that live but are not well: how far up at once, how often, how many."""

import pytest
from msgspec.structs import replace

from holdfast.core.health.repair import FLAPPING
from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.event import Ended
from holdfast.model.finding import Severity
from holdfast.model.node import NodeState, Step
from holdfast.model.policy import Policy, RepairPolicy
from holdfast.model.units import HOUR, MINUTE, SECOND
from holdfast.model.verdict import Level
from holdfast.model.workload import Restart, Service, Workload
from tests.build import needs
from tests.play import Play, of

POLICY = RepairPolicy()


def fleet(*names: str, policy: Policy | None = None, **rules: object) -> Play:
    play = Play(policy, idle_ms=1_000 * HOUR, **rules)
    play.join(*names)
    play.settle()
    play.later(MINUTE)
    return play


def deeds(actions: list[do.Action], node: str) -> list[str]:
    """What was done about a node, by name."""
    care = (
        do.WatchNode | do.CordonNode | do.UncordonNode | do.DrainNode | do.ResetNode | do.QuarantineNode
    ) | do.TerminateNode
    return [type(action).__name__ for action in actions if isinstance(action, care) and action.node == node]


@pytest.mark.parametrize(
    ("severity", "done", "state"),
    [
        (Severity.NOTE, [], NodeState.READY),
        (Severity.WATCH, ["WatchNode"], NodeState.READY),
        (Severity.CORDON, ["CordonNode"], NodeState.CORDONED),
        (Severity.RESET, ["DrainNode", "ResetNode"], NodeState.RESETTING),
        (Severity.REPLACE, ["DrainNode", "TerminateNode"], NodeState.TERMINATING),
    ],
)
def test_a_finding_moves_an_empty_node_up_the_ladder_at_once(
    severity: Severity, done: list[str], state: NodeState
) -> None:
    play = fleet("a", "b")
    play.find("a", severity)
    assert deeds(play.settle(), "a") == done
    assert play.node("a").state is state


@pytest.mark.parametrize("sure", [0.0, 0.49])
def test_a_finding_that_is_not_sure_changes_nothing(sure: float) -> None:
    play = fleet("a", "b")
    play.find("a", Severity.REPLACE, sure=sure)
    assert deeds(play.settle(), "a") == []


def test_the_worst_finding_decides() -> None:
    play = fleet("a", "b")
    play.find("a", Severity.WATCH, "clock drifts")
    play.find("a", Severity.CORDON, "disk nearly full")
    assert deeds(play.settle(), "a") == ["CordonNode"]


def test_a_reset_waits_until_the_node_is_empty() -> None:
    play = fleet("a", "b")
    play.apply(Workload("web", Service(2), needs(cpu=4)))
    play.obey()
    node = next(iter(play.running("web").values()))
    play.find(node, Severity.RESET)
    assert deeds(play.settle(), node) == ["DrainNode"]
    assert "ResetNode" in deeds(play.obey(), node)


def test_a_drain_that_does_not_end_is_cut_off_at_its_deadline() -> None:
    play = fleet("a", can_launch=False)
    play.apply(Workload("web", Service(1), needs(cpu=8)))
    play.obey()
    play.find("a", Severity.RESET)
    play.settle()
    assert deeds(play.later(POLICY.drain_ms - 1), "a") == []
    assert deeds(play.later(1), "a") == ["ResetNode"]


def test_a_node_comes_back_from_its_reset_watched_and_then_healthy() -> None:
    play = fleet("a", "b")
    play.find("a", Severity.RESET)
    play.settle()
    play.tell(ev.NodeReset(at=play.now, node="a"))
    assert play.node("a").state is NodeState.BOOTING
    assert play.world.findings == {}, "a reset begins anew"
    play.join("a")
    assert deeds(play.settle(), "a") == ["WatchNode"]
    assert (play.node("a").state, play.node("a").repair.step) == (NodeState.READY, Step.WATCHED)
    assert play.node("a").repair.repeats == 1
    play.later(POLICY.watch_ms)
    assert play.node("a").repair.step is Step.HEALTHY
    assert play.node("a").repair.repeats == 1, "what was repaired before is remembered"


def test_a_node_repaired_too_often_is_replaced() -> None:
    play = fleet("a", "b")
    for _ in range(POLICY.repeats_max):
        play.find("a", Severity.RESET)
        assert "ResetNode" in deeds(play.settle(), "a")
        play.tell(ev.NodeReset(at=play.now, node="a"))
        play.join("a")
        play.settle()
    play.find("a", Severity.RESET)
    assert deeds(play.settle(), "a") == ["DrainNode", "TerminateNode"]


@pytest.mark.parametrize(
    ("can_reset", "can_terminate", "last"),
    [
        (True, True, "ResetNode"),
        (True, False, "ResetNode"),
        (False, True, "TerminateNode"),
        (False, False, "QuarantineNode"),
    ],
)
def test_what_cannot_be_reset_is_replaced_and_what_can_be_neither_is_quarantined(
    can_reset: bool, can_terminate: bool, last: str
) -> None:
    play = fleet("a", "b", can_reset=can_reset, can_terminate=can_terminate)
    play.find("a", Severity.RESET)
    assert deeds(play.settle(), "a") == ["DrainNode", last]


def test_a_quarantined_node_stays_there_until_a_person_looks() -> None:
    play = fleet("a", "b", can_reset=False, can_terminate=False, can_launch=False)
    play.find("a", Severity.REPLACE)
    play.settle()
    play.tell(ev.FindingCleared(at=play.now, node="a", name="gpu fell off the bus"))
    play.later(24 * HOUR)
    assert play.node("a").state is NodeState.QUARANTINED
    play.tell(ev.OperatorOrdered(at=play.now, order=ev.Order.UNCORDON, node="a"))
    play.settle()
    assert play.node("a").state is NodeState.READY


def test_a_node_that_is_taken_away_in_the_middle_of_its_reset_does_not_reset_for_ever() -> None:
    """Its pool can reset nodes, and not terminate them: whoever took it says no more."""
    play = fleet("a", "b", can_terminate=False)
    play.find("a", Severity.RESET)
    assert "ResetNode" in deeds(play.settle(), "a")
    play.tell(ev.SpotNoticed(at=play.now, node="a", deadline=play.now + 2 * MINUTE))
    play.settle()
    play.judge("a", Level.DEAD)
    play.later(POLICY.reset_ms + MINUTE)
    assert play.node("a").state is NodeState.QUARANTINED


def test_a_node_that_does_not_come_back_from_a_reset_is_replaced() -> None:
    play = fleet("a", "b")
    play.find("a", Severity.RESET)
    play.settle()
    assert deeds(play.later(POLICY.reset_ms - 1), "a") == []
    assert deeds(play.later(1), "a")[:1] == ["TerminateNode"]


def test_a_cordoned_node_returns_when_its_finding_is_cleared() -> None:
    play = fleet("a", "b")
    play.find("a", Severity.CORDON)
    play.settle()
    play.tell(ev.FindingCleared(at=play.now, node="a", name="gpu fell off the bus"))
    assert deeds(play.settle(), "a") == ["UncordonNode"]
    assert play.node("a").state is NodeState.READY


def test_a_drained_node_does_not_return_to_work_because_time_passed() -> None:
    play = fleet("a", "b")
    play.find("a", Severity.CORDON)
    play.settle()
    play.later(48 * HOUR)
    assert play.node("a").state is NodeState.CORDONED


def flap(play: Play, name: str, times: int) -> list[do.Action]:
    done = []
    for _ in range(times):
        play.judge(name, Level.SUSPECT)
        done += play.later(5 * SECOND)
        play.judge(name, Level.ALIVE)
        done += play.settle()
        done += play.later(10 * SECOND)
    return done


@pytest.mark.parametrize(("times", "found"), [(POLICY.flaps_max - 1, False), (POLICY.flaps_max, True)])
def test_a_node_that_returns_from_suspicion_too_often_is_flapping(times: int, found: bool) -> None:
    play = fleet("a", "b", "c")
    actions = flap(play, "a", times)
    assert [raised.finding.name for raised in of(do.RaiseFinding, actions)] == [FLAPPING] * found
    assert ("DrainNode" in deeds(actions, "a")) is found


def test_returns_that_are_far_apart_are_no_flapping() -> None:
    play = fleet("a", "b", "c")
    for _ in range(3 * POLICY.flaps_max):
        actions = flap(play, "a", 1)
        assert of(do.RaiseFinding, actions) == []
        play.later(POLICY.flap_window_ms // (POLICY.flaps_max - 1))


def test_a_beat_that_was_only_just_late_is_no_flapping() -> None:
    play = fleet("a", "b", "c")
    for _ in range(3 * POLICY.flaps_max):
        play.judge("a", Level.SUSPECT)
        play.later(SECOND)
        play.judge("a", Level.ALIVE)
        play.later(SECOND)
    assert play.world.findings == {}


def test_one_program_that_fails_again_and_again_is_not_the_nodes_fault() -> None:
    play = fleet("a", "b")
    restart = Restart(backoff_ms=SECOND, backoff_max_ms=SECOND, limit=100)
    play.apply(Workload("bad", Service(1), needs(cpu=8), restart=restart))
    play.apply(Workload("good", Service(1), needs(cpu=1)))
    play.obey()
    for _ in range(20):
        for name in play.running("bad"):
            play.end(name, Ended.FAILED)
        play.later(2 * SECOND)
    assert play.world.findings == {}


def test_programs_that_fail_everywhere_are_not_the_nodes_fault() -> None:
    play = fleet("a", "b")
    restart = Restart(backoff_ms=SECOND, backoff_max_ms=SECOND, limit=100)
    play.apply(Workload("bad", Service(6), needs(cpu=1), restart=restart))
    play.settle()
    for _ in range(5):
        for name in play.running("bad"):
            play.end(name, Ended.FAILED)
        play.later(2 * SECOND)
    assert play.world.findings == {}


def test_a_node_that_waits_for_the_budget_takes_no_new_work() -> None:
    play = fleet("a", "b", "c")
    play.apply(Workload("web", Service(3), needs(cpu=8)))
    play.obey()
    for name in "ab":
        play.find(name, Severity.RESET)
    actions = play.turn()
    assert (deeds(actions, "a"), deeds(actions, "b")) == (["DrainNode"], ["CordonNode"])


def test_what_an_operator_holds_is_not_repaired() -> None:
    play = fleet("a", "b")
    play.tell(ev.OperatorOrdered(at=play.now, order=ev.Order.CORDON, node="a"))
    play.find("a", Severity.REPLACE)
    assert deeds(play.settle(), "a") == []


def test_a_node_in_doubt_is_not_repaired() -> None:
    policy = replace(Policy(), repair=POLICY)
    play = fleet("a", "b", policy=policy)
    play.judge("a", Level.UNREACHABLE)
    play.find("a", Severity.RESET)
    assert deeds(play.settle(), "a") == []
    play.judge("a", Level.ALIVE)
    assert deeds(play.settle(), "a") == ["DrainNode", "ResetNode"]
