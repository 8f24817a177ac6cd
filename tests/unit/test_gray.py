"""A node that fails what works elsewhere is told from a program that fails wherever it runs."""

import random

import pytest

from holdfast.core.health import brake
from holdfast.core.health.gray_failures import GRAY
from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.event import Ended
from holdfast.model.finding import Severity
from holdfast.model.node import NodeState
from holdfast.model.outcomes import PROVEN_MS
from holdfast.model.policy import RepairPolicy
from holdfast.model.replica import State
from holdfast.model.units import HOUR, SECOND
from holdfast.model.workload import Restart, Service, Spread, Sweep, Workload
from tests.build import needs
from tests.play import Play, of

POLICY = RepairPolicy()
SPREAD = needs(cpu=1, spread=Spread.PREFER)
PATIENT = Restart(limit=1_000_000, backoff_ms=1, backoff_max_ms=1)
SLOW = Restart(limit=100, backoff_ms=HOUR, backoff_max_ms=HOUR)
OWN_MACHINES = {"can_launch": False, "can_terminate": False, "can_reset": False}


def fleet(*names: str, **rules: object) -> Play:
    play = Play(None, idle_ms=1_000 * HOUR, **{**OWN_MACHINES, **rules})
    for at, name in enumerate(names):
        play.join(name, zone="abc"[at % 3])
    play.settle()
    return play


def sweep(play: Play, name: str = "grid", cpu: float = 2) -> None:
    play.apply(Workload(name, Sweep(900, parallel=40), needs(cpu=cpu), restart=PATIENT))
    play.settle()


def work(play: Play, steps: int, fails: dict[str, float], seed: int = 1) -> list[do.Action]:
    """Every two seconds each task ends: on these nodes so often badly."""
    dice, done = random.Random(seed), []
    for _ in range(steps):
        while actions := play.turn():
            done += actions
            for one in list(play.world.replicas.values()):
                if one.state is State.STOPPING:
                    play.end(one.id)
                elif one.state is State.PLACED:
                    play.ready(one.id)
        play.now += 2 * SECOND
        for one in list(play.world.replicas.values()):
            failed = dice.random() < fails.get(one.node, 0.0)
            play.end(one.id, Ended.FAILED if failed else Ended.DONE)
    return done + play.settle()


def found(actions: list[do.Action]) -> list[str]:
    return [raised.finding.node for raised in of(do.RaiseFinding, actions)]


@pytest.mark.parametrize("rate", [0.03, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_program_that_fails_so_often_everywhere_is_no_nodes_fault(rate: float, seed: int) -> None:
    play = fleet("a", "b", "c")
    sweep(play)
    assert found(work(play, 60, dict.fromkeys("abc", rate), seed)) == []


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3, 0.5])
def test_a_node_that_fails_everything_is_found_among_others_that_fail_so_often(rate: float) -> None:
    play = fleet("a", "b", "c")
    sweep(play)
    work(play, 20, dict.fromkeys("abc", rate))
    assert found(work(play, 30, {"a": 1.0, "b": rate, "c": rate})) == ["a"]
    assert play.node("a").state is NodeState.QUARANTINED


def test_a_node_that_fails_as_often_as_another_of_two_is_not_blamed() -> None:
    """With two, nobody can tell which of them is like the rest of the world."""
    play = fleet("a", "b")
    sweep(play)
    assert found(work(play, 40, {"a": 0.5, "b": 0.5})) == []


def test_one_success_ends_the_suspicion() -> None:
    play = fleet("a", "b", "c")
    sweep(play)
    work(play, 10, {})
    play.obey()
    on_a = [one.id for one in play.world.replicas.values() if one.node == "a"]
    for name in on_a[1:]:
        play.end(name, Ended.FAILED)
    assert len(play.node("a").repair.failed) == len(on_a) - 1
    play.end(on_a[0], Ended.DONE)
    assert play.node("a").repair.failed == ()


def test_what_fails_everywhere_from_one_moment_to_the_next_is_no_nodes_fault() -> None:
    """Its database is gone: that it worked for long before says nothing about the node."""
    play = fleet("a", "b", "c")
    sweep(play)
    work(play, 60, {})
    assert found(work(play, 30, dict.fromkeys("abc", 1.0))) == []


def services(*names: str) -> Play:
    play = fleet("a", "b", "c")
    play.apply(*(Workload(name, Service(6), SPREAD, restart=SLOW) for name in names))
    play.obey()
    play.later(PROVEN_MS)
    return play


def all_fail_on(play: Play, node: str) -> list[do.Action]:
    for name in [one.id for one in play.world.replicas.values() if one.node == node]:
        play.end(name, Ended.FAILED)
    return play.turn()


def test_several_services_that_fail_here_at_once_and_serve_elsewhere_are_evidence_enough() -> None:
    assert found(all_fail_on(services("web", "api"), "a")) == ["a"]


def test_one_service_that_fails_here_at_once_is_not() -> None:
    assert found(all_fail_on(services("web"), "a")) == []


def test_several_services_are_not_while_one_of_them_fails_elsewhere_too() -> None:
    play = services("web", "api")
    play.end(next(name for name, node in play.running("api").items() if node == "b"), Ended.FAILED)
    assert found(all_fail_on(play, "a")) == []


def test_several_services_are_not_while_anything_is_ready_here() -> None:
    play = services("web", "api", "db")
    on_a = [one for one in play.world.replicas.values() if one.node == "a"]
    for one in on_a:
        if one.workload != "db":
            play.end(one.id, Ended.FAILED)
    assert found(play.turn()) == []


@pytest.mark.parametrize(("names", "taken"), [("a", 0), ("ab", 1), ("abc", 1), ("abcd", 2)])
def test_never_more_than_half_of_a_pool_is_taken_out_of_service(names: str, taken: int) -> None:
    play = fleet(*names)
    for name in names:
        play.find(name, Severity.REPLACE)
    play.later(HOUR)
    states = [play.node(name).state for name in names]
    assert states.count(NodeState.QUARANTINED) <= taken
    assert states.count(NodeState.QUARANTINED) == min(taken, 1), "the others wait for the repair budget"


def test_a_node_that_must_not_be_quarantined_keeps_what_runs_there() -> None:
    play = fleet("a")
    play.apply(Workload("web", Service(2), needs(cpu=1)))
    play.obey()
    play.find("a", Severity.REPLACE)
    assert of(do.DrainNode, play.later(HOUR)) == []
    assert (len(play.running("web")), play.node("a").state) == (2, NodeState.CORDONED)


def test_what_we_found_ourselves_takes_one_node_of_three_and_the_second_goes_on_working() -> None:
    play = fleet("a", "b", "c")
    sweep(play)
    work(play, 20, {})
    work(play, 10, {"a": 1.0})
    work(play, 20, {})
    assert found(work(play, 10, {"b": 1.0})) == []
    assert play.node("b").state is NodeState.READY


def quarantined() -> Play:
    play = fleet("a", "b", "c")
    sweep(play)
    work(play, 20, {})
    work(play, 10, {"a": 1.0})
    assert play.node("a").state is NodeState.QUARANTINED
    return play


def test_a_node_in_quarantine_counts_against_the_repair_budget() -> None:
    play = fleet("a", "b", "c")
    before = brake.budget_left(play.world)
    play.find("a", Severity.REPLACE)
    play.settle()
    assert play.node("a").state is NodeState.QUARANTINED
    assert brake.budget_left(play.world) == before - 1


def test_uncordon_clears_what_was_found_and_what_it_was_made_of() -> None:
    play = quarantined()
    play.tell(ev.OperatorOrdered(at=play.now, order=ev.Order.UNCORDON, node="a"))
    assert (play.world.findings, play.node("a").repair.failed) == ({}, ())
    play.settle()
    assert play.node("a").state is NodeState.READY
    work(play, 2, {"b": 0.3, "c": 0.3})
    assert play.node("a").state is NodeState.READY, "the old evidence does not count"


def test_uncordon_is_no_free_pass_for_a_node_that_is_broken() -> None:
    play = quarantined()
    play.tell(ev.OperatorOrdered(at=play.now, order=ev.Order.UNCORDON, node="a"))
    assert found(work(play, 10, {"a": 1.0})) == ["a"]


def test_a_finding_of_ours_is_over_when_its_window_has_passed_and_the_node_is_tried_again() -> None:
    play = quarantined()
    done = play.later(POLICY.gray_window_ms)
    assert [cleared.name for cleared in of(do.ClearFinding, done)] == [GRAY]
    assert play.node("a").state is NodeState.READY


def test_each_time_the_wait_is_twice_as_long() -> None:
    play = quarantined()
    play.later(POLICY.gray_window_ms)
    assert found(work(play, 10, {"a": 1.0})) == ["a"]
    play.later(POLICY.gray_window_ms)
    assert play.node("a").state is NodeState.QUARANTINED
    play.later(POLICY.gray_window_ms)
    assert play.node("a").state is NodeState.READY


@pytest.mark.parametrize("how", ["deleted", "version 2"])
def test_a_finding_of_ours_is_over_when_what_raised_it_is_gone(how: str) -> None:
    play = quarantined()
    if how == "deleted":
        play.tell(ev.WorkloadDeleted(at=play.now, workload="grid"))
    else:
        play.reapply("grid", version=2)
    done = play.settle()
    assert [cleared.name for cleared in of(do.ClearFinding, done)] == [GRAY]
    assert play.node("a").state is NodeState.READY


def test_a_finding_of_an_agent_stands_until_it_is_cleared() -> None:
    play = fleet("a", "b")
    play.find("a", Severity.REPLACE)
    play.later(48 * HOUR)
    assert play.node("a").state is NodeState.QUARANTINED


def test_what_an_older_version_did_is_forgotten() -> None:
    play = fleet("a", "b", "c")
    sweep(play)
    work(play, 5, dict.fromkeys("abc", 0.5))
    assert play.world.outcomes["grid"].version == 1
    play.reapply("grid", version=2)
    work(play, 5, {})
    known = play.world.outcomes["grid"]
    assert known.version == 2
    assert all(one.ok for one in known.recent)


def test_a_node_that_does_not_come_back_from_a_reset_is_only_cordoned_when_half_is_in_quarantine() -> None:
    play = fleet("a", "b", can_reset=True)
    play.find("a", Severity.RESET)
    play.settle()
    assert play.node("a").state is NodeState.RESETTING
    play.tell(ev.OperatorOrdered(at=play.now, order=ev.Order.CORDON, node="b"))
    play.later(POLICY.reset_ms)
    assert play.node("a").state is NodeState.QUARANTINED
    alone = fleet("a", can_reset=True)
    alone.find("a", Severity.RESET)
    alone.settle()
    alone.later(POLICY.reset_ms)
    assert alone.node("a").state is NodeState.CORDONED


def test_the_evidence_can_be_read() -> None:
    play = quarantined()
    text = play.world.findings["a", GRAY].evidence
    assert "in a row of grid, elsewhere 0 of" in text
