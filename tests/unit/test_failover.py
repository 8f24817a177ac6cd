"""Which empty seats are filled, in which order and how; and which wait, or are given up."""

import pytest

from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.event import Ended
from holdfast.model.replica import Phase, Role, State
from holdfast.model.units import HOUR, MINUTE, SECOND
from holdfast.model.verdict import Level
from holdfast.model.workload import Job, Restart, Service, Shape, Sweep, Workload
from tests.build import needs
from tests.play import Play, of

RESTART = Restart(backoff_ms=SECOND, backoff_max_ms=30 * SECOND, limit=4)


def workload(name: str, shape: Shape, cpu: int = 8, priority: int = 0) -> Workload:
    return Workload(name, shape, needs(cpu=cpu), priority=priority, restart=RESTART)


def fixed(*nodes: str) -> Play:
    """Somebody's own machines: none can be launched."""
    play = Play(can_launch=False, can_terminate=False)
    play.join(*nodes)
    play.settle()
    return play


def placed(actions: list[do.Action]) -> list[str]:
    return [action.slot for action in of(do.PlaceReplica, actions)]


def test_higher_priority_comes_first() -> None:
    play = fixed()
    for name, priority in (("low", 0), ("high", 9), ("middle", 5)):
        play.apply(workload(name, Service(1), priority=priority))
    play.settle()
    play.join("a", "b", "c")
    assert placed(play.settle()) == ["high/0", "middle/0", "low/0"]


def test_of_one_priority_what_was_down_longest_comes_first() -> None:
    play = fixed()
    for name in ("second", "first", "third"):
        play.apply(workload(name, Service(1)))
    play.settle()
    play.tell(*(ev.WorkloadDeleted(at=play.now, workload=name) for name in ("second", "third")))
    play.settle()
    play.later(SECOND)
    play.apply(workload("second", Service(1)))
    play.settle()
    play.later(SECOND)
    play.apply(workload("third", Service(1)))
    play.settle()
    play.join("a", "b", "c")
    assert placed(play.settle()) == ["first/0", "second/0", "third/0"]


def test_a_warm_standby_is_promoted_at_once() -> None:
    play = fixed("a", "b", "c")
    play.apply(workload("web", Service(1, standby=1)))
    play.obey()
    warm = play.replica("web/s0.1")
    play.judge(play.replica("web/0.1").node, Level.DEAD)
    actions = play.turn()
    assert [(up.replica, up.slot, up.epoch) for up in of(do.PromoteStandby, actions)] == [
        ("web/s0.1", "web/0", 2)
    ]
    promoted = play.replica("web/s0.1")
    assert (promoted.slot, promoted.role, promoted.node) == ("web/0", Role.ACTIVE, warm.node)
    assert play.slot("web/0").down_since == 0, "it was warm: nothing is down any more"
    assert placed(play.settle()) == ["web/s0"], "and a new standby is warmed up"


def test_a_standby_that_is_not_ready_or_not_heard_is_no_help() -> None:
    play = fixed("a", "b", "c")
    play.apply(workload("web", Service(1, standby=1)))
    play.settle()
    play.ready("web/0.1")
    play.judge(play.replica("web/0.1").node, Level.DEAD)
    assert of(do.PromoteStandby, play.turn()) == []


def test_one_standby_fills_one_seat() -> None:
    play = fixed("a", "b", "c", "d", "e")
    play.apply(workload("web", Service(2, standby=1)))
    play.obey()
    for name in ("web/0.1", "web/1.1"):
        play.judge(play.replica(name).node, Level.DEAD)
    actions = play.turn()
    assert len(of(do.PromoteStandby, actions)) == 1
    assert placed(actions) == ["web/1"]


def test_a_standby_of_a_job_waits_for_proof_like_anybody_else() -> None:
    play = fixed("a", "b", "c")
    play.apply(workload("job", Job(standby=1)))
    play.obey()
    play.judge(play.replica("job/0.1").node, Level.DEAD)
    assert of(do.PromoteStandby, play.settle()) == []
    assert len(of(do.PromoteStandby, play.later(MINUTE))) == 1


@pytest.mark.parametrize(
    ("failures", "wait_ms"), [(1, SECOND), (2, 2 * SECOND), (3, 4 * SECOND)], ids=["first", "second", "third"]
)
def test_a_program_that_fails_backs_off(failures: int, wait_ms: int) -> None:
    play = fixed("a")
    play.apply(workload("web", Service(1)))
    play.settle()
    for _ in range(failures):
        play.later(10 * SECOND)
        play.end(next(iter(play.running("web"))), Ended.FAILED)
        play.settle()
    assert play.slot("web/0").failures == failures
    assert placed(play.later(wait_ms - 1)) == []
    assert placed(play.later(1)) == ["web/0"]


def test_the_wait_has_an_upper_bound() -> None:
    play = fixed("a")
    play.apply(Workload("web", Service(1), needs(), restart=Restart(SECOND, 5 * SECOND, limit=1_000)))
    play.settle()
    for _ in range(40):
        play.end(next(iter(play.running("web"))), Ended.FAILED)
        play.later(5 * SECOND)
    assert len(play.running("web")) == 1


def test_a_program_that_failed_too_often_is_given_up_with_its_reason() -> None:
    play = fixed("a")
    play.apply(workload("web", Service(1)))
    actions = play.settle()
    for _ in range(RESTART.limit):
        name = next(iter(play.running("web")))
        play.tell(ev.ReplicaEnded(at=play.now, replica=name, node="a", how=Ended.FAILED, why="exit code 3"))
        actions = play.later(MINUTE)
    assert ["exit code 3" in given.why for given in of(do.GiveUpSlot, actions)] == [True]
    assert play.slot("web/0").phase is Phase.FAILED
    assert play.slot("web/0").phase is Phase.FAILED
    assert placed(play.later(HOUR)) == []


def test_a_long_run_starts_the_count_anew() -> None:
    play = fixed("a")
    play.apply(workload("web", Service(1)))
    for _ in range(3 * RESTART.limit):
        play.obey()
        play.later(RESTART.steady_ms)
        play.end(next(iter(play.running("web"))), Ended.FAILED)
        assert play.slot("web/0").failures == 1
        play.later(SECOND)
    assert play.slot("web/0").phase is Phase.OPEN


def test_losing_a_node_is_no_failure_of_the_program() -> None:
    play = fixed("a", "b")
    play.apply(workload("web", Service(1)))
    for _ in range(3 * RESTART.limit):
        play.obey()
        node = next(iter(play.running("web").values()))
        play.judge(node, Level.DEAD)
        play.settle()
        play.join(node)
    play.obey()
    assert play.slot("web/0").failures == 0
    assert len(play.running("web")) == 1


@pytest.mark.parametrize("how", [Ended.STOPPED, Ended.FENCED])
def test_being_stopped_or_fenced_is_no_failure_of_the_program(how: Ended) -> None:
    play = fixed("a")
    play.apply(workload("job", Job()))
    play.obey()
    play.end("job/0.1", how)
    assert placed(play.settle()) == ["job/0"]
    assert play.slot("job/0").failures == 0


def test_a_program_that_failed_is_tried_on_another_node_if_there_is_one() -> None:
    play = fixed("a", "b")
    play.apply(workload("web", Service(1), cpu=1))
    play.settle()
    first = play.running("web")["web/0.1"]
    play.end("web/0.1", Ended.FAILED)
    play.later(MINUTE)
    assert play.running("web")["web/0.2"] != first


def test_a_job_resumes_from_its_last_checkpoint() -> None:
    play = fixed("a", "b")
    play.apply(Workload("job", Job(), needs(cpu=8), checkpoint_ms=MINUTE))
    play.obey()
    play.tell(ev.CheckpointSaved(at=play.now, replica="job/0.1", progress_ms=7 * MINUTE))
    play.tell(ev.CheckpointSaved(at=play.now, replica="job/0.1", progress_ms=3 * MINUTE))
    play.judge("a", Level.DEAD)
    (place,) = of(do.PlaceReplica, play.later(MINUTE))
    assert place.resume_ms == 7 * MINUTE


def test_what_is_done_stays_done() -> None:
    play = fixed("a")
    play.apply(workload("job", Job()))
    play.obey()
    play.end("job/0.1", Ended.DONE)
    assert placed(play.later(HOUR)) == []
    assert play.slot("job/0").phase is Phase.DONE


def test_a_sweep_runs_no_more_than_its_parallel_tasks() -> None:
    play = fixed("a", "b")
    play.apply(workload("many", Sweep(5, parallel=2), cpu=1))
    play.obey()
    assert sorted(play.running("many")) == ["many/0.1", "many/1.1"]
    play.end("many/0.1", Ended.DONE)
    play.settle()
    assert sorted(play.running("many")) == ["many/1.1", "many/2.1"]
    for _ in range(4):
        for name in play.running("many"):
            play.end(name, Ended.DONE)
        play.settle()
    assert {slot.phase for slot in play.world.slots.values()} == {Phase.DONE}


def test_a_task_that_fails_is_retried_by_itself() -> None:
    play = fixed("a")
    play.apply(workload("many", Sweep(3), cpu=1))
    play.obey()
    play.end("many/1.1", Ended.FAILED)
    play.later(MINUTE)
    assert sorted(play.running("many")) == ["many/0.1", "many/1.2", "many/2.1"]


def test_a_task_that_backs_off_does_not_hold_a_place_that_another_could_use() -> None:
    play = fixed("a")
    play.apply(workload("many", Sweep(3, parallel=1), cpu=1))
    play.obey()
    play.end("many/0.1", Ended.FAILED)
    play.settle()
    assert list(play.running("many")) == ["many/1.1"]


def test_lower_priorities_make_room_and_the_room_is_used() -> None:
    play = fixed("a")
    play.apply(workload("low", Service(1)))
    play.obey()
    play.apply(workload("high", Service(1), priority=5))
    actions = play.settle()
    assert [(stop.replica, stop.cause) for stop in of(do.StopReplica, actions)] == [("low/0.1", "preemption")]
    assert play.replica("low/0.1").state is State.STOPPING
    play.end("low/0.1")
    play.settle()
    assert (play.running("high"), play.running("low")) == ({"high/0.1": "a"}, {})


def test_equals_are_not_preempted() -> None:
    play = fixed("a")
    play.apply(workload("one", Service(1)))
    play.obey()
    play.apply(workload("two", Service(1)))
    assert of(do.StopReplica, play.settle()) == []


def test_nobody_is_preempted_under_a_brake() -> None:
    play = fixed(*"abcdefgh")
    play.apply(workload("low", Service(8)))
    play.obey()
    for name in "efgh":
        play.judge(name, Level.SUSPECT)
    play.settle()
    assert play.world.brakes
    play.apply(workload("high", Service(1), priority=5))
    assert of(do.StopReplica, play.settle()) == []


def test_one_wave_of_preemption_is_enough() -> None:
    play = fixed("a", "b", "c")
    play.apply(workload("low", Service(3)))
    play.obey()
    play.apply(workload("high", Service(1), priority=5))
    play.settle()
    assert len(of(do.StopReplica, play.later(SECOND))) == 0
    assert len(play.world.stopping) == 1
