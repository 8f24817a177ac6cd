"""Does what the tables say agree with itself? Names that exist, limits in order, faults that can happen.

A check names the fields it reads, so that it can be left out when one of them could not be read.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from holdfast.core.spelling import did_you_mean
from holdfast.files.fleet import fleet_checks
from holdfast.files.policy import policy_checks
from holdfast.files.problem import Problem
from holdfast.files.scenario.fault_checks import changes_can_happen, faults_can_happen
from holdfast.files.scenario.markets import markets_name_offers
from holdfast.files.scenario.scenario_schema import ScenarioForm
from holdfast.model.gateway import is_scope
from holdfast.model.scale import Signal


class Check(NamedTuple):
    run: Callable[[ScenarioForm], Iterator[Problem]]
    reads: frozenset[str]


def problems(form: ScenarioForm, broken: frozenset[str] = frozenset()) -> list[Problem]:
    return [problem for check in CHECKS if not check.reads & broken for problem in check.run(form)]


def there_is_a_pool(form: ScenarioForm) -> Iterator[Problem]:
    if not form.pools:
        yield Problem(
            "pools", "expected at least one pool, got none", 'Try: [[pools]] with name = "std" and nodes = 3'
        )


def names_are_unique(form: ScenarioForm) -> Iterator[Problem]:
    yield from fleet_checks.repeated("pools", [pool.name for pool in form.pools])
    yield from fleet_checks.repeated("workloads", [workload.name for workload in form.workloads])
    for number, pool in enumerate(form.pools):
        yield from fleet_checks.repeated(f"pools[{number}].offers", [offer.name for offer in pool.offers])


def pool_limits_are_in_order(form: ScenarioForm) -> Iterator[Problem]:
    for number, pool in enumerate(form.pools):
        where = f"pools[{number}]"
        if pool.max is not None and pool.nodes > pool.max:
            text = f"expected at most max ({pool.max}), got {pool.nodes}"
            yield Problem(f"{where}.nodes", text, f"Try: max = {pool.nodes}")
        yield from fleet_checks.pool_limits(f"{where}.", pool)
        if not pool.zones and not pool.offers:
            yield Problem(f"{where}.zones", "expected at least one zone, got none", 'Try: zones = ["a"]')


def workloads_have_the_fields_of_their_kind(form: ScenarioForm) -> Iterator[Problem]:
    for number, workload in enumerate(form.workloads):
        yield from fleet_checks.shape_problems(f"workloads[{number}].", workload)


def numbers_are_in_order(form: ScenarioForm) -> Iterator[Problem]:
    for number, workload in enumerate(form.workloads):
        yield from fleet_checks.number_problems(f"workloads[{number}].", workload)


def loads_are_of_services_that_scale(form: ScenarioForm) -> Iterator[Problem]:
    for number, workload in enumerate(form.workloads):
        load, taken = workload.load, workload.scale.per_replica if workload.scale else {}
        if workload.requests is None and load.model_fields_set and load.signal not in taken:
            text = f"expected what one replica takes of {load.signal}, got nothing"
            example = f"{{ {load.signal} = 4 }}"
            yield Problem(f"workloads[{number}].scale.per_replica", text, f"Try: per_replica = {example}")


def requests_are_of_services_that_gateways_lead_to(form: ScenarioForm) -> Iterator[Problem]:
    for number, workload in enumerate(form.workloads):
        where, load = f"workloads[{number}]", workload.load
        if workload.requests is None:
            continue
        if workload.serves is None:
            text = "expected what it serves at the gateways, got nothing"
            yield Problem(f"{where}.serves", text, "Try: serves = {}")
        if load.signal is not Signal.REQUESTS:
            text = f"expected how many requests a second are asked of it, got {load.signal}"
            yield Problem(f"{where}.load.signal", text, f'Try: signal = "{Signal.REQUESTS}"')
        if not workload.requests.keys:
            yield Problem(f"{where}.requests.keys", "expected who asks, got nobody", 'Try: keys = ["app"]')


def limits_are_of_scopes(form: ScenarioForm) -> Iterator[Problem]:
    for scope in form.limits:
        if not is_scope(scope):
            text = f'expected "global", "model:M", "key:K" or "team:T", or a model of one, got "{scope}"'
            yield Problem(f"limits.{scope}", text, 'Try: [limits."key:app"]')


def after_names_workloads(form: ScenarioForm) -> Iterator[Problem]:
    names = {workload.name for workload in form.workloads}
    for number, workload in enumerate(form.workloads):
        for other in workload.after:
            if other not in names:
                text = f'expected the name of a workload, got "{other}"'
                yield Problem(
                    f"workloads[{number}].after", text, did_you_mean(other, names - {workload.name})
                )


def after_has_no_circle(form: ScenarioForm) -> Iterator[Problem]:
    yield from fleet_checks.circles([(f"workloads[{n}].", item) for n, item in enumerate(form.workloads)])


def providers_are_used(form: ScenarioForm) -> Iterator[Problem]:
    used = {pool.provider for pool in form.pools}
    for name in form.providers:
        if name not in used:
            yield Problem(
                f"providers.{name}", "expected the provider of a pool, got another", did_you_mean(name, used)
            )


def all_begins_before_the_end(form: ScenarioForm) -> Iterator[Problem]:
    instants: list[tuple[str, int]] = [
        *(
            (f"faults[{n}].at", fault.at + (fault.times - 1) * fault.every_ms)
            for n, fault in enumerate(form.faults)
        ),
        *((f"changes[{n}].at", change.at) for n, change in enumerate(form.changes)),
        *((f"workloads[{n}].applied_at", item.applied_at) for n, item in enumerate(form.workloads)),
    ]
    for where, at in instants:
        if at >= form.lasts:
            text = f"expected a time before the end ({form.lasts / 1000:g}s), got {at / 1000:g}s"
            yield Problem(where, text, f'Try: lasts = "{at // 60_000 + 10}m"')


def _reads(*fields: str) -> frozenset[str]:
    return frozenset(fields)


POOL_FACTS = (
    "pools.?",
    "pools.name",
    "pools.nodes",
    "pools.zones",
    "pools.offers",
    "pools.provider",
    "pools.region",
)


def the_policy_agrees_with_itself(form: ScenarioForm) -> Iterator[Problem]:
    yield from policy_checks.problems(form.policy, "policy.")


CHECKS: Iterable[Check] = (
    Check(the_policy_agrees_with_itself, _reads("policy")),
    Check(there_is_a_pool, _reads("pools", "pools.?")),
    Check(names_are_unique, _reads("pools.name", "workloads.name", "pools.offers", "pools.zones")),
    Check(pool_limits_are_in_order, _reads("pools.zones", "pools.offers")),
    Check(workloads_have_the_fields_of_their_kind, _reads("workloads", "workloads.kind", "workloads.?")),
    Check(numbers_are_in_order, _reads("workloads")),
    Check(
        loads_are_of_services_that_scale,
        _reads("workloads", "workloads.kind", "workloads.scale", "workloads.load", "workloads.?"),
    ),
    Check(
        requests_are_of_services_that_gateways_lead_to,
        _reads("workloads", "workloads.serves", "workloads.load", "workloads.requests", "workloads.?"),
    ),
    Check(limits_are_of_scopes, _reads("limits")),
    Check(after_names_workloads, _reads("workloads", "workloads.name")),
    Check(after_has_no_circle, _reads("workloads.name")),
    Check(providers_are_used, _reads(*POOL_FACTS, "pools")),
    Check(markets_name_offers, _reads("pools.zones", "pools.offers", "pools.market", "pools.?")),
    Check(all_begins_before_the_end, _reads("lasts")),
    Check(
        faults_can_happen,
        _reads(*POOL_FACTS, "pools", "workloads", "workloads.name", "control_planes", "faults.?"),
    ),
    Check(changes_can_happen, _reads(*POOL_FACTS, "pools", "workloads", "workloads.name", "workloads.kind")),
)
