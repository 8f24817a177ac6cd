"""Keys, limits and budgets of the gateways: what the world knows of them, and for how long."""

import pytest
from msgspec.structs import replace

from holdfast.core import check
from holdfast.core.gateway.quota.broker import Ask
from holdfast.core.gateway.quota.leader_broker import Lender
from holdfast.core.gateway.quota.lent import Part
from holdfast.core.state import fold
from holdfast.core.state.snapshot import dump, load
from holdfast.model import event as ev
from holdfast.model.gateway import Grade, Key, Limits, Tranche
from holdfast.model.workload import Serves, Service, Workload
from holdfast.model.world import World

KEY = Key("k1", b"hash", team="a", limits=Limits(tokens_total=1_000))


def world_after(*events: ev.Event) -> World:
    world = World()
    for event in events:
        fold.observe(world, event)
    return world


def test_a_key_is_known_until_it_is_deleted() -> None:
    world = world_after(ev.KeyPut(at=1, key=KEY))
    assert world.keys == {"k1": KEY}
    fold.observe(world, ev.KeyPut(at=2, key=replace(KEY, suspended="x")))
    assert world.keys["k1"].suspended == "x"
    fold.observe(world, ev.KeyDeleted(at=3, key="k1"))
    assert world.keys == {}


def test_a_deleted_key_takes_its_budget_and_its_limits_for_models_along_and_nobody_elses() -> None:
    world = world_after(
        ev.KeyPut(at=1, key=KEY),
        ev.KeyPut(at=1, key=replace(KEY, id="k11")),
        ev.LimitsSet(at=1, scope="key:k1/model:m", limits=Limits(concurrent=1)),
        ev.LimitsSet(at=1, scope="key:k11/model:m", limits=Limits(concurrent=1)),
        ev.BudgetDrawn(at=1, drawn={"key:k1": 5, "key:k1/model:m": 5, "key:k11": 6, "team:a": 7}),
        ev.KeyDeleted(at=2, key="k1"),
    )
    assert list(world.limits) == ["key:k11/model:m"]
    assert world.drawn == {"key:k11": 6, "team:a": 7}
    assert check.inconsistencies(world) == []


def test_what_is_drawn_of_a_key_that_is_gone_is_not_noted() -> None:
    world = world_after(ev.BudgetDrawn(at=1, drawn={"key:k1": 5, "global": 3}))
    assert world.drawn == {"global": 3}


def test_a_budget_drawn_of_a_key_that_is_gone_would_be_seen() -> None:
    world = World()
    world.drawn = {"key:gone/model:m": 1, "team:gone": 2}
    assert check.inconsistencies(world) == ["a budget is drawn of key:gone/model:m, a key that is gone"]


def test_limits_without_a_limit_are_none() -> None:
    world = world_after(ev.LimitsSet(at=1, scope="global", limits=Limits(concurrent=1)))
    assert world.limits == {"global": Limits(concurrent=1)}
    fold.observe(world, ev.LimitsSet(at=1, scope="global", limits=Limits()))
    assert world.limits == {}


def test_a_change_makes_a_new_table_and_anything_else_leaves_it() -> None:
    world = world_after(ev.KeyPut(at=1, key=KEY))
    keys, limits = world.keys, world.limits
    fold.observe(world, ev.BudgetDrawn(at=1, drawn={"key:k1": 5}))
    assert world.keys is keys
    assert world.limits is limits
    fold.observe(world, ev.KeyPut(at=2, key=KEY))
    assert world.keys is not keys
    fold.observe(world, ev.LimitsSet(at=1, scope="global", limits=Limits(concurrent=1)))
    assert world.limits is not limits


def test_a_snapshot_keeps_keys_limits_and_budgets() -> None:
    world = world_after(
        ev.KeyPut(at=1, key=KEY),
        ev.LimitsSet(at=1, scope="global", limits=Limits(concurrent=1)),
        ev.BudgetDrawn(at=1, drawn={"key:k1": 5}),
    )
    again = load(dump(world))
    assert (again.keys, again.limits, again.drawn) == (world.keys, world.limits, world.drawn)


def test_a_service_that_answers_at_the_gateways_is_in_the_index_until_it_does_not() -> None:
    serving = Workload("web", Service(1, serves=Serves()))
    world = world_after(ev.WorkloadApplied(at=1, workload=serving))
    assert list(world.fronted) == ["web"]
    fold.observe(world, ev.WorkloadApplied(at=2, workload=replace(serving, shape=Service(1))))
    assert list(world.fronted) == []
    fold.observe(world, ev.WorkloadApplied(at=2, workload=serving))
    fold.observe(world, ev.WorkloadDeleted(at=3, workload="web"))
    assert list(world.fronted) == []


# limits a minute, from leader to leader

LIMITED = Key("k1", b"hash", limits=Limits(requests_per_min=60))
LENT = {"requests|key:k1": Tranche(40.0, 15.0, 5.0), "tokens|global": Tranche(900.0, 250.0, 0.0)}


def lent(term: int = 1) -> World:
    """A leader that writes down what it lends."""
    return world_after(
        ev.KeyPut(at=1, key=LIMITED),
        ev.LimitsSet(at=1, scope="global", limits=Limits(tokens_per_min=1_000)),
        ev.LeaderChanged(at=1, leader="a", generation=1),
        ev.BudgetDrawn(at=1, drawn={}, tranches=LENT, term=term),
    )


def lends(world: World, generation: int, name: str, wants: float) -> float:
    """How much of it whoever leads next lends in its first second."""
    lender = Lender(world, 1_000.0, generation)
    return lender.ask(Ask("h", 1, "", False, {name: Part(0.0, wants)}), 1_000.5).grants[name].amount


def test_who_leads_next_lends_at_once_what_is_surely_left() -> None:
    world = lent()
    assert lends(world, 2, "requests|key:k1", 25) == 25
    assert lends(world, 2, "requests|key:k1", 27) == 0
    assert lends(world, 2, "tokens|global", 650) == 650
    fold.observe(world, ev.BudgetDrawn(at=2, drawn={}, full=("tokens|global",), term=1))
    assert lends(world, 2, "tokens|global", 1_000) == 1_000, "nothing is written of what is full"
    assert load(dump(world)).tranches == world.tranches == {"requests|key:k1": LENT["requests|key:k1"]}


def test_who_leads_after_one_that_wrote_nothing_down_begins_with_empty_limits() -> None:
    for world in (lent(term=0), lent()):
        fold.observe(world, ev.LeaderChanged(at=2, leader="older", generation=2))
        fold.observe(world, ev.LeaderChanged(at=3, leader="b", generation=3))
        assert (world.tranches, lends(world, 3, "tokens|global", 10)) == ({}, 0)
    assert lends(lent(term=0), 2, "tokens|global", 10) == 0


def test_a_term_that_lent_nothing_passes_on_what_was_written_before_it() -> None:
    world = lent()
    fold.observe(world, ev.LeaderChanged(at=2, leader="b", generation=2))
    fold.observe(world, ev.BudgetDrawn(at=2, drawn={}, term=2))
    fold.observe(world, ev.LeaderChanged(at=3, leader="c", generation=3))
    assert lends(world, 3, "tokens|global", 650) == 650


def test_one_that_begins_with_empty_limits_writes_that_down() -> None:
    """Whoever came after it would have taken them for full."""
    world = lent(term=0)
    lender = Lender(world, 0.0, 2)
    fold.observe(world, ev.LeaderChanged(at=2, leader="b", generation=2))
    line = lender.begins(0.1, 2)
    assert line is not None
    fold.observe(world, line)
    assert lender.begins(0.2, 2) is None
    assert lends(world, 3, "tokens|global", 30) == 0


@pytest.mark.parametrize(
    ("change", "scope"),
    [
        (ev.LimitsSet(at=2, scope="global", limits=Limits(tokens_per_min=9_000)), "global"),
        (ev.KeyPut(at=2, key=replace(LIMITED, limits=Limits(requests_per_min=600))), "key:k1"),
        (ev.KeyPut(at=2, key=replace(LIMITED, grade=Grade.CLAMP)), "key:k1"),
    ],
)
def test_a_limit_that_changed_counts_as_used_up_until_it_is_written_again(
    change: ev.Event, scope: str
) -> None:
    world = lent()
    fold.observe(world, change)
    for kind in ("tokens", "requests"):
        name = f"{kind}|{scope}"
        assert world.tranches[name] == LENT.get(name, Tranche()).used_up()
        assert (world.tranches[name].level, world.tranches[name].credit) == (0.0, 0.0)


def test_what_is_out_of_a_limit_that_changed_may_still_be_used() -> None:
    """A holder whose lease was renewed spends it beside what the next leader lends."""
    assert Tranche(40.0, 25.0, 10.0).used_up() == Tranche(0.0, 0.0, 35.0)
    assert Tranche(-5.0, 0.0, 0.0).used_up() == Tranche(-5.0, 0.0, 0.0)


def test_what_is_lent_of_a_key_that_is_gone_is_forgotten() -> None:
    world = lent()
    fold.observe(world, ev.KeyDeleted(at=2, key="k1"))
    fold.observe(world, ev.BudgetDrawn(at=2, drawn={}, tranches=LENT, term=1))
    assert list(world.tranches) == ["tokens|global"]
