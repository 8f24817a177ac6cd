"""When an exclusive replica is provably gone, and that nothing less than proof will do."""

from typing import Any

import pytest

from holdfast.core import check
from holdfast.core.explain import dry_run, explain
from holdfast.core.timeouts import lease_over_at
from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.action import Proof
from holdfast.model.lease import ends_at_agent, surely_over
from holdfast.model.node import Fencing
from holdfast.model.plan import Plan
from holdfast.model.policy import Leases
from holdfast.model.replica import State
from holdfast.model.units import MINUTE, SECOND
from holdfast.model.verdict import Level
from holdfast.model.workload import Job, Service, Workload
from tests.build import needs
from tests.play import Play, of

LEASES = Leases()
OVER = LEASES.lease_ms + LEASES.margin_ms


def play_with_job(**rules: Any) -> Play:
    play = Play(can_launch=False, **rules)
    play.join("a", "b")
    play.apply(Workload("job", Job(), needs(cpu=8)))
    play.obey()
    assert play.running("job") == {"job/0.1": "a"}
    return play


def test_our_lease_always_ends_after_theirs() -> None:
    sent, travelled = 1_000, 300
    theirs = ends_at_agent(sent, LEASES.lease_ms)
    assert surely_over(sent + travelled, LEASES.lease_ms, LEASES.margin_ms) > theirs
    assert surely_over(sent, LEASES.lease_ms, LEASES.margin_ms) - theirs == LEASES.margin_ms


@pytest.mark.parametrize("level", [Level.SUSPECT, Level.UNREACHABLE, Level.DEAD])
def test_a_job_moves_exactly_when_its_lease_is_surely_over(level: Level) -> None:
    play = play_with_job()
    heard = play.now
    play.later(5 * SECOND)
    play.judge("a", level, heard_at=heard)
    actions = play.later(heard + OVER - play.now - 1)
    assert of(do.DeclareGone, actions) == []
    assert of(do.PlaceReplica, actions) == []
    actions = play.later(1)
    assert [(gone.replica, gone.proof) for gone in of(do.DeclareGone, actions)] == [
        ("job/0.1", Proof.LEASE_OVER)
    ]
    assert play.running("job") == {"job/0.2": "b"}


def test_the_lease_counts_from_when_the_node_was_last_heard() -> None:
    play = play_with_job()
    play.later(5 * SECOND)
    play.judge("a", Level.SUSPECT, heard_at=play.now)
    assert lease_over_at(play.world, "a") == play.now + OVER


def test_a_node_that_lives_is_proof_of_nothing() -> None:
    play = play_with_job()
    actions = play.later(10 * MINUTE)
    assert of(do.DeclareGone, actions) == []
    assert play.running("job") == {"job/0.1": "a"}


def test_a_new_leader_counts_every_lease_from_its_own_beginning() -> None:
    """The leader before it may have renewed leases up to the last moment."""
    play = play_with_job()
    heard = play.now
    play.later(5 * SECOND)
    play.judge("a", Level.DEAD, heard_at=heard)
    play.settle()
    play.later(20 * SECOND)
    play.tell(ev.LeaderChanged(at=play.now, leader="cp-2", generation=2))
    changed = play.now
    assert of(do.DeclareGone, play.later(OVER - 1)) == []
    assert of(do.DeclareGone, play.later(MINUTE)) != []
    assert play.now - changed < 2 * MINUTE
    assert play.replica("job/0.2").placed_at == changed + OVER


def test_the_end_of_its_node_is_proof_at_once() -> None:
    play = play_with_job()
    play.judge("a", Level.DEAD)
    play.settle()
    assert play.running("job") == {}
    play.tell(ev.NodeTerminated(at=play.now, node="a"))
    play.settle()
    assert play.running("job") == {"job/0.2": "b"}


def test_the_word_of_its_own_agent_is_proof_at_once() -> None:
    play = play_with_job()
    play.judge("a", Level.DEAD)
    play.settle()
    play.tell(ev.ReplicaEnded(at=play.now, replica="job/0.1", node="a", how=ev.Ended.FENCED))
    play.settle()
    assert play.running("job") == {"job/0.2": "b"}


def test_a_hello_that_does_not_name_it_is_proof_at_once() -> None:
    play = play_with_job()
    play.judge("a", Level.DEAD)
    play.settle()
    play.join("a")
    play.settle()
    assert list(play.running("job")) == ["job/0.2"]


def test_a_hello_that_names_it_gives_it_its_seat_back() -> None:
    play = play_with_job()
    play.judge("a", Level.DEAD)
    play.settle()
    assert play.replica("job/0.1").state is State.LOST
    play.join("a", running=("job/0.1",))
    play.settle()
    assert play.running("job") == {"job/0.1": "a"}


def test_a_service_is_replaced_at_once_and_never_fenced() -> None:
    play = Play(can_launch=False, can_terminate=False)
    play.join("a", "b")
    play.apply(Workload("web", Service(1), needs(cpu=8)))
    play.obey()
    play.judge("a", Level.DEAD)
    assert [placed.node for placed in of(do.PlaceReplica, play.turn())] == ["b"]
    assert of(do.DeclareGone, play.later(10 * OVER)) == []
    assert play.replica("web/0.1").state is State.LOST


def test_a_stopping_job_on_a_node_in_doubt_is_gone_when_the_lease_is() -> None:
    play = play_with_job()
    play.tell(ev.WorkloadDeleted(at=play.now, workload="job"))
    play.judge("a", Level.UNREACHABLE)
    play.settle()
    assert play.replica("job/0.1").state is State.STOPPING
    play.later(OVER)
    assert play.world.replicas == {}
    assert play.world.slots == {}


@pytest.mark.parametrize(
    ("level", "after_ms", "proof", "allowed"),
    [
        (Level.DEAD, OVER, Proof.LEASE_OVER, True),
        (Level.SUSPECT, OVER, Proof.LEASE_OVER, True),
        (Level.DEAD, OVER - 1, Proof.LEASE_OVER, False),
        (Level.DEAD, LEASES.lease_ms, Proof.LEASE_OVER, False),
        (Level.ALIVE, 10 * OVER, Proof.LEASE_OVER, False),
        (Level.DEAD, 10 * OVER, Proof.NODE_GONE, False),  # the node is still known
    ],
)
def test_the_checker_refuses_to_declare_gone_what_is_not_proven(
    level: Level, after_ms: int, proof: Proof, allowed: bool
) -> None:
    play = play_with_job()
    if level is not Level.ALIVE:
        play.judge("a", level)
    gone = do.DeclareGone(replica="job/0.1", proof=proof, why="so they say")
    plan, refused = check.examine(play.world, Plan(9, play.node("a").heard_at + after_ms, (gone,)))
    assert plan.actions == ((gone,) if allowed else ())
    assert bool(refused) is not allowed


# where the end of a lease proves nothing


def play_without_fencing(**rules: Any) -> Play:
    play = Play(can_launch=False, **rules)
    play.join("a", "b", fencing=Fencing.NONE, boot="boot-1")
    play.apply(Workload("job", Job(), needs(cpu=8)))
    play.obey()
    assert play.running("job") == {"job/0.1": "a"}
    return play


def lose(play: Play) -> None:
    """Its agent found that its shim was killed."""
    play.tell(
        ev.ReplicaEnded(
            at=play.now,
            replica="job/0.1",
            node="a",
            how=ev.Ended.FAILED,
            why="its shim was killed",
            proven=False,
        )
    )
    play.settle()


@pytest.mark.parametrize("level", [Level.SUSPECT, Level.UNREACHABLE, Level.DEAD])
def test_without_fencing_no_lease_moves_a_job(level: Level) -> None:
    play = play_without_fencing(can_terminate=False)
    play.judge("a", level)
    actions = play.later(10 * OVER)
    assert of(do.DeclareGone, actions) == []
    assert of(do.PlaceReplica, actions) == []


def test_without_fencing_the_word_of_the_provider_moves_a_job() -> None:
    play = play_without_fencing()
    play.judge("a", Level.DEAD)
    play.later(10 * OVER)
    play.tell(ev.NodeTerminated(at=play.now, node="a"))
    play.settle()
    assert play.running("job") == {"job/0.2": "b"}


def test_without_fencing_the_word_of_an_operator_moves_a_job() -> None:
    play = play_without_fencing(can_terminate=False)
    play.judge("a", Level.DEAD)
    play.later(10 * OVER)
    play.tell(ev.OperatorOrdered(at=play.now, order=ev.Order.FORGET, node="a"))
    play.settle()
    assert play.running("job") == {"job/0.2": "b"}


def test_an_end_that_is_not_proven_moves_no_job_however_often_its_agent_says_hello() -> None:
    play = play_without_fencing()
    lose(play)
    assert play.replica("job/0.1").state is State.LOST
    play.join("a", fencing=Fencing.NONE, boot="boot-1")
    play.join("a", fencing=Fencing.KERNEL, boot="boot-1")
    actions = play.later(10 * OVER)
    assert of(do.PlaceReplica, actions) == []
    play.judge("a", Level.DEAD)
    assert of(do.DeclareGone, play.later(OVER)) == [], "its lease is no proof either, though it fences now"


def test_an_end_that_is_not_proven_is_when_the_machine_was_restarted() -> None:
    play = play_without_fencing()
    lose(play)
    play.join("a", fencing=Fencing.NONE, boot="boot-2")
    play.settle()
    assert list(play.running("job")) == ["job/0.2"]


def test_an_end_that_is_not_proven_says_what_is_awaited_and_what_would_help() -> None:
    play = play_without_fencing()
    lose(play)
    waits = explain.explain_workload(play.world, "job", play.now).because
    assert any("its shim was killed there" in text for text in waits)
    node = explain.explain_node(play.world, None, "a", play.now)
    assert any(text.startswith("fencing: none: ") for text in node.because)
    assert any(text.startswith("restart the machine") for text in node.would_help)


def test_an_end_that_is_proven_ends_the_doubt() -> None:
    play = play_without_fencing()
    lose(play)
    play.tell(ev.ReplicaEnded(at=play.now, replica="job/0.1", node="a", how=ev.Ended.STOPPED))
    play.settle()
    assert list(play.running("job")) == ["job/0.2"]


def test_the_checker_refuses_the_lease_of_a_node_without_fencing() -> None:
    play = play_without_fencing()
    play.judge("a", Level.DEAD)
    gone = do.DeclareGone(replica="job/0.1", proof=Proof.LEASE_OVER, why="so they say")
    plan, refused = check.examine(play.world, Plan(9, play.node("a").heard_at + 10 * OVER, (gone,)))
    assert plan.actions == ()
    assert refused


def test_a_plan_says_where_a_job_would_not_be_fenced() -> None:
    play = Play(can_launch=False)
    play.join("a", fencing=Fencing.NONE)
    play.join("b")
    job, web = Workload("job", Job(), needs(cpu=8)), Workload("web", Service(2), needs(cpu=8))
    found = dry_run.preview(play.world, [ev.WorkloadApplied(at=play.now, workload=job)], play.now)
    assert [text for text in found.cautions if text.startswith("job runs on a with fencing: none")]
    found = dry_run.preview(play.world, [ev.WorkloadApplied(at=play.now, workload=web)], play.now)
    assert found.cautions == ()
