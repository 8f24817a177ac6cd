"""What is really so, whatever anybody believes: the safety checks and the measurements.

Safety is checked at the moment it could break: when a process starts, when a plan is refused, when a healthy
node is called dead or is given up.
"""

import msgspec

from holdfast.model.replica import Role
from holdfast.model.units import SECOND, Instant, Millis
from holdfast.model.workload import Service, Training, Workload
from holdfast.sim.twins.fleet import Fleet
from holdfast.sim.twins.host import Host
from holdfast.sim.twins.programs import Process

COULD_BE_HEARD_MS = 3 * SECOND  # a node that is well again has tried by then
SURELY_HEARD_MS = 15 * SECOND  # a node that is well again has said hello by then, lost packets and all


class Violation(msgspec.Struct, frozen=True):
    at: Instant
    what: str


class Stretch(msgspec.Struct):
    """How a workload did over time."""

    up: bool = False
    since: Instant = 0
    up_ms: int = 0
    down_ms: int = 0
    first_up: Instant = -1
    over: bool = False
    aside: bool = False  # paused or deleted, or wanted again and not up yet: as before its first start
    asked: Instant = -1  # since then its owner wants it again
    outages: list[tuple[Instant, Instant]] = []
    ready: list[tuple[Instant, int]] = []  # (when, how many) for pictures


class Truth:
    def __init__(self, fleet: Fleet, *, keep_history: bool) -> None:
        self.fleet, self.kernel, self.keep_history = fleet, fleet.kernel, keep_history
        self.violations: list[Violation] = []
        self.false_failovers: list[tuple[Instant, str]] = []
        self.epochs: dict[str, int] = {}
        self.stretches: dict[str, Stretch] = {}
        self.deleted: set[str] = set()
        fleet.on_start = self.started
        fleet.on_change = self.changed

    def violated(self, what: str) -> None:
        self.violations.append(Violation(self.kernel.now, what))

    # safety

    def started(self, process: Process) -> None:
        wanted = process.wanted
        self._is_a_seat(process)
        if not wanted.exclusive or wanted.role is not Role.ACTIVE:
            return
        others = [p for p in self.fleet.active_in(process) if p is not process and self._may_run(p)]
        if others:
            there = ", ".join(f"{other.wanted.replica} on {other.node}" for other in others)
            self.violated(f"{wanted.slot} runs twice: {wanted.replica} on {process.node} beside {there}")
        if wanted.epoch <= self.epochs.get(wanted.slot, 0):
            self.violated(f"{wanted.slot} started with epoch {wanted.epoch} again")
        self.epochs[wanted.slot] = wanted.epoch
        if wanted.gang:
            self._meets(process)

    def _meets(self, process: Process) -> None:
        """All members that run are of one generation, each with a rank of its own and the same list of
        members, in which no port is missing."""
        wanted = process.wanted
        names = [peer.replica for peer in wanted.peers]
        if wanted.replica not in names or any(not peer.port for peer in wanted.peers):
            self.violated(f"{wanted.replica} starts with the members {', '.join(names) or 'unknown'}")
        restarts = self.fleet.workloads[process.workload].regroups_by_restart
        running = (each for seat in self.fleet.active[process.workload].values() for each in seat)
        for other in running:
            if other is process or not self._may_run(other):
                continue
            same = other.wanted.gang == wanted.gang
            if same and (other.wanted.peers != wanted.peers or other.wanted.replica == wanted.replica):
                self.violated(f"{wanted.replica} and {other.wanted.replica} disagree about their gang")
            if restarts and not same:
                there = f"{other.wanted.replica} of generation {other.wanted.gang} runs on {other.node}"
                self.violated(f"{wanted.replica} starts in generation {wanted.gang}, and {there}")

    def _is_a_seat(self, process: Process) -> None:
        """A service that scales has at most so many seats, however many copies are in one for a moment."""
        shape, seat = self.fleet.workloads[process.workload].shape, process.wanted.slot.rsplit("/", 1)[1]
        scale = getattr(shape, "scale", None)
        if scale is not None and seat.isdecimal() and int(seat) >= scale.max:
            self.violated(f"{process.wanted.replica} starts, and {process.workload} may have {scale.max}")

    def _may_run(self, process: Process) -> bool:
        """A frozen process whose lease is over is killed before it runs again."""
        host = self.fleet.hosts.get(process.node)
        if host is None or not host.powered:
            return False
        return not (host.frozen and self.fleet.wire.lease_until[host.row] <= self.kernel.now)

    def judged_dead(self, node: str, reachable_since: Instant) -> None:
        """Wrong if it works and somebody could know, with its agent or (its shims answer) without."""
        host = self.fleet.hosts.get(node)
        if host is None or not host.powered or host.frozen or not self._at_work(host):
            return
        if self.kernel.now - max(host.well_since, reachable_since) >= COULD_BE_HEARD_MS:
            self.false_failovers.append((self.kernel.now, node))

    def given_up(self, node: str, reachable_since: Instant, how: str) -> None:
        """It is to be terminated or reset, and no deadline of its own has run out."""
        host = self.fleet.hosts.get(node)
        if host is None or not host.healthy:
            return
        at_work = self._at_work(host)
        heard = self.kernel.now - max(host.well_since, reachable_since) >= SURELY_HEARD_MS
        if heard and at_work:
            self.violated(f"{node} was {how} though it is well and runs {', '.join(at_work)}")

    def blamed(self, node: str, window_ms: Millis, why: str) -> None:
        """It is found to fail every replica: it does, or did lately. A flaky program is not its fault."""
        host = self.fleet.hosts.get(node)
        if host is None or host.gray:
            return
        if host.gray_at is None or self.kernel.now - host.gray_at > window_ms:
            self.violated(f"{node} is blamed though it is well: {why}")

    def _at_work(self, host: Host) -> list[str]:
        """What runs there and was not told to stop."""
        known = host.machine.processes
        return [name for name in host.processes if name in known and not known[name].stopping]

    # measurements

    def ready(self, workload: str) -> int:
        """How many active processes of it really serve."""
        slots = self.fleet.active.get(workload, {})
        return sum(any(self._serves(process) for process in processes) for processes in slots.values())

    def _meets_in_full(self, workload: Workload) -> bool:
        """Every member of its newest generation is ready, and there are as many as each was given."""
        members = self.fleet.members(workload.name)
        sizes = {len(member.wanted.peers) for member in members}
        return sizes == {len(members)} and all(self._serves(member) for member in members)

    def _serves(self, process: Process) -> bool:
        host = self.fleet.hosts.get(process.node)
        return process.ready and host is not None and host.powered and not host.frozen

    def needed(self, workload: Workload) -> int:
        match workload.shape:
            case Service(scale=scale) if scale is not None:
                return scale.min
            case Service(replicas=n):
                return n
            case Training(nodes_min=n):
                return n
            case _:
                return 1

    def delete(self, name: str) -> None:
        self.deleted.add(name)
        self.changed(name)

    def apply(self, name: str) -> None:
        """Again, perhaps, or paused, or resumed."""
        stretch = self.stretches.get(name)
        self.deleted.discard(name)
        if stretch is not None and stretch.aside != self.fleet.workloads[name].paused:
            self.changed(name)

    def changed(self, name: str) -> None:
        workload = self.fleet.workloads[name]
        if not isinstance(workload.shape, Service | Training):
            return
        stretch = self.stretches.setdefault(name, Stretch(since=self.kernel.now))
        if name in self.fleet.finished:
            self._finish(stretch)
        if stretch.over:
            return
        count = self.ready(name)
        gang = isinstance(workload.shape, Training)
        up = self._meets_in_full(workload) if gang else count >= self.needed(workload)
        if self.keep_history:
            stretch.ready.append((self.kernel.now, count))
        unwanted = workload.paused or name in self.deleted
        if unwanted or (stretch.aside and not up):
            self._set_aside(stretch, wanted=not unwanted)
        elif up != stretch.up:
            self._account(stretch)
            if up and stretch.first_up < 0:
                stretch.first_up = self.kernel.now
            elif not up:
                stretch.outages.append((self.kernel.now, self.kernel.now))
            stretch.up = up

    def _set_aside(self, stretch: Stretch, *, wanted: bool) -> None:
        """What nobody wants is not down, and its start afterwards counts as little as its first."""
        if not stretch.aside:
            self._account(stretch)
            stretch.aside, stretch.up = True, False
        if not wanted:
            stretch.asked = -1
        elif stretch.asked < 0:
            stretch.asked = self.kernel.now

    def _finish(self, stretch: Stretch) -> None:
        """A training that is done is not down."""
        if not stretch.over:
            self._account(stretch)
            stretch.over = True
            if self.keep_history:
                stretch.ready.append((self.kernel.now, 0))

    def _account(self, stretch: Stretch) -> None:
        spent = self.kernel.now - stretch.since
        if stretch.aside:
            stretch.aside = False
        elif stretch.first_up >= 0:
            if stretch.up:
                stretch.up_ms += spent
            else:
                stretch.down_ms += spent
                if stretch.outages:
                    stretch.outages[-1] = (stretch.outages[-1][0], self.kernel.now)
        stretch.since = self.kernel.now

    def close(self) -> None:
        for stretch in self.stretches.values():
            if stretch.aside and stretch.asked >= 0:  # it never came back
                stretch.aside, stretch.since = False, stretch.asked
                stretch.outages.append((stretch.asked, stretch.asked))
            if not stretch.over:
                self._account(stretch)
