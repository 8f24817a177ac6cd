"""Can the faults of a scenario happen, and can its people do what they do? Does what they name exist?"""

import re
from collections.abc import Iterator

from holdfast.core.spelling import did_you_mean
from holdfast.files.fleet import fleet_convert
from holdfast.files.fleet.fleet_schema import Kind
from holdfast.files.problem import Problem
from holdfast.files.scenario import scenario_convert
from holdfast.files.scenario.scenario_schema import Deed, ScenarioForm
from holdfast.model.place import Level
from holdfast.sim.scenario.scenario import (
    OF_PROVIDERS,
    OF_SIGNALS,
    Change,
    Fault,
    Trouble,
)

OF_NODES = frozenset(
    {
        Fault.CRASH,
        Fault.KILL,
        Fault.HANG,
        Fault.SLOW,
        Fault.GRAY,
        Fault.AGENT_RESTART,
        Fault.SPOT_NOTICE,
        Fault.SPOT_TAKEN,
    }
)
MUST_LAST = {*OF_PROVIDERS, *OF_SIGNALS, Fault.PARTITION, Fault.CONTROL_PAUSE, Fault.STORE_CUT}
OF_WORKLOADS = frozenset(
    {Deed.DELETE, Deed.PAUSE, Deed.RESUME, Deed.SCALE, Deed.UPDATE, Deed.RESTART, Deed.RETRY}
)


class Known:
    """Every name that a fault may use."""

    def __init__(self, form: ScenarioForm) -> None:
        self.workloads = {workload.name: workload for workload in form.workloads}
        self.providers = {pool.provider for pool in form.pools}
        self.gateways = {f"gw-{number}" for number in range(1, form.gateways.count + 1)}
        self.controls = {f"cp-{number}" for number in range(1, form.control_planes + 1)}
        self.nodes = {
            name for pool in form.pools for name in scenario_convert.first_nodes(pool.name, pool.nodes)
        }
        self.pools = {pool.name for pool in form.pools}
        self.keys = {key for w in form.workloads if w.requests is not None for key in w.requests.keys}
        self.launching = [pool.name for pool in form.pools if pool.can_launch]
        places = [offer.place for pool in form.pools for offer in fleet_convert.offers(pool)]
        levels = (Level.PROVIDER, Level.REGION, Level.ZONE, Level.RACK)
        self.domains = {f"{level}:{getattr(place, level)}" for place in places for level in levels}
        self.domains |= {f"domain:{place.domain(Level.ZONE)}" for place in places}
        self.domains |= {f"runs:{name}" for name in self.workloads}

    def is_node(self, name: str) -> bool:
        """A node of the beginning, or one launched later: `std-1`."""
        pool, _, number = name.rpartition("-")
        return name in self.nodes or (
            pool in self.launching and re.fullmatch(r"[1-9]\d{0,5}", number) is not None
        )

    def are_nodes(self, name: str) -> bool:
        return name == "*" or name in self.domains or self.is_node(name)


def faults_can_happen(form: ScenarioForm) -> Iterator[Problem]:
    known = Known(form)
    for number, trouble in enumerate(form.faults):
        where = f"faults[{number}]"
        yield from _names(where, trouble, known)
        yield from _what_it_needs(where, trouble, known)


def _names(where: str, trouble: Trouble, known: Known) -> Iterator[Problem]:
    for place, name in enumerate(trouble.nodes):
        if not known.are_nodes(name):
            text = f'expected a node, or a group such as "zone:a", got "{name}"'
            yield Problem(f"{where}.nodes[{place}]", text, did_you_mean(name, known.nodes | known.domains))
    if trouble.provider and trouble.provider not in known.providers:
        text = f'expected the provider of a pool, got "{trouble.provider}"'
        yield Problem(f"{where}.provider", text, did_you_mean(trouble.provider, known.providers))
    if trouble.control and trouble.control not in known.controls:
        text = f'expected a control plane, got "{trouble.control}"'
        yield Problem(f"{where}.control", text, did_you_mean(trouble.control, known.controls))
    if trouble.gateway and trouble.gateway not in known.gateways:
        text = f'expected a gateway, got "{trouble.gateway}"'
        yield Problem(f"{where}.gateway", text, did_you_mean(trouble.gateway, known.gateways))
    fluid = [w for w in known.workloads.values() if w.load.model_fields_set and w.requests is None]
    told = {workload.name for workload in fluid}
    if trouble.workload and trouble.workload not in told:
        text = f'expected a service with a load, got "{trouble.workload}"'
        yield Problem(f"{where}.workload", text, did_you_mean(trouble.workload, told))


def _what_it_needs(where: str, trouble: Trouble, known: Known) -> Iterator[Problem]:
    fault = trouble.fault
    if fault in OF_NODES and not trouble.nodes:
        example = min(known.nodes, default="std-a")
        yield Problem(
            f"{where}.nodes",
            f"expected the nodes that {fault} happens to, got none",
            f'Try: nodes = ["{example}"]',
        )
    if fault is Fault.PARTITION and not (trouble.nodes or trouble.control or trouble.gateway):
        yield Problem(
            f"{where}.nodes", "expected nodes or a control to cut off, got none", 'Try: nodes = ["zone:a"]'
        )
    if fault is Fault.GATEWAY_CRASH and not trouble.gateway:
        text = "expected the gateway that it happens to, got none"
        yield Problem(f"{where}.gateway", text, 'Try: gateway = "gw-1"')
    if fault in OF_PROVIDERS and not trouble.provider:
        example = min(known.providers, default="local")
        yield Problem(
            f"{where}.provider",
            "expected the provider it happens to, got none",
            f'Try: provider = "{example}"',
        )
    if fault in MUST_LAST and not trouble.lasts_ms:
        yield Problem(
            f"{where}.lasts", f"expected how long the {fault} lasts, got nothing", 'Try: lasts = "2m"'
        )
    if fault is Fault.CLOCK_JUMP and not trouble.jump_ms:
        yield Problem(f"{where}.jump", "expected how far the clock jumps, got nothing", 'Try: jump = "90s"')
    if trouble.times > 1 and not trouble.every_ms:
        yield Problem(
            f"{where}.every",
            f"expected the time between {trouble.times} faults, got nothing",
            'Try: every = "1m"',
        )


def changes_can_happen(form: ScenarioForm) -> Iterator[Problem]:
    known = Known(form)
    for number, change in enumerate(form.changes):
        where = f"changes[{number}]"
        if change.do in OF_WORKLOADS:
            yield from _workload_change(where, change, known)
        elif change.do == Deed.RESTORE:
            if change.key not in known.keys:
                text = f'expected the key to restore, got "{change.key}"'
                yield Problem(f"{where}.key", text, did_you_mean(change.key, known.keys))
        elif change.do == Deed.DELETE_POOL:
            if change.pool not in known.pools:
                text = f'expected the pool to delete, got "{change.pool}"'
                yield Problem(f"{where}.pool", text, did_you_mean(change.pool, known.pools))
        elif change.do != Deed.RELEASE_BRAKE and not known.is_node(change.node):
            text = f'expected the node to {change.do}, got "{change.node}"'
            yield Problem(f"{where}.node", text, did_you_mean(change.node, known.nodes))


def _workload_change(where: str, change: Change, known: Known) -> Iterator[Problem]:
    workload = known.workloads.get(change.workload)
    if workload is None:
        text = f'expected the workload to {change.do}, got "{change.workload}"'
        yield Problem(f"{where}.workload", text, did_you_mean(change.workload, known.workloads))
    elif change.do == Deed.SCALE and workload.kind is not Kind.SERVICE:
        yield Problem(f"{where}.workload", f"expected a service to scale, got a {workload.kind}")
    elif change.do == Deed.SCALE and change.replicas < 1:
        yield Problem(
            f"{where}.replicas", "expected how many replicas it gets, got none", "Try: replicas = 3"
        )
