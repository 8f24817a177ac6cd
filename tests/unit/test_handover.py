"""Work leaves a node or a version without a gap; what cannot overlap moves only when it has somewhere to
go."""

import pytest
from msgspec.structs import replace

from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.event import Order
from holdfast.model.policy import BalancePolicy, Policy
from holdfast.model.pool import Reserve
from holdfast.model.replica import State
from holdfast.model.units import HOUR, MINUTE, SECOND
from holdfast.model.verdict import Level
from holdfast.model.workload import Job, Service, Spread, Training, Workload
from holdfast.model.world import Brake
from tests.build import needs
from tests.play import BIG, Play, of


def fixed(*nodes: str) -> Play:
    play = Play(can_launch=False, can_terminate=False)
    play.join(*nodes)
    play.settle()
    return play


def drain(play: Play, node: str, ms: int = HOUR) -> None:
    play.tell(ev.OperatorOrdered(at=play.now, order=Order.DRAIN, node=node, deadline=play.now + ms))


def serving(play: Play) -> list[str]:
    return sorted(r.id for r in play.world.replicas.values() if r.state is State.READY)


def test_a_service_leaves_a_node_without_a_gap() -> None:
    play = fixed("a", "b")
    play.apply(Workload("web", Service(1), needs(cpu=8)))
    play.obey()
    drain(play, "a")
    actions = play.settle()
    assert [place.node for place in of(do.PlaceReplica, actions)] == ["b"]
    assert of(do.StopReplica, actions) == [], "the old copy serves until the new one is ready"
    assert serving(play) == ["web/0.1"]
    play.ready("web/0.2")
    assert [stop.replica for stop in of(do.StopReplica, play.settle())] == ["web/0.1"]
    play.end("web/0.1")
    play.settle()
    assert serving(play) == ["web/0.2"]
    assert play.slot("web/0").down_since == 0


def test_a_successor_that_fails_leaves_the_old_copy_serving() -> None:
    play = fixed("a", "b")
    play.apply(Workload("web", Service(1), needs(cpu=8)))
    play.obey()
    drain(play, "a")
    play.settle()
    play.end("web/0.2", ev.Ended.FAILED)
    play.settle()
    assert serving(play) == ["web/0.1"]
    assert play.slot("web/0").down_since == 0


def test_a_service_that_has_nowhere_to_go_stays_until_the_last_call() -> None:
    play = fixed("a")
    play.apply(Workload("web", Service(1), needs(cpu=8)))
    play.obey()
    drain(play, "a", 5 * MINUTE)
    last_call = play.world.policy.replicas.drain_last_call_ms
    assert of(do.StopReplica, play.later(5 * MINUTE - last_call - 1)) == []
    assert len(of(do.StopReplica, play.later(1))) == 1


def test_after_a_short_notice_a_service_serves_on_while_its_successor_starts() -> None:
    play = fixed("a", "b")
    play.apply(Workload("web", Service(1), needs(cpu=8)))
    play.obey()
    drain(play, "a", 30 * SECOND)
    actions = play.settle()
    assert [place.node for place in of(do.PlaceReplica, actions)] == ["b"]
    assert of(do.StopReplica, actions) == []
    assert of(do.StopReplica, play.later(22 * SECOND)) == []
    assert [stop.replica for stop in of(do.StopReplica, play.later(1 * SECOND))] == ["web/0.1"]


def test_after_a_short_notice_a_job_is_told_at_once_so_that_it_can_save() -> None:
    play = fixed("a")
    play.apply(Workload("job", Job(), needs(cpu=8)))
    play.obey()
    drain(play, "a", 30 * SECOND)
    assert len(of(do.StopReplica, play.settle())) == 1


def test_room_that_appears_later_is_used() -> None:
    play = fixed("a")
    play.apply(Workload("web", Service(1), needs(cpu=8)))
    play.obey()
    drain(play, "a")
    play.settle()
    play.join("b")
    assert [place.node for place in of(do.PlaceReplica, play.settle())] == ["b"]


def test_a_job_is_stopped_only_when_there_is_room_for_it_elsewhere() -> None:
    play = fixed("a")
    play.apply(Workload("job", Job(), needs(cpu=8), stop_grace_ms=20 * SECOND))
    play.obey()
    drain(play, "a")
    assert of(do.StopReplica, play.settle()) == []
    play.join("b")
    (stop,) = of(do.StopReplica, play.settle())
    assert stop.deadline == play.now + 20 * SECOND, "it may save its work"
    assert play.running("job") == {}, "two copies must not overlap"
    play.end("job/0.1")
    play.settle()
    assert play.running("job") == {"job/0.2": "b"}


def test_a_job_without_room_is_stopped_at_the_last_call() -> None:
    play = fixed("a")
    play.apply(Workload("job", Job(), needs(cpu=8)))
    play.obey()
    drain(play, "a", 5 * MINUTE)
    last_call = play.world.policy.replicas.drain_last_call_ms
    assert of(do.StopReplica, play.later(5 * MINUTE - last_call - 1)) == []
    assert len(of(do.StopReplica, play.later(1))) == 1


def test_two_jobs_do_not_both_count_on_the_same_gap() -> None:
    play = fixed("a")
    play.apply(Workload("one", Job(), needs(cpu=4)), Workload("two", Job(), needs(cpu=4)))
    play.obey()
    play.apply(Workload("other", Service(1), needs(cpu=4)))
    play.join("b")
    play.obey()
    assert play.running("other") == {"other/0.1": "b"}
    drain(play, "a")
    play.settle()
    assert list(play.world.stopping) == ["one/0.1"]
    play.obey()
    assert play.running("one") == {"one/0.2": "b"}
    assert play.running("two") == {"two/0.1": "a"}


def test_a_job_that_leaves_is_not_kept_away_from_its_own_failure_domain() -> None:
    play = fixed("a")
    play.apply(Workload("job", Job(), needs(spread=Spread.REQUIRE)))
    play.obey()
    play.join("b")
    drain(play, "a")
    play.obey()
    assert play.running("job") == {"job/0.2": "b"}


def test_a_warm_standby_simply_leaves() -> None:
    play = fixed("a", "b", "c")
    play.apply(Workload("web", Service(1, standby=1), needs(cpu=8)))
    play.obey()
    node = play.replica("web/s0.1").node
    drain(play, node)
    assert [stop.replica for stop in of(do.StopReplica, play.turn())] == ["web/s0.1"]
    play.obey()
    assert play.running("web")["web/s0.2"] != node


def test_a_member_of_a_gang_leaves_when_a_standby_is_warm() -> None:
    play = fixed("a", "b", "c")
    play.apply(Workload("gang", Training(2, 2, standby=1), needs(cpu=8)))
    play.obey()
    drain(play, play.replica("gang/0.1").node)
    play.obey()
    assert play.replica("gang/s0.1").slot == "gang/0"


def test_a_member_of_a_gang_does_not_count_on_the_node_of_another() -> None:
    play = fixed("a", "b")
    play.apply(Workload("gang", Training(2, 2), needs(cpu=2)))
    play.obey()
    drain(play, "a")
    assert of(do.StopReplica, play.obey()) == []
    play.join("c")
    play.obey()
    assert sorted(play.running("gang").values()) == ["b", "c"]


def test_a_member_of_a_gang_does_not_count_on_a_node_that_is_kept_for_others() -> None:
    play = Play(can_launch=False, can_terminate=False, max=3, reserve=Reserve(nodes=1, priority=5))
    play.join("a", "b", "c")
    play.apply(Workload("gang", Training(2, 2), needs(cpu=2)))
    play.obey()
    drain(play, "a")
    assert of(do.StopReplica, play.obey()) == []


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_update_places_the_new_version_before_it_stops_the_old(replicas: int) -> None:
    play = fixed("a", "b", "c")
    play.apply(Workload("web", Service(replicas), needs(cpu=1)))
    play.obey()
    play.reapply("web", version=2)
    actions = play.settle()
    assert len(of(do.PlaceReplica, actions)) == 1
    assert of(do.StopReplica, actions) == []
    assert len(serving(play)) == replicas
    new = of(do.PlaceReplica, actions)[0].replica
    assert play.replica(new).version == 2


def test_an_update_waits_while_any_seat_is_down() -> None:
    play = fixed("a", "b", "c")
    play.apply(Workload("web", Service(2), needs(cpu=1)))
    play.obey()
    play.end("web/0.1", ev.Ended.FAILED)
    play.reapply("web", version=2)
    assert [place.slot for place in of(do.PlaceReplica, play.settle())] == ["web/0"], "the one that is down"


def test_exclusive_work_takes_a_new_version_by_a_restart() -> None:
    play = fixed("a", "b")
    play.apply(Workload("job", Job(), needs(cpu=8)))
    play.obey()
    play.reapply("job", version=2)
    play.obey()
    assert play.replica("job/0.2").version == 2
    assert list(play.running("job")) == ["job/0.2"]


def test_an_unreachable_node_keeps_its_copies_for_a_while_and_then_gets_extra_ones_elsewhere() -> None:
    play = fixed("a", "b")
    patience = play.world.policy.detection.unreachable_patience_ms
    play.apply(Workload("web", Service(1), needs(cpu=8)))
    play.obey()
    play.judge("a", Level.UNREACHABLE)
    assert of(do.PlaceReplica, play.later(patience - 1)) == []
    actions = play.later(1)
    assert [place.node for place in of(do.PlaceReplica, actions)] == ["b"]
    assert of(do.StopReplica, actions) == [], "the old copy serves whoever can reach it"
    play.later(10 * SECOND)
    assert of(do.PlaceReplica, play.later(20 * SECOND)) == [], "one extra copy is enough"


def test_when_the_unreachable_node_returns_the_older_copy_goes() -> None:
    play = fixed("a", "b")
    play.apply(Workload("web", Service(1), needs(cpu=8)))
    play.obey()
    play.judge("a", Level.UNREACHABLE)
    play.later(play.world.policy.detection.unreachable_patience_ms)
    play.ready("web/0.2")
    play.judge("a", Level.ALIVE)
    play.obey()
    assert serving(play) == ["web/0.2"]


def test_a_replica_that_its_agent_never_starts_is_stopped() -> None:
    play = fixed("a", "b")
    play.apply(Workload("web", Service(1), needs(cpu=8)))
    play.settle()
    timeout = play.world.policy.replicas.place_timeout_ms
    assert of(do.StopReplica, play.later(timeout - 1)) == []
    assert len(of(do.StopReplica, play.later(1))) == 1


def test_a_replica_that_started_has_longer_to_become_ready() -> None:
    play = fixed("a", "b")
    play.apply(Workload("web", Service(1), needs(cpu=8)))
    play.settle()
    play.tell(ev.ReplicaStarted(at=play.now, replica="web/0.1", node="a"))
    timeout = play.world.policy.replicas.ready_timeout_ms
    assert of(do.StopReplica, play.later(timeout - 1)) == []
    assert len(of(do.StopReplica, play.later(1))) == 1


def test_a_copy_on_a_node_in_doubt_is_not_blamed_for_being_slow() -> None:
    play = fixed("a", "b")
    play.apply(Workload("web", Service(1), needs(cpu=8)))
    play.settle()
    play.judge("a", Level.SUSPECT)
    assert of(do.StopReplica, play.later(2 * play.world.policy.replicas.place_timeout_ms)) == []


def test_a_drain_is_taken_back_by_an_uncordon() -> None:
    play = fixed("a", "b")
    play.apply(Workload("job", Job(), needs(cpu=8)))
    play.join("c")
    play.obey()
    play.judge("b", Level.SUSPECT)
    play.judge("c", Level.SUSPECT)
    drain(play, "a", 5 * MINUTE)
    play.settle()
    play.tell(ev.OperatorOrdered(at=play.now, order=Order.UNCORDON, node="a"))
    play.later(MINUTE)
    assert list(play.running("job")) == ["job/0.1"]
    assert play.node("a") == replace(play.node("a"), deadline=0, by_hand=False)


# ---- copies that stand together part


def together(copies: int) -> Play:
    """All copies on `a`; then two more nodes come, in other zones."""
    play = fixed("a")
    play.apply(Workload("web", Service(copies), needs(cpu=2, spread=Spread.PREFER)))
    play.obey()
    play.join("b", zone="b")
    play.join("c", zone="c")
    return play


def test_copies_part_one_after_the_other_when_there_is_room_again() -> None:
    play = together(3)
    assert of(do.PlaceReplica, play.later(19 * SECOND)) == [], "not at once: what came may go again"
    moved = []
    for _ in range(8):
        moved += [place.node for place in of(do.PlaceReplica, play.later(10 * SECOND))]
        play.obey()
    assert sorted(moved) == ["b", "c"]
    assert sorted(replica.node for replica in play.world.replicas.values()) == ["a", "b", "c"]


def test_only_so_many_workloads_part_at_a_time_and_the_others_follow() -> None:
    play = Play(Policy(balance=BalancePolicy(parts_max=2)), can_launch=False, can_terminate=False)
    play.join("a")
    play.apply(*(Workload(f"web-{n}", Service(2), needs(cpu=0.5, spread=Spread.PREFER)) for n in range(6)))
    play.obey()
    play.join("b", zone="b")
    rounds = []
    for _ in range(30):
        rounds.append(len(of(do.PlaceReplica, play.later(5 * SECOND))))
        play.obey()
    assert max(rounds) == 2
    assert sum(rounds) == 6, "each workload has one copy on each node, and then nothing moves"


def test_copies_do_not_part_while_the_brake_is_on() -> None:
    play = together(2)
    play.world.brakes["fleet"] = Brake("fleet", play.now, "many nodes were lost")
    assert of(do.PlaceReplica, play.later(45 * SECOND)) == []


# ---- a new version where room is short


def rolled(play: Play, copies: int, cpu: float, then: float) -> Play:
    play.apply(Workload("web", Service(copies), needs(cpu=cpu)))
    play.obey()
    play.reapply("web", needs=needs(cpu=then), version=2)
    return play


def test_a_new_version_may_be_where_the_old_one_is() -> None:
    play = rolled(fixed("a"), 1, cpu=2, then=2)
    actions = play.settle()
    assert [place.node for place in of(do.PlaceReplica, actions)] == ["a"]
    assert of(do.StopReplica, actions) == [], "there is room for both: nobody is without it"


def test_without_room_for_both_one_at_a_time_makes_place() -> None:
    play = rolled(fixed("a", "b"), 2, cpu=8, then=8)
    down = []
    for _ in range(8):
        play.settle()
        down.append(sum(bool(slot.down_since) for slot in play.world.slots.values()))
        play.obey()
    assert max(down) == 1, "at most one is unavailable"
    assert [r.version for r in play.world.replicas.values()] == [2, 2]


def test_a_new_version_does_not_take_a_node_that_is_kept_for_others() -> None:
    play = Play(can_launch=False, can_terminate=False, max=2, reserve=Reserve(nodes=1, priority=5))
    play.join("a", "b")
    play.apply(Workload("web", Service(1), needs(cpu=8)))
    play.obey()
    play.reapply("web", version=2)
    play.obey()
    assert play.running("web") == {"web/0.2": "a"}


def test_a_node_that_may_be_launched_is_waited_for_before_anybody_makes_place() -> None:
    play = Play(max=2)
    play.join("a")
    play.settle()
    actions = rolled(play, 1, cpu=8, then=8).settle()
    assert len(of(do.LaunchNode, actions)) == 1
    assert of(do.StopReplica, actions) == []


def test_a_version_that_fits_nowhere_leaves_the_old_one_serving() -> None:
    play = rolled(fixed("a"), 1, cpu=2, then=20)
    assert play.settle() == []
    assert serving(play) == ["web/0.1"]


def test_a_version_that_waits_for_room_comes_when_there_is_some() -> None:
    play = rolled(fixed("a", "b"), 1, cpu=2, then=20)
    play.settle()
    play.join("big", capacity=replace(BIG, cpu_milli=32_000))
    assert [place.node for place in of(do.PlaceReplica, play.settle())] == ["big"]


def test_a_copy_that_was_lost_with_its_node_does_not_hold_up_a_new_version() -> None:
    play = fixed("a", "b", "c")
    play.apply(Workload("web", Service(3), needs(cpu=2)))
    play.obey()
    play.judge("a", Level.DEAD)
    play.settle()
    play.obey()
    assert any(replica.state is State.LOST for replica in play.world.replicas.values())
    play.reapply("web", version=2)
    assert len(of(do.PlaceReplica, play.settle())) == 1


def test_a_new_version_does_not_inherit_the_failures_of_the_one_before() -> None:
    play = rolled(fixed("a", "b"), 1, cpu=2, then=2)
    play.settle()
    play.end("web/0.2", ev.Ended.FAILED)
    play.settle()
    assert play.slot("web/0").retry_at > play.now
    play.reapply("web", version=3)
    assert [place.slot for place in of(do.PlaceReplica, play.settle())] == ["web/0"]
    assert play.slot("web/0").failures == 0


def test_copies_do_not_part_past_a_back_off_or_in_the_middle_of_a_new_version() -> None:
    play = together(2)
    play.reapply("web", version=2, needs=needs(cpu=2, spread=Spread.PREFER))
    play.settle()
    play.end("web/0.2", ev.Ended.FAILED)
    tried = [place.why for place in of(do.PlaceReplica, play.later(45 * SECOND))]
    assert not [why for why in tried if "copies in" in why]
