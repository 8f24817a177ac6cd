"""A pool that nobody wants any more: its work leaves, its nodes are let go, then it is forgotten."""

import pytest
from msgspec.structs import replace

from holdfast.api import views
from holdfast.control.metrics import Metrics
from holdfast.core import check
from holdfast.core.cost import budgets
from holdfast.core.explain.explain import explain_pool
from holdfast.core.market import offers
from holdfast.core.state import fold, index, snapshot
from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.finding import Severity
from holdfast.model.market import OfferRecord
from holdfast.model.money import Budget
from holdfast.model.node import NodeState
from holdfast.model.policy import Policy
from holdfast.model.units import HOUR, MINUTE, SECOND
from holdfast.model.verdict import Level, Said
from holdfast.model.workload import Service, Workload
from holdfast.model.world import World
from tests.build import needs
from tests.play import Play, of, offer, pool


def two_pools(policy: Policy | None = None, **rules: int) -> Play:
    """`pool` has two nodes, one of them in use; `other` has one that is empty."""
    play = Play(policy, **rules)
    play.join("a", "b")
    play.apply(Workload("web", Service(1), needs(cpu=4)))
    play.obey()
    play.tell(ev.PoolApplied(at=play.now, pool=pool("other", (offer("std", "z", price=900),), max=4)))
    play.join("z", pool="other", zone="z")
    play.settle()
    return play


def delete(play: Play, name: str = "pool") -> list[do.Action]:
    play.tell(ev.PoolDeleted(at=play.now, pool=name))
    return play.obey()


def gone(play: Play, *nodes: str) -> list[do.Action]:
    play.tell(*(ev.NodeTerminated(at=play.now, node=node) for node in nodes))
    return play.obey()


def test_the_nodes_of_a_deleted_pool_are_emptied_and_let_go_and_then_it_is_forgotten() -> None:
    play = two_pools()
    done = delete(play)
    assert [(a.node, a.why) for a in of(do.GiveNotice, done)] == [
        ("a", "pool pool was deleted"),
        ("b", "pool pool was deleted"),
    ]
    assert [a.node for a in of(do.PlaceReplica, done)] == ["z"], "its work leaves first"
    assert sorted(a.node for a in of(do.TerminateNode, done)) == ["a", "b"]
    assert "pool" in play.world.pools, "somebody must go on asking until they are gone"
    assert not of(do.ForgetPool, gone(play, "a"))
    (forgotten,) = of(do.ForgetPool, gone(play, "b"))
    assert (forgotten.pool, forgotten.why) == ("pool", "it was deleted, and none of its nodes is left")
    for kept in ("pools", "pool_states", "offers", "in_pool", "serving"):
        assert "pool" not in getattr(play.world, kept)
    assert not [key for key in play.world.records if key.startswith("pool/")]


@pytest.mark.parametrize("level", [Level.ALIVE, Level.DEAD])
def test_a_node_that_is_being_reset_is_let_go_with_its_pool(level: Level) -> None:
    """Its reset failed, and nobody looked after it any more: not the repair, because it leaves, and not those
    who take leave, because it was not drained."""
    play = two_pools()
    play.find("b", Severity.RESET)
    play.settle()
    play.judge("b", level)
    assert play.node("b").state is NodeState.RESETTING
    assert "b" in [action.node for action in of(do.TerminateNode, delete(play))]


def test_with_a_pool_also_the_offers_are_forgotten_that_it_had_once() -> None:
    play = Play(min=1)
    (node,) = (a.node for a in of(do.LaunchNode, play.settle()))
    play.tell(ev.NodeLaunched(at=play.now, node=node))
    assert list(play.world.records) == ["pool/std"]
    changed = replace(play.world.pools["pool"], offers=(offer("new", "a"),))
    play.tell(ev.PoolApplied(at=play.now, pool=changed))
    delete(play)
    gone(play, node)
    assert "pool" not in play.world.pools
    assert not play.world.records


def test_what_was_noted_of_a_forgotten_pool_is_asked_for_no_more() -> None:
    """It was the only one, and nobody looked at its offers between the note and its end."""
    play = Play()
    play.tell(ev.PoolDeleted(at=play.now, pool="pool"))
    index.put_record(play.world, OfferRecord("pool/std"))
    assert of(do.ForgetPool, play.settle())
    assert offers.listed(play.world).row == {}


def test_a_node_of_a_deleted_pool_that_a_person_drains_goes_with_it() -> None:
    """By itself it would stay, empty, until that person gives it back."""
    play = two_pools()
    play.tell(ev.PoolDeleted(at=play.now, pool="pool"))
    play.turn()
    play.tell(ev.OperatorOrdered(at=play.now, order=ev.Order.DRAIN, node="a", deadline=play.now + 5 * MINUTE))
    assert play.node("a").by_hand
    assert "a" in [a.node for a in of(do.TerminateNode, play.obey())]


def test_work_that_finds_no_room_stays_until_the_deadline_of_a_drain() -> None:
    play = Play()
    play.join("a")
    play.apply(Workload("web", Service(1), needs(cpu=4)))
    play.obey()
    assert not of(do.TerminateNode, delete(play))
    assert play.node("a").state is NodeState.DRAINING
    assert play.node("a").deadline == play.now + play.world.policy.repair.drain_ms
    play.now = play.node("a").deadline
    assert [a.node for a in of(do.TerminateNode, play.obey())] == ["a"]
    assert of(do.ForgetPool, gone(play, "a"))


def test_a_deleted_pool_launches_nothing_and_ends_what_is_still_to_come() -> None:
    play = Play(min=2, standby=1)
    coming = {a.node for a in of(do.LaunchNode, play.settle())}
    play.apply(Workload("web", Service(3), needs(cpu=4)))
    done = delete(play)
    assert {a.node for a in of(do.TerminateNode, done)} >= coming
    assert not of(do.LaunchNode, done)
    assert not of(do.LaunchNode, play.later(HOUR))


def test_an_empty_pool_is_forgotten_at_once_and_deleting_it_again_is_nothing() -> None:
    play = Play()
    assert of(do.ForgetPool, delete(play))
    assert delete(play) == []
    play.tell(ev.PoolListed(at=play.now, pool="pool", nodes=("stray",), asked_at=play.now))
    assert not play.world.orphans, "an answer that comes late finds nobody"
    assert play.settle() == []


def test_a_machine_that_nobody_knows_keeps_its_pool_until_it_is_ended() -> None:
    play = Play()
    play.tell(ev.PoolListed(at=play.now, pool="pool", nodes=("stray",), asked_at=play.now))
    play.tell(ev.PoolDeleted(at=play.now, pool="pool"))
    first = play.turn()
    assert of(do.TerminateNode, first)
    assert not of(do.ForgetPool, first)


def test_no_stranger_joins_a_pool_that_is_being_deleted() -> None:
    play = two_pools()
    play.tell(ev.PoolDeleted(at=play.now, pool="pool"))
    play.join("late")
    assert "late" not in play.world.nodes


@pytest.mark.parametrize("goodbye", [True, False])
def test_a_node_whose_agent_starts_again_takes_no_more_work(goodbye: bool) -> None:
    play = Play()
    play.join("a")
    play.apply(Workload("web", Service(1), needs(cpu=4)))
    play.obey()
    delete(play)
    play.now += SECOND
    if goodbye:
        play.tell(ev.NodeSaidGoodbye(at=play.now, node="a"))
        play.obey()
    play.tell(ev.NodeJoined(at=play.now, node="a", running=()))
    done = play.obey()
    assert not of(do.PlaceReplica, done)
    assert [a.node for a in of(do.TerminateNode, done)] == ["a"], "nothing runs there any more"


def test_a_node_whose_agent_starts_again_goes_when_the_time_of_its_work_is_over() -> None:
    play = Play()
    play.join("a")
    play.apply(Workload("web", Service(1), needs(cpu=4)))
    play.obey()
    delete(play)
    deadline = play.node("a").deadline
    play.now += SECOND
    play.tell(ev.NodeJoined(at=play.now, node="a", running=tuple(play.world.on_node["a"])))
    play.obey()
    node = play.node("a")
    assert (node.state, node.clues.said, node.deadline) == (NodeState.DRAINING, Said.NOTICE, deadline)


def test_a_pool_that_is_applied_again_is_wanted_again() -> None:
    play = two_pools()
    before = play.world.pools["pool"]
    play.tell(ev.PoolDeleted(at=play.now, pool="pool"), ev.PoolApplied(at=play.now, pool=before))
    assert not of(do.GiveNotice, play.obey())
    assert play.world.pools["pool"] == before


def test_what_a_deleted_pool_cost_still_counts_against_the_budget_of_the_fleet() -> None:
    play = two_pools(Policy(budget=Budget(month_micro_usd=1_000_000)))
    play.later(MINUTE)
    delete(play)
    gone(play, "a", "b")
    play.now += HOUR
    assert "pool" not in play.world.pools
    spent = budgets.spent_in_month(play.world, ("pool",), play.now)
    assert spent > 0
    assert budgets.Purse(play.world, play.now).fleet.spent > budgets.spent_in_month(
        play.world, ("other",), play.now
    )


def test_a_replay_and_a_snapshot_of_a_deletion_half_way_and_at_its_end_give_the_same_world() -> None:
    play = two_pools()
    delete(play)
    half = len(play.journal)
    gone(play, "a", "b")
    assert "pool" not in play.world.pools
    again = World()
    for at, entry in enumerate(play.journal):
        if at == half:
            again = snapshot.load(snapshot.dump(again))
        fold.apply(again, entry)
    assert snapshot.dump(snapshot.load(snapshot.dump(again))) == snapshot.dump(play.world)
    assert check.inconsistencies(snapshot.load(snapshot.dump(again))) == []


def test_a_reason_is_forgotten_when_a_launch_was_answered_or_the_pool_was_changed() -> None:
    play = Play(min=1)
    (node,) = (a.node for a in of(do.LaunchNode, play.settle()))
    failed = ev.ActionFailed(at=play.now, action="p1.0", node=node, error="Denied", why="no such image")
    play.tell(failed)
    state = play.world.pool_states["pool"]
    assert (state.why, state.why_at, state.failures_in_a_row) == ("no such image", play.now, 1)
    play.tell(ev.PoolApplied(at=play.now, pool=replace(play.world.pools["pool"], settings={"image": "b"})))
    assert play.world.pool_states["pool"].why == ""
    (node,) = (a.node for a in of(do.LaunchNode, play.settle()))  # it need not wait: what failed is changed
    play.tell(replace(failed, node=node))
    node = of(do.LaunchNode, play.later(MINUTE))[-1].node
    play.tell(ev.NodeLaunched(at=play.now, node=node))
    assert play.world.pool_states["pool"].why == ""


def never_launched() -> tuple[Play, str]:
    """A pool whose provider never answers, deleted; and the node that it was asked for."""
    play = Play(min=1)
    (node,) = (a.node for a in of(do.LaunchNode, play.settle()))
    failed(play, node)
    done = delete(play)
    assert [a.node for a in of(do.TerminateNode, done)] == [node]
    failed(play, node)
    return play, node


def failed(play: Play, node: str) -> None:
    why = "no connection"
    play.tell(ev.ActionFailed(at=play.now, action="p", node=node, error="Unreachable", why=why))


def test_a_pool_whose_launches_all_failed_is_forgotten_though_its_provider_never_answers() -> None:
    """Its nodes were ended again and again, and it could not be deleted."""
    play, node = never_launched()
    for _ in range(40):
        again = of(do.TerminateNode, play.later(30 * SECOND))
        if "pool" not in play.world.pools:
            break
        for action in again:
            failed(play, action.node)
    assert node not in play.world.nodes
    assert "pool" not in play.world.pools
    assert budgets.spent_in_month(play.world, ("pool",), play.now) == 0, "it was never there"


def test_who_knows_that_a_node_never_came_up_need_not_wait_for_its_provider() -> None:
    play, node = never_launched()
    helps = explain_pool(play.world, "pool", play.now).would_help
    assert helps == (f"holdfast forget {node}, if you know that it never came up",)
    play.tell(ev.OperatorOrdered(at=play.now, order=ev.Order.FORGET, node=node))
    play.settle()
    assert "pool" not in play.world.pools


def test_a_node_that_its_provider_has_said_to_be_there_is_not_given_up() -> None:
    play = Play(min=1)
    (node,) = (a.node for a in of(do.LaunchNode, play.settle()))
    play.tell(ev.NodeLaunched(at=play.now, node=node))
    delete(play)
    for _ in range(40):
        failed(play, node)
        play.later(30 * SECOND)
    assert node in play.world.nodes
    assert not fold.may_be_forgotten(play.world, play.node(node), play.now)


def test_a_node_that_never_joined_is_not_shown_as_alive() -> None:
    play, node = never_launched()
    shown = views.node(views.Sight(play.world, None, lambda name: None, play.now), node, [])
    assert shown is not None
    assert (shown.verdict, shown.state) == ("unknown", "terminating")
    metrics = Metrics()
    metrics.watch(lambda: play.world, lambda: True, lambda: 0, lambda: play.now, lambda name: None)
    for verdict, count in (("alive", 0), ("unknown", 1)):
        name = "holdfast_nodes_by_verdict"
        assert metrics.registry.get_sample_value(name, {"verdict": verdict}) == count
