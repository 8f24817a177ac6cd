"""Why something is as it is, and what would help: the reasons are the real ones, the advice works."""

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.explain import pending
from holdfast.core.explain.explain import (
    Explanation,
    explain_node,
    explain_pool,
    explain_replica,
    explain_workload,
)
from holdfast.core.health import detect
from holdfast.core.plan.draft import Draft
from holdfast.core.provisioning import launch
from holdfast.core.state import fold
from holdfast.core.turn import Mind
from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.finding import Severity
from holdfast.model.money import Budget
from holdfast.model.node import Answer, LimitedBy
from holdfast.model.place import Place
from holdfast.model.plan import Plan
from holdfast.model.policy import Policy
from holdfast.model.pool import Offer
from holdfast.model.resources import GPU
from holdfast.model.units import HOUR, MINUTE, SECOND
from holdfast.model.verdict import Level, Word
from holdfast.model.workload import Job, Restart, Service, Spread, Sweep, Training, Workload
from tests.build import needs, resources
from tests.play import BIG, Play, of, offer, pool


def played(*names: str, **rules: Any) -> Play:
    """A leader of long standing, and nodes of 8 cpus and 32 GiB."""
    play = Play(**{"max": len(names), **rules})
    play.tell(ev.LeaderChanged(at=play.now - HOUR, leader="cp", generation=1))
    play.join(*names)
    play.settle()
    return play


def workload(play: Play, name: str = "web") -> Explanation:
    return explain_workload(play.world, name, play.now)


def node(play: Play, name: str) -> Explanation:
    return explain_node(play.world, None, name, play.now)


def said(explanation: Explanation) -> str:
    return "\n".join(explanation.because)


# ---- nodes


def test_a_healthy_node_is_told_as_such() -> None:
    play = played("a", "b")
    told = node(play, "a")
    assert told.summary == "a is ready and alive: it said hello"
    assert "its link is open" in told.because
    assert "its lease is renewed by every heartbeat and lasts 30 s" in told.because
    assert told.would_help == ()


def test_a_suspect_is_told_with_its_rule_and_every_witness() -> None:
    play = played("a", "b", "c", "d")
    mind = Mind(play.world)
    mind.take_over(play.now)
    play.now += 15 * SECOND
    for name in ("b", "c", "d"):
        mind.senses.beats.add(name, play.now)
    mind.senses.beats.changed(play.now)
    play.judge("a", Level.SUSPECT)
    (ask,) = of(do.AskPeers, play.settle())
    first, second, third = ask.peers
    play.now += SECOND
    play.tell(ev.PeerAnswered(at=play.now, node="a", peer=first, answer=Answer.TIMEOUT))
    play.tell(ev.PeerAnswered(at=play.now, node="a", peer=second, answer=Answer.TIMEOUT))
    play.tell(ev.ProviderAnswered(at=play.now, node="a", word=Word.RUNNING))
    told = explain_node(play.world, mind.senses, "a", play.now)
    assert told.summary.startswith("a is ready and suspect")
    text = said(told)
    assert "judged at this moment it would be dead: silent, and no peer reached it" in text
    assert "it has been silent for 16 s (long), 2.2 s would be usual" in text
    assert f"{first} timeout, {second} timeout, {third} has not answered; together: not reached" in text
    assert "its provider said 0.0 s ago: running" in text
    assert "looked at again in 2.0 s" in text
    assert "its lease is surely over in 15 s: until then an exclusive replica could still run there" in text


def test_the_rule_of_a_verdict_is_told_by_its_number() -> None:
    play = played("a", "b", "c", "d")
    mind = Mind(play.world)
    mind.take_over(play.now)
    play.tell(ev.NodeSaidGoodbye(at=play.now, node="a"))
    play.tell(*detect.judge(play.world, mind.senses, play.now))
    told = explain_node(play.world, mind.senses, "a", play.now)
    assert told.summary == "a is dead: it said goodbye"
    assert "by rule 1 of" in said(told)
    assert "it said goodbye" in told.because
    assert "start its agent again: only a hello brings it back" in told.would_help


def test_who_may_still_run_on_a_dead_node_is_named() -> None:
    play = played("a")
    play.apply(Workload("job", Job()))
    play.obey()
    play.now += 5 * SECOND
    play.judge("a", Level.DEAD)
    text = said(node(play, "a"))
    assert "it was last heard 5.0 s ago" in text
    assert "its lease is surely over in 26 s: until then job/0.1 may still run there" in text
    assert "terminated in 2.0 min if it does not come back and no peer reaches it" in text
    play.now += MINUTE
    assert "its lease is over: no exclusive replica runs there any more" in said(node(play, "a"))


def test_a_node_that_a_person_closed_says_how_to_open_it() -> None:
    play = played("a")
    for order, word in ((ev.Order.CORDON, "cordoned by hand"), (ev.Order.DRAIN, "drained by hand")):
        play.tell(ev.OperatorOrdered(at=play.now, order=order, node="a", deadline=play.now + 5 * MINUTE))
        told = node(play, "a")
        assert word in said(told)
        assert told.would_help == ("holdfast uncordon a",)
    assert "what is there then is stopped in 4.5 min" in said(told)


def test_explain_node_says_that_services_are_stopped_later_than_what_saves() -> None:
    play = Play(can_launch=False)
    play.join("a")
    play.settle()
    play.apply(Workload("web", Service(1), needs(cpu=1)))
    play.obey()
    play.tell(
        ev.OperatorOrdered(at=play.now, order=ev.Order.DRAIN, node="a", deadline=play.now + 40 * SECOND)
    )
    told = said(explain_node(play.world, None, "a", play.now))
    assert "what is there then is stopped in 30 s" in told, "a quarter of the notice is for ending"


def test_explain_node_tells_both_last_calls_of_a_drain() -> None:
    play = Play(can_launch=False)
    play.join("a")
    play.settle()
    play.apply(Workload("web", Service(1), needs(cpu=1)))
    play.apply(Workload("sort", Job(), needs(cpu=1)))
    play.obey()
    play.tell(
        ev.OperatorOrdered(at=play.now, order=ev.Order.DRAIN, node="a", deadline=play.now + 40 * SECOND)
    )
    told = said(explain_node(play.world, None, "a", play.now))
    assert "what saves (jobs, trainings) is stopped in 10 s, services in 30 s" in told


def test_a_node_in_repair_is_told_with_its_finding_and_its_step() -> None:
    play = played("a", "b")
    play.find("a", Severity.CORDON, "ecc errors")
    play.settle()
    text = said(node(play, "a"))
    assert "finding: ecc errors, 100 % sure" in text
    assert "repair: cordoned 0.0 s ago: ecc errors" in text


def test_a_quarantined_node_waits_for_a_person() -> None:
    play = played("a", "b", can_terminate=False, can_reset=False)
    play.find("a", Severity.REPLACE)
    play.settle()
    assert node(play, "a").would_help == ("look at the machine, then: holdfast uncordon a",)


def test_a_brake_is_told_with_the_way_to_release_it() -> None:
    play = played("a", "b")
    engaged = do.EngageBrake(scope="fleet", why="5 of 6 in doubt")
    fold.accept(play.world, Plan(play.world.plans + 1, play.now, (engaged,)))
    told = node(play, "a")
    assert "what would disturb it is held: brake on fleet: 5 of 6 in doubt" in told.because
    assert "if these nodes are really gone: holdfast release-brake" in told.would_help


def test_a_node_that_is_coming_or_going_says_when_it_is_given_up() -> None:
    play = played(min=1, max=1)
    (name,) = play.world.nodes
    assert "given up in 5.0 min if its provider does not answer" in said(node(play, name))
    play.tell(ev.NodeLaunched(at=play.now, node=name))
    assert "given up in 15.0 min if its agent does not join" in said(node(play, name))
    fold.accept(play.world, Plan(99, play.now, (do.TerminateNode(node=name, why="w"),)))
    assert "told again in 30 s if its provider does not confirm" in said(node(play, name))


def test_a_spot_notice_is_told_with_its_deadline() -> None:
    play = played("a", offers=(offer(spot=True),))
    play.tell(ev.SpotNoticed(at=play.now, node="a", deadline=play.now + 2 * MINUTE))
    text = said(node(play, "a"))
    assert "it will be taken away in 2.0 min" in text
    assert "it got a spot notice" in text


# ---- pools


def test_a_pool_at_its_maximum_says_so() -> None:
    told = explain_pool(played("a", "b").world, "pool", 0)
    assert told.summary == "pool has 2 nodes, 0 to 2 are wanted"
    assert "nodes: 2 alive" in told.because
    assert told.would_help == ("raise max of pool pool from 2 to 3",)


def test_a_pools_trouble_is_what_is_true_now_and_what_is_past_comes_with_its_age() -> None:
    play = played(min=1, max=2)

    def trouble() -> str:
        return pending.trouble(play.world, "pool", play.now)

    def fail(error: str, why: str) -> None:
        node = next(name for name, node in play.world.nodes.items() if node.state == "launching")
        play.tell(ev.ActionFailed(at=play.now, action="p1.0", node=node, error=error, why=why))

    assert trouble() == ""
    fail("Denied", "expired")
    assert trouble() == "it asks again in 10 s: expired"
    rules = play.world.pools["pool"]
    play.tell(ev.PoolApplied(at=play.now, pool=replace(rules, min=0)))
    assert trouble() == "", "what failed under other rules is not true of these"
    play.tell(ev.PoolApplied(at=play.now, pool=rules))
    play.settle()
    fail("CapacityShort", "none left")
    assert trouble() == "std is asked for again in 10 s: none left"
    play.world.pools["pool"] = replace(rules, min=0)
    play.later(2 * MINUTE)
    assert trouble() == "2.0 min ago: none left"
    play.later(HOUR)
    assert trouble() == ""
    play.tell(ev.PoolApplied(at=play.now, pool=rules))
    (name,) = (action.node for action in of(do.LaunchNode, play.settle()))
    play.tell(ev.NodeLaunched(at=play.now, node=name), ev.NodeJoined(at=play.now, node=name))
    assert trouble() == ""


def test_a_pool_that_is_being_deleted_says_what_is_left_and_what_keeps_it() -> None:
    play = played("a", max=2)
    play.apply(Workload("web", Service(2), needs(cpu=8)))
    play.obey()
    play.tell(ev.PoolDeleted(at=play.now, pool="pool"))
    play.obey()
    assert pending.trouble(play.world, "pool", play.now) == "it is being deleted, 2 nodes left"
    told = explain_pool(play.world, "pool", play.now)
    assert told.summary == "pool was deleted 0.0 s ago: 2 nodes left"
    assert "pool pool is being deleted" in said(workload(play))
    play.tell(ev.ActionFailed(at=play.now, action="p1.0", node="a", error="Denied", why="no key"))
    assert pending.trouble(play.world, "pool", play.now).endswith(": 0.0 s ago: a: no key")


def test_a_pool_that_failed_to_launch_says_why_and_until_when() -> None:
    play = played(min=1, max=2)
    (name,) = play.world.nodes
    failed = ev.ActionFailed(at=play.now, action="p1.0", node=name, error="Denied", why="expired")
    play.tell(failed)
    told = explain_pool(play.world, "pool", play.now)
    assert "it backs off for another 10 s: expired" in told.because
    assert "its last 1 launch request failed, 0.0 s ago: expired" in told.because


def test_a_failure_of_which_an_older_snapshot_does_not_tell_the_time_has_no_age() -> None:
    play = Play(min=1)
    failed = {"failures_in_a_row": 2, "why": "expired"}
    play.world.pool_states["pool"] = replace(play.world.pool_states["pool"], **failed)
    told = explain_pool(play.world, "pool", play.now)
    assert "its last 2 launch requests failed: expired" in told.because


def test_a_pool_that_has_nothing_left_says_when_it_is_asked_again() -> None:
    play = played(min=1, max=2)
    (name,) = play.world.nodes
    play.tell(ev.ActionFailed(at=play.now, action="p1.0", node=name, error="CapacityShort", why="sold out"))
    told = explain_pool(play.world, "pool", play.now)
    assert "it asks again in 10 s: sold out" in told.because


def test_a_pool_without_money_says_so() -> None:
    play = played(min=2, max=2, budget=Budget(hour_micro_usd=150))
    told = explain_pool(play.world, "pool", play.now)
    assert "it may not launch one: pool pool may cost $0.00/h, and costs $0.00/h" in told.because


def test_a_pool_whose_nodes_join_by_themselves_says_so() -> None:
    told = explain_pool(played("a", can_launch=False).world, "pool", 0)
    assert "it launches no nodes: they join by themselves" in told.because


@pytest.mark.parametrize("max_", [0, 1, 2, 3])
@pytest.mark.parametrize("retry_in", [-1, 0, 1, 10_000])
def test_whether_a_pool_may_launch_is_told_as_it_is_decided(max_: int, retry_in: int) -> None:
    play = played("a", "b", max=max_)
    world, the_pool = play.world, play.world.pools["pool"]
    world.pool_states["pool"] = replace(world.pool_states["pool"], retry_at=play.now + retry_in, why="no")
    may = launch.may_launch(Draft(world, play.now), the_pool, launch.Tally(world, "pool"))
    assert pending.launches(Draft(world, play.now), the_pool, the_pool.offers).comes is may


# ---- seats without room: the reason, and advice that helps


def test_too_little_of_a_resource_is_told_with_the_most_there_is() -> None:
    play = played("a", "b")
    play.apply(Workload("other", Service(2), needs(5)), Workload("web", Service(1), needs(4), priority=-1))
    play.obey()
    told = workload(play)
    assert told.summary == "web: 0 of 1 ready"
    assert "web/0: no room: 2 nodes: 2 have too little cpu free (largest 3, 4 needed)" in told.because
    assert "pool pool has 2 of at most 2 nodes" in told.because
    assert told.would_help == (
        "lower cpus from 4 to 3",
        "raise its priority above 0: other would give way",
        "raise max of pool pool from 2 to 3",
    )


Advice = tuple[str, dict[str, Any], dict[str, Any]]
ADVICE: dict[str, Advice] = {
    "cpus": (
        "lower cpus from 9 to 8",
        {"needs": needs(9)},
        {"needs": needs(8)},
    ),
    "memory": (
        "lower memory from 40000 to 32768 MiB",
        {"needs": needs(1, memory=40_000)},
        {"needs": needs(1, memory=32_768)},
    ),
    "gpus": (
        "lower gpus from 4 to 2",
        {"needs": needs(1, gpu=4)},
        {"needs": needs(1, gpu=2)},
    ),
    "kind": (
        "accept GPUs of the kind h100",
        {"needs": needs(1, gpu=1, kind="a100")},
        {"needs": needs(1, gpu=1, kind="h100")},
    ),
    "label": (
        "label a node disk=ssd, or ask for no label",
        {"needs": replace(needs(1), labels={"disk": "ssd"})},
        {"needs": needs(1)},
    ),
    "spot": (
        "allow spot nodes",
        {"needs": replace(needs(6), spot=False)},
        {"needs": needs(6)},
    ),
}


@pytest.mark.parametrize("name", ADVICE)
def test_advice_works_when_it_is_followed(name: str) -> None:
    text, before, after = ADVICE[name]
    play = Play(max=3, offers=(offer(), offer("cheap", "b", spot=True)))
    play.tell(ev.LeaderChanged(at=play.now - HOUR, leader="cp", generation=1))
    play.join("a", offer="cheap")
    play.join("g", offer="cheap", capacity=replace(BIG, cpu_milli=4_000, gpu_milli=2 * GPU, gpu_kind="h100"))
    play.join("c")
    play.apply(Workload("there", Job(), needs(1), priority=9))
    play.obey()
    play.tell(ev.NodeTerminated(at=play.now, node="c")) if name == "spot" else None
    play.tell(ev.PoolApplied(at=play.now, pool=replace(play.world.pools["pool"], max=0)))
    play.apply(Workload("web", Service(1), priority=9, **before))
    play.obey()
    assert text in workload(play).would_help
    play.reapply("web", **after)
    play.obey()
    assert play.running("web")


def test_a_taint_is_told_and_tolerating_it_helps() -> None:
    play = Play(max=1, taints=("gpu-only",))
    play.join("a")
    play.apply(Workload("web", Service(1), needs(1)))
    play.obey()
    told = workload(play)
    assert "no room: 1 node: 1 has a taint it does not tolerate" in said(told)
    assert "tolerate the taint gpu-only" in told.would_help
    play.reapply("web", needs=replace(needs(1), tolerates=("gpu-only",)))
    play.obey()
    assert play.running("web") == {"web/0.1": "a"}


def test_a_required_spread_is_told_and_letting_it_go_helps() -> None:
    play = played("a", "b")
    play.apply(Workload("web", Service(2), needs(1, spread=Spread.REQUIRE)))
    play.obey()
    told = workload(play)
    assert "in a zone that has a copy already" in said(told)
    assert "a node in another zone, or spread: prefer instead of require" in told.would_help
    play.reapply("web", needs=needs(1, spread=Spread.PREFER))
    play.obey()
    assert len(play.running("web")) == 2


def test_a_closed_node_is_told_with_its_reason_and_opening_it_helps() -> None:
    play = played("a", "b")
    play.tell(ev.OperatorOrdered(at=play.now, order=ev.Order.CORDON, node="b"))
    play.apply(Workload("other", Service(1), needs(8), priority=5), Workload("web", Service(1), needs(8)))
    play.obey()
    told = workload(play)
    assert "closed: b: cordoned by hand" in told.because
    assert "holdfast uncordon b" in told.would_help
    play.tell(ev.OperatorOrdered(at=play.now, order=ev.Order.UNCORDON, node="b"))
    play.obey()
    assert play.running("web") == {"web/0.1": "b"}


def test_no_advice_is_given_that_needs_two_changes() -> None:
    play = played("a", "b")
    play.tell(ev.OperatorOrdered(at=play.now, order=ev.Order.CORDON, node="b"))
    play.apply(Workload("web", Service(1), needs(9, memory=99_999)))
    play.obey()
    assert workload(play).would_help == ("a node with 9 cpu, 99999 MiB",)


def test_raising_the_priority_as_advised_helps() -> None:
    play = played("a")
    play.apply(Workload("other", Service(1), needs(8), priority=3), Workload("web", Service(1), needs(8)))
    play.obey()
    assert "raise its priority above 3: other would give way" in workload(play).would_help
    play.reapply("web", priority=4)
    play.obey()
    assert play.running("web")


def test_raising_the_maximum_as_advised_helps() -> None:
    play = played("a")
    play.apply(Workload("other", Service(1), needs(8)), Workload("web", Service(1), needs(8)))
    play.obey()
    waits = [name for name in ("other", "web") if not play.running(name)]
    assert "raise max of pool pool from 1 to 2" in workload(play, waits[0]).would_help
    play.tell(ev.PoolApplied(at=play.now, pool=pool(max=2)))
    assert of(do.LaunchNode, play.settle())
    told = workload(play, waits[0])
    assert "pool pool has 1 node on the way: pool-1" in told.because
    assert not any("a node with" in text for text in told.would_help)


def test_a_pool_that_launches_nothing_says_what_to_join() -> None:
    play = played("a", can_launch=False)
    play.apply(Workload("web", Service(1), needs(16)))
    play.obey()
    told = workload(play)
    assert "pool pool launches no nodes: they join by themselves" in told.because
    assert "a node with 16 cpu, 512 MiB that joins pool pool" in told.would_help


def test_a_pool_without_a_fitting_offer_says_so() -> None:
    play = played(max=3)
    play.apply(Workload("web", Service(1), needs(16)))
    play.obey()
    told = workload(play)
    assert "pool pool has no offer for 16 cpu, 512 MiB" in told.because
    assert told.would_help == ("a node with 16 cpu, 512 MiB",)


@pytest.mark.parametrize("offers", [(), (offer(),)])
def test_a_pool_that_could_not_be_asked_is_not_said_to_have_no_offer(offers: tuple[Offer, ...]) -> None:
    """It was, beside the note that nobody could ask."""
    play = Play(offers=offers, max=3)
    play.apply(Workload("web", Service(1), needs(16)))
    play.obey()
    why = {"pool": "no credentials"}
    told = explain_workload(play.world, "web", play.now, unlisted=why)
    unknown = (
        "pool pool could not be asked what it offers: no credentials; whether it has something for"
        " 16 cpu, 512 MiB is not known"
    )
    assert unknown in told.because
    assert not any("no offer" in text or "join by themselves" in text for text in told.because)
    shown = explain_pool(play.world, "pool", play.now, unlisted=why)
    assert "it could not be asked what it offers: no credentials" in shown.because
    assert not any("join by themselves" in text for text in shown.because)


def test_what_a_pool_was_known_to_offer_before_it_could_not_be_asked_still_counts() -> None:
    play = played(max=0)
    play.apply(Workload("web", Service(1), needs(1)))
    play.obey()
    told = explain_workload(play.world, "web", play.now, unlisted={"pool": "no credentials"})
    assert any(text.startswith("pool pool has 0 of at most 0 nodes") for text in told.because)


def test_a_pool_that_backs_off_says_why_and_for_how_long() -> None:
    play = played(max=3)
    play.apply(Workload("web", Service(1), needs(1)))
    play.settle()
    (name,) = play.world.nodes
    play.tell(ev.ActionFailed(at=play.now, action="p", node=name, error="CapacityShort", why="out of stock"))
    play.settle()
    assert "pool pool asks again in 10 s: out of stock" in workload(play).because


def test_advice_is_for_the_seats_that_do_not_fit_yet() -> None:
    play = played("a")
    play.apply(Workload("web", Service(3), needs(3)))
    play.obey()
    told = workload(play)
    assert told.summary == "web: 2 of 3 ready"
    assert told.because[0].startswith("web/2: no room")
    assert "lower cpus from 3 to 2" in told.would_help


# ---- seats that wait for something else


def test_what_is_paused_says_how_to_go_on() -> None:
    play = played("a")
    play.apply(Workload("web", Service(1), paused=True))
    play.obey()
    told = workload(play)
    assert told == Explanation("web: 0 of 1 ready, paused", ("web is paused",), ("holdfast resume web",))


def test_what_waits_for_others_names_them() -> None:
    play = played("a")
    play.apply(
        Workload("job", Job()),
        Workload("db", Service(1), needs(99)),
        Workload("all", Sweep(3)),
        Workload("web", Service(1), after=("job", "db", "all", "gone")),
    )
    play.obey()
    assert workload(play).because == (
        "it starts when job is done",
        "it starts when db is ready",
        "it starts when all is done, of which 3 are not",
        "it waits for gone, which was deleted",
    )
    assert workload(play).would_help == ("apply gone again, or web without it",)


def test_what_waits_for_a_job_that_failed_says_so() -> None:
    play = played("a")
    play.apply(Workload("job", Job(), restart=Restart(limit=1)), Workload("web", Service(1), after=("job",)))
    play.obey()
    play.tell(ev.ReplicaEnded(at=play.now, replica="job/0.1", node="a", how=ev.Ended.FAILED, why="exit 1"))
    play.later(MINUTE)
    told = workload(play)
    assert told.because == ("it starts when job, which failed, is done",)
    assert told.would_help == ("holdfast logs job",)


def test_a_seat_that_backs_off_says_why_and_until_when() -> None:
    play = played("a")
    play.apply(Workload("web", Service(1), restart=Restart(backoff_ms=5_000)))
    play.obey()
    play.tell(
        ev.ReplicaEnded(at=play.now, replica="web/0.1", node="a", how=ev.Ended.FAILED, why="exit code 7")
    )
    told = workload(play)
    assert told.because == ("web/0: its program failed once (exit code 7): tried again in 5.0 s",)
    assert told.would_help == ("holdfast logs web",)


def test_a_seat_that_was_given_up_says_why() -> None:
    play = played("a")
    play.apply(Workload("web", Service(1), restart=Restart(limit=1)))
    play.obey()
    play.tell(ev.ReplicaEnded(at=play.now, replica="web/0.1", node="a", how=ev.Ended.FAILED, why="no config"))
    play.later(MINUTE)
    told = workload(play)
    assert told.summary == "web: 0 of 1 ready, 1 given up"
    assert "it was given up: its program failed 1 times in a row: no config" in said(told)
    seat = explain_replica(play.world, "web/0", play.now)
    assert seat.summary.startswith("web/0 is given up")
    assert "apply a program that is mended" in seat.would_help


def test_an_exclusive_seat_says_what_proof_it_waits_for() -> None:
    play = played("a", "b")
    play.apply(Workload("job", Job()))
    play.obey()
    home = play.replica("job/0.1").node
    play.judge(home, Level.DEAD)
    play.settle()
    (text,) = workload(play, "job").because
    assert text.startswith(
        f"job/0: job/0.1 on {home} may still run: it is surely gone when its lease is over, in"
    )
    assert "or when its provider confirms that the node is gone" in text


def test_an_exclusive_seat_says_that_its_old_copy_is_stopping() -> None:
    play = played("a", "b")
    play.apply(Workload("job", Job()))
    play.obey()
    play.reapply("job", version=2)
    play.settle()
    (text,) = workload(play, "job").because
    assert "is stopping, and is killed in 10 s" in text


def test_a_sweep_says_how_many_may_run() -> None:
    play = played("a")
    play.apply(Workload("many", Sweep(5, parallel=2)))
    play.obey()
    told = workload(play, "many")
    assert told.because == ("many/2, many/3, many/4: as many run as may at a time: 2",)
    assert told.would_help == ("holdfast scale many 3",)


def test_a_gang_says_how_many_members_it_needs_and_how_many_fit() -> None:
    play = played("a", "b")
    play.apply(Workload("gang", Training(3, 4), needs(4)))
    play.obey()
    told = workload(play, "gang")
    assert told.summary == "gang: 0 of 4 ready"
    assert "the gang starts with at least 3 members" in told.because[0]
    assert "no room: room for 2 of 4" in told.because[1]
    assert "raise max of pool pool from 2 to 3" in told.would_help


def test_a_gang_that_could_grow_says_when() -> None:
    play = played("a", "b")
    play.apply(Workload("gang", Training(1, 3), needs(4)))
    play.obey()
    told = workload(play, "gang")
    assert told.summary == "gang: 2 of 3 ready"
    assert "the gang runs with 2 of 1 to 3 members, and grows in 10.0 min" in told.because[0]


def test_a_gang_says_which_lost_member_it_waits_for() -> None:
    play = played("a", "b", "c")
    play.apply(Workload("gang", Training(3, 3), needs(4)))
    play.obey()
    play.judge("a", Level.DEAD)
    play.settle()
    told = workload(play, "gang")
    assert "the gang meets again when no lost member can run" in told.because[0]
    assert any("on a may still run" in text for text in told.because)


def test_seats_that_wait_for_the_same_are_told_together_and_counted() -> None:
    play = played("a")
    play.apply(Workload("web", Service(20), needs(8)))
    play.obey()
    first = workload(play).because[0]
    assert first.startswith("web/1, web/2,")
    assert "and 11 more: no room" in first


def test_what_is_under_way_is_told() -> None:
    play = played("a")
    play.apply(Workload("web", Service(1)))
    play.settle()
    play.now += 3 * SECOND
    assert workload(play).because == (
        "web/0.1 on a was given to its node 3.0 s ago and is not ready; another node is tried in 57 s",
    )


def test_what_is_as_wanted_needs_no_words() -> None:
    play = played("a", "b")
    play.apply(Workload("web", Service(2)))
    play.obey()
    assert workload(play) == Explanation("web: 2 of 2 ready")


def test_a_rolling_update_says_what_is_left() -> None:
    play = played("a", "b")
    play.apply(Workload("web", Service(2)))
    play.obey()
    play.reapply("web", version=2)
    assert "2 replicas of an older version, being replaced by version 2" in workload(play).because


def test_a_version_that_fits_nowhere_says_so_and_what_would_help() -> None:
    play = played("a", "b")
    play.apply(Workload("web", Service(2), needs(cpu=1)))
    play.obey()
    play.reapply("web", version=2, needs=needs(cpu=20))
    play.settle()
    told = workload(play)
    assert told.because[0] == "web/0: version 2 cannot take over from version 1"
    assert told.because[1].startswith("no room: 2 nodes: 2 have too little cpu free (largest 8, 20 needed)")
    assert "lower cpus from 20 to 8" in told.would_help


def test_a_version_that_fails_says_so_though_the_old_one_serves() -> None:
    play = played("a", "b")
    play.apply(Workload("web", Service(2), needs(cpu=1)))
    play.obey()
    play.reapply("web", version=2)
    play.settle()
    play.end("web/0.2", ev.Ended.FAILED)
    play.settle()
    assert (
        workload(play)
        .because[0]
        .startswith("web/0: version 2 cannot take over from version 1: its program failed once")
    )


def test_a_workload_on_its_way_out_is_told_as_such() -> None:
    play = played("a")
    play.apply(Workload("web", Service(1)))
    play.obey()
    play.tell(ev.WorkloadDeleted(at=play.now, workload="web"))
    play.settle()
    told = workload(play)
    assert told.summary == "web was deleted and is on its way out"
    assert "is stopping" in said(told)


# ---- replicas


def test_a_replica_is_told_by_its_state() -> None:
    play = played("a")
    play.apply(Workload("web", Service(1)))
    play.obey()
    play.now += MINUTE
    told = explain_replica(play.world, "web/0.1", play.now)
    assert told == Explanation("web/0.1 on a has been ready for 60 s")
    assert explain_replica(play.world, "web/0", play.now).summary == told.summary


def test_a_replica_on_a_node_in_doubt_points_there() -> None:
    play = played("a")
    play.apply(Workload("web", Service(1)))
    play.obey()
    play.judge("a", Level.SUSPECT)
    told = explain_replica(play.world, "web/0.1", play.now)
    assert told.because == ("a is suspect: for the play",)
    assert told.would_help == ("holdfast explain node a",)


def test_an_empty_seat_is_told_with_how_long_it_has_been_so() -> None:
    play = played("a")
    play.apply(Workload("web", Service(1), needs(16)))
    play.settle()
    play.now += 3 * SECOND
    told = explain_replica(play.world, "web/0", play.now)
    assert told.summary == "web/0 is empty, down for 3.0 s"
    assert told.because[0].startswith("no room")
    assert told.would_help


def test_a_seat_that_is_done_says_so() -> None:
    play = played("a")
    play.apply(Workload("job", Job()))
    play.obey()
    play.end("job/0.1", ev.Ended.DONE)
    assert explain_replica(play.world, "job/0", play.now).summary == "job/0 is done"
    assert workload(play, "job").summary == "job: 0 of 1 ready, 1 done"


def test_a_lost_service_replica_may_serve_on() -> None:
    play = played("a")
    play.apply(Workload("web", Service(1)))
    play.obey()
    play.judge("a", Level.DEAD)
    told = explain_replica(play.world, "web/0.1", play.now)
    assert told.summary == "web/0.1 on a was lost and may serve on until its node is back"


# ---- what nobody knows


def test_unknown_names_are_key_errors() -> None:
    world = played("a").world
    with pytest.raises(KeyError):
        explain_node(world, None, "nobody", 0)
    with pytest.raises(KeyError):
        explain_pool(world, "nobody", 0)
    with pytest.raises(KeyError):
        explain_workload(world, "nobody", 0)
    with pytest.raises(KeyError):
        explain_replica(world, "nobody/0", 0)


def test_the_plays_here_have_the_sizes_they_count_on() -> None:
    assert resources(8, 32_768) == BIG
    assert Policy().leases.lease_ms == 30 * SECOND
    assert Place("prov", "here", "a", "a1") == offer().place


@pytest.mark.parametrize("limits", list(LimitedBy))
def test_a_node_says_what_keeps_its_replicas_to_what_they_asked_for(limits: LimitedBy) -> None:
    play = Play(can_launch=False)
    play.join("a", limits=limits)
    play.apply(Workload("web", Service(1), needs(cpu=1)))
    play.obey()
    told = explain_node(play.world, None, "a", play.now, {"web/0.1": (3_900, 10)}).because
    assert [line for line in told if line.startswith(f"limits: {limits}: ")]
    assert ("web/0.1 uses 3.9 cpus and asked for 1" in told) is (limits is not LimitedBy.CGROUP)
    calm = explain_node(play.world, None, "a", play.now, {"web/0.1": (1_100, 10)}).because
    assert not [line for line in calm if "asked for" in line]
