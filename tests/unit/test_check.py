"""Every invariant can fail: a plan that breaks it is refused with its sentence, and the rest is kept.

And the world is checked against itself: each kind of damage to an index is found.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core import check
from holdfast.core.check import Invariant, examine, inconsistencies, sentence
from holdfast.core.market import offers
from holdfast.core.state import fold
from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.action import Proof
from holdfast.model.finding import Finding, Severity
from holdfast.model.money import Budget
from holdfast.model.place import Place
from holdfast.model.plan import Plan
from holdfast.model.project import Project
from holdfast.model.replica import Replica, Role, State
from holdfast.model.units import HOUR, MINUTE
from holdfast.model.verdict import Level
from holdfast.model.workload import Job, Service, Spread, Training, Workload
from holdfast.model.world import World
from tests.build import needs, resources
from tests.play import BIG, Play, offer

HARMLESS = do.ListPool(pool="pool", why="harmless")


@dataclass
class Case:
    play: Play
    broken: do.Action
    allowed: do.Action


def fleet(**rules: Any) -> Play:
    """Four nodes in four zones. `web` serves on one of them, `job` runs on another, the rest is empty."""
    play = Play(idle_ms=1_000 * HOUR, offers=(offer(capacity=BIG),), **rules)
    for name in "abcd":
        play.join(name, zone=name)
    play.later(MINUTE)
    play.apply(Workload("web", Service(1), needs(cpu=6)))
    play.obey()
    play.apply(Workload("job", Job(), needs(cpu=6)))
    play.obey()
    assert (play.running("web"), play.running("job")) == ({"web/0.1": "a"}, {"job/0.1": "b"})
    return play


def place(slot: str, node: str = "c", *, epoch: int = 2, cpu: int = 1, **more: Any) -> do.PlaceReplica:
    fields: dict[str, Any] = {
        "replica": f"{slot}.{epoch}",
        "role": Role.ACTIVE,
        "needs": resources(cpu=cpu),
        "exclusive": slot.startswith("job"),
        "why": "for the test",
    }
    return do.PlaceReplica(slot=slot, node=node, epoch=epoch, **{**fields, **more})


def launch(node: str, name: str = "pool") -> do.LaunchNode:
    there = Place("prov", "here", "a", "a1")
    return do.LaunchNode(
        node=node, pool=name, offer="std", place=there, capacity=BIG, price_micro_usd=1, spot=False, why=""
    )


def an_unknown_replica() -> Case:
    stop = do.StopReplica(replica="web/0.9", deadline=0, why="")
    return Case(fleet(), stop, replace(stop, replica="web/0.1"))


def a_seat_that_may_still_be_taken() -> Case:
    play = fleet()
    play.judge("b", Level.DEAD)
    play.settle()
    return Case(play, place("job/0"), place("web/0"))


def gang() -> Play:
    play = fleet()
    play.apply(Workload("gang", Training(2, 2), needs(cpu=1)))
    play.obey()
    return play


def a_lost_member() -> Case:
    play = gang()
    kept, lost = play.running("gang")
    play.judge(play.replica(lost).node, Level.DEAD)
    regroup = do.RegroupGang(workload="gang", generation=2, members=(kept,), why="")
    return Case(play, regroup, replace(regroup, members=(kept, lost)))


def a_member_left_behind() -> Case:
    play = gang()
    kept, other = play.running("gang")
    regroup = do.RegroupGang(workload="gang", generation=2, members=(kept,), why="")
    return Case(play, regroup, replace(regroup, members=(kept, other)))


def an_old_epoch() -> Case:
    return Case(fleet(), place("web/0", epoch=1, replica="new"), place("web/0", epoch=2))


def a_replica_that_is_there() -> Case:
    return Case(fleet(), place("web/0", replica="web/0.1"), place("web/0"))


def a_closed_node() -> Case:
    play = fleet()
    play.tell(ev.OperatorOrdered(at=play.now, order=ev.Order.CORDON, node="c"))
    return Case(play, place("web/0", "c"), place("web/0", "d"))


def a_full_node() -> Case:
    return Case(fleet(), place("web/0", "b", cpu=3), place("web/0", "b", cpu=2))


def two_in_one_zone() -> Case:
    play = fleet()
    play.join("a2", zone="a")
    play.reapply("web", shape=Service(2), needs=needs(cpu=1, spread=Spread.REQUIRE))
    play.settle()
    play.end("web/1.1")
    return Case(play, place("web/1", "a2"), place("web/1", "d"))


def more_than_its_project_may_have() -> Case:
    play = fleet()
    play.apply(Workload("web", Service(2), needs(cpu=6), version=1))
    play.settle()
    play.tell(ev.ProjectApplied(at=play.now, project=Project("default", cpu_milli=19_000)))
    play.tell(ev.ReplicaEnded(at=play.now, replica="web/1.1", node="c", how=ev.Ended.STOPPED))
    return Case(play, place("web/1", "d", cpu=8), place("web/1", "d", cpu=7))


def a_lease_that_still_runs() -> Case:
    """`a` fell silent long ago, `b` only now."""
    play = fleet()
    play.judge("a", Level.DEAD)
    play.now += 10 * MINUTE
    play.join("b", running=("job/0.1",))
    play.judge("b", Level.DEAD)
    early = do.DeclareGone(replica="job/0.1", proof=Proof.LEASE_OVER, why="")
    return Case(play, early, replace(early, replica="web/0.1"))


def a_braked_node() -> Case:
    play = fleet()
    play.join(*"efghijkl", zone="z")
    play.settle()
    for name in "efghijkl":
        play.judge(name, Level.SUSPECT)
    play.settle()
    assert "fleet" in play.world.brakes
    drain = do.DrainNode(node="c", deadline=play.now + MINUTE, why="")
    return Case(play, drain, do.CordonNode(node="c", why=""))


def a_node_at_work() -> Case:
    return Case(fleet(), do.TerminateNode(node="a", why=""), do.TerminateNode(node="c", why=""))


def half_of_a_pool() -> Case:
    play = fleet(can_reset=False, can_terminate=False)
    fold.accept(play.world, Plan(9, play.now, tuple(do.QuarantineNode(node=n, why="") for n in "cd")))
    more = fleet(can_reset=False, can_terminate=False)
    assert examine(more.world, Plan(9, more.now, (do.QuarantineNode(node="d", why=""),)))[1] == []
    return Case(play, do.QuarantineNode(node="b", why=""), do.QuarantineNode(node="d", why=""))


def a_full_pool() -> Case:
    play = fleet(max=4)
    play.tell(ev.PoolApplied(at=play.now, pool=replace(play.world.pools["pool"], name="other", max=1)))
    return Case(play, launch("x"), launch("x", "other"))


def a_dear_offer() -> Case:
    return Case(fleet(price_max_micro_usd=5), replace(launch("x"), price_micro_usd=6), launch("x"))


def a_spent_budget() -> Case:
    """Four nodes at 100 each an hour are there."""
    play = fleet(budget=Budget(hour_micro_usd=405))
    return Case(play, replace(launch("x"), price_micro_usd=6), replace(launch("x"), price_micro_usd=5))


def a_node_twice() -> Case:
    return Case(fleet(), launch("c"), launch("x"))


def a_taken_seat() -> Case:
    play = fleet()
    play.apply(Workload("done", Job(), needs(cpu=1)))
    play.obey()
    play.end("done/0.1", ev.Ended.DONE)
    return Case(play, do.RemoveSlot(slot="web/0", why=""), do.RemoveSlot(slot="done/0", why=""))


def a_pool_with_nodes() -> Case:
    play = fleet()
    play.tell(ev.PoolApplied(at=play.now, pool=replace(play.world.pools["pool"], name="other")))
    play.tell(*(ev.PoolDeleted(at=play.now, pool=name) for name in ("pool", "other")))
    return Case(play, do.ForgetPool(pool="pool", why=""), do.ForgetPool(pool="other", why=""))


CASES: dict[Invariant, Callable[[], Case]] = {
    check.what_is_acted_on_is_known: an_unknown_replica,
    check.an_exclusive_seat_is_filled_only_when_nothing_else_can_run_in_it: a_seat_that_may_still_be_taken,
    check.a_gang_meets_again_only_when_no_lost_member_can_run: a_lost_member,
    check.no_member_is_left_in_an_older_generation: a_member_left_behind,
    check.an_epoch_only_rises: an_old_epoch,
    check.a_replica_is_placed_once: a_replica_that_is_there,
    check.work_goes_only_to_nodes_that_are_open: a_closed_node,
    check.no_node_is_given_more_than_it_has: a_full_node,
    check.required_spread_is_kept: two_in_one_zone,
    check.a_project_stays_within_its_quota: more_than_its_project_may_have,
    check.a_replica_is_declared_gone_only_with_proof: a_lease_that_still_runs,
    check.nothing_disruptive_happens_under_a_brake: a_braked_node,
    check.no_healthy_node_is_terminated_while_it_works: a_node_at_work,
    check.at_most_half_of_a_pool_is_in_quarantine: half_of_a_pool,
    check.a_pool_never_exceeds_its_maximum: a_full_pool,
    check.no_launch_is_dearer_than_its_pool_may_pay: a_dear_offer,
    check.no_launch_goes_over_a_budget: a_spent_budget,
    check.a_node_id_is_used_once: a_node_twice,
    check.a_seat_that_may_hold_a_copy_is_not_removed: a_taken_seat,
    check.a_pool_is_forgotten_only_when_it_was_deleted_and_is_empty: a_pool_with_nodes,
}


def test_every_invariant_has_a_case_here() -> None:
    assert set(CASES) == set(check.INVARIANTS)


@pytest.mark.parametrize("invariant", CASES, ids=lambda invariant: invariant.__name__)
def test_a_plan_that_breaks_it_is_refused_and_the_rest_is_kept(invariant: Invariant) -> None:
    case = CASES[invariant]()
    plan, refused = examine(case.play.world, Plan(9, case.play.now, (HARMLESS, case.broken, HARMLESS)))
    assert [(refusal.action, refusal.invariant) for refusal in refused] == [
        (case.broken, sentence(invariant))
    ]
    assert plan == Plan(9, case.play.now, (HARMLESS, HARMLESS))


@pytest.mark.parametrize("invariant", CASES, ids=lambda invariant: invariant.__name__)
def test_the_nearest_plan_that_keeps_it_is_allowed(invariant: Invariant) -> None:
    case = CASES[invariant]()
    plan = Plan(9, case.play.now, (case.allowed,))
    assert examine(case.play.world, plan) == (plan, [])


def test_a_sentence_can_be_read() -> None:
    assert sentence(check.a_node_id_is_used_once) == "a node id is used once"


def test_examining_a_plan_changes_nothing() -> None:
    play = fleet()
    free = play.world.room.cpu.tolist()
    examine(play.world, Plan(9, play.now, (place("web/0"), do.TerminateNode(node="d", why=""))))
    assert play.world.room.cpu.tolist() == free
    assert inconsistencies(play.world) == []


# what earlier actions of the same plan did


ADD = do.AddSlot(slot="web/1", workload="web", index=1, role=Role.ACTIVE, why="")
TWICE: list[tuple[Invariant, tuple[do.Action, do.Action]]] = [
    (check.what_is_acted_on_is_known, (ADD, ADD)),
    (check.an_epoch_only_rises, (place("web/0", "c"), place("web/0", "d"))),
    (check.work_goes_only_to_nodes_that_are_open, (do.CordonNode(node="c", why=""), place("web/0", "c"))),
    (
        check.work_goes_only_to_nodes_that_are_open,
        (do.DrainNode(node="c", deadline=1 << 60, why=""), place("web/0", "c")),
    ),
    (check.work_goes_only_to_nodes_that_are_open, (do.TerminateNode(node="c", why=""), place("web/0", "c"))),
    (
        check.no_node_is_given_more_than_it_has,
        (place("web/0", "c", cpu=5), place("web/0", "c", cpu=5, epoch=3)),
    ),
    (check.a_node_id_is_used_once, (launch("x"), launch("x"))),
]


@pytest.mark.parametrize(("invariant", "actions"), TWICE)
def test_what_the_same_plan_did_before_counts(
    invariant: Invariant, actions: tuple[do.Action, do.Action]
) -> None:
    play = fleet()
    assert examine(play.world, Plan(9, play.now, actions[:1]))[1] == [], "the first is fine by itself"
    _, refused = examine(play.world, Plan(9, play.now, actions))
    assert [(refusal.action, refusal.invariant) for refusal in refused] == [(actions[1], sentence(invariant))]


def test_the_maximum_counts_the_launches_of_the_same_plan() -> None:
    play = fleet(max=6)
    plan, refused = examine(play.world, Plan(9, play.now, (launch("x"), launch("y"), launch("z"))))
    assert plan.actions == (launch("x"), launch("y"))
    assert len(refused) == 1


def test_an_exclusive_seat_is_filled_once_in_a_plan() -> None:
    play = fleet()
    play.end("job/0.1")
    first, second = place("job/0", "c"), place("job/0", "d", epoch=3)
    plan, _ = examine(play.world, Plan(9, play.now, (first, second)))
    assert plan.actions == (first,)


def test_a_proof_in_the_same_plan_frees_the_seat_and_the_room() -> None:
    play = fleet(can_terminate=False)
    play.judge("b", Level.DEAD)
    play.now += HOUR
    gone = do.DeclareGone(replica="job/0.1", proof=Proof.LEASE_OVER, why="")
    plan = Plan(9, play.now, (gone, place("job/0", "c")))
    assert examine(play.world, plan) == (plan, [])


def test_copies_placed_by_the_same_plan_must_be_apart_too() -> None:
    play = fleet()
    play.join("c2", zone="c")
    play.apply(Workload("apart", Service(2), needs(cpu=1, spread=Spread.REQUIRE), paused=True))
    play.settle()
    adds = [
        do.AddSlot(slot=f"apart/{number}", workload="apart", index=number, role=Role.ACTIVE, why="")
        for number in range(2)
    ]
    fold.accept(play.world, Plan(play.world.plans + 1, play.now, tuple(adds)))
    first, second = place("apart/0", "c", epoch=1), place("apart/1", "c2", epoch=1)
    plan, refused = examine(play.world, Plan(9, play.now, (first, second)))
    assert plan.actions == (first,)
    assert [refusal.invariant for refusal in refused] == [sentence(check.required_spread_is_kept)]


STRANGERS: list[do.Action] = [
    do.AskPeers(node="nobody", peers=(), why=""),
    do.AskProvider(node="nobody", why=""),
    do.ListPool(pool="nothing", why=""),
    launch("x", "nothing"),
    do.TerminateNode(node="nobody", why=""),
    do.WatchNode(node="nobody", why=""),
    do.CordonNode(node="nobody", why=""),
    do.UncordonNode(node="nobody", why=""),
    do.DrainNode(node="nobody", deadline=1, why=""),
    do.ResetNode(node="nobody", why=""),
    do.QuarantineNode(node="nobody", why=""),
    do.RaiseFinding(finding=Finding("f", "nobody", Severity.WATCH, 1.0, "", 1), why=""),
    place("no/0"),
    place("web/0", "nobody"),
    do.StopReplica(replica="no/0.1", deadline=1, why=""),
    do.PromoteStandby(replica="no/0.1", slot="web/0", epoch=9, why=""),
    do.RegroupGang(workload="no", generation=1, members=("no/0.1",), why=""),
    do.DeclareGone(replica="no/0.1", proof=Proof.NODE_GONE, why=""),
    do.CloseSlot(slot="no/0", why=""),
    do.RemoveSlot(slot="no/0", why=""),
    do.GiveUpSlot(slot="no/0", why=""),
]


@pytest.mark.parametrize("action", STRANGERS, ids=lambda action: type(action).__name__)
def test_an_action_on_what_nobody_knows_is_refused_or_harmless(action: do.Action) -> None:
    play = fleet()
    plan, _ = examine(play.world, Plan(play.world.plans + 1, play.now, (action,)))
    fold.accept(play.world, plan)
    assert inconsistencies(play.world) == []


# the world against itself


def replica_of(world: World, workload: str) -> Replica:
    return next(r for r in world.replicas.values() if r.workload == workload)


def exclusive_twice(world: World) -> None:
    job = replica_of(world, "job")
    twin = replace(job, id="job/0.0", node="d")
    world.replicas[twin.id] = twin
    world.on_node["d"][twin.id] = world.of_slot[twin.slot][twin.id] = None
    world.room.take(world.room.row["d"], twin.needs, twin.devices)


def over_committed(world: World) -> None:
    web = replica_of(world, "web")
    world.replicas[web.id] = replace(web, needs=resources(cpu=9))
    world.room.cpu[world.room.row["a"]] = -1_000


DAMAGE: dict[str, Callable[[World], object]] = {
    "on_node": lambda w: w.on_node["a"].pop("web/0.1"),
    "on_node: a ghost": lambda w: w.on_node["c"].update({"ghost": None}),
    "of_slot": lambda w: w.of_slot["web/0"].pop("web/0.1"),
    "of_slot: a ghost": lambda w: w.of_slot["web/0"].update({"ghost": None}),
    "of_workload": lambda w: w.of_workload["web"].pop("web/0"),
    "in_pool": lambda w: w.in_pool["pool"].pop("a"),
    "in_pool: a ghost": lambda w: w.in_pool["pool"].update({"ghost": None}),
    "after": lambda w: w.after["job"].pop("late"),
    "waiting: one too many": lambda w: w.waiting["web"].update({"web/0": None}),
    "waiting: one too few": lambda w: w.waiting["many"].clear(),
    "held: one too many": lambda w: w.held.update(many={"many/0": None}),
    "held: one too few": lambda w: w.held["web"].clear(),
    "undone": lambda w: w.undone["web"].clear(),
    "warm": lambda w: w.warm.update(web={"web/0.1": None}),
    "closed": lambda w: w.closed.update(web={"web/0": None}),
    "numbered": lambda w: w.numbered.update({"web/": (1, 5)}),
    "lost: one too many": lambda w: w.lost.update({"web/0.1": None}),
    "lost: one too few": lambda w: w.replicas.update(
        {"web/0.1": replace(w.replicas["web/0.1"], state=State.LOST)}
    ),
    "stopping": lambda w: w.stopping.update({"web/0.1": None}),
    "outdated": lambda w: w.outdated.update({"web/0.1": None}),
    "promised": lambda w: w.promised.update(web=None),
    "mixed": lambda w: w.mixed.update(web=None),
    "scaled": lambda w: w.scaled.update(web=None),
    "struck": lambda w: w.struck.update(web={"web/0": None}),
    "of_priority": lambda w: w.of_priority[0].pop("web"),
    "market: a ghost": lambda w: offers.listed(w).row.update(ghost=0),
    "market: a record": lambda w: offers.listed(w).ints["retry_at"].__setitem__(0, 1),
    "fronted": lambda w: w.fronted.update(web=None),
    "cordoned": lambda w: w.cordoned.update(a=None),
    "dead_in": lambda w: w.dead_in.update({"prov/here/a": 1}),
    "serving": lambda w: w.serving.update(pool=(99, 0)),
    "draining": lambda w: w.draining.update({"a": None}),
    "doubtful": lambda w: w.doubtful.update({"a": None}),
    "kept": lambda w: w.kept.update({"a": None}),
    "joined": lambda w: setattr(w, "joined", w.joined + 1),
    "joined_in": lambda w: w.joined_in.update({"prov/here/a": 7}),
    "epoch": lambda w: w.slots.update({"web/0": replace(w.slots["web/0"], epoch=0)}),
    "exclusive": exclusive_twice,
    "room: over-committed": over_committed,
    "room: cpu": lambda w: w.room.take(w.room.row["c"], resources(cpu=1), ()),
    "room: memory": lambda w: w.room.take(w.room.row["c"], resources(cpu=0, memory=1), ()),
    "room: gpus": lambda w: w.room.take(w.room.row["g"], resources(cpu=0, memory=0, gpu=1), (0,)),
    "room: open": lambda w: w.room.open.__setitem__(w.room.row["c"], False),
    "room: a ghost": lambda w: w.nodes.pop("c"),
}


# What the world holds that is derived from nothing else; and the agenda, which is not an index of entries.
NOT_INDEXES = {
    *(
        "policy",
        "leader",
        "plans",
        "nodes",
        "pools",
        "pool_states",
        "outcomes",
        "behind_at",
        "projects",
        "project_of",
        "epoch_least",
        "workloads",
        "slots",
        "replicas",
        "gangs",
        "keys",
        "limits",
        "drawn",
    ),
    *("findings", "brakes", "brake_released_at", "epoch_floor", "launched", "orphans", "agenda"),
    *("zones", "lease_before", "offers", "accounts", "records", "losses", "demands", "starts"),
    *("courses", "versions", "tranches", "tranches_of"),
}


def test_every_index_has_a_case_here() -> None:
    assert {kind.partition(":")[0] for kind in DAMAGE} >= set(vars(World())) - NOT_INDEXES


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_to_an_index_is_found(kind: str) -> None:
    play = fleet(max=5, can_launch=False)
    play.join("g", zone="g", capacity=resources(cpu=1, gpu=2, kind="h100"))
    play.apply(Workload("late", Service(1), needs(cpu=1), after=("job",)))
    play.apply(Workload("many", Service(2), needs(cpu=9)))
    play.settle()
    assert inconsistencies(play.world) == []
    DAMAGE[kind](play.world)
    assert inconsistencies(play.world) != []


def test_a_member_that_the_same_plan_declares_gone_is_not_left_behind() -> None:
    """Its node is only unreachable, and its lease is over: the world still counts it as running."""
    play = gang()
    kept, lost = play.running("gang")
    regroup = do.RegroupGang(workload="gang", generation=2, members=(kept,), why="")
    trial = check.Trial(play.world, play.now)
    assert not check.no_member_is_left_in_an_older_generation(trial, regroup)
    trial.note(do.DeclareGone(replica=lost, proof=do.Proof.LEASE_OVER, why=""))
    assert check.no_member_is_left_in_an_older_generation(trial, regroup)
