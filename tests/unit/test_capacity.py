"""How many nodes of which pool are ordered, what becomes of those that never come, and who is let go."""

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.node import Answer, NodeState
from holdfast.model.place import Place
from holdfast.model.policy import BrakePolicy, CapacityPolicy, Detection, Policy
from holdfast.model.units import HOUR, MINUTE, SECOND
from holdfast.model.verdict import Level, Word
from holdfast.model.workload import Job, Service, Spread, Sweep, Training, Workload
from tests.build import needs, resources
from tests.play import BIG, Play, of, offer, pool

POLICY, DETECTION = CapacityPolicy(), Detection()
SPOT = offer("spot", price=30, spot=True)


def launched(actions: list[do.Action]) -> list[str]:
    return [action.node for action in of(do.LaunchNode, actions)]


def terminated(actions: list[do.Action]) -> list[str]:
    return [action.node for action in of(do.TerminateNode, actions)]


def arrive(play: Play, *nodes: str) -> None:
    """The provider makes them, and their agents join."""
    for name in nodes:
        play.tell(ev.NodeLaunched(at=play.now, node=name))
        play.tell(ev.NodeJoined(at=play.now, node=name))


def fail(play: Play, node: str, error: str, retry_after_ms: int = 0) -> None:
    play.tell(
        ev.ActionFailed(
            at=play.now, action="p1.0", node=node, error=error, why="none left", retry_after_ms=retry_after_ms
        )
    )


def web(replicas: int = 1, cpu: int = 8, spread: Spread = Spread.NONE) -> Workload:
    return Workload("web", Service(replicas), needs(cpu=cpu, spread=spread))


def fleet(*names: str, **rules: Any) -> Play:
    play = Play(**rules)
    play.join(*names)
    play.settle()
    return play


# what is ordered


@pytest.mark.parametrize(("have", "minimum", "ordered"), [(0, 3, 3), (2, 3, 1), (3, 3, 0), (4, 3, 0)])
def test_a_pool_is_kept_at_its_minimum(have: int, minimum: int, ordered: int) -> None:
    play = Play(min=minimum)
    play.join(*"abcdef"[:have])
    assert len(launched(play.settle())) == ordered


def test_a_node_is_launching_before_anybody_was_asked_for_it() -> None:
    play = Play(min=1)
    (name,) = launched(play.turn())
    assert play.node(name).state is NodeState.LAUNCHING


def test_a_lost_node_is_replaced_to_keep_the_minimum() -> None:
    play = fleet("a", "b", min=2)
    play.judge("a", Level.DEAD)
    assert len(launched(play.settle())) == 1


@pytest.mark.parametrize("level", [Level.SUSPECT, Level.UNREACHABLE])
def test_a_node_in_doubt_still_counts(level: Level) -> None:
    play = fleet("a", "b", min=2)
    play.judge("a", level)
    assert launched(play.settle()) == []


def test_nodes_are_ordered_for_tasks_of_a_sweep_beside_others_of_it_whatever_spread_it_asks_for() -> None:
    """Placed they are side by side; it once waited for ever for a node in a rack where none of it runs."""
    play = fleet("a", max=9)
    play.apply(Workload("grid", Sweep(8), needs(cpu=8, spread=Spread.REQUIRE)))
    play.settle()
    coming = [node for node in play.world.nodes.values() if node.state is NodeState.LAUNCHING]
    assert (len(play.running("grid")), len(coming)) == (1, 7)


def test_no_more_than_the_maximum_is_ordered_whatever_the_demand() -> None:
    play = Play(max=3)
    play.apply(web(10))
    assert len(launched(play.settle())) == 3
    assert launched(play.later(MINUTE)) == []


def test_so_many_launches_at_once_and_no_more() -> None:
    play = Play(min=POLICY.launches_at_once + 10)
    assert len(launched(play.turn())) == POLICY.launches_at_once
    assert len(launched(play.settle())) == 10


def test_a_minimum_is_spread_over_the_places_of_its_pool() -> None:
    play = Play(min=4, offers=(offer("a", "a"), offer("b", "b")))
    orders = of(do.LaunchNode, play.settle())
    assert sorted(order.place.zone for order in orders) == ["a", "a", "b", "b"]


def test_a_minimum_takes_the_cheapest_offer_of_each_zone() -> None:
    offers = (
        offer("a", "a"),
        offer("a-big", "a", price=800),
        offer("b", "b"),
        offer("b-big", "b", price=800),
    )
    play = Play(min=4, offers=offers)
    assert sorted(order.offer for order in of(do.LaunchNode, play.settle())) == ["a", "a", "b", "b"]


def test_demand_is_ordered_on_the_cheapest_offer_that_fits() -> None:
    small = offer("small", capacity=resources(cpu=4, memory=4096), price=10)
    play = Play(offers=(offer("dear", price=300), small, offer("fair", price=200)))
    play.apply(web(cpu=8))
    assert [order.offer for order in of(do.LaunchNode, play.settle())] == ["fair"]


def test_the_cheapest_offer_may_be_in_another_pool() -> None:
    play = Play()
    play.tell(ev.PoolApplied(at=play.now, pool=pool("cheap", (offer("low", price=1),))))
    play.apply(web())
    assert [(order.pool, order.offer) for order in of(do.LaunchNode, play.settle())] == [("cheap", "low")]


def test_what_may_not_run_on_spot_is_not_ordered_there() -> None:
    play = Play(offers=(offer(), SPOT))
    wants = needs(cpu=8)
    play.apply(Workload("any", Service(1), wants))
    play.apply(Workload("firm", Service(1), type(wants)(wants.resources, spot=False)))
    bought = {order.why.split()[2]: order.offer for order in of(do.LaunchNode, play.settle())}
    assert bought == {"any": "spot", "firm": "std"}


def test_what_fits_nowhere_is_not_ordered() -> None:
    play = Play()
    play.apply(web(cpu=9))
    assert launched(play.settle()) == []


def test_small_replicas_share_a_new_node() -> None:
    play = Play()
    play.apply(web(8, cpu=2))
    assert len(launched(play.settle())) == 2


def test_members_of_a_gang_are_ordered_a_node_each() -> None:
    play = Play()
    play.apply(Workload("gang", Training(3, 3), needs(cpu=1)))
    assert len(launched(play.settle())) == 3


def test_nothing_is_ordered_twice() -> None:
    play = Play()
    play.apply(web(2))
    first = launched(play.settle())
    assert len(first) == 2
    assert launched(play.later(MINUTE)) == [], "they are launching"
    play.tell(ev.NodeLaunched(at=play.now, node=first[0]))
    assert launched(play.later(MINUTE)) == [], "one is booting"
    play.reapply("web", priority=1)
    assert launched(play.settle()) == [], "nor because somebody looked again"


def test_only_what_does_not_fit_on_nodes_that_are_coming_is_ordered() -> None:
    play = Play()
    play.apply(web(1, cpu=3))
    assert len(launched(play.settle())) == 1
    play.reapply("web", shape=Service(2))
    assert launched(play.settle()) == []
    play.reapply("web", shape=Service(3))
    assert len(launched(play.settle())) == 1


def test_what_was_ordered_is_used_when_it_comes() -> None:
    play = Play()
    play.apply(web(2))
    arrive(play, *launched(play.settle()))
    assert launched(play.obey()) == []
    assert len(set(play.running("web").values())) == 2


def test_a_job_that_waits_for_proof_has_its_room_ordered_meanwhile() -> None:
    play = fleet("a")
    play.apply(Workload("job", Job(), needs(cpu=8)))
    play.obey()
    play.judge("a", Level.DEAD)
    actions = play.settle()
    assert len(launched(actions)) == 1
    assert of(do.PlaceReplica, actions) == []


def test_a_job_that_waits_for_proof_orders_nothing_if_there_is_room() -> None:
    play = fleet("a", "b")
    play.apply(Workload("job", Job(), needs(cpu=8)))
    play.obey()
    play.judge(play.running("job")["job/0.1"], Level.DEAD)
    assert launched(play.settle()) == []


def test_copies_that_must_be_apart_are_ordered_where_they_can_be_apart() -> None:
    """There is room on the first node, but in its zone it is no use."""
    play = Play(offers=(offer("here", "a", price=100), offer("there", "b", price=200)))
    play.join("n1", zone="a")
    play.apply(web(2, cpu=1, spread=Spread.REQUIRE))
    orders = of(do.LaunchNode, play.settle())
    assert [order.place.zone for order in orders] == ["b"]


def test_new_work_gets_a_node_of_its_own_and_not_the_standby() -> None:
    play = Play(standby=1)
    arrive(play, *launched(play.settle()))
    play.settle()
    play.apply(web())
    assert len(launched(play.settle())) == 1


# standby nodes


def test_warm_nodes_are_kept_above_what_is_used() -> None:
    play = Play(standby=2)
    first = launched(play.settle())
    assert len(first) == 2
    assert all(play.node(name).standby for name in first)
    arrive(play, *first)
    assert launched(play.later(MINUTE)) == []


def test_a_spare_node_that_gets_work_is_replaced_as_a_spare_at_once() -> None:
    play = fleet("a", standby=1)
    play.apply(web())
    assert [order.standby for order in of(do.LaunchNode, play.obey())] == [True]


def test_a_standby_node_takes_over_work_that_was_running_before() -> None:
    play = Play(standby=1)
    (warm,) = launched(play.settle())
    arrive(play, warm)
    play.settle()
    play.join("a")
    play.apply(web())
    play.obey()
    assert play.running("web") == {"web/0.1": "a"}
    play.judge("a", Level.DEAD)
    play.obey()
    assert play.running("web") == {"web/0.2": warm}
    assert not play.node(warm).standby, "it is an ordinary node now"


def test_an_empty_node_will_do_as_a_standby() -> None:
    play = Play(standby=1)
    play.join("a")
    assert launched(play.settle()) == []


# launches that fail


def two_pools() -> Play:
    play = Play()
    play.tell(ev.PoolApplied(at=play.now, pool=pool("other", (offer("dear", price=900),))))
    return play


def test_a_pool_that_failed_backs_off_and_the_other_takes_over() -> None:
    play = two_pools()
    play.apply(web())
    (name,) = launched(play.settle())
    assert play.node(name).pool == "pool"
    fail(play, name, "CapacityShort")
    assert [order.pool for order in of(do.LaunchNode, play.settle())] == ["other"]
    assert name not in play.world.nodes
    assert play.world.pool_states["other"].retry_at == 0


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_a_pool_that_fails_again_waits_longer(failures: int) -> None:
    play = Play()
    play.apply(web())
    (name,) = launched(play.settle())
    for number in range(failures):
        fail(play, name, "CapacityShort")
        wait = POLICY.backoff_ms << number
        assert launched(play.later(wait - 1)) == []
        (name,) = launched(play.later(1))


def test_the_back_off_has_an_upper_bound() -> None:
    play = Play(Policy(capacity=CapacityPolicy(backoff_max_ms=MINUTE)))
    play.apply(web())
    (name,) = launched(play.settle())
    for _ in range(40):
        fail(play, name, "CapacityShort")
        (name,) = launched(play.later(MINUTE))


def test_a_provider_that_says_when_to_come_back_is_believed() -> None:
    play = Play()
    play.apply(web())
    (name,) = launched(play.settle())
    fail(play, name, "Throttled", retry_after_ms=POLICY.backoff_ms + MINUTE)
    assert launched(play.later(POLICY.backoff_ms + MINUTE - 1)) == []
    assert len(launched(play.later(1))) == 1


def test_a_launch_that_succeeds_ends_the_back_off() -> None:
    play = Play()
    play.apply(web())
    (name,) = launched(play.settle())
    fail(play, name, "CapacityShort")
    (name,) = launched(play.later(POLICY.backoff_ms))
    play.tell(ev.NodeLaunched(at=play.now, node=name))
    state = play.world.pool_states["pool"]
    assert (state.failures_in_a_row, state.retry_at) == (0, 0)


@pytest.mark.parametrize(
    ("error", "known"),
    [
        ("CapacityShort", False),
        ("Denied", False),
        ("Throttled", False),
        ("Unreachable", True),
        ("OutcomeUnknown", True),
    ],
)
def test_a_node_that_may_exist_is_not_forgotten(error: str, known: bool) -> None:
    play = Play(min=1)
    (name,) = launched(play.settle())
    fail(play, name, error)
    play.settle()
    assert (name in play.world.nodes) is known
    if known:
        arrive(play, name)
        play.settle()
        assert play.node(name).state is NodeState.READY


def test_ids_are_never_used_again() -> None:
    play = Play(min=1)
    seen = launched(play.settle())
    for number in range(4):
        fail(play, seen[-1], "CapacityShort")
        seen += launched(play.later(POLICY.backoff_ms << number))
    assert len(seen) == len(set(seen)) == 5


# time-outs


def test_a_launch_that_is_never_answered_is_ended() -> None:
    play = Play(min=1)
    (name,) = launched(play.settle())
    assert terminated(play.later(POLICY.launch_timeout_ms - 1)) == []
    assert terminated(play.later(1)) == [name]


def test_a_node_that_never_joins_is_ended() -> None:
    play = Play(min=1)
    (name,) = launched(play.settle())
    play.tell(ev.NodeLaunched(at=play.now, node=name))
    assert terminated(play.later(POLICY.boot_timeout_ms - 1)) == []
    assert terminated(play.later(1)) == [name]


@pytest.mark.parametrize("booted", [False, True])
def test_what_times_out_is_replaced(booted: bool) -> None:
    play = Play(min=1)
    (name,) = launched(play.settle())
    if booted:
        play.tell(ev.NodeLaunched(at=play.now, node=name))
    assert len(launched(play.later(POLICY.launch_timeout_ms + POLICY.boot_timeout_ms))) >= 1


def test_a_termination_is_repeated_until_it_is_confirmed() -> None:
    play = Play(min=1)
    (name,) = launched(play.settle())
    play.later(POLICY.launch_timeout_ms)
    for _ in range(5):
        assert terminated(play.later(POLICY.terminate_retry_ms - 1)) == []
        assert terminated(play.later(1)) == [name]
    play.tell(ev.NodeTerminated(at=play.now, node=name))
    play.settle()
    assert name not in terminated(play.later(MINUTE))
    assert name not in play.world.nodes


def test_a_termination_that_failed_waits_for_its_back_off() -> None:
    play = Play(min=1)
    (name,) = launched(play.settle())
    play.later(POLICY.launch_timeout_ms)
    fail(play, name, "Throttled", retry_after_ms=3 * MINUTE)
    assert terminated(play.later(3 * MINUTE - 1)) == []
    assert terminated(play.later(1)) == [name]


def test_a_node_that_says_hello_while_it_is_terminated_is_not_used() -> None:
    play = Play()
    play.apply(web())
    (name,) = launched(play.settle())
    play.later(POLICY.launch_timeout_ms)
    play.join(name)
    play.settle()
    assert play.node(name).state is NodeState.TERMINATING
    assert name not in play.running("web").values()


# machines that nobody remembers


def listed(play: Play, *nodes: str) -> None:
    play.tell(ev.PoolListed(at=play.now, pool="pool", nodes=nodes, asked_at=play.now))


def test_a_pool_is_listed_again_and_again() -> None:
    play = Play()
    assert [asked.pool for asked in of(do.ListPool, play.settle())] == ["pool"]
    assert of(do.ListPool, play.later(POLICY.list_every_ms - 1)) == []
    for _ in range(3):
        assert len(of(do.ListPool, play.later(POLICY.list_every_ms))) == 1


def test_somebodys_own_machines_are_not_listed() -> None:
    play = Play(can_launch=False)
    assert of(do.ListPool, play.later(HOUR)) == []


def test_a_machine_that_nobody_knows_is_terminated() -> None:
    play = fleet("a")
    listed(play, "a", "stray-1", "stray-2")
    assert terminated(play.settle()) == ["stray-1", "stray-2"]
    play.tell(ev.NodeTerminated(at=play.now, node="stray-1"))
    assert terminated(play.settle()) == []
    assert play.world.orphans == {}


def test_an_orphan_whose_termination_failed_is_found_at_the_next_listing() -> None:
    play = fleet("a")
    listed(play, "stray-1")
    play.settle()
    fail(play, "stray-1", "Unreachable")
    assert terminated(play.later(MINUTE)) == []
    listed(play, "stray-1")
    assert terminated(play.settle()) == ["stray-1"]


@pytest.mark.parametrize("state", [NodeState.LAUNCHING, NodeState.BOOTING, NodeState.TERMINATING])
def test_a_node_on_its_way_is_no_orphan(state: NodeState) -> None:
    play = Play(min=1)
    (name,) = launched(play.settle())
    if state is NodeState.BOOTING:
        play.tell(ev.NodeLaunched(at=play.now, node=name))
    if state is NodeState.TERMINATING:
        play.later(POLICY.launch_timeout_ms)
    assert play.node(name).state is state
    listed(play, name)
    assert terminated(play.settle()) == []


# nodes that nobody needs


def test_an_idle_node_is_released_after_a_while() -> None:
    play = fleet("a", idle_ms=20 * MINUTE)
    play.apply(Workload("job", Job(), needs(cpu=8)))
    play.obey()
    play.later(HOUR)
    play.end("job/0.1", ev.Ended.DONE)
    play.settle()
    assert terminated(play.later(20 * MINUTE - 1)) == []
    assert terminated(play.later(1)) == ["a"]


def test_a_node_that_never_had_work_is_released_too() -> None:
    play = fleet("a", idle_ms=MINUTE)
    assert terminated(play.later(MINUTE - 1)) == []
    assert terminated(play.later(1)) == ["a"]


def test_a_node_with_work_is_not_released() -> None:
    play = fleet("a", idle_ms=MINUTE)
    play.apply(web(cpu=1))
    play.obey()
    assert terminated(play.later(HOUR)) == []


@pytest.mark.parametrize(("minimum", "standby", "kept"), [(2, 0, 2), (0, 1, 1), (1, 2, 2), (0, 0, 0)])
def test_release_stops_at_what_the_pool_wants(minimum: int, standby: int, kept: int) -> None:
    play = fleet("a", "b", "c", "d", min=minimum, standby=standby, idle_ms=MINUTE)
    assert len(set(terminated(play.later(2 * POLICY.list_every_ms)))) == 4 - kept


def test_the_dearest_idle_node_goes_first() -> None:
    play = Play(min=1, offers=(offer("cheap", price=1), offer("dear", price=900)), idle_ms=MINUTE)
    play.join("a", offer="cheap")
    play.join("b", offer="dear")
    play.settle()
    assert terminated(play.later(2 * POLICY.list_every_ms))[:1] == ["b"]
    assert play.node("a").state is NodeState.READY


def test_what_an_operator_holds_is_not_released() -> None:
    play = fleet("a", idle_ms=MINUTE)
    play.tell(ev.OperatorOrdered(at=play.now, order=ev.Order.CORDON, node="a"))
    assert terminated(play.later(HOUR)) == []


def test_what_cannot_be_terminated_is_not_released() -> None:
    play = fleet("a", idle_ms=MINUTE, can_terminate=False)
    assert terminated(play.later(HOUR)) == []


def test_nobody_is_released_while_somebody_waits_for_room() -> None:
    play = fleet("a", idle_ms=MINUTE, max=1)
    play.apply(Workload("gang", Training(2, 2), needs(cpu=1)))
    play.settle()
    assert terminated(play.later(MINUTE)) == []


# the dead


def test_a_dead_node_is_waited_for_and_then_terminated() -> None:
    play = fleet("a", "b")
    play.judge("a", Level.DEAD)
    play.settle()
    assert terminated(play.later(POLICY.dead_node_ms - 1)) == []
    actions = play.later(1)
    assert [(each.node, each.peers) for each in of(do.AskPeers, actions)] == [("a", ("b",))]
    assert terminated(actions) == []
    play.tell(ev.PeerAnswered(at=play.now, node="a", peer="b", answer=Answer.TIMEOUT))
    assert terminated(play.settle()) == ["a"]


def test_a_dead_node_that_a_peer_reaches_again_is_kept_as_long_as_one_does() -> None:
    play = fleet("a", "b")
    play.judge("a", Level.DEAD)
    play.later(POLICY.dead_node_ms)
    for _ in range(5):
        play.tell(ev.PeerAnswered(at=play.now, node="a", peer="b", answer=Answer.REACHED))
        assert terminated(play.settle()) == []
        asked_at = play.node("a").clues.asked_at
        while play.node("a").clues.asked_at == asked_at:
            assert terminated(play.later(SECOND)) == []
    play.tell(ev.PeerAnswered(at=play.now, node="a", peer="b", answer=Answer.REFUSED))
    assert terminated(play.settle()) == ["a"]


def test_peers_that_do_not_answer_do_not_keep_a_dead_node() -> None:
    play = fleet("a", "b")
    play.judge("a", Level.DEAD)
    assert terminated(play.later(POLICY.dead_node_ms + DETECTION.ask_again_ms - 1)) == []
    assert terminated(play.later(1)) == ["a"]


def test_a_dead_node_with_nobody_to_ask_is_terminated_when_its_time_is_over() -> None:
    play = fleet("a", max=1)
    play.judge("a", Level.DEAD)
    assert terminated(play.later(POLICY.dead_node_ms)) == ["a"]


def test_peers_are_asked_again_about_a_dead_node_whose_end_was_held() -> None:
    """An operator who lets the brake go answers for the verdicts, not for what has become of them since."""
    play = fleet(*"abcdef")
    for name in "abc":
        play.judge(name, Level.DEAD)
    assert terminated(play.later(POLICY.dead_node_ms + DETECTION.ask_again_ms)) == []
    asked_at = play.node("a").clues.asked_at
    play.tell(ev.OperatorOrdered(at=play.now, order=ev.Order.RELEASE_BRAKE))
    assert terminated(play.later(BrakePolicy().hold_ms)) == []
    assert play.node("a").clues.asked_at > asked_at
    play.tell(
        ev.PeerAnswered(at=play.now, node="a", peer=play.node("a").clues.asked[0], answer=Answer.REACHED)
    )
    assert terminated(play.later(DETECTION.ask_again_ms)) == ["b", "c"]


def test_a_dead_node_that_comes_back_in_time_is_kept() -> None:
    play = fleet("a", "b", idle_ms=HOUR)
    play.judge("a", Level.DEAD)
    play.settle()
    play.later(POLICY.dead_node_ms // 2)
    play.join("a")
    assert terminated(play.later(2 * POLICY.dead_node_ms)) == []
    assert play.node("a").state is NodeState.READY


def test_a_dead_node_whose_provider_says_it_stopped_is_not_waited_for() -> None:
    play = fleet("a", "b")
    play.judge("a", Level.DEAD)
    play.settle()
    play.tell(ev.ProviderAnswered(at=play.now, node="a", word=Word.STOPPED))
    assert terminated(play.settle()) == ["a"]


def test_a_node_that_said_goodbye_is_not_waited_for() -> None:
    play = fleet("a", "b")
    play.tell(ev.NodeSaidGoodbye(at=play.now, node="a"))
    play.judge("a", Level.DEAD)
    assert terminated(play.settle()) == ["a"]


def test_a_dead_node_that_cannot_be_terminated_is_left_alone() -> None:
    play = fleet("a", "b", can_terminate=False)
    play.judge("a", Level.DEAD)
    assert terminated(play.later(HOUR)) == []
    play.join("a")
    play.settle()
    assert play.node("a").state is NodeState.READY


# spot notices


def spot_fleet(*names: str) -> Play:
    play = Play(offers=(offer(), SPOT), idle_ms=1_000 * HOUR)
    play.join(*names, offer="spot")
    play.settle()
    return play


def test_a_spot_notice_is_a_drain_with_its_deadline() -> None:
    play = spot_fleet("a", "b")
    play.apply(web())
    play.obey()
    (node,) = play.running("web").values()
    play.tell(ev.SpotNoticed(at=play.now, node=node, deadline=play.now + 2 * MINUTE))
    assert [(drain.node, drain.deadline) for drain in of(do.DrainNode, play.settle())] == [
        (node, play.now + 2 * MINUTE)
    ]
    play.obey()
    assert node not in play.running("web").values()


def test_a_node_under_notice_is_given_back_as_soon_as_its_work_has_left() -> None:
    play = spot_fleet("a", "b")
    play.apply(web())
    play.obey()
    (node,) = play.running("web").values()
    play.tell(ev.SpotNoticed(at=play.now, node=node, deadline=play.now + 2 * MINUTE))
    actions = play.obey()
    assert terminated(actions) == [node]


def test_a_node_under_notice_is_given_up_at_its_deadline_at_the_latest() -> None:
    play = spot_fleet("a")
    play.apply(Workload("job", Job(), needs(cpu=8)))
    play.obey()
    play.tell(ev.SpotNoticed(at=play.now, node="a", deadline=play.now + 2 * MINUTE))
    play.settle()
    assert terminated(play.later(2 * MINUTE - 1)) == []
    assert terminated(play.later(1)) == ["a"]


@pytest.mark.parametrize("says_it_again", [False, True])
def test_a_node_that_wanted_to_leave_and_came_back_is_used_again_unless_it_says_so_again(
    says_it_again: bool,
) -> None:
    """It was left draining for ever: it had been killed before it could say goodbye."""
    play = fleet("a")
    deadline = play.now + 2 * MINUTE
    play.tell(ev.SpotNoticed(at=play.now, node="a", deadline=deadline, own=True))
    assert [drain.node for drain in of(do.DrainNode, play.turn())] == ["a"]
    play.tell(ev.NodeJoined(at=play.now, node="a"))
    if says_it_again:
        play.tell(ev.SpotNoticed(at=play.now, node="a", deadline=deadline, own=True))
    assert of(do.UncordonNode, play.later(2 * MINUTE - 1)) == []
    ended = of(do.UncordonNode, play.later(1))
    assert [action.node for action in ended] == ([] if says_it_again else ["a"])


def test_a_node_under_notice_is_replaced_before_it_is_gone() -> None:
    play = Play(offers=(offer(), SPOT), min=1)
    play.join("a", offer="spot")
    play.settle()
    play.apply(Workload("job", Job(), needs(cpu=8)))
    play.obey()
    play.tell(ev.SpotNoticed(at=play.now, node="a", deadline=play.now + 2 * MINUTE))
    assert len(launched(play.settle())) == 1


def test_notices_and_deaths_are_remembered_of_the_pool() -> None:
    play = spot_fleet("a", "b")
    play.later(HOUR)
    play.tell(ev.SpotNoticed(at=play.now, node="a", deadline=play.now + 2 * MINUTE))
    play.judge("b", Level.DEAD)
    state = play.world.pool_states["pool"]
    assert (state.notices, state.deaths, state.served_ms) == (1, 1, HOUR)


def test_an_uninvited_machine_joins_only_a_pool_that_exists() -> None:
    play = Play()
    there = Place("prov", "here", "a", "a1")
    play.tell(ev.NodeJoined(at=play.now, node="x", pool="no such pool", place=there, capacity=BIG))
    play.tell(ev.NodeJoined(at=play.now, node="y", pool="pool", place=there, capacity=BIG))
    assert list(play.world.nodes) == ["y"]


def test_a_pool_that_covers_failures_keeps_as_many_warm_nodes_as_fail_during_a_boot() -> None:
    play = Play(offers=(offer("one", spot=True),), max=60, standby_covers=0.99)
    play.join(*(f"n{number}" for number in range(40)), offer="one")
    play.apply(Workload("web", Service(40), needs(cpu=8)))
    play.obey()
    few = len([node for node in play.world.nodes.values() if node.standby])
    assert few >= 1
    state = play.world.pool_states["pool"]
    play.world.pool_states["pool"] = replace(state, notices=400, served_ms=400 * HOUR)
    play.world.agenda.note("pool", "pool")
    play.settle()
    assert len([node for node in play.world.nodes.values() if node.standby]) > few
