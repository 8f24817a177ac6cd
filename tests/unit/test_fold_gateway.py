"""Keys, limits and budgets of the gateways: what the world knows of them, and for how long."""

from msgspec.structs import replace

from holdfast.core import check, fold
from holdfast.core.snapshot import dump, load
from holdfast.model import event as ev
from holdfast.model.gateway import Key, Limits
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
