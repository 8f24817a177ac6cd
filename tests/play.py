"""A world, a clock, and the loop around them: what the live loop does, without its IO.

A play begins with the pool `pool` and nothing in it. Everything that happens is an event folded in at the
play's own `now`; `turn` is one turn of decide, check and accept; `settle` turns until nothing is left to do
at this instant, and fails if that never comes.
"""

from typing import Any, TypeVar

from msgspec.structs import replace

from holdfast.core import check
from holdfast.core.decide import decide
from holdfast.core.state import fold
from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.finding import Finding, Severity
from holdfast.model.node import Node
from holdfast.model.place import Place
from holdfast.model.plan import Plan
from holdfast.model.policy import Policy
from holdfast.model.pool import Offer, Pool
from holdfast.model.replica import LIVE, Replica, Slot
from holdfast.model.resources import Resources
from holdfast.model.units import Instant, Millis
from holdfast.model.verdict import Evidence, Level, Verdict
from holdfast.model.workload import Workload
from holdfast.model.world import World

Kind = TypeVar("Kind", bound=do.Deed)

BIG = Resources(cpu_milli=8_000, memory_mib=32_768)
START: Instant = 1_000_000  # far from zero, which often means "never"
TURNS_MAX = 40


def offer(
    name: str = "std", zone: str = "a", *, capacity: Resources = BIG, price: int = 100, spot: bool = False
) -> Offer:
    return Offer(name, Place("prov", "here", zone, f"{zone}1"), capacity, price, spot)


def pool(name: str = "pool", offers: tuple[Offer, ...] = (offer(),), **rules: Any) -> Pool:
    return Pool(name, "prov", offers, **rules)


class Play:
    def __init__(self, policy: Policy | None = None, **rules: Any) -> None:
        self.world = World(policy)
        self.now: Instant = START
        self.journal: list[ev.Event | Plan] = []
        self.refused: list[str] = []
        if policy is not None:
            self.tell(ev.PolicyApplied(at=self.now, policy=policy))
        self.tell(ev.PoolApplied(at=self.now, pool=pool(**rules)))

    # the loop

    def tell(self, *events: ev.Event) -> None:
        for event in events:
            self.journal.append(event)
            fold.observe(self.world, event)

    def turn(self) -> list[do.Action]:
        plan, refused = check.examine(self.world, decide(self.world, self.now))
        self.refused += [f"{refusal.invariant}: {refusal.action}" for refusal in refused]
        self.journal.append(plan)
        fold.accept(self.world, plan)
        return list(plan.actions)

    def settle(self) -> list[do.Action]:
        """All actions until a turn has none; nothing is ever refused."""
        done: list[do.Action] = []
        for _ in range(TURNS_MAX):
            actions = self.turn()
            assert self.refused == []
            assert check.inconsistencies(self.world) == []
            if not actions:
                return done
            done += actions
        raise AssertionError(f"it never comes to rest; the last turn did {actions}")

    def later(self, ms: Millis) -> list[do.Action]:
        """Time passes and nothing happens: every instant that was noted gets its turn."""
        end, done = self.now + ms, []
        while (due := self.world.agenda.next_due()) <= end:
            self.now = max(self.now, due)
            done += self.settle()
        self.now = end
        return done + self.settle()

    # what happens

    def join(self, *names: str, zone: str = "a", running: tuple[str, ...] = (), **more: Any) -> None:
        for name in names:
            fields: dict[str, Any] = {
                "pool": "pool",
                "offer": "std",
                "place": Place("prov", "here", zone, f"{zone}-{name}"),
                "capacity": BIG,
            }
            self.tell(ev.NodeJoined(at=self.now, node=name, running=running, **{**fields, **more}))

    def judge(self, name: str, level: Level, *, heard_at: Instant | None = None) -> None:
        verdict = Verdict(level, "for the play", Evidence(), self.now)
        heard = self.node(name).heard_at if heard_at is None else heard_at
        self.tell(ev.NodeJudged(at=self.now, node=name, verdict=verdict, heard_at=heard))

    def apply(self, *workloads: Workload) -> None:
        self.tell(*(ev.WorkloadApplied(at=self.now, workload=workload) for workload in workloads))

    def ready(self, *replicas: str) -> None:
        for name in replicas:
            node, number = self.replica(name).node, self.replica(name).incarnation
            port = 20_000 + number
            self.tell(ev.ReplicaStarted(at=self.now, replica=name, node=node, port=port, incarnation=number))
            self.tell(ev.ReplicaReady(at=self.now, replica=name, node=node, incarnation=number))

    def end(self, replica: str, how: ev.Ended = ev.Ended.STOPPED, *, progress_ms: Millis = 0) -> None:
        node = self.replica(replica).node
        self.tell(ev.ReplicaEnded(at=self.now, replica=replica, node=node, how=how, progress_ms=progress_ms))

    def find(
        self, node: str, severity: Severity, name: str = "gpu fell off the bus", sure: float = 1.0
    ) -> None:
        self.tell(ev.FindingRaised(at=self.now, finding=Finding(name, node, severity, sure, "", self.now)))

    def obey(self) -> list[do.Action]:
        """Settles; agents start what they are given and stop what they are told to, at once."""
        done = self.settle()
        while True:
            replicas = list(self.world.replicas.values())
            reachable = [r for r in replicas if self.node(r.node).verdict.level is not Level.DEAD]
            starting = [r.id for r in reachable if r.state in LIVE and r.state != "ready"]
            stopping = [r.id for r in reachable if r.state == "stopping"]
            if not starting and not stopping:
                return done
            self.ready(*starting)
            for name in stopping:
                self.end(name)
            done += self.settle()

    # what there is

    def node(self, name: str) -> Node:
        return self.world.nodes[name]

    def slot(self, name: str) -> Slot:
        return self.world.slots[name]

    def replica(self, name: str) -> Replica:
        return self.world.replicas[name]

    def running(self, workload: str) -> dict[str, str]:
        """Live replicas of the workload and their nodes."""
        found = [r for r in self.world.replicas.values() if r.workload == workload and r.state in LIVE]
        return {r.id: r.node for r in found}

    def reapply(self, workload: str, **changes: Any) -> None:
        self.apply(replace(self.world.workloads[workload], **changes))


def of(kind: type[Kind], actions: list[do.Action]) -> list[Kind]:
    return [action for action in actions if isinstance(action, kind)]
