"""Limits and books against what providers really have: every bug planted here is told, and what is no bug
is not."""

from typing import Any

import pytest

from holdfast.core import check
from holdfast.core import decide as deciding
from holdfast.core.cost import budgets
from holdfast.core.provisioning import pools
from holdfast.core.scaling import demand
from holdfast.core.scaling.replica_count import Size
from holdfast.core.state import accounts, fold_pools
from holdfast.core.workloads import slots
from holdfast.files.scenario.scenario_file import from_tables
from holdfast.model.units import HOUR, NEVER
from holdfast.sim.result import Result
from holdfast.sim.run import Simulation

POOL: dict[str, Any] = {"name": "std", "nodes": 2, "max": 8, "zones": ["a", "b"], "price": 0.5}
WEB: dict[str, Any] = {"name": "web", "replicas": 6, "cpus": 6, "memory": "8GiB", "applied_at": "1m"}
SCALE: dict[str, Any] = {"min": 1, "max": 6, "per_replica": {"in_flight": 4}}


def tell(pool: dict[str, Any], web: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    workloads = [{**WEB, **(web or {})}]
    return {"lasts": "20m", "settle": "5m", "pools": [{**POOL, **pool}], "workloads": workloads, **more}


def run(story: dict[str, Any]) -> tuple[Result, Simulation]:
    sim = Simulation(from_tables(story, "story.toml"), history=False)
    return sim.run(), sim


def violations(story: dict[str, Any]) -> str:
    return "\n".join(run(story)[0].violations)


def no_invariants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "INVARIANTS", ())


BUDGET = tell({"budget": {"hour": 2}})
CEILING = tell({"price_max": 0.3})
MONTH = tell({"budget": {"month": 0.4}, "min": 0}, {"replicas": 2}, lasts="1h")
SHORT = tell(
    {}, faults=[{"at": "30s", "fault": "stock out", "provider": "local", "lasts": "3m"}], lasts="30m"
)
ERRORS = tell(
    {}, faults=[{"at": "30s", "fault": "provider errors", "provider": "local", "lasts": "3m"}], lasts="30m"
)
SILENT = tell(
    {},
    {"replicas": 4, "applied_at": "0s", "scale": SCALE, "load": {"base": 14}},
    faults=[{"at": "5m", "fault": "signals missing", "lasts": "10m"}],
    lasts="30m",
)


@pytest.mark.parametrize("story", [BUDGET, CEILING, MONTH, SHORT, ERRORS, SILENT])
def test_without_a_planted_bug_nothing_is_told(story: dict[str, Any]) -> None:
    result, _ = run(story)
    assert (result.violations, result.unmet) == ((), ())


def test_a_fleet_above_its_budget_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets.Limit, "by_the_hour", lambda limit: NEVER)
    no_invariants(monkeypatch)
    assert "std costs $2.50 an hour, and may cost $2.00" in violations(BUDGET)


def test_a_launch_above_the_ceiling_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets.Purse, "most", lambda purse, pool: NEVER)
    no_invariants(monkeypatch)
    assert "was asked for at $0.50, above the ceiling of std" in violations(CEILING)


def test_a_month_that_costs_too_much_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = tuple(stage for stage in deciding.STAGES if stage is not pools.live_within_means)
    monkeypatch.setattr(deciding, "STAGES", stages)
    assert "std costs more a month than $0.40" in violations(MONTH)


def test_a_pool_above_its_max_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.core.provisioning.launch.may_launch", lambda *args, **more: True)
    no_invariants(monkeypatch)
    story = tell({"max": 3})
    story["pools"].append({**POOL, "name": "dear", "nodes": 0, "price": 5})
    assert "in std, which may have 3" in violations(story)


def test_books_that_do_not_pay_back_what_never_was_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "undo_node", accounts.close_node)
    assert "the books of std say" in violations(SHORT)


def test_a_machine_whose_launch_was_taken_to_have_failed_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold_pools, "DEFINITE", fold_pools.DEFINITE | {"OutcomeUnknown"})
    monkeypatch.setattr("holdfast.sim.checks.billing.SURELY_FAILED", tuple(fold_pools.DEFINITE))
    assert "is there, and its launch was taken to have failed" in violations(ERRORS)


def test_a_service_that_shrinks_in_silence_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    before = demand._decide

    def hasty(scale: Any, at: Any, ear: demand.Ear, now: int) -> Size:
        return Size(1, "planted") if ear.reading.missing else before(scale, at, ear, now)

    monkeypatch.setattr(demand, "_decide", hasty)
    assert "web shrinks to 1, and nothing is known of its load" in violations(SILENT)


def test_a_seat_above_the_most_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "by_load", lambda world, name, shape, scale: (scale.max + 1, "planted"))
    assert "web/6.1 starts, and web may have 6" in violations(SILENT)


# the books and the bills, in a story where nothing fails


def test_the_books_are_above_the_bills_by_answer_times_alone() -> None:
    load = {"steps": [{"value": 4}, {"at": "10m", "value": 22}, {"at": "20m", "value": 2}]}
    scale = {**SCALE, "down_window": "5m"}
    story = tell({"idle": "2m", "min": 0}, {"replicas": 1, "scale": scale, "load": load}, lasts="1h")
    story["changes"] = [{"at": "40m", "do": "delete", "workload": "web"}]
    result, sim = run(story)
    assert (result.violations, result.unmet) == ((), ())
    assert sim.leader is not None
    assert sim.leader.mind is not None
    account = sim.leader.mind.world.accounts["std"]
    spent = account.spent + account.rate_micro_usd * (sim.leader.now() - account.as_of)
    provider = sim.providers["local"]
    assert len(provider.past) >= 4, "machines came and went"
    over = (
        spent
        - sum(past.paid for past in provider.past)
        - sum(map(provider._paid, provider.machines.values()))
    )
    answers = len(provider.past) * (provider.traits.answer_ms * 3 // 2 + 1_000)
    assert 0 <= over <= answers * 500_000
    assert over / HOUR < 1_000, "a tenth of a cent"


@pytest.mark.parametrize(
    ("planes", "end"),
    [
        (1, {"at": "12m", "fault": "control-pause", "control": "cp-1", "lasts": "20s"}),
        (2, {"at": "12m", "fault": "control-crash", "control": "cp-1", "lasts": "2m"}),  # the other followed
    ],
)
def test_a_wall_clock_that_is_set_forward_eats_no_budget(planes: int, end: dict[str, Any]) -> None:
    jumps = [
        {"at": "10m", "fault": "clock-jump", "control": f"cp-{number}", "jump": "1h"}
        for number in range(1, planes + 1)
    ]
    pool = {"nodes": 4, "min": 4, "budget": {"month": 2.6}}
    story = tell(pool, {"replicas": 2, "applied_at": "0s"}, faults=[*jumps, end], lasts="1h")
    result, sim = run({**story, "control_planes": planes})
    assert (result.violations, result.unmet) == ((), ())
    assert sim.leader is not None
    assert sim.leader.mind is not None
    world = sim.leader.mind.world
    assert world.leader.generation > 1
    assert len(world.in_pool["std"]) == 4, "nobody was given notice for money that was not spent"
    books_say = budgets.settled(world.accounts["std"], sim.leader.now()).spent // HOUR
    assert books_say == pytest.approx(sim.providers["local"].bill().micro_usd, rel=0.02)
