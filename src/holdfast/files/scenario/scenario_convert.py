"""From the tables of a file to the scenario that the simulator runs; for tables that have been checked."""

from collections.abc import Mapping

from holdfast.files.fleet import fleet_convert
from holdfast.files.gateway.gateway_schema import limits_of
from holdfast.files.scenario import load_schema
from holdfast.files.scenario.scenario_schema import PoolForm, ScenarioForm, WorkloadForm
from holdfast.model.units import MINUTE
from holdfast.sim.scenario.market import Market
from holdfast.sim.scenario.scenario import PoolSetup, Scenario, WorkloadSetup


def scenario(form: ScenarioForm, name: str, markets: Mapping[str, Market] | None = None) -> Scenario:
    return Scenario(
        name=name,
        title=form.title,
        seed=form.seed,
        lasts_ms=form.lasts,
        settle_ms=min(15 * MINUTE, form.lasts // 2) if form.settle is None else form.settle,
        pools=tuple(pool_setup(pool, (markets or {}).get(pool.name)) for pool in form.pools),
        workloads=tuple(workload_setup(workload) for workload in form.workloads),
        providers=form.providers,
        network=form.network,
        troubles=tuple(form.faults),
        changes=tuple(form.changes),
        control_planes=form.control_planes,
        policy=form.policy,
        projects=tuple(map(fleet_convert.project, form.projects)),
        gateways=form.gateways,
        limits={scope: limits_of(found) for scope, found in form.limits.items()},
        domain_mtbf_ms=form.domain_mtbf,
        domain_repair_ms=form.domain_repair,
    )


def pool_setup(form: PoolForm, market: Market | None = None) -> PoolSetup:
    least = form.nodes if form.min is None else form.min
    most = max(form.nodes, least) if form.max is None else form.max
    pool = fleet_convert.pool(form, least, most, tuple(fleet_convert.offers(form)))
    return PoolSetup(pool, form.nodes, form.mtbf, form.repair, form.preempt_every, market)


def workload_setup(form: WorkloadForm) -> WorkloadSetup:
    workload = fleet_convert.workload(form)
    load = load_schema.load(form.load)
    return WorkloadSetup(workload, form.program, form.applied_at, load, form.requests)


def first_nodes(pool: str, nodes: int) -> list[str]:
    """What the simulator calls the nodes that are there at the beginning."""
    return [f"{pool}-{chr(97 + number % 26)}{number // 26 or ''}" for number in range(nodes)]
