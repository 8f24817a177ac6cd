"""The gateway before a service: it takes what is asked, lets it wait if it will, and tells the leader.

Work is a fluid: every few seconds it is asked how many replicas really serve, and what they can take of what
is there flows off, the oldest first. What waits for longer than its patience is lost; without patience,
whatever there is no room for at once is. A gateway stands beside the control plane: it reaches whoever leads,
and tells nobody while nobody does.

For services that answer with tokens, single requests and the real core are simulated instead (`traffic`); a
fluid is what days of load cost little with, and all that scaling sees of them.

Three faults are its own: it falls silent, it repeats itself, or it says what cannot be.
"""

import math
import random
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from holdfast.core.turn import Mind
from holdfast.model.scale import Scale, Signal
from holdfast.model.units import DAY, HOUR, Instant, Millis
from holdfast.model.workload import Service
from holdfast.sim.scenario.load_profile import Load
from holdfast.sim.scenario.scenario import Fault, WorkloadSetup

if TYPE_CHECKING:
    from holdfast.sim.run import Simulation

SOURCE = "gateway"
ABSURD = (math.nan, -1.0, 1e18, math.inf, -math.inf)
A_REQUEST = 1e-6  # less than this is none: what is left of sums


class Served(msgspec.Struct, frozen=True):
    """What became of what was asked."""

    requests: float
    lost: float
    waited: float  # had to wait, and got their answer or are still there
    waiting: float  # at the end
    longest_wait_ms: Millis
    replica_hours: float
    turns: int  # of direction: from growing to shrinking, or back
    turns_a_day: float

    @property
    def lost_share(self) -> float:
        return self.lost / self.requests if self.requests else 0.0


class Gateway:
    def __init__(self, sim: "Simulation", setup: WorkloadSetup, load: Load, scale: Scale) -> None:
        self.sim, self.name, self.load, self.scale = sim, setup.workload.name, load, scale
        self.random = random.Random(f"load/{self.name}/{sim.seed}")
        self.opened = self.counted_at = setup.at
        self.waiting: deque[tuple[Instant, float]] = deque()
        self.asked = self.lost = self.waited = 0.0
        self.longest_wait_ms: Millis = 0
        self.replica_ms = self.turns = self.wanted = self.direction = 0
        self.troubles: dict[Fault, Instant] = {}  # until when
        self.said: dict[Signal, float] = {}
        self.heard_at: Instant = setup.at  # when a leader last took a word of it, and which
        self.heard_by: Mind | None = None
        self.open = True  # while the service is there
        sim.kernel.at(setup.at + load.every_ms, self.count)

    # what is asked and answered

    def count(self) -> None:
        self.sim.kernel.after(self.load.every_ms, self.count)
        if not self.open:
            return
        now = self.sim.kernel.now
        passed, self.counted_at = now - self.counted_at, now
        self.replica_ms += passed * sum(map(bool, self.sim.fleet.active.get(self.name, {}).values()))
        if self.sim.fleet.workloads[self.name].paused:
            return
        level = max(0.0, self.load.level(now) * self.random.gauss(1.0, self.load.noise))
        served = self._serve(now, passed, level)
        self.tell(now, self.signals(now, level, served / passed if passed else 0.0))

    def _serve(self, now: Instant, passed: Millis, level: float) -> float:
        """How much flowed off, in the signal's unit times milliseconds."""
        each = self.scale.per_replica.get(self.load.signal, 0.0)
        room = self.sim.truth.ready(self.name) * each * passed
        here = room
        self.asked += level * passed
        while self.waiting and here > 0:
            since, amount = self.waiting.popleft()
            took = min(amount, here)
            here -= took
            self.longest_wait_ms = max(self.longest_wait_ms, now - since)
            if amount > took:
                self.waiting.appendleft((since, amount - took))
        took = min(level * passed, here)
        self._keep_waiting(now, level * passed - took)
        return room - here + took

    def _keep_waiting(self, now: Instant, left: float) -> None:
        if left > A_REQUEST and self.load.patience_ms:
            self.waiting.append((now, left))
            self.waited += left
        elif left > A_REQUEST:
            self.lost += left
        while self.waiting and now - self.waiting[0][0] > self.load.patience_ms:
            gone = self.waiting.popleft()[1]
            self.lost, self.waited = self.lost + gone, self.waited - gone

    def in_line(self) -> float:
        """Requests that wait."""
        return sum(amount for _, amount in self.waiting) / self.load.takes_ms

    # what is told

    def signals(self, now: Instant, level: float, served: float) -> dict[Signal, float]:
        if not self.load.patience_ms:
            return {self.load.signal: level}
        held = served + self.in_line() if self.load.signal is Signal.IN_FLIGHT else level
        oldest = now - self.waiting[0][0] if self.waiting else 0
        return {self.load.signal: held, Signal.QUEUE: self.in_line(), Signal.OLDEST_WAIT: float(oldest)}

    def tell(self, now: Instant, said: dict[Signal, float]) -> None:
        leader = self.sim.listening()
        if leader is None or leader.mind is None or self._is(Fault.SIGNALS_MISSING, now):
            return
        if self._is(Fault.SIGNALS_ABSURD, now):
            said = {signal: self.random.choice(ABSURD) for signal in said}
        elif self._is(Fault.SIGNALS_STUCK, now):
            said = self.said
        else:
            self.said = said
        ears, world = leader.mind.ears, leader.mind.world
        if self.name not in world.scaled:
            return
        refused = ears.hear(world, self.name, SOURCE, said, leader.now())
        if len(refused) < len(said):
            self.heard_at, self.heard_by = now, leader.mind
        leader.want_turn(ears.next_look() - leader.now() + now)

    def _is(self, fault: Fault, now: Instant) -> bool:
        return now < self.troubles.get(fault, 0)

    # what came of it

    def judged(self, mind: Mind | None, wanted: int) -> None:
        """A leader wants so many. What it has not heard of takes nothing away."""
        silent = mind is not self.heard_by or self._is_stale()
        if wanted < self.wanted and silent:
            self.sim.truth.violated(f"{self.name} shrinks to {wanted}, and nothing is known of its load")
        if not self.scale.min <= wanted <= self.scale.max:
            bounds = f"between {self.scale.min} and {self.scale.max}"
            self.sim.truth.violated(f"{self.name} wants {wanted}, and may have {bounds}")
        direction = (wanted > self.wanted) - (wanted < self.wanted)
        if direction and self.direction == -direction:
            self.turns += 1
        self.wanted, self.direction = wanted, direction or self.direction

    def _is_stale(self) -> bool:
        return self.sim.kernel.now - self.heard_at > self.scale.stale_ms + self.load.every_ms

    def close(self) -> None:
        self.open = False

    def reopen(self) -> None:
        """The service is applied again."""
        if not self.open:
            self.open, self.counted_at = True, self.sim.kernel.now
            self.waiting.clear()

    def forgotten(self) -> None:
        """That the service was deleted is journalled: the size that it had says nothing of the next one."""
        self.wanted = self.direction = 0

    def result(self) -> Served:
        unit, lasted = self.load.takes_ms, max(1, self.counted_at - self.opened)
        return Served(
            requests=self.asked / unit,
            lost=self.lost / unit,
            waited=self.waited / unit,
            waiting=self.in_line(),
            longest_wait_ms=self.longest_wait_ms,
            replica_hours=self.replica_ms / HOUR,
            turns=self.turns,
            turns_a_day=self.turns * DAY / lasted,
        )


def gateways(sim: "Simulation") -> dict[str, Gateway]:
    """One for each service that has a load and scales by it. Applied again, a service keeps its gateway."""
    found: dict[str, Gateway] = {}
    for setup in sim.scenario.workloads:
        shape = setup.workload.shape
        fluid = setup.load is not None and setup.requests is None
        if fluid and isinstance(shape, Service) and shape.scale is not None:
            assert setup.load is not None
            if setup.workload.name not in found:
                found[setup.workload.name] = Gateway(sim, setup, setup.load, shape.scale)
    return found
