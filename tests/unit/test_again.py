"""Work that is started again: what becomes of its seats, and what ran before."""

import pytest
from msgspec.structs import replace

from holdfast.core.state import fold, snapshot
from holdfast.core.state.fold_workloads import VERSIONS_KEPT
from holdfast.core.workloads.apply import (
    CannotRetry,
    NoSuchVersion,
    check_restart,
    check_retry,
    rolled_back,
    scaled,
)
from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.program import Program
from holdfast.model.replica import Phase
from holdfast.model.units import HOUR, SECOND
from holdfast.model.verdict import Level
from holdfast.model.workload import Job, Restart, Service, Shape, Sweep, Training, Workload
from holdfast.model.world import World
from tests.build import needs
from tests.play import Play, of

SMALL = needs(cpu=1)


def running(shape: Shape, **more: object) -> Play:
    play = Play(max=3)
    play.join("a", "b", "c")
    play.apply(replace(Workload("w", shape, SMALL, program=Program(("v1",))), **more))
    play.obey()
    return play


def live(play: Play) -> list[str]:
    return sorted(r.id for r in play.world.replicas.values() if r.state != "stopping")


def retry(play: Play) -> None:
    play.tell(ev.WorkloadRetried(at=play.now, workload="w", actor="ann"))


def restart(play: Play) -> None:
    play.tell(ev.WorkloadRestarted(at=play.now, workload="w", actor="ann"))


def update(play: Play, word: str) -> Workload:
    old = play.world.workloads["w"]
    new = replace(old, program=Program((word,)), version=old.version + 1)
    play.tell(ev.WorkloadApplied(at=play.now, workload=new))
    return new


def checked(play: Play) -> tuple[str, ...]:
    return check_retry(play.world.workloads["w"], play.world.slots.values())


# ---- retry


def test_a_job_that_was_given_up_runs_again_after_a_retry() -> None:
    play = running(Job(), restart=Restart(limit=1))
    play.end("w/0.1", ev.Ended.FAILED)
    play.later(2 * SECOND)
    assert play.world.slots["w/0"].phase is Phase.FAILED
    assert checked(play) == ("w/0",)
    retry(play)
    play.obey()
    assert live(play) == ["w/0.2"]
    with pytest.raises(CannotRetry, match="nothing of w has failed"):
        checked(play)


def test_a_retry_leaves_alone_what_is_done_or_runs_and_ends_a_back_off() -> None:
    play = running(Sweep(4), restart=Restart(limit=2, backoff_ms=HOUR))
    play.end("w/0.1", ev.Ended.DONE)
    play.end("w/1.1", ev.Ended.FAILED)
    play.settle()
    assert checked(play) == ("w/1",)
    retry(play)
    play.obey()
    assert live(play) == ["w/1.2", "w/2.1", "w/3.1"]
    assert play.world.slots["w/0"].phase is Phase.DONE


def test_a_gang_that_was_given_up_meets_again_after_a_retry() -> None:
    play = running(Training(2, 2), restart=Restart(limit=1))
    play.end("w/0.1", ev.Ended.FAILED)
    play.later(2 * SECOND)
    play.obey()
    assert {slot.phase for slot in play.world.slots.values()} == {Phase.FAILED}
    retry(play)
    play.obey()
    assert [name.rpartition(".")[0] for name in live(play)] == ["w/0", "w/1"]


def test_what_is_paused_is_neither_retried_nor_restarted() -> None:
    play = running(Job())
    workload = replace(play.world.workloads["w"], paused=True)
    for refused in (lambda: check_restart(workload), lambda: check_retry(workload, ())):
        with pytest.raises(CannotRetry, match="w is paused") as error:
            refused()
        assert error.value.hint == "holdfast resume w"


# ---- restart


def test_a_service_is_restarted_one_copy_after_the_other_and_serves_on() -> None:
    play = running(Service(2))
    restart(play)
    fewest = 2
    for _ in range(20):
        play.settle()
        fewest = min(fewest, sum(r.state == "ready" for r in play.world.replicas.values()))
        for replica in list(play.world.replicas.values()):
            if replica.state == "stopping":
                play.end(replica.id)
            elif replica.state != "ready":
                play.ready(replica.id)
    assert live(play) == ["w/0.2", "w/1.2"]
    assert (fewest, play.world.workloads["w"].version) == (2, 2)


def test_a_job_that_is_done_runs_once_more_from_the_beginning_when_it_is_restarted() -> None:
    play = running(Job(deadline_ms=HOUR, work_ms=SECOND), checkpoint_ms=SECOND)
    play.end("w/0.1", ev.Ended.DONE, progress_ms=5_000)
    play.obey()
    assert (live(play), play.world.slots["w/0"].progress_ms) == ([], 5_000)
    update(play, "v2")
    play.obey()
    assert live(play) == [], "a new file does not repeat what has run"
    play.now += HOUR
    restart(play)
    assert play.world.courses["w"].begun == play.now, "its deadline counts anew"
    play.obey()
    assert live(play) == ["w/0.2"]
    assert play.world.replicas["w/0.2"].progress_ms == 0


@pytest.mark.parametrize("shape", [Job(), Training(2, 3), Sweep(3)])
def test_exclusive_work_is_stopped_before_it_starts_anew(shape: Shape) -> None:
    play = running(shape)
    before = live(play)
    restart(play)
    play.settle()
    assert live(play) == [], "nothing starts while the old copies may run"
    play.obey()
    assert len(live(play)) == len(before)
    assert not set(live(play)) & set(before)


def test_a_restart_of_nobody_changes_nothing() -> None:
    play = Play()
    before = snapshot.dump(play.world)
    restart(play)
    retry(play)
    assert snapshot.dump(play.world) == before


# ---- rollback


def versions(world: World) -> list[int]:
    return [version.number for version in world.versions.get("w", ())]


def test_a_rollback_brings_back_what_ran_and_not_how_many_there_were() -> None:
    play = running(Service(2))
    update(play, "v2")
    play.apply(scaled(play.world.workloads["w"], 3))
    back = rolled_back(play.world.workloads["w"], play.world.versions["w"])
    assert back.program == Program(("v1",))
    assert (back.version, back.shape) == (3, Service(3))
    play.apply(back)
    assert versions(play.world) == [1, 2]
    forth = rolled_back(play.world.workloads["w"], play.world.versions["w"])
    assert (forth.program, forth.version) == (Program(("v2",)), 4), "a rollback can be rolled back"


def test_a_restart_is_no_version_to_go_back_to() -> None:
    play = running(Service(1))
    update(play, "v2")
    restart(play)
    workload = play.world.workloads["w"]
    assert (workload.version, versions(play.world)) == (3, [1])
    assert rolled_back(workload, play.world.versions["w"]).program == Program(("v1",))
    assert rolled_back(workload, play.world.versions["w"], 3) is workload
    with pytest.raises(NoSuchVersion, match="there is no version 7") as error:
        rolled_back(workload, play.world.versions["w"], 7)
    assert error.value.hint == "known are: 1"


def test_a_few_versions_are_kept_and_they_survive_a_snapshot_and_go_with_the_workload() -> None:
    play = running(Service(1))
    with pytest.raises(NoSuchVersion, match="w has no earlier version"):
        rolled_back(play.world.workloads["w"], ())
    for number in range(2, 30):
        update(play, f"v{number}")
    assert versions(play.world) == list(range(30 - 1 - VERSIONS_KEPT, 29))
    assert snapshot.load(snapshot.dump(play.world)).versions == play.world.versions
    again = World()
    for entry in play.journal:
        fold.apply(again, entry)
    assert again.versions == play.world.versions
    play.tell(ev.WorkloadDeleted(at=play.now, workload="w"))
    assert play.world.versions == {}


# ---- pause


@pytest.mark.parametrize("struck", [False, True])
def test_what_was_paused_counts_as_down_from_the_resume_on(struck: bool) -> None:
    play = running(Service(1))
    if struck:
        play.judge(play.replica("w/0.1").node, Level.DEAD)
    workload = play.world.workloads["w"]
    play.apply(replace(workload, paused=True))
    play.obey()
    play.now += HOUR
    play.join("d")
    play.apply(replace(workload, paused=False))
    (placed,) = of(do.PlaceReplica, play.settle())
    assert placed.why == "w/0 has been down for 0.0 s"
    assert play.world.slots["w/0"].down_since == play.now
