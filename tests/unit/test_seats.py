"""Which seats a workload has, as it is applied, scaled, paused, deleted, or waits for others."""

import pytest
from msgspec.structs import replace

from holdfast.core.check import inconsistencies
from holdfast.core.state import index
from holdfast.core.workloads import slots
from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.event import Ended
from holdfast.model.plan import SEATS_AT_ONCE
from holdfast.model.replica import Phase, Slot, State
from holdfast.model.units import HOUR, MINUTE
from holdfast.model.verdict import Level
from holdfast.model.workload import Job, Service, Shape, Sweep, Training, Workload
from holdfast.model.world import World
from tests.build import needs
from tests.play import Play, of


def fixed(*nodes: str) -> Play:
    play = Play(can_launch=False, can_terminate=False)
    play.join(*nodes)
    play.settle()
    return play


def workload(name: str, shape: Shape, **more: object) -> Workload:
    return replace(Workload(name, shape, needs(cpu=1)), **more)


def delete(play: Play, name: str) -> None:
    play.tell(ev.WorkloadDeleted(at=play.now, workload=name))


@pytest.mark.parametrize(
    ("shape", "seats"),
    [
        (Service(2), ["w/0", "w/1"]),
        (Service(0), []),
        (Service(1, standby=2), ["w/0", "w/s0", "w/s1"]),
        (Job(), ["w/0"]),
        (Job(standby=1), ["w/0", "w/s0"]),
        (Training(1, 3, standby=1), ["w/0", "w/1", "w/2", "w/s0"]),
        (Sweep(3, parallel=1), ["w/0", "w/1", "w/2"]),
    ],
)
def test_each_shape_has_its_seats(shape: Shape, seats: list[str]) -> None:
    play = fixed("a")
    play.apply(workload("w", shape))
    play.settle()
    assert list(play.world.slots) == seats


def test_applying_the_same_again_changes_nothing() -> None:
    play = fixed("a")
    play.apply(workload("w", Service(2)))
    play.obey()
    play.apply(workload("w", Service(2)))
    assert play.settle() == []


def test_scaling_up_adds_seats() -> None:
    play = fixed("a")
    play.apply(workload("w", Service(1)))
    play.obey()
    play.reapply("w", shape=Service(3))
    play.obey()
    assert sorted(play.running("w")) == ["w/0.1", "w/1.1", "w/2.1"]


def test_scaling_down_empties_the_highest_seats_and_then_removes_them() -> None:
    play = fixed("a")
    play.apply(workload("w", Service(3)))
    play.obey()
    play.reapply("w", shape=Service(1))
    play.settle()
    assert sorted(play.running("w")) == ["w/0.1"]
    assert play.slot("w/2").phase is Phase.CLOSED, "it is not removed while something runs there"
    play.obey()
    assert list(play.world.slots) == ["w/0"]
    assert list(play.world.replicas) == ["w/0.1"]


def test_a_seat_that_is_wanted_again_gets_a_higher_epoch() -> None:
    play = fixed("a")
    play.apply(workload("w", Service(2)))
    play.obey()
    play.reapply("w", shape=Service(1))
    play.settle()
    play.reapply("w", shape=Service(2))
    play.obey()
    assert sorted(play.running("w")) == ["w/0.1", "w/1.2"]


def test_a_deleted_workload_leaves_nothing() -> None:
    play = fixed("a")
    play.apply(workload("w", Service(2, standby=1)), workload("j", Job()))
    play.obey()
    delete(play, "w")
    play.obey()
    assert list(play.world.slots) == ["j/0"]
    assert list(play.world.replicas) == ["j/0.1"]


def test_deleting_what_never_ran_takes_no_stop() -> None:
    play = fixed()
    play.apply(workload("w", Service(2)))
    play.settle()
    delete(play, "w")
    assert of(do.StopReplica, play.settle()) == []
    assert play.world.slots == {}


def test_a_deleted_job_keeps_its_seat_until_it_is_provably_gone() -> None:
    play = fixed("a", "b")
    play.apply(workload("j", Job()))
    play.obey()
    play.judge(play.replica("j/0.1").node, Level.DEAD)
    delete(play, "j")
    play.settle()
    assert list(play.world.slots) == ["j/0"]
    play.later(MINUTE)
    assert play.world.slots == {}
    assert play.world.replicas == {}


def test_a_lost_copy_of_a_service_does_not_keep_its_seat_and_is_stopped_when_it_returns() -> None:
    play = fixed("a")
    play.apply(workload("w", Service(1)))
    play.obey()
    play.judge("a", Level.DEAD)
    delete(play, "w")
    play.settle()
    assert play.world.slots == {}
    play.join("a", running=("w/0.1",))
    play.settle()
    assert play.replica("w/0.1").state is State.STOPPING
    play.end("w/0.1")
    play.settle()
    assert play.world.replicas == {}


def test_a_name_that_is_used_again_never_sees_an_old_epoch() -> None:
    play = fixed("a")
    seen: set[str] = set()
    for _ in range(4):
        play.apply(workload("w", Service(2, standby=1)))
        play.obey()
        now = set(play.world.replicas)
        assert now
        assert not now & seen
        seen |= now
        delete(play, "w")
        play.obey()


def test_deleting_and_applying_in_one_breath_restarts_it() -> None:
    play = fixed("a")
    play.apply(workload("w", Job()))
    play.obey()
    delete(play, "w")
    play.settle()
    play.apply(workload("w", Job()))
    play.obey()
    assert list(play.running("w")) == ["w/0.2"]


@pytest.mark.parametrize("shape", [Service(2), Job(), Training(2, 2), Sweep(2)])
def test_a_paused_workload_runs_nothing_and_keeps_its_seats(shape: Shape) -> None:
    play = fixed("a", "b")
    play.apply(workload("w", shape))
    play.obey()
    seats = list(play.world.slots)
    play.reapply("w", paused=True)
    play.obey()
    play.later(HOUR)
    assert play.running("w") == {}
    assert list(play.world.slots) == seats
    play.reapply("w", paused=False)
    play.obey()
    assert len(play.running("w")) == len(seats)


def test_what_waits_for_a_job_starts_when_the_job_is_done() -> None:
    play = fixed("a")
    play.apply(workload("first", Job()), workload("then", Job(), after=("first",)))
    play.obey()
    assert play.running("then") == {}
    play.end("first/0.1", Ended.DONE)
    play.obey()
    assert list(play.running("then")) == ["then/0.1"]


def test_what_waits_for_a_service_starts_when_the_service_is_ready() -> None:
    play = fixed("a")
    play.apply(workload("db", Service(2)), workload("app", Service(1), after=("db",)))
    play.settle()
    play.ready("db/0.1")
    play.settle()
    assert play.running("app") == {}
    play.ready("db/1.1")
    play.settle()
    assert list(play.running("app")) == ["app/0.1"]


def test_what_waits_for_a_deleted_workload_waits_until_it_is_there_again_and_done() -> None:
    play = fixed("a")
    play.apply(workload("first", Job()), workload("then", Job(), after=("first",)))
    play.obey()
    delete(play, "first")
    play.obey()
    assert play.running("then") == {}
    play.apply(workload("first", Job()))
    play.obey()
    assert play.running("then") == {}
    play.end(next(iter(play.running("first"))), Ended.DONE)
    play.obey()
    assert list(play.running("then")) == ["then/0.1"]


def test_what_has_started_goes_on_when_what_it_waited_for_is_deleted() -> None:
    play = fixed("a")
    play.apply(workload("first", Job()), workload("then", Job(), after=("first",)))
    play.obey()
    play.end("first/0.1", Ended.DONE)
    play.obey()
    delete(play, "first")
    play.obey()
    assert list(play.running("then")) == ["then/0.1"]


def test_the_standby_of_a_job_goes_when_the_job_is_done() -> None:
    play = fixed("a", "b")
    play.apply(workload("j", Job(standby=1)))
    play.obey()
    play.end("j/0.1", Ended.DONE)
    play.obey()
    assert play.running("j") == {}
    assert [slot.phase for slot in play.world.slots.values()] == [Phase.DONE]


def seating(play: Play) -> int:
    return sum(isinstance(action, do.SEATING) for action in play.turn())


def test_a_turn_makes_so_many_seats_of_all_workloads_together_and_the_small_have_theirs_at_once() -> None:
    play = fixed()
    many = [workload(f"big-{number}", Service(3 * SEATS_AT_ONCE)) for number in range(3)]
    play.apply(*many, workload("web", Service(5)))
    assert SEATS_AT_ONCE / 2 < seating(play) <= SEATS_AT_ONCE
    assert len(play.world.of_workload["web"]) == 5
    assert 0 < len(play.world.of_workload["big-0"]) < SEATS_AT_ONCE / 2
    turns = 1
    while len(play.world.slots) < 9 * SEATS_AT_ONCE + 5:
        assert seating(play) <= SEATS_AT_ONCE
        turns += 1
    assert turns <= 14, "the shares of those that want no more go to the others"
    for each in many:
        delete(play, each.name)
    while len(play.world.slots) > 5:
        assert 0 < seating(play) <= SEATS_AT_ONCE
    assert inconsistencies(play.world) == []


def test_what_runs_in_seats_that_are_not_wanted_is_stopped_at_once_however_many_there_are() -> None:
    play = fixed("a", "b")
    play.apply(workload("web", Service(2 * SEATS_AT_ONCE)))
    play.obey()
    there = play.running("web")
    assert len(there) > 1
    delete(play, "web")
    stopped = {action.replica for action in play.turn() if isinstance(action, do.StopReplica)}
    assert stopped == set(there)


@pytest.mark.parametrize(
    ("there", "count", "as_wanted"),
    [([0, 1, 2], 3, True), ([], 0, True), ([0, 2], 2, False), ([0, 1, 3], 3, False), ([0, 1, 2], 2, False)],
)
def test_by_their_number_and_sum_it_is_seen_whether_seats_are_as_wanted(
    there: list[int], count: int, as_wanted: bool
) -> None:
    world = World()
    for number in there:
        index.put_slot(world, Slot(f"w/{number}", "w", number))
    assert slots.is_as_wanted(world, workload("w", Service(count))) is as_wanted
