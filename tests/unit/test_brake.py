"""Many nodes in doubt at once: harm waits, help goes on, and letting go takes more than time."""

import pytest
from msgspec.structs import replace

from holdfast.api import views
from holdfast.core.health import brake
from holdfast.core.plan.draft import Draft
from holdfast.core.state.snapshot import dump, load
from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.finding import Severity
from holdfast.model.node import Answer, NodeState
from holdfast.model.place import Level as Domain
from holdfast.model.policy import BrakePolicy, Policy
from holdfast.model.units import HOUR, MINUTE, SECOND
from holdfast.model.verdict import Level, Word
from holdfast.model.workload import Service, Workload
from tests.build import needs
from tests.play import Play, of

POLICY = BrakePolicy()
TEN = tuple(f"n{number}" for number in range(10))


def fleet(per_zone: int = 10, zones: str = "a", policy: Policy | None = None) -> Play:
    play = Play(policy, idle_ms=1_000 * HOUR)
    for zone in zones:
        play.join(*(f"{zone}{number}" for number in range(per_zone)), zone=zone)
    play.settle()
    play.later(MINUTE)
    return play


def doubt(play: Play, *names: str, level: Level = Level.SUSPECT) -> None:
    for name in names:
        play.judge(name, level)


@pytest.mark.parametrize(
    ("nodes", "silent", "engaged"),
    [
        (20, 0, False),
        (20, 4, False),
        (20, 5, True),  # a quarter
        (4, 2, False),  # fewer than `nodes_min` is an ordinary day
        (4, 3, True),
    ],
)
def test_a_share_of_the_fleet_in_doubt_engages_the_brake(nodes: int, silent: int, engaged: bool) -> None:
    policy = Policy(brake=replace(POLICY, domain_share=2.0))
    play = fleet(nodes, policy=policy)
    doubt(play, *(f"a{number}" for number in range(silent)))
    play.settle()
    assert ("fleet" in play.world.brakes) is engaged


@pytest.mark.parametrize(("silent", "engaged"), [(5, False), (6, True)])
def test_one_domain_in_doubt_brakes_that_domain_only(silent: int, engaged: bool) -> None:
    play = fleet(10, "abc")
    doubt(play, *(f"a{number}" for number in range(silent)))
    play.settle()
    assert list(play.world.brakes) == (["prov/here/a"] if engaged else [])
    assert not brake.engaged_for(play.world, play.node("b0"), play.now)
    assert bool(brake.engaged_for(play.world, play.node("a9"), play.now)) is engaged


def test_the_domain_may_be_another_than_the_zone() -> None:
    policy = Policy(brake=replace(POLICY, domain_level=Domain.PROVIDER, fleet_share=2.0, domain_share=0.5))
    play = fleet(4, "ab", policy)
    doubt(play, "a0", "a1", "b0", "b1")
    play.settle()
    assert list(play.world.brakes) == ["prov"]


@pytest.mark.parametrize("witness", ["goodbye", "provider"])
def test_nodes_with_independent_evidence_are_not_in_doubt(witness: str) -> None:
    play = fleet()
    for name in ("a0", "a1", "a2", "a3"):
        if witness == "goodbye":
            play.tell(ev.NodeSaidGoodbye(at=play.now, node=name))
        else:
            doubt(play, name)
            play.settle()  # its provider is asked
            play.tell(ev.ProviderAnswered(at=play.now, node=name, word=Word.STOPPED))
    doubt(play, "a0", "a1", "a2", "a3", level=Level.DEAD)
    actions = play.settle()
    assert play.world.brakes == {}
    assert {action.node for action in of(do.TerminateNode, actions)} == {"a0", "a1", "a2", "a3"}


def test_doubts_that_are_far_apart_in_time_are_not_at_once() -> None:
    play = fleet()
    for name in ("a0", "a1", "a2"):
        play.judge(name, Level.UNREACHABLE)
        play.settle()
        play.later(POLICY.window_ms)
    assert play.world.brakes == {}


def test_the_brake_holds_harm_and_lets_help_go_on() -> None:
    play = fleet()
    play.apply(Workload("web", Service(4), needs(cpu=8)))
    play.obey()
    doubt(play, "a0", "a1", "a2", level=Level.DEAD)
    actions = play.settle()
    assert [engaged.scope for engaged in of(do.EngageBrake, actions)] == ["fleet"]
    assert len(of(do.PlaceReplica, actions)) == 3
    play.obey()
    play.later(HOUR)
    assert {play.node(name).state for name in ("a0", "a1", "a2")} == {NodeState.READY}


def test_what_is_held_is_told_with_its_reason() -> None:
    play = fleet()
    doubt(play, "a0", "a1", "a2", level=Level.DEAD)
    play.settle()
    play.now += 5 * MINUTE
    draft = Draft(play.world, play.now)
    draft.add(do.TerminateNode(node="a0", why="dead"))
    draft.add(do.CordonNode(node="a1", why="not disruptive"))
    brake.hold(draft)
    assert [type(action) for action in draft.actions] == [do.CordonNode]
    assert [(held.action.why, "brake on fleet" in held.why) for held in draft.held] == [("dead", True)]


def test_in_the_very_turn_that_engages_it_nothing_is_harmed() -> None:
    policy = Policy(capacity=replace(Policy().capacity, dead_node_ms=0))
    play = fleet(policy=policy)
    doubt(play, "a0", "a1", "a2", level=Level.DEAD)
    actions = play.turn()
    assert of(do.EngageBrake, actions)
    assert of(do.TerminateNode, actions) == []


def test_it_does_not_let_go_because_time_passed() -> None:
    play = fleet()
    doubt(play, "a0", "a1", "a2", level=Level.UNREACHABLE)
    play.settle()
    assert of(do.ReleaseBrake, play.later(10 * HOUR)) == []
    assert "fleet" in play.world.brakes


def test_it_does_not_let_go_before_it_held_for_a_while() -> None:
    play = fleet()
    doubt(play, "a0", "a1", "a2")
    play.settle()
    doubt(play, "a0", "a1", "a2", level=Level.ALIVE)
    assert of(do.ReleaseBrake, play.settle()) == []
    assert of(do.ReleaseBrake, play.later(POLICY.hold_ms - 1)) == []
    assert [released.scope for released in of(do.ReleaseBrake, play.later(1))] == ["fleet"]
    assert play.world.brakes == {}


def test_half_of_the_doubt_must_be_gone() -> None:
    policy = Policy(brake=replace(POLICY, fleet_share=0.4, domain_share=2.0))
    play = fleet(20, policy=policy)
    doubt(play, *(f"a{number}" for number in range(8)))
    play.settle()
    doubt(play, "a0", "a1", "a2", "a3", level=Level.ALIVE)
    play.later(5 * MINUTE)
    assert "fleet" in play.world.brakes
    doubt(play, "a4", level=Level.ALIVE)
    play.later(5 * MINUTE)
    assert play.world.brakes == {}


def test_it_lets_go_when_fewer_are_left_than_an_ordinary_day_has() -> None:
    """Two in doubt never engage it. Two that are left of three must not hold it for ever."""
    play = fleet()
    doubt(play, "a0", "a1", level=Level.DEAD)
    doubt(play, "a2")
    play.settle()
    assert "fleet" in play.world.brakes
    play.tell(ev.ProviderAnswered(at=play.now, node="a2", word=Word.STOPPED))
    doubt(play, "a2", level=Level.DEAD)
    play.later(10 * MINUTE)
    assert play.world.brakes == {}
    assert {play.node(name).state for name in ("a0", "a1")} == {NodeState.TERMINATING}


def burst(per_zone: int = 10, *dead: str) -> Play:
    """They died at once, and their provider goes on listing them."""
    play = fleet(per_zone)
    doubt(play, *dead, level=Level.DEAD)
    play.settle()
    assert "fleet" in play.world.brakes
    return play


def test_it_narrows_to_the_dead_of_a_burst_when_all_others_were_heard_for_long() -> None:
    play = burst(10, "a0", "a1", "a2")
    assert of(do.NarrowBrake, play.later(POLICY.quiet_ms - 1)) == []
    narrowed = of(do.NarrowBrake, play.later(5 * MINUTE))
    assert [(one.scope, one.nodes) for one in narrowed] == [("fleet", ("a0", "a1", "a2"))]
    assert play.world.brakes == {}
    doubt(play, "a3", level=Level.DEAD)
    ended = of(do.TerminateNode, play.later(HOUR))
    assert {action.node for action in ended} == {"a3"}, "the next dead node is replaced as on any day"
    play.later(HOUR)
    assert {play.node(name).state for name in ("a0", "a1", "a2")} == {NodeState.READY}
    assert brake.engaged_for(play.world, play.node("a0"), play.now)
    assert not brake.engaged_for(play.world, play.node("a4"), play.now)


@pytest.mark.parametrize("level", [Level.UNREACHABLE, Level.SUSPECT])
def test_it_does_not_narrow_while_one_of_them_is_not_dead(level: Level) -> None:
    play = burst(10, "a0", "a1", "a2")
    doubt(play, "a3", level=level)
    assert of(do.NarrowBrake, play.later(HOUR)) == []
    assert "fleet" in play.world.brakes


def test_it_does_not_narrow_while_a_peer_reaches_a_dead_node() -> None:
    play = burst(10, "a0", "a1", "a2")
    for _ in range(40):
        play.later(MINUTE)
        for peer in play.node("a1").clues.asked:
            play.tell(ev.PeerAnswered(at=play.now, node="a1", peer=peer, answer=Answer.REACHED))
    assert "fleet" in play.world.brakes


def test_it_does_not_narrow_while_a_majority_is_in_doubt() -> None:
    play = burst(6, "a0", "a1", "a2")
    assert of(do.NarrowBrake, play.later(HOUR)) == []


def test_it_does_not_narrow_while_others_come_and_go() -> None:
    play = burst(20, "a0", "a1", "a2", "a3", "a4")
    for minute in range(12):
        name = f"a{5 + minute % 10}"
        doubt(play, name)
        play.later(20 * SECOND)
        doubt(play, name, level=Level.ALIVE)
        assert of(do.NarrowBrake, play.later(2 * MINUTE)) == []
    assert of(do.NarrowBrake, play.later(POLICY.quiet_ms + 5 * MINUTE))


def test_a_new_leader_listens_as_long_before_it_narrows() -> None:
    play = burst(10, "a0", "a1", "a2")
    play.later(POLICY.quiet_ms - 1)
    play.tell(ev.LeaderChanged(at=play.now, leader="cp-2", generation=2))
    assert of(do.NarrowBrake, play.later(POLICY.quiet_ms - 1)) == []
    assert of(do.NarrowBrake, play.later(5 * MINUTE))


def test_a_second_burst_engages_a_narrowed_brake_and_leaves_the_kept_when_it_is_over() -> None:
    play = burst(20, "a0", "a1", "a2", "a3", "a4")
    play.later(POLICY.quiet_ms + 5 * MINUTE)
    more = ("a5", "a6", "a7", "a8", "a9")
    doubt(play, *more)
    assert [one.scope for one in of(do.EngageBrake, play.settle())] == ["fleet"]
    doubt(play, *more, level=Level.ALIVE)
    play.later(HOUR)
    assert play.world.brakes == {}
    assert {play.node(f"a{number}").state for number in range(5)} == {NodeState.READY}


def test_who_is_kept_goes_by_its_providers_word() -> None:
    play = burst(10, "a0", "a1", "a2", "a3")
    play.later(POLICY.quiet_ms + 5 * MINUTE)
    play.tell(ev.ProviderAnswered(at=play.now, node="a0", word=Word.STOPPED))
    assert {action.node for action in of(do.TerminateNode, play.later(HOUR))} == {"a0"}


def test_who_is_kept_and_says_hello_is_as_before() -> None:
    play = burst(10, "a0", "a1", "a2", "a3")
    play.later(POLICY.quiet_ms + 5 * MINUTE)
    play.tell(ev.NodeJoined(at=play.now, node="a0"))
    play.settle()
    assert play.node("a0").kept_at == 0
    assert not brake.engaged_for(play.world, play.node("a0"), play.now)


def test_two_that_are_left_of_the_kept_are_given_up_as_any_two() -> None:
    play = burst(10, "a0", "a1", "a2")
    play.later(POLICY.quiet_ms + 5 * MINUTE)
    play.tell(ev.NodeJoined(at=play.now, node="a0"))
    assert {action.node for action in of(do.TerminateNode, play.later(HOUR))} == {"a1", "a2"}


def test_an_operator_releases_the_kept_as_well() -> None:
    play = burst(10, "a0", "a1", "a2")
    play.later(POLICY.quiet_ms + 5 * MINUTE)
    (shown,) = views.brakes(play.world)
    assert (shown.scope, "a0, a1, a2" in shown.why) == ("kept", True)
    play.tell(ev.OperatorOrdered(at=play.now, order=ev.Order.RELEASE_BRAKE))
    assert views.brakes(play.world) == []
    assert {action.node for action in of(do.TerminateNode, play.later(HOUR))} == {"a0", "a1", "a2"}


def test_a_snapshot_remembers_who_is_kept() -> None:
    play = burst(10, "a0", "a1", "a2")
    play.later(POLICY.quiet_ms + 5 * MINUTE)
    assert load(dump(play.world)).kept == play.world.kept != {}


def test_an_operator_who_releases_it_answers_for_the_nodes_in_doubt_then() -> None:
    play = fleet()
    doubt(play, "a0", "a1", "a2", level=Level.DEAD)
    play.later(10 * MINUTE)
    play.tell(ev.OperatorOrdered(at=play.now, order=ev.Order.RELEASE_BRAKE))
    assert play.world.brakes == {}
    play.later(10 * MINUTE)
    assert play.world.brakes == {}, "it does not engage again for the same nodes"
    assert play.node("a0").state is NodeState.TERMINATING
    doubt(play, "a4", "a5", "a6")
    play.settle()
    assert "fleet" in play.world.brakes, "but it does for others"


def test_a_new_leader_disturbs_nobody_before_its_grace_is_over() -> None:
    play = fleet()
    play.tell(ev.LeaderChanged(at=play.now, leader="cp-2", generation=2))
    play.find("a0", Severity.RESET)
    play.later(play.world.policy.detection.grace_ms - 1)
    assert play.node("a0").state is not NodeState.DRAINING
    play.later(2 * POLICY.hold_ms)
    assert play.node("a0").state in (NodeState.DRAINING, NodeState.RESETTING)


def test_what_is_gone_or_goes_by_anothers_will_is_never_held() -> None:
    play = fleet()
    doubt(play, "a0", "a1", "a2")
    play.settle()
    play.tell(ev.SpotNoticed(at=play.now, node="a5", deadline=play.now + 2 * MINUTE))
    play.tell(ev.OperatorOrdered(at=play.now, order=ev.Order.DRAIN, node="a6", deadline=play.now + HOUR))
    play.tell(ev.NodeSaidGoodbye(at=play.now, node="a7"))
    play.judge("a7", Level.DEAD)
    play.settle()
    assert play.node("a5").state in (NodeState.DRAINING, NodeState.TERMINATING)
    assert play.node("a6").state is NodeState.DRAINING
    assert play.node("a7").state is NodeState.TERMINATING


@pytest.mark.parametrize(("nodes", "allowed"), [(3, 1), (10, 1), (29, 2), (40, 4)])
def test_only_a_share_of_the_fleet_is_in_repair_at_once(nodes: int, allowed: int) -> None:
    play = fleet(nodes)
    play.apply(Workload("web", Service(nodes), needs(cpu=8)))
    play.obey()
    for number in range(nodes):
        play.find(f"a{number}", Severity.DRAIN)
    play.turn()
    play.turn()
    assert len(play.world.draining) == allowed
    assert brake.budget_left(play.world) == 0


def test_a_drain_by_hand_or_by_notice_is_not_counted_as_a_repair() -> None:
    play = fleet()
    play.tell(ev.OperatorOrdered(at=play.now, order=ev.Order.DRAIN, node="a1", deadline=play.now + HOUR))
    play.tell(ev.SpotNoticed(at=play.now, node="a2", deadline=play.now + 90 * SECOND))
    play.settle()
    assert brake.budget_left(play.world) == 1
