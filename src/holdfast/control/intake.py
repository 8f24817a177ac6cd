"""Admission control for what nodes report: whose replicas, how much, and how often.

A key proves who a node is, not that what it reports is true. So each message is checked before it becomes an
event, and what is dropped is logged, counted and never journalled:

- A node speaks for its own replicas only. Otherwise one node could declare the exclusive replica of another
  ended, and a second copy would start beside the first. `core.state.fold_events` checks the same again, for
  journals of older versions and as a second line.
- The port of a replica is one of those that agents allot: gateways send requests there.
- Texts are cut and findings are bounded in number, so that one node cannot fill the journal and the memory of
  every control plane.
- A rate limit (a token bucket a node) holds back what is more than an honest node ever reports: it waits
  here in its order, and when too much waits nothing more is read from that connection. Heartbeats are not
  journalled and pass the rate limit, so a burst after a reconnect does not make a node look silent. All that
  a node sends, beats too, is read at a bounded number of bytes a second.

Where the numbers come from: a node that starts and ends a hundred short tasks a second reports three times
for each, and after an hour without a control plane some thousands wait; both pass undelayed. An agent has
some ten kinds of finding.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import structlog
from msgspec.structs import replace

from holdfast.control.metrics import Metrics
from holdfast.core.agent.machine import Report
from holdfast.model.finding import Finding
from holdfast.model.units import Instant
from holdfast.model.world import World
from holdfast.wire.address import REPLICA_PORTS
from holdfast.wire.messages import Found, Goodbye, Message, Noticed, Reports

PER_S = 500.0  # journalled reports of one node
BURST = 10_000.0
WAITING_MAX = 16  # messages; more are not read
FINDINGS_MAX = 32  # of one node
NAME_MAX = 64
TEXT_MAX = 1_024
LOGGED_MAX = 8  # a session; more of the same is counted only

HELLOS_PER_S = 0.5  # of one node: each is journalled, and closes the connection before it
HELLOS_BURST = 30.0
OTHER_COST = 50  # reports: findings, notices and goodbyes are rare, and larger

BYTES_PER_S = 4 << 20  # that are read from one node, besides the logs that somebody asked for
BYTES_BURST = 16 << 20
BYTES_LEAST = 2 << 10  # however short a message is, it costs as much as these

JOURNALLED = (Reports, Found, Noticed, Goodbye)

log = structlog.get_logger("holdfast.hub")


class Allowance:
    """A token bucket. What is larger than all of it is taken at once and owed: the next one waits longer."""

    def __init__(self, per_s: float, burst: float, now: Instant) -> None:
        self.per_s, self.burst, self.level, self.at = per_s, burst, burst, now

    def wait_ms(self, now: Instant) -> int:
        """0: there is something left."""
        self.level = min(self.burst, self.level + max(0, now - self.at) * self.per_s / 1000)
        self.at = max(self.at, now)
        return 0 if self.level > 0 else int(-self.level / self.per_s * 1000) + 1

    def take(self, cost: float) -> None:
        self.level -= cost


class Rates:
    """Of one node, whatever connections it opens."""

    def __init__(self, now: Instant) -> None:
        self.reports = Allowance(PER_S, BURST, now)
        self.bytes = Allowance(BYTES_PER_S, BYTES_BURST, now)
        self.hellos = Allowance(HELLOS_PER_S, HELLOS_BURST, now)


class Intake:
    """Of one session."""

    def __init__(self, metrics: Metrics, now: Callable[[], Instant]) -> None:
        self._metrics, self._now = metrics, now
        self._rates = Rates(now())
        self._waiting: deque[Message] = deque()
        self._dropped = 0
        self._findings: set[str] | None = None  # names; None: the world was not looked at yet

    # the rate limit

    def goes_by(self, rates: Rates) -> None:
        """Now it is known which node it is."""
        self._rates = rates

    def read(self, size: int, *, asked: bool = False) -> None:
        """A message of so many bytes was read. What was `asked` for comes no quicker than its reader takes
        it, and counts only for being short: nobody asked for a log in pieces of nothing."""
        self._rates.bytes.take(max(0, BYTES_LEAST - size) if asked else max(BYTES_LEAST, size))

    @property
    def read_wait_s(self) -> float:
        """Until more may be read; 0: now."""
        return self._rates.bytes.wait_ms(self._now()) / 1000

    def put(self, message: Message) -> None:
        self._waiting.append(message)

    def take(self) -> Iterator[Message]:
        """What may pass now, in its order."""
        while self._waiting and not self._rates.reports.wait_ms(self._now()):
            message = self._waiting.popleft()
            self._rates.reports.take(_cost(message))
            yield message

    @property
    def wait_s(self) -> float:
        """Until something may pass again; 0: nothing waits."""
        return max(1, self._rates.reports.wait_ms(self._now())) / 1000 if self._waiting else 0.0

    @property
    def full(self) -> bool:
        return len(self._waiting) >= WAITING_MAX

    # what is taken

    def own(self, world: World, node: str, reports: Iterable[Report]) -> Iterator[Report]:
        """The reports about replicas of this node. What is not known here any more changes nothing and is
        passed over."""
        for report in reports:
            replica = world.replicas.get(report.replica)
            if replica is None:
                continue
            if replica.node != node:
                self.drop("foreign_replica", node, replica=replica.id, placed_on=replica.node)
            elif report.port and not REPLICA_PORTS[0] <= report.port <= REPLICA_PORTS[1]:
                self.drop("foreign_port", node, replica=replica.id, port=report.port)
            else:
                yield replace(report, why=report.why[:TEXT_MAX]) if len(report.why) > TEXT_MAX else report

    def finding(self, world: World, node: str, finding: Finding) -> Finding | None:
        """As it may be journalled; None: it is dropped. Only findings of the control plane say when they are
        over, and by which workloads they were raised."""
        if finding.node != node:
            self.drop("foreign_finding", node, finding=finding.name[:NAME_MAX], about=finding.node[:NAME_MAX])
            return None
        if self._findings is None:
            self._findings = {name for owner, name in world.findings if owner == node}
        name = finding.name[:NAME_MAX]
        if name not in self._findings and len(self._findings) >= FINDINGS_MAX:
            self.drop("too_many_findings", node, finding=name)
            return None
        self._findings.add(name)
        evidence, remedy = finding.evidence[:TEXT_MAX], finding.remedy[:TEXT_MAX]
        return replace(finding, name=name, evidence=evidence, remedy=remedy, expires=0, raised_by=())

    def drop(self, reason: str, node: str, **fields: object) -> None:
        """Logs and counts it."""
        self._metrics.dropped.labels(reason).inc()
        self._dropped += 1
        if self._dropped <= LOGGED_MAX:
            last = self._dropped == LOGGED_MAX
            log.warning("report dropped", node=node, reason=reason, more_are_not_logged=last, **fields)


def _cost(message: Message) -> int:
    """In reports. The end of a log is written to the store as well, and an empty message is answered."""
    if isinstance(message, Reports):
        return max(1, len(message.reports) + len(message.tails))
    return OTHER_COST
