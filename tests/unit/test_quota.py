"""Quotas of projects: what is beyond them waits with a reason, and does nothing else."""

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.explain import pending
from holdfast.core.placement import placement, preempt
from holdfast.core.placement.placement import Ask, Spot
from holdfast.core.plan.draft import Draft
from holdfast.core.plan.project_quota import Quotas, share_of
from holdfast.core.workloads import schedule
from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.project import Project
from holdfast.model.replica import Phase
from holdfast.model.units import HOUR, MINUTE
from holdfast.model.verdict import Level
from holdfast.model.workload import Job, Mix, Restart, Service, Sweep, Training, Workload
from tests.build import needs, resources
from tests.play import BIG, Play, offer

PRICE = 8_000_000  # an hour of a node with 8 cpus


def fleet(nodes: int = 4, **rules: Any) -> Play:
    play = Play(idle_ms=1_000 * HOUR, offers=(offer(capacity=BIG, price=PRICE),), **rules)
    for name in "abcdefgh"[:nodes]:
        play.join(name, zone=name)
    for name in "abcdefgh"[:nodes]:
        play.world.nodes[name] = replace(play.world.nodes[name], price_micro_usd=PRICE)
    play.later(MINUTE)
    return play


def limited(play: Play, name: str = "vision", **most: Any) -> None:
    play.tell(ev.ProjectApplied(at=play.now, project=Project(name, **most)))


def service(name: str, replicas: int, project: str = "vision", cpu: float = 2, **more: object) -> Workload:
    return Workload(name, Service(replicas), needs(cpu=cpu), project=project, **more)  # type: ignore[arg-type]


def launched(play: Play, minutes: int) -> None:
    """Time passes, and what is launched joins."""
    for _ in range(minutes):
        play.later(MINUTE)
        play.obey()
        for node in [name for name, node in play.world.nodes.items() if not node.joined_at]:
            play.tell(ev.NodeLaunched(at=play.now, node=node), ev.NodeJoined(at=play.now, node=node))
        play.obey()


def why(play: Play, name: str) -> str:
    found = pending.waiting(play.world, play.world.workloads[name], play.now)
    return "; ".join(text for wait in found for text in wait.because)


def helps(play: Play, name: str) -> list[str]:
    found = pending.waiting(play.world, play.world.workloads[name], play.now)
    return [text for wait in found for text in wait.would_help]


def test_what_is_beyond_the_quota_waits_and_says_so() -> None:
    play = fleet()
    limited(play, cpu_milli=5_000)
    play.apply(service("web", 4))
    play.obey()
    assert len(play.running("web")) == 2
    assert "the quota of project vision: 4 of 5 cpus are taken, and it asks for 2" in why(play, "web")
    assert all(isinstance(action, do.ListPool) for action in play.later(HOUR)), "nothing is done for it"
    limited(play, cpu_milli=8_000)
    play.obey()
    assert len(play.running("web")) == 4


def test_another_project_is_not_held_up_by_it() -> None:
    play = fleet()
    limited(play, cpu_milli=0)
    play.apply(
        service("web", 2), service("other", 2, project="sound"), service("plain", 1, project="default")
    )
    play.obey()
    assert [len(play.running(name)) for name in ("web", "other", "plain")] == [0, 2, 1]


def test_it_preempts_nobody_and_no_node_is_launched_for_it() -> None:
    play = fleet(1, max=9)
    play.apply(service("low", 4, project="sound"))
    play.obey()
    limited(play, gpu_milli=0, cpu_milli=0)
    play.apply(service("urgent", 3, priority=100))
    done = play.obey() + play.later(HOUR)
    assert not [action for action in done if isinstance(action, do.StopReplica | do.LaunchNode)]
    assert len(play.running("low")) == 4


def test_a_failover_at_the_limit_needs_no_room_in_the_quota() -> None:
    play = fleet()
    limited(play, cpu_milli=4_000)
    play.apply(service("web", 3))
    play.obey()
    before = play.running("web")
    assert len(before) == 2
    play.judge(next(iter(before.values())), Level.DEAD)
    play.obey()
    alive = [node for node in play.running("web").values() if play.node(node).verdict.level is Level.ALIVE]
    assert len(alive) == 2, "its seats are filled again, and the third still waits"


HALF = PRICE * 730 // 2  # a month of half a node


@pytest.mark.parametrize("most", [{"nodes": 1}, {"month_micro_usd": HALF // 2}])
def test_a_failover_at_the_limit_may_go_to_another_node_while_the_dead_one_counts(
    most: dict[str, int],
) -> None:
    """It was down for as long as nobody knew what became of the node."""
    play = fleet(2)
    limited(play, "vision", **most)
    play.apply(service("web", 1))
    play.obey()
    play.judge(play.running("web")["web/0.1"], Level.DEAD)
    play.obey()
    assert list(play.running("web")) == ["web/0.2"]


JOB = Workload("web", Job(), needs(cpu=2), project="vision")


@pytest.mark.parametrize("most", [{"nodes": 1}, {"month_micro_usd": 3 * HALF}])
@pytest.mark.parametrize(
    "wanted", [[service("web", 1)], [JOB], [JOB, replace(JOB, name="other")]], ids=["service", "job", "jobs"]
)
def test_a_drain_at_the_limit_has_one_node_launched_and_moves_there(
    most: dict[str, int], wanted: list[Workload]
) -> None:
    """Nodes on which the project might not stand were launched until the pool was full."""
    play = fleet(1, max=9)
    limited(play, "vision", **most)
    play.apply(*wanted)
    play.obey()
    play.tell(ev.OperatorOrdered(at=play.now, order=ev.Order.DRAIN, node="a", deadline=play.now + HOUR))
    launched(play, 90)
    assert set(play.running("web").values()) == {"pool-1"}
    assert list(play.world.nodes) == ["a", "pool-1"]


def test_a_rolling_update_at_the_limit_goes_on_and_one_that_asks_for_more_waits() -> None:
    play = fleet()
    limited(play, cpu_milli=4_000)
    web = service("web", 2)
    play.apply(web)
    play.obey()
    play.apply(replace(web, version=2))
    play.obey()
    assert {play.replica(name).version for name in play.running("web")} == {2}
    play.apply(replace(web, version=3, needs=needs(cpu=3)))
    play.obey()
    assert {play.replica(name).version for name in play.running("web")} == {2}
    assert "quota of project vision" in why(play, "web")


def test_a_sweep_goes_through_a_small_quota_task_by_task() -> None:
    play = fleet()
    limited(play, cpu_milli=2_000)
    play.apply(Workload("many", Sweep(3), needs(cpu=2), project="vision"))
    for _ in range(3):
        play.obey()
        (running,) = play.running("many")
        play.end(running, ev.Ended.DONE)
    play.obey()
    assert play.running("many") == {}
    assert not play.world.undone.get("many")


def test_a_gang_starts_within_the_quota_or_not_at_all() -> None:
    play = fleet()
    limited(play, cpu_milli=9_000)
    play.apply(Workload("gang", Training(2, 4), needs(cpu=3), project="vision"))
    play.obey()
    assert len(play.running("gang")) == 3
    small = fleet()
    limited(small, nodes=1)
    small.apply(Workload("gang", Training(2, 4), needs(cpu=3), project="vision"))
    small.obey()
    assert small.running("gang") == {}
    reason = "it starts with 2: the quota of project vision: its replicas stand on 0 of 1 nodes"
    assert reason in why(small, "gang")


def test_nodes_are_those_on_which_its_replicas_stand() -> None:
    play = fleet()
    limited(play, nodes=2)
    play.apply(service("web", 6, cpu=3))
    play.obey()
    homes = play.running("web")
    assert (len(homes), len(set(homes.values()))) == (4, 2), "two fit on a node"
    assert "its replicas stand on 2 of 2 nodes" in why(play, "web")


def test_no_more_nodes_are_launched_than_it_may_stand_on() -> None:
    play = fleet(0, max=9)
    limited(play, nodes=2)
    play.apply(service("web", 6, cpu=8))
    for _ in range(4):
        play.obey()
        for node in [name for name, node in play.world.nodes.items() if not node.joined_at]:
            play.tell(ev.NodeLaunched(at=play.now, node=node))
            play.tell(ev.NodeJoined(at=play.now, node=node))
        play.later(MINUTE)
    play.obey()
    assert len(play.world.nodes) == 2
    assert len(play.running("web")) == 2


def test_money_is_what_its_shares_cost_in_a_month() -> None:
    play = fleet()
    limited(play, month_micro_usd=730 * PRICE)  # one node's worth
    play.apply(service("web", 9, cpu=2))
    play.obey()
    assert len(play.running("web")) == 4
    assert "0.00 $ an hour are left of 5840 $ a month" in why(play, "web")
    assert Quotas(play.world).used("vision").hour_micro_usd == PRICE


def test_no_node_is_launched_that_costs_more_than_is_left() -> None:
    play = fleet(0, max=9)
    limited(play, month_micro_usd=730 * (PRICE - 1))
    play.apply(service("web", 1))
    assert not [action for action in play.obey() if isinstance(action, do.LaunchNode)]
    limited(play, month_micro_usd=730 * PRICE)
    assert [action for action in play.obey() if isinstance(action, do.LaunchNode)]


@pytest.mark.parametrize(
    ("wanted", "nodes"),
    [
        (service("web", 20, cpu=8), 1),
        (service("web", 20, cpu=4), 1),
        (Workload("web", Training(2, 4), needs(cpu=8), project="vision"), 0),
    ],
    ids=["nodes", "halves", "gang"],
)
def test_no_more_nodes_are_launched_than_its_money_lasts_for(wanted: Workload, nodes: int) -> None:
    """Each was within what was left, but not all of them together: most stood empty."""
    play = fleet(0, max=30)
    limited(play, month_micro_usd=3 * HALF)
    play.apply(wanted)
    launched(play, 5)
    assert len(play.world.nodes) == nodes
    assert "may launch one" not in why(play, "web")


def test_a_service_on_a_mix_has_no_more_nodes_launched_than_its_money_lasts_for() -> None:
    spot = offer("spot", "b", capacity=BIG, price=PRICE // 2, spot=True)
    play = Play(idle_ms=1_000 * HOUR, offers=(offer(capacity=BIG, price=PRICE), spot), max=30)
    limited(play, month_micro_usd=3 * HALF)
    mixed = Service(20, mix=Mix(on_demand=1))
    play.apply(Workload("web", mixed, needs(cpu=8), project="vision"))
    launched(play, 5)
    assert len(play.world.nodes) <= 3


@pytest.mark.parametrize(
    ("most", "reason"),
    [
        ({"nodes": 1}, "project vision stands on as many nodes as it may"),
        ({"month_micro_usd": HALF * 2}, "project vision has 0.00 $ an hour left, and a node costs more"),
    ],
)
def test_a_pool_that_launches_nothing_because_of_the_quota_says_so(most: dict[str, int], reason: str) -> None:
    """It said that it may launch one, and nothing came."""
    play = fleet(1, max=9)
    limited(play, "vision", **most)
    play.apply(service("web", 2, cpu=8))
    play.obey()
    assert f"pool pool launches none for it: {reason}" in why(play, "web")
    assert "a larger quota of project vision, which admins set" in helps(play, "web")


def test_what_was_deleted_counts_until_it_is_gone() -> None:
    play = fleet()
    limited(play, cpu_milli=2_000)
    play.apply(Workload("old", Job(), needs(cpu=2), project="vision"))
    play.obey()
    play.tell(ev.WorkloadDeleted(at=play.now, workload="old"))
    play.apply(Workload("new", Job(), needs(cpu=2), project="vision"))
    play.settle()
    assert play.running("new") == {}
    play.obey()
    assert len(play.running("new")) == 1


def test_a_smaller_quota_stops_nothing() -> None:
    play = fleet()
    play.apply(service("web", 3))
    play.obey()
    limited(play, cpu_milli=1_000)
    assert play.obey() == []
    assert len(play.running("web")) == 3


@pytest.mark.parametrize(
    ("asked", "of", "parts"),
    [
        (resources(cpu=2, memory=0), resources(cpu=8, memory=100), 250_000),
        (resources(cpu=1, memory=50), resources(cpu=8, memory=100), 500_000),
        (resources(cpu=1, memory=1, gpu=8), resources(cpu=64, memory=100, gpu=8), 1_000_000),
        (resources(cpu=1, memory=0), resources(cpu=0, memory=0), 1_000_000),
        (resources(cpu=1, memory=0), resources(cpu=3, memory=9), 333_334),
    ],
)
def test_a_share_is_the_largest_of_its_shares(asked: object, of: object, parts: int) -> None:
    assert share_of(asked, of) == parts  # type: ignore[arg-type]


NODE = 730 * PRICE  # a month of one


def test_a_gang_that_is_beyond_the_money_of_its_project_stops_nobody() -> None:
    """Each member alone is within it, and both are not: to make room for one would not let it start."""
    play = fleet(2)
    play.apply(service("other", 2, project="sound", cpu=8))
    play.obey()
    before = play.running("other")
    limited(play, month_micro_usd=NODE * 3 // 2)
    play.apply(Workload("train", Training(2, 2), needs(cpu=8), project="vision", priority=100))
    for _ in range(10):
        play.obey()
        play.later(MINUTE)
    assert play.running("other") == before
    assert "the quota of project vision" in why(play, "train")
    limited(play, month_micro_usd=NODE * 2)
    play.obey()
    assert len(play.running("train")) == 2


def test_nobody_is_named_as_a_victim_of_a_gang_that_may_not_have_the_places() -> None:
    """Of nodes of different prices, each alone may be within the money."""
    play = fleet(2)
    play.apply(service("other", 2, project="sound", cpu=8))
    play.obey()
    ask = Ask(needs(cpu=8), count=2, at_least=2, one_per_node=True)
    asked: list[set[str]] = []

    def may(spots: list[Spot]) -> bool:
        asked.append({spot.node for spot in spots})
        return False

    assert len(preempt.victims_for_gang(play.world, play.world.room, ask, 100)) == 2
    assert preempt.victims_for_gang(play.world, play.world.room, ask, 100, may=may) == []
    assert asked == [{"a", "b"}]


@pytest.mark.parametrize(
    ("wanted", "launched"),
    [
        (service("web", 10, cpu=8), 2),
        (Workload("train", Training(4, 4), needs(cpu=8), project="vision"), 0),
        (Workload("train", Training(2, 4), needs(cpu=8), project="vision"), 2),
    ],
    ids=["service", "gang that can never start", "gang that can start with fewer"],
)
def test_no_more_nodes_are_launched_than_the_money_pays_for(wanted: Workload, launched: int) -> None:
    play = fleet(0, max=20)
    limited(play, month_micro_usd=NODE * 5 // 2)
    play.apply(wanted)
    for _ in range(4):
        play.obey()
        for node in [name for name, node in play.world.nodes.items() if not node.joined_at]:
            play.tell(ev.NodeLaunched(at=play.now, node=node))
            play.tell(ev.NodeJoined(at=play.now, node=node))
        play.later(MINUTE)
    play.obey()
    assert len(play.world.nodes) == len(play.running(wanted.name)) == launched


@pytest.mark.parametrize("quota", [{"month_micro_usd": NODE * 3 // 2}, {"nodes": 1}, {"cpu_milli": 8_000}])
def test_only_so_many_are_preempted_as_the_quota_lets_in(quota: dict[str, Any]) -> None:
    play = fleet(2)
    play.apply(service("other", 2, project="sound", cpu=8))
    play.obey()
    limited(play, **quota)
    play.apply(service("web", 2, cpu=8, priority=100))
    stopped = [action for _ in range(5) for action in (*play.obey(), *play.later(MINUTE))]
    assert sum(isinstance(action, do.StopReplica) for action in stopped) == 1
    assert (len(play.running("web")), len(play.running("other"))) == (1, 1)


@pytest.mark.parametrize("quota", [{"month_micro_usd": NODE}, {"nodes": 1}, {"cpu_milli": 8_000}])
def test_what_its_quota_keeps_waiting_holds_up_nobody_of_lower_priority(quota: dict[str, Any]) -> None:
    """Somewhere in a fleet there is always something that stops; its room is not for what may not have it."""
    play = fleet()
    limited(play, **quota)
    play.apply(service("web", 2, cpu=8, priority=100))
    play.apply(service("churn", 1, project="sound", cpu=1))
    play.obey()
    assert len(play.running("web")) == 1
    play.tell(ev.WorkloadDeleted(at=play.now, workload="churn"))
    play.settle()
    assert play.world.stopping
    play.apply(service("other", 1, project="sound", cpu=1))
    play.settle()
    assert len(play.running("other")) == 1


def test_what_waits_for_a_quota_is_not_walked_through_in_each_turn() -> None:
    play = fleet(1)
    limited(play, cpu_milli=4_000)
    play.apply(service("web", 500))
    play.obey()
    assert len(play.running("web")) == 2
    play.apply(service("other", 1, project="default"))
    play.obey()
    play.end(next(iter(play.running("other"))), ev.Ended.FAILED)
    draft = Draft(play.world, play.now)
    assert play.world.agenda.room_freed
    assert len(schedule.worth_a_look(draft, play.world.workloads["web"])) == 0
    play.end(next(iter(play.running("web"))), ev.Ended.FAILED)
    assert len(schedule.worth_a_look(Draft(play.world, play.now), play.world.workloads["web"])) == 499
    play.later(MINUTE)
    play.obey()
    assert len(play.running("web")) == 2, "what was freed is taken"


def test_a_seat_that_failed_too_often_beyond_a_full_quota_is_given_up() -> None:
    play = fleet(1)
    limited(play, cpu_milli=2_000)
    play.apply(replace(service("web", 50), restart=Restart(limit=1)))
    play.obey()
    play.end(next(iter(play.running("web"))), ev.Ended.FAILED)
    limited(play, cpu_milli=1_000)
    play.later(HOUR)
    assert play.slot("web/0").phase is Phase.FAILED


def test_one_seat_for_which_there_is_no_node_says_it_for_others_like_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play = fleet(2)
    limited(play, nodes=1)
    asked, place = [0], placement.place

    def counted(*given: Any) -> list[Spot]:
        asked[0] += 1
        return place(*given)

    monkeypatch.setattr(placement, "place", counted)
    play.apply(service("web", 300))
    play.turn()
    play.turn()
    assert len(play.running("web")) == 4
    assert asked[0] < 20
