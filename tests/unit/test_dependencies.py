"""What a workload may wait for, and what is said of one that will not start by itself."""

from holdfast.api.tally import Tally
from holdfast.core.workloads.dependencies import circle, problems
from holdfast.model import event as ev
from holdfast.model.event import Ended
from holdfast.model.units import MINUTE
from holdfast.model.workload import Job, Restart, Service, Workload
from tests.build import needs
from tests.play import Play


def job(name: str, *after: str) -> Workload:
    return Workload(name, Job(), after=after, restart=Restart(limit=1))


def played(*workloads: Workload) -> Play:
    play = Play(can_launch=False, can_terminate=False)
    play.join("a")
    play.apply(*workloads)
    play.obey()
    return play


def test_a_name_that_nobody_knows_is_refused_with_what_may_have_been_meant() -> None:
    world = played(job("prepare")).world
    found = list(problems(world, [job("train", "prepair")]))
    assert found == ["train.after: there is no workload prepair. Did you mean: prepare"]


def test_names_of_the_same_apply_are_known() -> None:
    assert list(problems(played().world, [job("train", "prepare"), job("prepare")])) == []


def test_a_circle_is_refused_also_by_way_of_what_is_there() -> None:
    world = played(job("a"), job("b", "a"), job("c", "b")).world
    (found,) = problems(world, [job("a", "c")])
    assert found == "a.after: expected an order without circles, got a -> c -> b -> a"


def test_one_circle_is_told_once() -> None:
    assert len(list(problems(played().world, [job("a", "b"), job("b", "a")]))) == 1


def test_a_workload_that_waits_for_itself_is_refused() -> None:
    assert circle({"a": ("a",)}, "a") == ["a", "a"]
    assert len(list(problems(played().world, [job("a", "a")]))) == 1


def test_the_same_file_can_be_applied_again_when_what_it_waits_for_is_gone() -> None:
    play = played(job("prepare"), job("train", "prepare"))
    play.tell(ev.WorkloadDeleted(at=play.now, workload="prepare"))
    assert list(problems(play.world, [job("train", "prepare")])) == []
    assert list(problems(play.world, [job("train", "prepare", "other")])) != []


def why(play: Play, name: str) -> str:
    return Tally(play.world, play.world.workloads[name], play.now).why()


def test_the_list_says_that_what_is_waited_for_was_deleted_or_failed() -> None:
    play = played(job("prepare"), job("train", "prepare"))
    assert why(play, "train") == "waits for prepare"
    play.end("prepare/0.1", Ended.FAILED)
    play.later(MINUTE)
    assert why(play, "train") == "waits for prepare, which failed"
    play.tell(ev.WorkloadDeleted(at=play.now, workload="prepare"))
    play.obey()
    assert why(play, "train") == "waits for prepare, which was deleted"


def test_what_waits_for_a_service_starts_when_the_copy_that_was_missing_is_not_wanted_any_more() -> None:
    play = Play(can_launch=False)
    play.join("a")
    play.settle()
    play.apply(Workload("web", Service(2), needs(cpu=8)))
    play.apply(Workload("sort", Job(), needs(cpu=0.1), after=("web",)))
    play.settle()
    play.ready("web/0.1")
    play.settle()
    assert play.world.of_workload.get("sort", {}) == {}, "a second copy has no room"
    play.apply(Workload("web", Service(1), needs(cpu=8)))
    play.settle()
    assert list(play.world.of_workload["sort"]) == ["sort/0"]
