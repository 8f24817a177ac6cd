"""The journal is the truth: folding it from nothing gives the same world, whatever is folded twice, late or
about strangers."""

from collections.abc import Callable

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.core import check
from holdfast.core.state import fold, fold_workloads
from holdfast.core.state.fold_pools import LATE_MS
from holdfast.core.turn import Entry, resume
from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.finding import Finding, Severity
from holdfast.model.gateway import Key, Limits
from holdfast.model.node import Answer, NodeState
from holdfast.model.plan import Plan
from holdfast.model.policy import Policy
from holdfast.model.replica import State
from holdfast.model.units import HOUR, MINUTE, SECOND, Instant
from holdfast.model.verdict import Evidence, Level, Verdict, Word
from holdfast.model.workload import Job, Service, Shape, Sweep, Training, Workload
from holdfast.model.world import World
from tests.build import needs
from tests.play import BIG, Play, of, offer

ENTRIES = (
    "policy",
    "leader",
    "plans",
    "nodes",
    "pools",
    "pool_states",
    "workloads",
    "versions",
    "slots",
    "replicas",
    "gangs",
    "findings",
    "brakes",
    "brake_released_at",
    "epoch_floor",
    "launched",
    "orphans",
    "joined",
    "joined_in",
    "zones",
    "offers",
    "accounts",
    "records",
    "demands",
    "starts",
    "courses",
    "lease_before",
    "dead_in",
    "serving",
    "keys",
    "limits",
    "drawn",
    "after",
    "lost",
    "stopping",
    "outdated",
    "draining",
    "doubtful",
)


def known(world: World) -> dict[str, object]:
    return {name: getattr(world, name) for name in ENTRIES}


def replay(journal: list[Entry]) -> World:
    world = World()
    for entry in journal:
        fold.apply(world, entry)
    return world


def eventful() -> Play:
    """A life with a bit of everything: launches, failures, deaths, drains, a brake and a new leader."""
    play = Play(Policy(), offers=(offer(), offer("spot", "b", price=30, spot=True)), min=3, standby=1)
    play.tell(ev.LeaderChanged(at=play.now, leader="cp-1", generation=1))
    play.join(*"abcdef")
    play.apply(
        Workload("web", Service(3, standby=1), needs(cpu=2)),
        Workload("job", Job(), needs(cpu=2), checkpoint_ms=MINUTE),
        Workload("gang", Training(2, 3), needs(cpu=4)),
        Workload("many", Sweep(5, parallel=2), needs(cpu=1), after=("job",)),
    )
    play.obey()
    play.find("a", Severity.CORDON)
    play.tell(ev.CheckpointSaved(at=play.now, replica="job/0.1", progress_ms=MINUTE))
    play.later(MINUTE)
    for name in "bcd":
        play.judge(name, Level.DEAD)
    play.later(3 * MINUTE)
    play.tell(ev.LeaderChanged(at=play.now, leader="cp-2", generation=2))
    play.tell(ev.OperatorOrdered(at=play.now, order=ev.Order.RELEASE_BRAKE))
    play.tell(ev.PoolListed(at=play.now, pool="pool", nodes=("a", "stray"), asked_at=play.now))
    play.tell(ev.WorkloadDeleted(at=play.now, workload="many"))
    for key in (Key("k1", b"\x00\xff", limits=Limits(tokens_total=9)), Key("k2", b"2", suspended="why")):
        play.tell(ev.KeyPut(at=play.now, key=key))
    play.tell(ev.LimitsSet(at=play.now, scope="team:a", limits=Limits(concurrent=2)))
    play.tell(ev.BudgetDrawn(at=play.now, drawn={"key:k1": 3, "key:k2": 1, "team:a": 7}))
    play.tell(ev.KeyDeleted(at=play.now, key="k2"))
    play.obey()
    play.later(HOUR)
    return play


def test_folding_the_journal_from_nothing_gives_the_same_world() -> None:
    play = eventful()
    assert known(replay(play.journal)) == known(play.world)


def test_the_folded_world_is_consistent_and_has_the_same_room() -> None:
    play = eventful()
    again = replay(play.journal)
    assert check.inconsistencies(again) == []
    assert {name: again.room.cpu[row] for name, row in again.room.row.items()} == {
        name: play.world.room.cpu[row] for name, row in play.world.room.row.items()
    }


def test_the_journal_survives_being_written_down() -> None:
    """As JSON, which is how a store keeps it."""
    play = eventful()
    written = [msgspec.json.encode(entry) for entry in play.journal]
    read: list[Entry] = [msgspec.json.decode(line, type=ev.Event | Plan) for line in written]
    assert known(replay(read)) == known(play.world)


def test_any_prefix_of_the_journal_is_a_consistent_world() -> None:
    world = World()
    for entry in eventful().journal:
        fold.apply(world, entry)
        assert check.inconsistencies(world) == []


def test_a_replayed_world_decides_the_same() -> None:
    play = eventful()
    again = Play()
    again.world, again.now = replay(play.journal), play.now
    for each in (play, again):
        each.judge("e", Level.DEAD)
    assert again.later(10 * MINUTE) == play.later(10 * MINUTE)


# strangers, late and double events


STRANGE: list[Callable[[int], ev.Event]] = [
    lambda at: ev.NodeJoined(at=at, node="nobody"),
    lambda at: ev.NodeSaidGoodbye(at=at, node="nobody"),
    lambda at: ev.SpotNoticed(at=at, node="nobody", deadline=at),
    lambda at: ev.LinkClosed(at=at, node="nobody"),
    lambda at: ev.DemandJudged(at=at, workload="nobody", wanted=3, why=""),
    lambda at: ev.DemandJudged(at=at, workload="web", wanted=3, why="it does not scale"),
    lambda at: ev.OffersListed(at=at, pool="nobody", offers=()),
    lambda at: ev.PeerAnswered(at=at, node="nobody", peer="a", answer=Answer.REACHED),
    lambda at: ev.PeerAnswered(at=at, node="a", peer="nobody", answer=Answer.REACHED),
    lambda at: ev.ProviderAnswered(at=at, node="nobody", word=Word.STOPPED),
    lambda at: ev.NodeJudged(
        at=at, node="nobody", verdict=Verdict(Level.DEAD, "", Evidence(), at), heard_at=at
    ),
    lambda at: ev.NodeLaunched(at=at, node="nobody"),
    lambda at: ev.NodeLaunched(at=at, node="a"),
    lambda at: ev.NodeTerminated(at=at, node="nobody"),
    lambda at: ev.NodeReset(at=at, node="nobody"),
    lambda at: ev.NodeReset(at=at, node="a"),
    lambda at: ev.ActionFailed(at=at, action="p1.0", node="nobody", error="Denied", why=""),
    lambda at: ev.ReplicaStarted(at=at, replica="web/0.99", node="a"),
    lambda at: ev.ReplicaReady(at=at, replica="web/0.99", node="a"),
    lambda at: ev.ReplicaEnded(at=at, replica="web/0.99", node="a", how=ev.Ended.FAILED),
    lambda at: ev.CheckpointSaved(at=at, replica="web/0.99", progress_ms=1),
    lambda at: ev.FindingRaised(at=at, finding=Finding("f", "nobody", Severity.REPLACE, 1.0, "", at)),
    lambda at: ev.FindingCleared(at=at, node="nobody", name="f"),
    lambda at: ev.WorkloadDeleted(at=at, workload="nothing"),
    lambda at: ev.WorkloadRetried(at=at, workload="nothing"),
    lambda at: ev.WorkloadRestarted(at=at, workload="nothing"),
    lambda at: ev.KeyDeleted(at=at, key="nobody"),
    lambda at: ev.LimitsSet(at=at, scope="team:nobody", limits=Limits()),
    lambda at: ev.BudgetDrawn(at=at, drawn={"key:nobody": 5, "key:nobody/model:m": 5}),
    lambda at: ev.OperatorOrdered(at=at, order=ev.Order.DRAIN, node="nobody"),
]


def small() -> Play:
    play = Play(can_launch=False, can_terminate=False)
    play.join("a", "b")
    play.apply(Workload("web", Service(1), needs(cpu=2)), Workload("job", Job(), needs(cpu=6)))
    play.obey()
    return play


@pytest.mark.parametrize("strange", STRANGE, ids=lambda strange: type(strange(0)).__name__)
def test_an_event_about_a_stranger_changes_nothing(strange: Callable[[int], ev.Event]) -> None:
    play = small()
    before = known(replay(play.journal))
    play.tell(strange(play.now))
    assert known(play.world) == before
    assert play.settle() == []


@pytest.mark.parametrize("how", [ev.Ended.FAILED, ev.Ended.STOPPED, ev.Ended.FENCED, ev.Ended.DONE])
def test_an_end_that_is_reported_twice_counts_once(how: ev.Ended) -> None:
    play = small()
    ended = ev.ReplicaEnded(at=play.now, replica="job/0.1", node="b", how=how)
    play.tell(ended)
    once = known(replay(play.journal))
    play.tell(ended)
    assert known(play.world) == once


def test_the_end_of_an_old_copy_says_nothing_of_its_heir() -> None:
    play = small()
    play.judge(play.replica("web/0.1").node, Level.DEAD)
    play.obey()
    assert list(play.running("web")) == ["web/0.2"]
    play.tell(ev.ReplicaEnded(at=play.now, replica="web/0.1", node="a", how=ev.Ended.FAILED))
    assert list(play.running("web")) == ["web/0.2"]
    assert play.slot("web/0").failures == 0
    assert play.slot("web/0").down_since == 0


def test_a_replica_that_was_ready_is_not_started_again_by_a_late_report() -> None:
    play = small()
    play.tell(ev.ReplicaStarted(at=play.now, replica="web/0.1", node="a"))
    assert play.replica("web/0.1").state is State.READY


def test_a_stopping_replica_does_not_become_ready() -> None:
    play = small()
    play.tell(ev.WorkloadDeleted(at=play.now, workload="web"))
    play.settle()
    play.tell(ev.ReplicaReady(at=play.now, replica="web/0.1", node="a"))
    assert play.replica("web/0.1").state is State.STOPPING


def test_ready_twice_is_ready_since_the_first_time() -> None:
    play = small()
    first = play.replica("web/0.1").ready_at
    play.now += SECOND
    play.tell(ev.ReplicaReady(at=play.now, replica="web/0.1", node="a"))
    assert play.replica("web/0.1").ready_at == first


@pytest.mark.parametrize("level", [Level.ALIVE, Level.SUSPECT, Level.UNREACHABLE])
def test_a_late_verdict_never_revives_a_dead_node(level: Level) -> None:
    play = small()
    play.judge("a", Level.DEAD)
    play.judge("a", level)
    assert play.node("a").verdict.level is Level.DEAD


def test_a_death_that_is_told_twice_is_one_death() -> None:
    play = small()
    play.judge("a", Level.DEAD)
    play.judge("a", Level.DEAD)
    assert play.world.pool_states["pool"].deaths == 1


def test_a_second_hello_that_names_everything_changes_no_work() -> None:
    play = small()
    running = {name: play.replica(name) for name in play.running("web") | play.running("job")}
    for node in ("a", "b"):
        play.join(node, running=tuple(name for name, r in running.items() if r.node == node))
    assert play.settle() == []
    assert play.world.replicas == running


def test_a_replica_that_was_ready_and_comes_back_with_its_node_is_ready_again() -> None:
    """Its readiness was reported and acknowledged long ago: nobody will report it a second time."""
    play = Play(can_launch=False, can_terminate=False)
    play.join("a")
    play.apply(Workload("web", Service(1), needs(cpu=2)))
    play.obey()
    play.judge("a", Level.DEAD)
    play.settle()
    play.join("a", running=("web/0.1",))
    play.settle()
    assert play.replica("web/0.1").state is State.READY
    assert play.slot("web/0").down_since == 0
    assert play.later(HOUR) == [], "and it is left alone"


def test_a_node_that_is_gone_twice_is_gone_once() -> None:
    play = small()
    for _ in range(2):
        play.tell(ev.NodeTerminated(at=play.now, node="a"))
    assert list(play.world.nodes) == ["b"]
    assert play.world.joined == 1
    play.settle()


def test_a_launch_that_failed_after_its_node_joined_is_not_believed() -> None:
    """The answer to the request was lost and found again; the node itself knows better."""
    play = Play(min=1)
    (launch,) = of(do.LaunchNode, play.settle())
    play.join(launch.node)
    play.tell(
        ev.ActionFailed(at=play.now, action="p1.0", node=launch.node, error="CapacityShort", why="none")
    )
    assert play.node(launch.node).state is NodeState.READY


def launched(play: Play) -> str:
    (launch,) = of(do.LaunchNode, play.settle())
    return launch.node


def missed(play: Play, node: str) -> None:
    """Its provider has no such machine to terminate."""
    play.tell(ev.NodeTerminated(at=play.now, node=node, found=False))


def test_a_machine_that_its_provider_does_not_know_yet_is_not_gone() -> None:
    """Nobody answered its launch, so it may still come, and cost: it is asked for until that is over."""
    play = Play(min=1, max=1)
    node, policy = launched(play), play.world.policy.capacity
    play.later(policy.launch_timeout_ms)
    missed(play, node)
    assert play.node(node).state is NodeState.TERMINATING
    again = play.later(policy.terminate_retry_ms)
    assert [type(action) for action in again] == [do.TerminateNode], "and no other one is launched beside it"
    play.tell(ev.NodeTerminated(at=play.now, node=node))
    assert node not in play.world.nodes


def test_a_machine_that_never_came_is_gone_in_the_end() -> None:
    play = Play(min=1)
    node = launched(play)
    play.later(play.world.policy.capacity.launch_timeout_ms + LATE_MS)
    missed(play, node)
    assert node not in play.world.nodes


@pytest.mark.parametrize("answer", ["launched", "joined"])
def test_a_machine_that_was_there_once_and_is_not_found_is_gone(answer: str) -> None:
    play = Play(min=1)
    node = launched(play)
    if answer == "launched":
        play.tell(ev.NodeLaunched(at=play.now, node=node))
        play.later(play.world.policy.capacity.boot_timeout_ms)
    else:
        play.join(node)
    missed(play, node)
    assert node not in play.world.nodes


def test_a_launch_that_is_answered_after_it_was_given_up_is_known_to_be_there() -> None:
    play = Play(min=1)
    node = launched(play)
    play.later(play.world.policy.capacity.launch_timeout_ms)
    play.tell(ev.NodeLaunched(at=play.now, node=node))
    assert play.node(node).state is NodeState.TERMINATING
    missed(play, node)
    assert node not in play.world.nodes, "it was there, and is not any more"


def test_a_machine_that_is_listed_though_nobody_answered_its_launch_was_launched() -> None:
    play = Play(min=1)
    node = launched(play)
    play.tell(ev.ActionFailed(at=play.now, action="p1.0", node=node, error="OutcomeUnknown", why="late"))
    play.tell(ev.PoolListed(at=play.now, pool="pool", nodes=(node,), asked_at=play.now))
    assert play.node(node).state is NodeState.BOOTING
    assert of(do.TerminateNode, play.later(play.world.policy.capacity.launch_timeout_ms)) == []


@pytest.mark.parametrize("error", ["Denied", "Throttled"])
def test_a_launch_that_is_refused_when_it_is_repeated_may_have_worked_the_first_time(error: str) -> None:
    play = Play(min=1)
    node = launched(play)
    (again,) = resume(play.world)
    play.tell(ev.ActionFailed(at=play.now, action=again.id, node=node, error=error, why="no"))
    assert play.node(node).state is NodeState.LAUNCHING, "it is terminated when its time is over"
    assert [type(a) for a in play.later(play.world.policy.capacity.launch_timeout_ms)][:1] == [
        do.TerminateNode
    ]


def test_what_cannot_be_had_when_it_is_asked_for_again_is_not_there() -> None:
    """Every provider says so only of what it has not."""
    play = Play(min=1)
    node = launched(play)
    (again,) = resume(play.world)
    play.tell(ev.ActionFailed(at=play.now, action=again.id, node=node, error="CapacityShort", why="none"))
    assert node not in play.world.nodes


def test_a_policy_that_changes_takes_effect_at_once() -> None:
    play = small()
    policy = Policy(detection=msgspec.structs.replace(Policy().detection, grace_ms=7))
    play.tell(ev.PolicyApplied(at=play.now, policy=policy))
    assert play.world.policy.detection.grace_ms == 7


def test_a_pool_that_is_applied_again_keeps_its_record() -> None:
    play = small()
    play.judge("a", Level.DEAD)
    play.tell(ev.PoolApplied(at=play.now, pool=msgspec.structs.replace(play.world.pools["pool"], max=9)))
    assert play.world.pool_states["pool"].deaths == 1
    assert set(play.world.in_pool["pool"]) == {"a", "b"}


# epochs


@pytest.mark.parametrize(
    "shape", [Service(2), Job(), Sweep(2), Training(2, 2)], ids=lambda shape: type(shape).__name__
)
def test_epochs_are_never_used_again_after_a_workload_was_deleted_and_made_anew(shape: Shape) -> None:
    play = Play(can_launch=False, can_terminate=False)
    play.join("a", "b")
    seen: set[str] = set()
    for _ in range(4):
        play.apply(Workload("w", shape, needs(cpu=1)))
        play.obey()
        new = set(play.running("w"))
        assert new
        assert not new & seen
        seen |= new
        play.tell(ev.WorkloadDeleted(at=play.now, workload="w"))
        play.obey()
        assert play.running("w") == {}


def test_epochs_are_never_used_again_when_the_old_copy_may_still_run() -> None:
    """Its node is silent: the copy is on nobody's list any more, but it may run and it may come back."""
    play = Play(can_launch=False, can_terminate=False)
    play.join("a", "b")
    play.apply(Workload("web", Service(1), needs(cpu=8)))
    play.obey()
    play.judge(play.running("web")["web/0.1"], Level.DEAD)
    play.tell(ev.WorkloadDeleted(at=play.now, workload="web"))
    play.settle()
    play.apply(Workload("web", Service(1), needs(cpu=8)))
    play.obey()
    assert list(play.running("web")) == ["web/0.2"]
    play.join("a", running=("web/0.1",))
    play.obey()
    assert list(play.running("web")) == ["web/0.2"]


def test_a_seat_that_was_removed_and_added_again_goes_on_counting() -> None:
    play = Play(can_launch=False)
    play.join("a")
    play.apply(Workload("web", Service(2), needs(cpu=1)))
    play.obey()
    play.reapply("web", shape=Service(1))
    play.obey()
    play.reapply("web", shape=Service(2))
    play.obey()
    assert set(play.running("web")) == {"web/0.1", "web/1.2"}


# ---- nodes that are struck off


def forget(play: Play, node: str) -> None:
    play.tell(ev.OperatorOrdered(at=play.now, order=ev.Order.FORGET, node=node))
    play.settle()


def test_a_node_is_forgotten_when_it_is_dead_and_its_lease_is_over_and_not_before() -> None:
    play = Play(can_launch=False, can_terminate=False)
    play.join("a", "b")
    play.apply(Workload("job", Job()))
    play.obey()
    forget(play, "a")
    assert "a" in play.world.nodes, "it lives"
    play.judge("a", Level.DEAD, heard_at=play.now)
    forget(play, "a")
    assert "a" in play.world.nodes, "its job may still run"
    play.later(play.world.policy.leases.lease_ms + 2 * play.world.policy.leases.margin_ms)
    forget(play, "a")
    assert "a" not in play.world.nodes
    assert {replica.node for replica in play.world.replicas.values()} == {"b"}


def test_an_agent_that_is_ended_is_no_spot_notice_in_the_books() -> None:
    play = Play()
    play.join("a", "b")
    play.tell(ev.SpotNoticed(at=play.now, node="a", deadline=play.now + MINUTE, own=True))
    assert play.world.pool_states["pool"].notices == 0
    play.tell(ev.SpotNoticed(at=play.now, node="b", deadline=play.now + MINUTE))
    assert play.world.pool_states["pool"].notices == 1
    play.tell(ev.SpotNoticed(at=play.now, node="b", deadline=play.now + MINUTE))
    assert play.world.pool_states["pool"].notices == 1, "it is told again on every link"


def running_job() -> Play:
    play = Play()
    play.join("a", "b")
    play.apply(Workload("job", Job(), needs(cpu=2), checkpoint_ms=MINUTE))
    play.obey()
    return play


@pytest.mark.parametrize(
    "forged",
    [
        lambda at, node: ev.ReplicaEnded(at=at, replica="job/0.1", node=node, how=ev.Ended.STOPPED),
        lambda at, node: ev.ReplicaEnded(at=at, replica="job/0.1", node=node, how=ev.Ended.DONE),
        lambda at, node: ev.ReplicaStarted(at=at, replica="job/0.1", node=node, port=7),
        lambda at, node: ev.CheckpointSaved(at=at, replica="job/0.1", progress_ms=HOUR, node=node),
    ],
)
def test_what_a_node_says_of_the_replica_of_another_changes_nothing(
    forged: Callable[[Instant, str], ev.Event],
) -> None:
    play = running_job()
    before, slot = play.replica("job/0.1"), play.slot("job/0")
    other = "b" if before.node == "a" else "a"
    play.tell(forged(play.now, other))
    assert (play.replica("job/0.1"), play.slot("job/0")) == (before, slot)
    play.tell(ev.CheckpointSaved(at=play.now, replica="job/0.1", progress_ms=HOUR))
    assert play.slot("job/0").progress_ms == HOUR, "a journal from before the node was noted"


@pytest.mark.parametrize(("can_launch", "cpu_milli"), [(True, 8_000), (False, 64_000)])
def test_a_launched_node_has_no_more_than_its_offer(can_launch: bool, cpu_milli: int) -> None:
    play = Play(can_launch=can_launch)
    play.join("a")
    play.join("a", capacity=replace(BIG, cpu_milli=64_000))
    assert play.node("a").capacity.cpu_milli == cpu_milli


def test_whose_a_name_was_is_known_while_anything_of_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold_workloads, "GONE_KEPT", 2)
    world = World()
    for number in range(6):
        name = f"w{number}"
        fold.observe(
            world, ev.WorkloadApplied(at=1, workload=Workload(name, Job(), needs(cpu=1), project="vision"))
        )
        fold.observe(world, ev.WorkloadDeleted(at=2, workload=name))
        if number == 0:
            world.held[name] = {"w0/0": None}  # its replica has not ended yet
    last = Workload("w6", Job(), needs(cpu=1), project="vision")
    fold.observe(world, ev.WorkloadApplied(at=3, workload=last))
    assert list(world.project_of) == ["w0", "w4", "w5", "w6"]


@pytest.mark.parametrize(("can_launch", "zone"), [(True, "a"), (False, "b")])
def test_the_place_of_a_machine_that_joined_by_itself_can_be_put_right(can_launch: bool, zone: str) -> None:
    play = Play(can_launch=can_launch)
    play.join("n1", zone="a")
    play.join("n1", zone="b")
    assert play.node("n1").place.zone == zone
    assert check.inconsistencies(play.world) == []


def test_a_machine_does_not_change_its_place_under_what_runs_there() -> None:
    play = Play(can_launch=False)
    play.join("n1", zone="a")
    play.settle()
    play.apply(Workload("web", Service(1), needs(cpu=1)))
    play.obey()
    play.join("n1", zone="b", running=("web/0.1",))
    assert play.node("n1").place.zone == "a"
    assert check.inconsistencies(play.world) == []
