"""One term of leadership: the loop, from the take-over to the last append that succeeded.

Everything is decided by `core.turn`; here are its hands and ears. What comes in waits in the inbox until the
next turn; a turn runs at most every 10 ms and takes all that came. What somebody waits for (an apply, the
acknowledgement of a report, a welcome) is answered when the entries of its turn are in the journal, never
before.

A term that cannot write is over: its world holds what nobody journalled, so it is thrown away, and whoever
leads next, perhaps we ourselves a second later, begins from the journal.

We listen in ticks. A tick that comes late means that we were not listening (a long turn, a paused process, a
busy machine), and everybody is forgiven that time *before* anything that waited meanwhile is read.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec
import structlog

from holdfast.control.metrics import Metrics
from holdfast.control.together import together
from holdfast.core import books, snapshot
from holdfast.core.turn import Append, Mind, Perform, Send, resume, turn
from holdfast.model.action import PromoteStandby
from holdfast.model.event import Event, LeaderChanged, NodeJudged, PolicyApplied, ReplicaReady
from holdfast.model.plan import Plan
from holdfast.model.replica import State
from holdfast.model.units import DAY, Instant, Millis
from holdfast.model.verdict import Level
from holdfast.ports.clock import SteadyClock
from holdfast.ports.errors import Fenced, OutcomeUnknown, PortError
from holdfast.ports.store import Snapshot, Store

TICK_MS = 100
GATHER_S = 0.002  # what comes in together is handled together
GAP_MS = 10  # at least, between two turns
SNAPSHOT_EVERY = 5_000  # entries
KEPT_MS = 90 * DAY  # of the journal and the history

log = structlog.get_logger("holdfast.loop")


class Hands(Protocol):
    """Who carries out what a turn says."""

    def perform(self, step: Perform) -> None: ...

    def send_set(self, node: str) -> None: ...

    def heard(self) -> dict[str, Instant]:
        """Beats since the last call: node -> when."""


class Over(Exception):
    """The term ended before the entry was journalled: it did not happen."""


class Wait:
    """Somebody waits until what they said is in the journal."""

    __slots__ = ("done", "failed")

    def __init__(self, done: Callable[[int], None], failed: Callable[[Exception], None] | None) -> None:
        self.done, self.failed = done, failed


def _counts_from(event: Event, now: Instant) -> Event:
    """Until this turn leases were renewed by the old policy, however long ago somebody asked for another."""
    return msgspec.structs.replace(event, at=now) if isinstance(event, PolicyApplied) else event


class Term:
    def __init__(
        self,
        name: str,
        generation: int,
        mind: Mind,
        written: int,
        saved: int,
        store: Store,
        clock: SteadyClock,
        metrics: Metrics,
        seen: Millis | None = None,
    ) -> None:
        """`written` and `saved`: how many entries the journal has, and how many the newest snapshot. `seen`:
        how far the instants of the leader before were from our monotonic clock, if we watched."""
        self.name, self.generation, self.mind = name, generation, mind
        # One that is overdue waits a little all the same: what it may cost must not come with every term.
        self.written, self.saved = written, max(saved, written - SNAPSHOT_EVERY * 9 // 10)
        self.store, self.clock, self.metrics = store, clock, metrics
        self.hands: Hands
        self.on_append: Callable[[int], None] = lambda length: None
        self.policy = mind.world.policy  # as journalled: while a change is on its way, no lease is renewed
        self.stepped_ms = books.stepped_ms(mind.world.leader, clock.era, clock.offset, seen)
        self.began = False  # has its first turn been journalled?
        self._inbox: list[Event] = []
        self._waits: list[Wait] = []
        self._wake = asyncio.Event()
        self._listened: Instant = clock.now()
        self._last_turn: Instant = 0
        self._over: Exception | None = None

    @property
    def now(self) -> Instant:
        return self.clock.now()

    # what comes in

    def post(
        self,
        *events: Event,
        done: Callable[[int], None] | None = None,
        failed: Callable[[Exception], None] | None = None,
    ) -> None:
        """Something happened. `done` is called when it is in the journal, with the journal's length."""
        if self._over is not None:
            if failed is not None:
                failed(self._over)
            return
        self._inbox.extend(events)
        if done is not None:
            self._waits.append(Wait(done, failed))
        self._wake.set()

    async def tell(self, *events: Event) -> int:
        """The journal's length after these events are in it."""
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def done(length: int) -> None:
            if not answer.done():
                answer.set_result(length)

        def failed(error: Exception) -> None:
            if not answer.done():
                answer.set_exception(error)

        self.post(*events, done=done, failed=failed)
        return await answer

    def look(self) -> None:
        """A sense has news that a turn should not wait a tick for."""
        if self.mind.next_due() <= self.now:
            self._wake.set()

    # listening

    def listen(self) -> None:
        """Hand over the beats that came in. If we were away meanwhile, everybody is forgiven that first."""
        now = self.now
        self.metrics.loop_lag.set(max(0, now - self._listened - TICK_MS) / 1000)
        self.mind.senses.listened(now, self._listened + TICK_MS)
        self._listened = now
        heard = self.hands.heard()
        if heard:
            self.mind.senses.beats.hear(heard)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_MS / 1000)
            self.listen()
            if self.mind.next_due() <= self.now:
                self._wake.set()

    # turning

    async def run(self, first_words: Iterable[Event]) -> None:
        """Until it fails or is cancelled."""
        now = self.now
        self.mind.take_over(now)
        begins = LeaderChanged(
            at=now,
            leader=self.name,
            generation=self.generation,
            anew=self.mind.anew,
            era=self.clock.era,
            offset=self.clock.offset,
            stepped_ms=self.stepped_ms,
        )
        self.post(begins, *first_words)
        try:
            await together(self._turns(), self._tick())
        except PortError as error:
            self._end(error)
            raise
        finally:
            self._end(Over("the control plane no longer leads"))

    def _end(self, error: Exception) -> None:
        if self._over is None:
            self._over = error
        waits, self._waits = self._waits, []
        for wait in waits:
            if wait.failed is not None:
                wait.failed(self._over)

    async def _turns(self) -> None:
        asked = {step.id for step in resume(self.mind.world)}
        await self._turn()
        self.began = True
        for step in list(resume(self.mind.world)):
            if step.id in asked:  # what the first turn itself asked for is under way
                self.hands.perform(step)
        while True:
            await self._wake.wait()
            await asyncio.sleep(max(GATHER_S, (self._last_turn + GAP_MS - self.now) / 1000))
            self._wake.clear()
            await self._turn()
            if self.written - self.saved >= SNAPSHOT_EVERY:
                await self._save()

    async def _turn(self) -> None:
        self.listen()
        started = self._last_turn = self.now
        inbox = [_counts_from(event, started) for event in self._inbox]
        self._inbox = []
        waits, self._waits = self._waits, []
        self._measure_failovers(inbox)
        try:
            await self._steps(inbox, waits, started)
        except PortError:
            self._waits, waits = waits + self._waits, []  # they are told why
            raise
        finally:
            for wait in waits:  # cut off in the middle of an append, or by a mistake of ours: who knows?
                if wait.failed is not None:
                    wait.failed(OutcomeUnknown("the leadership was lost while it was being written"))
        self.metrics.turn_seconds.observe((self.now - started) / 1000)

    async def _steps(self, inbox: list[Event], waits: list[Wait], now: Instant) -> None:
        refused = len(self.mind.refused)
        for step in turn(self.mind, inbox, now):
            match step:
                case Append(entries=entries):
                    before = self.now
                    self.written = await self.store.append(self.generation, self.written, entries)
                    self.policy = self.mind.world.policy
                    self.metrics.journal_seconds.observe((self.now - before) / 1000)
                    self.metrics.journalled(entries)
                    self._measure_promotions(entries)
                    self._journalled(waits)
                    self._tell_verdicts(entries)
                case Perform():
                    self.hands.perform(step)
                case Send(node=node):
                    self.hands.send_set(node)
        self._journalled(waits)
        for refusal in self.mind.refused[refused:]:
            log.error("refused", action=type(refusal.action).__name__, invariant=refusal.invariant)
        self.mind.refused.clear()

    def _journalled(self, waits: list[Wait]) -> None:
        for wait in waits:
            wait.done(self.written)
        waits.clear()
        self.on_append(self.written)

    def _tell_verdicts(self, entries: Iterable[object]) -> None:
        for entry in entries:
            if isinstance(entry, NodeJudged):
                verdict = entry.verdict
                say = log.info if verdict.level is Level.ALIVE else log.warning
                say("verdict", node=entry.node, verdict=str(verdict.level), rule=verdict.rule)

    def _measure_failovers(self, inbox: list[Event]) -> None:
        """Read before the turn folds it in: for how long was the seat down that is ready now?
        What we stopped ourselves (a pause, a drain) is no failover."""
        world = self.mind.world
        for event in inbox:
            if isinstance(event, ReplicaReady) and event.replica in world.replicas:
                self._measure_failover(world.replicas[event.replica].slot, event.at)

    def _measure_promotions(self, entries: Iterable[object]) -> None:
        """A warm standby that is ready ends the failover by being told so; the plan is not folded in yet."""
        world = self.mind.world
        for plan in (entry for entry in entries if isinstance(entry, Plan)):
            for action in plan.actions:
                if not isinstance(action, PromoteStandby) or action.restart:
                    continue
                if world.replicas[action.replica].state is State.READY:
                    self._measure_failover(action.slot, plan.at)

    def _measure_failover(self, slot_id: str, at: Instant) -> None:
        slot = self.mind.world.slots.get(slot_id)
        if slot is not None and slot.struck:
            self.metrics.failover_seconds.observe(max(0, at - slot.down_since) / 1000)

    async def _save(self) -> None:
        """A short cut for whoever reads the journal next: if it cannot be saved, we lead all the same."""
        length, self.saved = self.written, self.written
        try:
            await self.store.save(self.generation, Snapshot(length, snapshot.dump(self.mind.world)))
            forgotten = await self.store.prune(self.now - KEPT_MS)
        except Fenced:
            raise
        except PortError as error:
            log.warning("no snapshot was saved", why=str(error))
            return
        if forgotten:
            log.info("forgot old entries", entries=forgotten)

    def lease_age_ms(self) -> Millis:
        """Of the node we have not heard for longest, among those believed alive."""
        world, beats = self.mind.world, self.mind.senses.beats
        ages = (self.now - beats.last_acked(name) for name in beats.row if name not in world.doubtful)
        return max(ages, default=0)
