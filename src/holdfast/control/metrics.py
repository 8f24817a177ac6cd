"""What a control plane shows at /metrics, after the conventions of Prometheus.

Counts of nodes and replicas are read off the world when somebody asks; only what happens between two
questions is counted as it happens.

What has the label `workload` names at most WORKLOADS_NAMED of them, and counts the others together as
`other`: whoever applies ten thousand small jobs must not take the memory of whoever collects metrics. A
workload that has its own series keeps it for as long as it is there; of those that have none the most
important ones come first, by priority and then by name.
"""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import nsmallest
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.core.agent.desired_set import is_ready
from holdfast.core.cost import budgets
from holdfast.core.workloads.slots import by_load, settled
from holdfast.model.action import DeclareLate
from holdfast.model.event import NodeJudged, NodeTerminated
from holdfast.model.node import Node
from holdfast.model.plan import Plan
from holdfast.model.replica import Phase, Role, State, slot_id
from holdfast.model.units import Instant
from holdfast.model.verdict import Level
from holdfast.model.workload import Service, Training
from holdfast.model.world import World

QUICK = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
MICRO = 1_000_000
WORKLOADS_NAMED = 200
OTHER = "other"
UNKNOWN = "unknown"  # a node that never joined: there may be none
FAILOVER = (0.1, 0.25, 0.5, 1, 2, 3, 4, 5, 7.5, 10, 20, 30, 35, 60, 120, 300)


class Metrics:
    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.failover_seconds = Histogram(
            "holdfast_failover_seconds",
            "From a seat being struck down to its next replica being ready.",
            buckets=FAILOVER,
            registry=registry,
        )
        self.failovers = Counter("holdfast_failovers", "Nodes called dead.", registry=registry)
        self.false_suspicions = Counter(
            "holdfast_false_suspicions", "Suspicions that a node's own beats took back.", registry=registry
        )
        self.actions = Counter("holdfast_actions", "Actions decided.", ["action"], registry=registry)
        self.held = Counter("holdfast_held_actions", "Actions that the brake held back.", registry=registry)
        self.entries = Counter("holdfast_journal_entries", "Journal entries written.", registry=registry)
        self.journal_seconds = Histogram(
            "holdfast_journal_append_seconds",
            "How long an append to the journal took.",
            buckets=QUICK,
            registry=registry,
        )
        self.turn_seconds = Histogram(
            "holdfast_turn_seconds", "How long a turn of the loop took.", buckets=QUICK, registry=registry
        )
        self.loop_lag = Gauge(
            "holdfast_loop_lag_seconds", "How late the loop's last tick came.", registry=registry
        )
        self.clock_off = Gauge(
            "holdfast_clock_off_seconds",
            "How far the clock of this machine is ahead of the fleet's time; 0 up to an hour.",
            registry=registry,
        )
        self.beats = Counter("holdfast_heartbeats", "Heartbeats heard.", registry=registry)
        self.links = Gauge("holdfast_agent_links", "Agents that are connected here.", registry=registry)
        self.refused = Counter(
            "holdfast_refused_agents", "Agents that were turned away.", ["code"], registry=registry
        )
        self.audit_dropped = Counter(
            "holdfast_audit_dropped", "Audit records that could not be written somewhere.", registry=registry
        )
        self.dropped = Counter(
            "holdfast_dropped_reports",
            "Messages of agents that were dropped before the journal, by reason.",
            ["reason"],
            registry=registry,
        )
        self.strays = Counter(
            "holdfast_stray_replicas",
            "Replicas that a node ran without being meant to, and was ordered again to stop.",
            registry=registry,
        )
        self.unfoldable = Counter(
            "holdfast_unfoldable_events",
            "Events that could not be handled and were left out; their senders were refused.",
            registry=registry,
        )
        self.missed_deadlines = Counter(
            "holdfast_missed_deadlines",
            "Jobs that were not done at their deadline.",
            registry=registry,
        )
        self._suspects: set[str] = set()

    def journalled(self, entries: Iterable[object]) -> None:
        for entry in entries:
            self.entries.inc()
            if isinstance(entry, NodeJudged):
                self._judged(entry.node, entry.verdict.level)
            elif isinstance(entry, NodeTerminated):
                self._suspects.discard(entry.node)
            elif isinstance(entry, Plan):
                self.held.inc(len(entry.held))
                self.missed_deadlines.inc(sum(isinstance(each, DeclareLate) for each in entry.actions))
                for name, count in Tally(type(action).__name__ for action in entry.actions).items():
                    self.actions.labels(name).inc(count)

    def _judged(self, node: str, level: Level) -> None:
        match level:
            case Level.SUSPECT:
                self._suspects.add(node)
            case Level.DEAD:
                self._suspects.discard(node)
                self.failovers.inc()
            case Level.ALIVE if node in self._suspects:
                self._suspects.discard(node)
                self.false_suspicions.inc()
            case _:
                pass

    def watch(
        self,
        world: Callable[[], World],
        leads: Callable[[], bool],
        lease_age: Callable[[], int],
        now: Callable[[], Instant],
        heard: Callable[[str], float | None],
    ) -> None:
        """What is read off the world at the time of asking. `heard`: the load of a service, in replicas."""
        self.registry.register(WorldCollector(world, leads, lease_age, now, heard))


class WorldCollector(Collector):
    def __init__(
        self,
        world: Callable[[], World],
        leads: Callable[[], bool],
        lease_age: Callable[[], int],
        now: Callable[[], Instant],
        heard: Callable[[str], float | None],
    ) -> None:
        self.world, self.leads, self.lease_age, self.now, self.heard = world, leads, lease_age, now, heard
        self.label = WorkloadLabels()

    def collect(self) -> Iterator[Metric]:
        world = self.world()
        nodes = Tally((_verdict(node), str(node.state)) for node in world.nodes.values())
        yield _family("holdfast_nodes", "Nodes, by verdict and state.", ["verdict", "state"], nodes)
        by_verdict = Tally({UNKNOWN: 0, **{str(level): 0 for level in Level}})
        for (verdict, _), count in nodes.items():
            by_verdict[verdict] += count
        tally = Tally({(verdict,): count for verdict, count in by_verdict.items()})
        yield _family("holdfast_nodes_by_verdict", "Nodes, by what we believe of them.", ["verdict"], tally)
        replicas = Tally({(str(state),): 0 for state in State})
        replicas.update((str(replica.state),) for replica in world.replicas.values())
        yield _family("holdfast_replicas", "Replicas, by state.", ["state"], replicas)
        gangs = Tally({("yes",): 0, ("no",): 0})
        gangs.update(("yes" if is_ready(world, name) else "no",) for name in _trainings(world))
        text = "Trainings that are not done or paused: is every member ready, in one generation?"
        yield _family("holdfast_gangs", text, ["ready"], gangs)
        waiting = Tally({(): sum(len(slots) for slots in world.waiting.values())})
        yield _family("holdfast_seats_waiting", "Seats that want a replica and have none.", [], waiting)
        late = Tally({(): _late(world)})
        text = "Jobs whose deadline has passed and that are not done."
        yield _family("holdfast_late_jobs", text, [], late)
        brakes = Tally({(): len(world.brakes)})
        yield _family("holdfast_brakes_engaged", "Brakes that hold disruptive actions back.", [], brakes)
        yield _family("holdfast_leading", "1 if this control plane leads.", [], {(): int(self.leads())})
        self.label.renew(world)
        yield from _work(world, self.label)
        yield from _sizes(world, self.heard, self.label)
        yield from _money(world, self.now())
        yield _launches(world)
        age = GaugeMetricFamily(
            "holdfast_lease_age_seconds", "How long ago the least recently heard living node was heard."
        )
        age.add_metric([], self.lease_age() / 1000)
        yield age


def _trainings(world: World) -> Iterator[str]:
    for name, workload in world.workloads.items():
        if isinstance(workload.shape, Training) and not workload.paused and not settled(world, name):
            yield name


class WorkloadLabels:
    """Which workloads have a series of their own."""

    def __init__(self, most: int = WORKLOADS_NAMED) -> None:
        self.most = most
        self.named: dict[str, None] = {}

    def renew(self, world: World) -> None:
        self.named = {name: None for name in self.named if name in world.workloads}
        free = self.most - len(self.named)
        if free > 0 and len(self.named) < len(world.workloads):
            rest = (each for each in world.workloads.values() if each.name not in self.named)
            first = nsmallest(free, rest, key=lambda each: (-each.priority, each.name))
            self.named |= {each.name: None for each in first}

    def __call__(self, name: str) -> str:
        """A workload that is called `other` is counted with them."""
        return name if name in self.named else OTHER

    def together(self, values: Iterable[tuple[str, float]]) -> dict[tuple[str], float]:
        found: dict[tuple[str], float] = {}
        for name, value in values:
            key = (self(name),)
            found[key] = found.get(key, 0) + value
        return found


def _work(world: World, label: WorkloadLabels) -> Iterator[Metric]:
    replicas = Tally((label(each.workload), str(each.state)) for each in world.replicas.values())
    text = "Replicas of a workload, by state; `other`: of all that have no series of their own."
    yield _family("holdfast_workload_replicas", text, ["workload", "state"], replicas)
    waiting = label.together((name, len(world.waiting.get(name, ()))) for name in world.workloads)
    text = "Seats of a workload that want a replica and have none."
    yield _family("holdfast_workload_seats_waiting", text, ["workload"], waiting)
    failed = Tally({(label(name),): 0 for name in world.workloads})
    failed.update((label(slot.workload),) for slot in world.slots.values() if slot.phase is Phase.FAILED)
    text = "Seats of a workload that were given up: their program failed too often."
    yield _family("holdfast_workload_seats_failed", text, ["workload"], failed)


def _verdict(node: Node) -> str:
    return str(node.verdict.level) if node.joined_at else UNKNOWN


def _late(world: World) -> int:
    late = (slot_id(name, 0) for name, course in world.courses.items() if course.missed)
    return sum(slot not in world.slots or world.slots[slot].phase is not Phase.DONE for slot in late)


def _sizes(world: World, heard: Callable[[str], float | None], label: WorkloadLabels) -> Iterator[Metric]:
    """Of services that scale. A control plane that follows hears nothing of their load."""
    standing = {name: _size(world, name) for name in world.scaled}
    wanted = label.together((name, size[0]) for name, size in standing.items())
    ready = label.together((name, size[1]) for name, size in standing.items())
    demand = label.together((name, found) for name in world.scaled if (found := heard(name)) is not None)
    labels = ["workload"]
    yield _family("holdfast_replicas_wanted", "Replicas that the load of a service asks for.", labels, wanted)
    yield _family("holdfast_replicas_ready", "Replicas of a service that scales, ready.", labels, ready)
    text = "The load of a service, in replicas that it would keep busy; missing while its signals are."
    yield _family("holdfast_demand_replicas", text, labels, demand)


def _size(world: World, name: str) -> tuple[int, int]:
    shape = world.workloads[name].shape
    assert isinstance(shape, Service)
    assert shape.scale is not None
    replicas = (world.replicas[each] for slot in world.of_workload[name] for each in world.of_slot[slot])
    ready = sum(each.state is State.READY and each.role is Role.ACTIVE for each in replicas)
    return by_load(world, name, shape, shape.scale)[0], ready


def _money(world: World, now: Instant) -> Iterator[Metric]:
    pools = [*dict.fromkeys((*world.pools, *world.accounts))]
    hour = {(name,): budgets.rate(world, (name,)) / MICRO for name in pools}
    month = {(name,): budgets.spent_in_month(world, (name,), now) / MICRO for name in pools}
    yield _family("holdfast_cost_dollars_per_hour", "What the nodes of a pool cost an hour.", ["pool"], hour)
    text = "What a pool has cost this calendar month, by UTC."
    yield _family("holdfast_cost_dollars_this_month", text, ["pool"], month)


def _launches(world: World) -> Metric:
    """Not counters: what is remembered of an offer fades."""
    found = {}
    for key, record in world.records.items():
        pool, _, offer = key.partition("/")
        for outcome, count in (
            ("asked", record.asked),
            ("came_up", record.came_up),
            ("refused", record.refused),
            ("failed", record.failed),
            ("lost", record.losses),
        ):
            found[pool, offer, outcome] = round(count, 3)
    text = "What became of launches, as it is remembered: each counts half after two weeks."
    return _family("holdfast_offer_launches", text, ["pool", "offer", "outcome"], found)


def _family(name: str, text: str, labels: list[str], values: Mapping[Any, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(list(key), value)
    return family
