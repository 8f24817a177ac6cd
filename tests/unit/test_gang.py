"""A gang starts together or not at all, meets again without the lost, and grows when that is worth a
restart."""

from msgspec.structs import replace

from holdfast.core.agent.desired_set import is_ready, peers_of
from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.event import Ended
from holdfast.model.program import Program
from holdfast.model.replica import Phase
from holdfast.model.units import HOUR, MINUTE, SECOND
from holdfast.model.verdict import Level
from holdfast.model.workload import Restart, Training, Workload
from tests.build import needs
from tests.play import Play, of


def gang(least: int, most: int, standby: int = 0, **more: object) -> Workload:
    built = Workload("gang", Training(least, most, standby), needs(cpu=8), restart=Restart(limit=3))
    return replace(built, **more)


def fixed(*nodes: str) -> Play:
    play = Play(can_launch=False, can_terminate=False)
    play.join(*nodes)
    play.settle()
    return play


def started(workload: Workload, *nodes: str) -> Play:
    play = fixed(*nodes)
    play.apply(workload)
    play.obey()
    return play


def lose(play: Play, *slots: str) -> None:
    """Their nodes die and are confirmed gone."""
    for name, node in list(play.running("gang").items()):
        if play.replica(name).slot in slots:
            play.tell(ev.NodeTerminated(at=play.now, node=node))


def generations(play: Play) -> set[int]:
    return {play.replica(name).gang for name in play.running("gang")}


def test_too_few_nodes_start_nothing() -> None:
    play = started(gang(3, 4), "a", "b")
    assert play.running("gang") == {}


def test_enough_nodes_start_together_on_a_node_each() -> None:
    play = fixed("a", "b", "c")
    play.apply(gang(3, 4))
    actions = play.settle()
    assert len(of(do.PlaceReplica, actions)) == 3
    assert sorted(play.running("gang").values()) == ["a", "b", "c"]
    assert generations(play) == {1}
    assert len(play.world.gangs["gang"].members) == 3


def test_members_never_share_a_node_however_large() -> None:
    play = started(replace(gang(2, 3), needs=needs(cpu=1)), "a", "b")
    assert sorted(play.running("gang").values()) == ["a", "b"]


def test_no_more_than_the_maximum_join() -> None:
    play = started(gang(1, 2), "a", "b", "c")
    assert len(play.running("gang")) == 2


def peers(play: Play) -> dict[str, tuple[str, ...]]:
    """What each active member is given, once its program may start."""
    members = [r for r in play.world.replicas.values() if r.workload == "gang" and r.role == "active"]
    return {r.id: tuple(peer.replica for peer in peers_of(play.world, r)) for r in members}


def port(play: Play, name: str, number: int) -> None:
    it = play.replica(name)
    play.tell(
        ev.ReplicaStarted(at=play.now, replica=name, node=it.node, port=number, incarnation=it.incarnation)
    )


def test_no_member_is_given_its_peers_before_all_ports_are_known() -> None:
    play = fixed("a", "b", "c")
    play.apply(gang(3, 3))
    play.settle()
    port(play, "gang/2.1", 20_002)
    port(play, "gang/0.1", 20_000)
    assert set(peers(play).values()) == {()}
    port(play, "gang/1.1", 20_001)
    assert set(peers(play).values()) == {("gang/0.1", "gang/1.1", "gang/2.1")}
    assert [peer.port for peer in peers_of(play.world, play.replica("gang/1.1"))] == [20_000, 20_001, 20_002]


def test_a_lost_member_takes_its_rank_from_nobody() -> None:
    play = started(gang(2, 3), "a", "b", "c")
    play.judge("a", Level.DEAD)
    play.settle()
    assert set(peers(play).values()) == {()}, "no part of the members is ever given out as the whole"


def test_in_a_new_generation_every_member_starts_anew_under_a_new_epoch() -> None:
    play = started(gang(2, 3), "a", "b", "c")
    lose(play, "gang/0")
    (regroup,) = of(do.RegroupGang, play.settle())
    assert regroup.restart
    for name in ("gang/1.1", "gang/2.1"):
        member = play.replica(name)
        assert (member.state, member.port, member.incarnation, member.epoch) == ("placed", 0, 1, 2)
    assert set(peers(play).values()) == {()}
    play.obey()
    assert set(peers(play).values()) == {("gang/1.1", "gang/2.1")}
    assert is_ready(play.world, "gang")


def test_members_that_ask_for_a_signal_keep_running() -> None:
    asks = gang(2, 3, program=Program(("train",), tell="USR1"))
    play = started(asks, "a", "b", "c", "d")
    lose(play, "gang/0")
    (regroup,) = of(do.RegroupGang, play.settle())
    assert not regroup.restart
    assert play.replica("gang/1.1").state == "ready"
    assert set(peers(play).values()) == {()}
    play.obey()
    assert set(peers(play).values()) == {("gang/0.2", "gang/1.1", "gang/2.1")}


def test_news_of_an_older_incarnation_changes_nothing() -> None:
    play = started(gang(2, 3), "a", "b", "c")
    lose(play, "gang/0")
    play.settle()
    at, node = play.now, play.replica("gang/1.1").node
    play.tell(ev.ReplicaStarted(at=at, replica="gang/1.1", node=node, port=20_001))
    play.tell(ev.ReplicaReady(at=at, replica="gang/1.1", node=node))
    assert play.replica("gang/1.1").state == "placed"
    assert play.replica("gang/1.1").port == 0


def test_a_gang_is_ready_when_all_its_members_are() -> None:
    play = fixed("a", "b", "c")
    play.apply(gang(3, 3))
    play.settle()
    play.ready("gang/0.1", "gang/1.1")
    assert not is_ready(play.world, "gang")
    play.ready("gang/2.1")
    assert is_ready(play.world, "gang")
    play.judge(play.replica("gang/2.1").node, Level.DEAD)
    assert not is_ready(play.world, "gang")


def test_only_the_first_failure_of_a_generation_counts() -> None:
    play = started(gang(2, 2), "a", "b")
    play.end("gang/0.1", Ended.FAILED)
    play.end("gang/1.1", Ended.FAILED)
    assert [play.slot(name).failures for name in ("gang/0", "gang/1")] == [1, 0]
    play.later(2 * SECOND)
    assert sorted(play.running("gang")) == ["gang/0.2", "gang/1.2"]


def test_a_training_that_is_done_stops_those_that_wait_for_the_done() -> None:
    play = started(gang(2, 3), "a", "b", "c", "d")
    lose(play, "gang/0")
    play.settle()
    play.end("gang/1.1", Ended.DONE)
    play.obey()
    assert play.running("gang") == {}
    assert not play.world.undone["gang"]


def test_a_member_that_comes_back_in_time_lets_the_others_start() -> None:
    play = fixed("a", "b")
    play.apply(gang(2, 2))
    play.settle()
    port(play, "gang/0.1", 20_000)
    port(play, "gang/1.1", 20_001)
    home, other = play.replica("gang/1.1").node, play.replica("gang/0.1").node
    play.judge(home, Level.DEAD)
    play.settle()
    assert set(peers(play).values()) == {()}
    before = play.node(other).generation
    play.join(home, running=("gang/1.1",))
    assert set(peers(play).values()) == {("gang/0.1", "gang/1.1")}
    assert play.node(other).generation > before, "the other node is sent the set again"


def test_a_lost_member_is_replaced_by_a_standby_and_all_meet_again() -> None:
    play = started(gang(2, 2, standby=1), "a", "b", "c", "d")
    lose(play, "gang/0")
    actions = play.settle()
    assert [up.slot for up in of(do.PromoteStandby, actions)] == ["gang/0"]
    (regroup,) = of(do.RegroupGang, actions)
    assert (regroup.generation, regroup.members) == (2, ("gang/1.1",))
    active = [r for r in play.world.replicas.values() if r.role == "active"]
    assert {member.gang for member in active} == {2}


def test_a_lost_member_is_replaced_on_another_node() -> None:
    play = started(gang(3, 3), "a", "b", "c", "d")
    lose(play, "gang/1")
    actions = play.settle()
    assert [place.slot for place in of(do.PlaceReplica, actions)] == ["gang/1"]
    assert len(of(do.RegroupGang, actions)) == 1
    assert sorted(play.running("gang")) == ["gang/0.1", "gang/1.2", "gang/2.1"]
    assert generations(play) == {2}
    assert sorted(play.world.gangs["gang"].members) == ["gang/0", "gang/1", "gang/2"]


def test_without_room_it_goes_on_with_fewer() -> None:
    play = started(gang(2, 3), "a", "b", "c")
    lose(play, "gang/0")
    actions = play.settle()
    assert of(do.StopReplica, actions) == []
    assert sorted(play.running("gang")) == ["gang/1.1", "gang/2.1"]
    assert generations(play) == {2}


def test_below_its_minimum_the_survivors_stop_and_wait_together() -> None:
    play = started(gang(3, 3), "a", "b", "c")
    lose(play, "gang/0")
    actions = play.settle()
    assert sorted(stop.replica for stop in of(do.StopReplica, actions)) == ["gang/1.1", "gang/2.1"]
    assert of(do.RegroupGang, actions) == []
    play.obey()
    assert play.running("gang") == {}
    play.join("d")
    play.obey()
    assert sorted(play.running("gang").values()) == ["b", "c", "d"]
    assert generations(play) == {2}


def test_it_does_not_meet_again_before_the_lost_member_is_provably_gone() -> None:
    play = started(gang(2, 3), "a", "b", "c", "d")
    play.judge("a", Level.DEAD)
    actions = play.settle()
    assert of(do.RegroupGang, actions) == []
    assert of(do.PlaceReplica, actions) == []
    assert len(of(do.RegroupGang, play.later(MINUTE))) == 1


def test_it_grows_when_there_is_room_but_not_too_often() -> None:
    play = started(gang(2, 3), "a", "b")
    grow_ms = play.world.policy.replicas.gang_grow_ms
    play.later(MINUTE)
    play.join("c")
    assert of(do.PlaceReplica, play.later(grow_ms - 2 * MINUTE)) == []
    actions = play.later(2 * MINUTE)
    assert len(of(do.PlaceReplica, actions)) == 1
    (regroup,) = of(do.RegroupGang, actions)
    assert sorted(regroup.members) == ["gang/0.1", "gang/1.1"]
    assert generations(play) == {2}


def test_it_grows_when_room_comes_long_after() -> None:
    play = started(gang(2, 3), "a", "b")
    play.later(HOUR)
    play.join("c")
    play.settle()
    assert len(play.running("gang")) == 3


def test_a_full_gang_is_left_alone() -> None:
    play = started(gang(2, 2), "a", "b", "c")
    actions = play.later(2 * HOUR)
    assert of(do.RegroupGang, actions) == []
    assert of(do.PlaceReplica, actions) == []


def test_a_member_that_fails_is_retried_in_a_new_generation_after_its_back_off() -> None:
    play = started(gang(2, 2), "a", "b")
    play.end("gang/0.1", Ended.FAILED)
    assert of(do.RegroupGang, play.settle()) == []
    play.later(2 * SECOND)
    assert sorted(play.running("gang")) == ["gang/0.2", "gang/1.1"]
    assert generations(play) == {2}


def test_when_a_member_fails_too_often_all_is_given_up() -> None:
    play = started(gang(2, 2), "a", "b")
    for _ in range(3):
        play.end(next(name for name in play.running("gang") if name.startswith("gang/0")), Ended.FAILED)
        play.later(MINUTE)
        play.obey()
    assert {slot.phase for slot in play.world.slots.values()} == {Phase.FAILED}
    assert play.running("gang") == {}


def test_when_one_member_is_done_so_is_the_training() -> None:
    play = started(gang(2, 2), "a", "b", "c")
    play.end("gang/0.1", Ended.DONE)
    play.settle()
    lose(play, "gang/1")
    play.settle()
    assert play.running("gang") == {}
    assert not play.world.undone["gang"]


def test_a_more_important_gang_makes_room_for_its_minimum_at_once_or_not_at_all() -> None:
    play = fixed("a", "b", "c")
    play.apply(Workload("low", Training(1, 2), needs(cpu=8)))
    play.obey()
    play.apply(gang(4, 4, priority=5))
    assert of(do.StopReplica, play.settle()) == []
    play.apply(gang(3, 3, priority=5))
    play.settle()
    assert len(play.world.stopping) == 2
    play.obey()
    assert len(play.running("gang")) == 3


def test_a_paused_gang_stops_and_a_resumed_one_starts_again() -> None:
    play = started(gang(2, 2), "a", "b")
    play.reapply("gang", paused=True)
    play.obey()
    assert play.running("gang") == {}
    play.reapply("gang", paused=False)
    play.obey()
    assert sorted(play.running("gang")) == ["gang/0.2", "gang/1.2"]
