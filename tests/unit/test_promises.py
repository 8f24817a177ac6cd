"""Promises that were broken once, each by the shortest story that broke it."""

import numpy as np
from msgspec.structs import replace

from holdfast.core import check
from holdfast.core.health import detect
from holdfast.core.turn import Mind
from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.finding import Severity
from holdfast.model.node import NodeState
from holdfast.model.policy import Leases
from holdfast.model.replica import LIVE, Phase, State
from holdfast.model.resources import Resources
from holdfast.model.units import HOUR, MINUTE, SECOND
from holdfast.model.verdict import Level, Word
from holdfast.model.workload import Job, Needs, Restart, Service, Spread, Sweep, Training, Workload
from tests.play import Play, of, pool


def wants(cpu: int, spread: Spread = Spread.NONE) -> Needs:
    return Needs(Resources(cpu_milli=1000 * cpu, memory_mib=512), spread=spread)


def fixed(**more: object) -> Play:
    return Play(can_launch=False, can_terminate=False, **more)  # type: ignore[arg-type]


def live(play: Play, minutes: int) -> None:
    """Time passes, and agents that we hear do as they are told."""
    for _ in range(minutes):
        play.later(MINUTE // 2)
        for replica in list(play.world.replicas.values()):
            if play.node(replica.node).verdict.level is Level.ALIVE:
                if replica.state is State.STOPPING:
                    play.end(replica.id)
                elif replica.state in LIVE and replica.state is not State.READY:
                    play.ready(replica.id)
        play.later(MINUTE // 2)


# gangs


def test_a_gang_that_finished_with_fewer_than_its_most_is_done() -> None:
    play = fixed()
    play.join("n1", "n2")
    play.apply(Workload("gang", Training(2, 4), wants(8)))
    play.obey()
    play.end("gang/0.1", ev.Ended.DONE)
    play.end("gang/1.1", ev.Ended.DONE)
    placed = of(do.PlaceReplica, play.settle())
    assert [each.slot for each in placed] == []  # it is done: nothing starts again
    assert not play.world.undone["gang"]


def test_a_gang_does_not_sit_on_a_seat_while_it_stops_for_want_of_members() -> None:
    play = fixed()
    play.join("n1", "n2", "n3", "n4", "n5")
    play.apply(Workload("gang", Training(4, 4), wants(8)))
    play.obey()
    home = {r.slot: r.node for r in play.world.replicas.values()}
    for slot in ("gang/0", "gang/1"):
        play.judge(home[slot], Level.DEAD)
    play.later(32 * SECOND)  # the leases are over: one free node for two lost members
    play.obey()
    assert play.running("gang") == {}  # all or nothing


def test_a_gang_that_is_made_smaller_meets_again() -> None:
    play = fixed()
    play.join("n1", "n2", "n3", "n4")
    play.apply(Workload("gang", Training(2, 4), wants(8)))
    play.obey()
    play.reapply("gang", shape=Training(2, 3))
    done = play.obey()
    assert len(play.running("gang")) == 3
    assert of(do.RegroupGang, done), "three members still wait for the fourth"


# paused


def test_what_was_lost_when_its_workload_was_paused_does_not_run_on() -> None:
    play = fixed()
    play.join("n1")
    play.apply(Workload("web", Service(1), wants(1)))
    play.obey()
    play.judge("n1", Level.DEAD)
    play.settle()
    play.reapply("web", paused=True)
    play.settle()
    play.now += 5 * SECOND
    play.join("n1", running=("web/0.1",))
    play.later(HOUR)
    assert play.running("web") == {}


# stops that never come


def test_a_stop_nobody_can_hear_does_not_keep_the_unimportant_from_running() -> None:
    play = fixed()
    play.join("n1", "n2")
    play.apply(Workload("web", Service(1), wants(1)))
    play.obey()
    (home,) = play.running("web").values()
    play.judge(home, Level.UNREACHABLE)
    play.tell(ev.WorkloadDeleted(at=play.now, workload="web"))
    play.settle()
    play.apply(Workload("huge", Service(1), wants(99), priority=5))  # fits nowhere
    play.apply(Workload("small", Service(1), wants(1)))
    live(play, 120)
    assert len(play.running("small")) == 1


def test_a_stop_nobody_can_hear_does_not_forbid_preemption_everywhere() -> None:
    play = fixed()
    play.join("n1", "n2")
    play.apply(Workload("web", Service(1), wants(1)))
    play.obey()
    (home,) = play.running("web").values()
    play.apply(Workload("low", Service(1), wants(8)))
    play.obey()
    play.judge(home, Level.UNREACHABLE)
    play.tell(ev.WorkloadDeleted(at=play.now, workload="web"))
    play.settle()
    play.apply(Workload("high", Service(1), wants(8), priority=5))
    play.later(2 * HOUR)
    low = [r for r in play.world.replicas.values() if r.workload == "low"]
    assert [r.state for r in low] == [State.STOPPING]


# a brake


def test_when_the_brake_lets_go_whoever_may_preempt_again_is_looked_at() -> None:
    play = fixed()
    play.join("n1", "n2", "n3", "n4")
    play.apply(Workload("low", Service(1), wants(8)))
    play.obey()
    (home,) = play.running("low").values()
    for name in {"n1", "n2", "n3", "n4"} - {home}:
        play.judge(name, Level.DEAD)
    play.settle()
    assert "fleet" in play.world.brakes
    play.apply(Workload("high", Service(1), wants(8), priority=5))
    play.later(HOUR)
    play.tell(ev.OperatorOrdered(at=play.now, order=ev.Order.RELEASE_BRAKE))
    play.later(24 * HOUR)
    assert [r.state for r in play.world.replicas.values()] == [State.STOPPING]


# time that passes without a look


def test_a_program_that_never_gets_ready_is_tried_elsewhere_though_its_node_was_late_at_that_moment() -> None:
    play = fixed()
    play.join("n1", "n2")
    play.apply(Workload("web", Service(1), wants(1)))
    play.settle()
    (name,) = play.running("web")
    home = play.replica(name).node
    play.tell(ev.ReplicaStarted(at=play.now, replica=name, node=home))
    play.settle()
    play.later(20 * MINUTE - SECOND)
    play.judge(home, Level.SUSPECT)  # one late beat, over the moment of the time-out
    play.later(2 * SECOND)
    play.judge(home, Level.ALIVE)
    play.later(24 * HOUR)
    assert name not in play.running("web")


def test_a_reset_that_the_provider_refuses_for_long_does_not_stay_a_reset_for_ever() -> None:
    play = Play(min=1)
    play.join("n1", "n2", "n3")
    play.find("n1", Severity.RESET)
    assert of(do.ResetNode, play.later(MINUTE))
    play.tell(
        ev.ActionFailed(
            at=play.now, action="p1.0", node="n1", error="Throttled", why="slow down", retry_after_ms=HOUR
        )
    )
    play.later(6 * HOUR)
    assert "n1" not in play.world.nodes or play.node("n1").state is not NodeState.RESETTING


def test_a_longer_time_out_applied_at_run_time_still_ends() -> None:
    play = Play(min=1)
    (launch,) = of(do.LaunchNode, play.settle())
    policy = play.world.policy
    longer = replace(policy, capacity=replace(policy.capacity, launch_timeout_ms=20 * MINUTE))
    play.tell(ev.PolicyApplied(at=play.now, policy=longer))
    play.later(4 * MINUTE)
    play.later(24 * HOUR)
    assert (
        play.world.nodes.get(launch.node) is None or play.node(launch.node).state is not NodeState.LAUNCHING
    )


def test_a_shorter_lease_applied_at_run_time_is_no_proof_against_the_longer_one_that_was_granted() -> None:
    play = fixed()
    play.join("n1", "n2")
    play.apply(Workload("job", Job(), wants(1)))
    play.obey()
    (name,) = play.running("job")
    heard = play.now  # the agent holds a lease of 30 s from here
    play.tell(
        ev.PolicyApplied(at=play.now, policy=replace(play.world.policy, leases=Leases(lease_ms=5 * SECOND)))
    )
    play.judge(play.replica(name).node, Level.DEAD, heard_at=heard)
    gone = of(do.DeclareGone, play.later(10 * SECOND))
    assert gone == []


# provider's words that come late


def test_a_word_that_comes_late_does_not_kill_a_node_that_came_back() -> None:
    play = fixed()
    play.join("n1", "n2", "n3", zone="a")
    play.tell(ev.LeaderChanged(at=play.now - HOUR, leader="cp-1", generation=1))
    play.settle()
    mind = Mind(play.world)
    mind.take_over(play.now)
    world, beats = play.world, mind.senses.beats
    play.judge("n1", Level.SUSPECT)
    play.settle()  # the provider is asked: the machine is off just now
    assert play.node("n1").clues.word is Word.WAITING
    play.now += 5 * SECOND
    play.join("n1")  # it has rebooted
    play.settle()
    play.tell(ev.ProviderAnswered(at=play.now + SECOND, node="n1", word=Word.STOPPED))  # the late answer
    play.settle()
    for name in ("n1", "n2", "n3"):
        beats.add(name, play.now)
    for _ in range(300):  # five minutes of good health
        play.now += SECOND
        beats.beat(np.array([beats.row[n] for n in ("n1", "n2", "n3")]), np.array([play.now] * 3))
    beats.changed(play.now)
    play.now += 2_600  # two beats lost on the way
    beats.beat(np.array([beats.row[n] for n in ("n2", "n3")]), np.array([play.now - 10] * 2))
    judged = detect.judge(world, mind.senses, play.now)
    assert [event.verdict.level for event in judged if event.node == "n1"] == [Level.SUSPECT]


# repair


def test_a_hello_during_a_reset_does_not_make_a_node_immune_to_repair() -> None:
    play = Play(min=3)
    play.join("n1", "n2", "n3")
    play.find("n1", Severity.RESET)
    assert of(do.ResetNode, play.later(MINUTE))
    play.join("n1")  # its agent connects anew (a new leader, a lost packet) before the provider acts
    play.settle()
    play.tell(ev.NodeReset(at=play.now, node="n1"))  # and here it acts
    play.settle()
    play.join("n1")
    play.settle()
    play.later(6 * HOUR)
    known = [key for key in play.world.findings if key[0] == "n1"]
    assert not known or play.node("n1").state is not NodeState.READY, "it takes work, and its finding stands"


def test_a_machine_of_ones_own_is_not_terminated_because_its_reset_takes_long() -> None:
    play = fixed(can_reset=True)
    play.join("n1", "n2", "n3")
    play.find("n1", Severity.RESET)
    assert of(do.ResetNode, play.later(MINUTE))
    play.tell(ev.NodeReset(at=play.now, node="n1"))
    assert of(do.TerminateNode, play.later(HOUR)) == []


# what people change


def test_when_what_a_workload_waits_for_changes_the_index_follows() -> None:
    play = fixed()
    play.apply(Workload("a", Job()), Workload("b", Job()), Workload("c", Job(), after=("a",)))
    play.reapply("c", after=("b",))
    assert check.inconsistencies(play.world) == []


def test_a_sweep_that_is_done_can_be_given_more_tasks() -> None:
    play = fixed()
    play.join("n1")
    play.apply(Workload("many", Sweep(2), wants(1)))
    play.obey()
    for name in list(play.running("many")):
        play.end(name, ev.Ended.DONE)
    play.settle()
    play.reapply("many", shape=Sweep(4))
    play.settle()
    assert len(play.running("many")) == 2


def test_a_seat_that_was_given_up_is_tried_again_with_a_new_version() -> None:
    play = fixed()
    play.join("n1")
    play.apply(Workload("web", Service(1), wants(1), restart=Restart(limit=1)))
    play.settle()
    (name,) = play.running("web")
    play.end(name, ev.Ended.FAILED)
    play.settle()
    assert play.slot("web/0").phase is Phase.FAILED
    play.reapply("web", version=2)
    live(play, 60)
    assert len(play.running("web")) == 1


def test_a_workload_keeps_its_kind() -> None:
    play = fixed()
    play.join("n1", "n2")
    play.apply(Workload("x", Service(1), wants(1)), Workload("y", Job(), wants(1)))
    play.obey()
    play.apply(Workload("x", Job(), wants(1), version=2), Workload("y", Service(1), wants(1)))
    play.obey()
    assert isinstance(play.world.workloads["x"].shape, Service)
    assert isinstance(play.world.workloads["y"].shape, Job)


def test_a_node_that_comes_back_smaller_is_smaller() -> None:
    play = fixed()
    play.join("n1")
    play.join("n1", capacity=Resources(cpu_milli=1000, memory_mib=1024))
    play.apply(Workload("web", Service(1), wants(4)))
    play.settle()
    assert play.running("web") == {}


def test_a_pool_without_offers_does_not_break_the_loop() -> None:
    play = Play()
    play.tell(ev.PoolApplied(at=play.now, pool=pool(offers=(), min=1)))
    play.settle()


# money


def test_idle_nodes_are_released_though_somebody_asks_for_what_nobody_has() -> None:
    play = Play(min=0, max=9, idle_ms=5 * MINUTE)
    play.join("n1")
    play.apply(Workload("huge", Service(1), wants(99)))
    play.settle()
    play.later(6 * HOUR)
    assert "n1" not in play.world.nodes or play.node("n1").state is NodeState.TERMINATING


def test_a_node_cordoned_by_hand_whose_machine_is_gone_is_forgotten() -> None:
    play = Play(min=0, max=1)
    play.join("n1")
    play.tell(ev.OperatorOrdered(at=play.now, order=ev.Order.CORDON, node="n1"))
    play.judge("n1", Level.DEAD)
    play.settle()
    play.tell(ev.ProviderAnswered(at=play.now, node="n1", word=Word.STOPPED))
    play.later(24 * HOUR)
    assert "n1" not in play.world.nodes or play.node("n1").state is NodeState.TERMINATING


def test_time_served_survives_a_second_hello() -> None:
    play = Play(min=0)
    play.join("n1")
    play.now += HOUR
    play.join("n1")  # a new leader: everybody says hello again
    play.now += HOUR
    play.judge("n1", Level.DEAD)
    assert play.world.pool_states["pool"].served_ms == 2 * HOUR


# required spread


def test_the_tasks_of_a_sweep_with_a_required_spread_are_not_refused() -> None:
    play = fixed()
    play.join("n1", zone="a")
    play.join("n2", zone="b")
    needs = replace(wants(1), spread=Spread.REQUIRE)
    play.apply(Workload("many", Sweep(2), needs))
    play.settle()
    assert len(play.running("many")) == 2


def test_a_gang_with_a_required_spread_and_a_standby_is_mended_as_a_whole() -> None:
    play = fixed()
    for zone in "abcd":
        play.join(f"{zone}1", zone=zone)
    play.join("d2", zone="d")
    needs = replace(wants(8), spread=Spread.REQUIRE)
    play.apply(Workload("gang", Training(3, 3, standby=1), needs))
    play.settle()
    assert play.refused == []
    play.ready(*[name for name in play.running("gang") if "/s" not in name])  # the standby is not ready yet
    play.settle()
    play.judge(play.replica("gang/0.1").node, Level.DEAD)
    play.later(35 * SECOND)
    assert play.refused == []
    assert len([name for name in play.running("gang") if "/s" not in name]) in (0, 3)


# rhythm


def test_a_second_leader_does_not_make_it_balance_twice_as_often() -> None:
    play = fixed()
    play.tell(ev.LeaderChanged(at=play.now, leader="cp-1", generation=1))
    play.settle()
    play.now += 2 * SECOND
    play.tell(ev.LeaderChanged(at=play.now, leader="cp-2", generation=2))
    play.settle()
    rounds = 0
    end = play.now + HOUR
    while (due := play.world.agenda.next_due()) <= end:
        play.now = due
        rounds += "balance" in play.world.agenda.look(due)["fleet"]
        play.turn()
    assert rounds <= 13  # every five minutes


# decide and check must agree


def test_a_gang_made_smaller_while_a_member_is_lost_is_not_split_in_two_generations() -> None:
    play = fixed()
    play.join("n1", "n2", "n3", "n4", "n5", "n6")
    play.apply(Workload("gang", Training(2, 4), wants(8)))
    play.obey()
    play.judge(play.replica("gang/3.1").node, Level.DEAD)
    play.reapply("gang", shape=Training(2, 3))
    play.turn()
    play.turn()
    play.end("gang/0.1")  # its node lost it (or a person stopped it)
    for _ in range(5):
        play.turn()
    play.refused.clear()
    play.later(HOUR)
    assert len({r.gang for r in play.world.replicas.values() if r.workload == "gang"}) == 1


def test_a_required_spread_is_seen_alike_by_decide_and_check_when_a_copy_stops_in_the_same_plan() -> None:
    play = fixed()
    for zone in "abc":
        play.join(f"{zone}1", zone=zone)
    needs = replace(wants(1), spread=Spread.REQUIRE)
    play.apply(Workload("db", Service(3), needs))
    play.obey()
    play.judge(play.replica("db/0.1").node, Level.DEAD)
    play.settle()  # nowhere to go: the two other zones have their copy
    play.reapply("db", shape=Service(2))
    play.settle()  # nothing is ever refused


def test_a_reset_that_is_overdue_on_a_node_in_doubt_is_not_decided_and_refused_again_and_again() -> None:
    play = Play(min=3)
    play.join("n1", "n2", "n3")
    play.find("n1", Severity.RESET)
    assert of(do.ResetNode, play.later(MINUTE))
    play.later(9 * MINUTE - 30 * SECOND)
    play.judge("n1", Level.UNREACHABLE)  # a peer still reaches it
    play.later(HOUR)


# preemption


def test_room_that_was_made_for_the_important_is_not_taken_by_its_victims_again_and_again() -> None:
    play = fixed()
    play.join("n1")
    play.apply(Workload("low", Service(2), wants(4)))
    play.obey()
    play.apply(Workload("high", Service(1), wants(8), priority=5))
    play.settle()
    assert sorted(play.world.stopping) == ["low/0.1", "low/1.1"]
    play.end("low/0.1")  # the first victim has stopped, the second takes a second longer
    play.settle()
    play.reapply("low", version=2)  # anything that makes us look at `low` alone
    play.settle()
    for _ in range(20):  # agents obey, one by one
        play.now += SECOND
        for name in list(play.world.stopping):
            play.end(name)
            play.settle()
    assert len(play.running("high")) == 1, f"low/0 is at epoch {play.slot('low/0').epoch}"


def test_a_node_that_waits_for_the_repair_budget_gets_its_turn() -> None:
    play = Play(min=0, idle_ms=90 * 24 * HOUR)
    play.join("n1", "n2", "n3", "n4")
    for name in ("n1", "n2", "n3"):
        play.find(name, Severity.RESET)
    play.settle()
    repaired = []
    for _ in range(24 * 60):
        play.later(MINUTE)
        for node in list(play.world.nodes.values()):
            if node.state is NodeState.RESETTING:  # the provider resets it, and it is back at once
                play.tell(ev.NodeReset(at=play.now, node=node.id))
                play.join(node.id)
                play.settle()
                repaired.append(node.id)
    assert sorted(repaired) == ["n1", "n2", "n3"], f"after a day only {repaired}"


def test_what_has_begun_is_kept_up_though_what_it_waited_for_is_down() -> None:
    play = fixed()
    play.join("n1", "n2", "n3")
    play.apply(Workload("db", Service(1), wants(8)), Workload("app", Service(1), wants(8), after=("db",)))
    play.obey()
    for name in ("db", "app"):
        play.judge(next(iter(play.running(name).values())), Level.DEAD)
    play.settle()
    assert len(play.running("db")) + len(play.running("app")) == 1, "there is one node left"
    play.join("n4")
    play.settle()
    assert len(play.running("app")) == 1, "it does not wait for the other to be ready again"


def test_a_gang_that_works_is_mended_though_it_is_told_to_come_after_something() -> None:
    play = fixed()
    play.join("n1", "n2", "n3")
    play.apply(Workload("long", Job(), wants(1)), Workload("gang", Training(2, 2), wants(6)))
    play.obey()
    play.reapply("gang", after=("long",))
    play.end("gang/0.1", ev.Ended.FAILED)
    play.later(MINUTE)
    assert len(play.running("gang")) == 2


def test_a_replica_of_a_deleted_workload_is_given_its_time_to_stop() -> None:
    """Its workload is gone when the plan is made; it was once killed at once."""
    play = fixed()
    play.join("n1")
    play.apply(Workload("web", Service(1), stop_grace_ms=7 * SECOND))
    play.obey()
    play.tell(ev.WorkloadDeleted(at=play.now, workload="web"))
    (stop,) = of(do.StopReplica, play.settle())
    assert stop.deadline - play.now == 7 * SECOND


def test_a_workload_with_very_many_seats_gets_them_in_several_turns() -> None:
    """One turn must stay short: a leader that is busy for long loses the leadership."""
    play = fixed()
    play.apply(Workload("web", Service(5_000)))
    first = of(do.AddSlot, play.turn())
    assert 0 < len(first) < 5_000
    play.settle()
    assert len(play.world.of_workload["web"]) == 5_000
