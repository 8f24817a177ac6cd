"""One term of leadership: the loop, from the take-over to the last append that succeeded.

Everything is decided by `core.turn`; here are its hands and ears. What comes in waits in the inbox until the
next turn; a turn runs at most every 10 ms and takes all that came. What somebody waits for (an apply, the
acknowledgement of a report, a welcome) is answered when the entries of its turn are in the journal, never
before.

A term that cannot write is over: its world holds what nobody journalled, so it is thrown away, and whoever
leads next, perhaps we ourselves a second later, begins from the journal.

An event that cannot be folded in, or with which nothing can be decided, ends no term: a node could take the
leadership from us with one message. Such a turn fails before its append, so nothing of it was decided, but
the world is half changed. It is read again from the journal, what came in is tried one by one, and what
fails then is left out: its sender is told so, and a node is not heard again for a while. Refused: trying
each event on a copy of the world first (a copy costs more than a turn, for what should never happen), and
going on with the world as it is (whoever reads the journal would have another one). What fails though
nothing came in is a mistake that no sender is to blame for, and ends the term.

We listen in ticks. A tick that comes late means that we were not listening (a long turn, a paused process, a
busy machine), and everybody is forgiven that time *before* anything that waited meanwhile is read.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import msgspec
import structlog

from holdfast.control.follow import Follower
from holdfast.control.metrics import Metrics
from holdfast.control.together import together
from holdfast.core.state import accounts, snapshot
from holdfast.core.turn import Append, Mind, Perform, Send, resume, turn
from holdfast.model.action import PromoteStandby
from holdfast.model.event import Event, LeaderChanged, NodeJudged, PolicyApplied, ReplicaReady
from holdfast.model.plan import Plan
from holdfast.model.replica import State
from holdfast.model.scale import Signal
from holdfast.model.units import DAY, Instant, Millis
from holdfast.model.verdict import Level
from holdfast.ports.clock import SteadyClock
from holdfast.ports.errors import Fenced, OutcomeUnknown, PortError, Unwritable
from holdfast.ports.store import Snapshot, Store

TICK_MS = 100
GATHER_S = 0.002  # what comes in together is handled together
GAP_MS = 10  # at least, between two turns
SNAPSHOT_EVERY = 5_000  # entries
WHY_MAX = 500  # characters
KEPT_MS = 90 * DAY  # of the journal and the history

log = structlog.get_logger("holdfast.loop")


class Hands(Protocol):
    """Who carries out what a turn says."""

    def perform(self, step: Perform) -> None: ...

    def send_set(self, node: str) -> None: ...

    def heard(self) -> dict[str, Instant]:
        """Beats since the last call: node -> when."""
        ...

    def refuse(self, node: str, why: str) -> None:
        """What it reports cannot be handled: it is not heard for a while."""

    def resume(self) -> None:
        """The world is sound again: what was put off meanwhile can be done."""


class Over(Exception):
    """The term ended before the entry was journalled: it did not happen."""


class Unfoldable(Exception):
    """Nothing can be decided with it. It did not happen, and it makes no sense to try again."""


class Post:
    """What came in together, from one sender: all of it is journalled, or none. Perhaps somebody waits."""

    __slots__ = ("_done", "_failed", "events", "sender")

    def __init__(
        self,
        events: tuple[Event, ...],
        sender: str = "",
        done: Callable[[int], None] | None = None,
        failed: Callable[[Exception], None] | None = None,
    ) -> None:
        """`sender`: the node that reported it."""
        self.events, self.sender, self._done, self._failed = events, sender, done, failed

    def journalled(self, length: int) -> None:
        done, self._done, self._failed = self._done, None, None
        if done is not None:
            done(length)

    def failed(self, error: Exception) -> None:
        failed, self._done, self._failed = self._failed, None, None
        if failed is not None:
            failed(error)


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
        self.stepped_ms = accounts.stepped_ms(mind.world.leader, clock.era, clock.offset, seen)
        self.began = False  # has its first turn been journalled?
        self.sound = True  # False: half a turn is in the world, and is being undone
        self._posts: list[Post] = []
        self._appending = False  # what this turn decided may be in the journal
        self._wake = asyncio.Event()
        self._listened: Instant = clock.now()
        self._last_turn: Instant = 0
        self._over: Exception | None = None

    @property
    def open(self) -> bool:
        """Can it be turned to?"""
        return self.began and self.sound

    @property
    def now(self) -> Instant:
        return self.clock.now()

    # what comes in

    def post(
        self,
        *events: Event,
        done: Callable[[int], None] | None = None,
        failed: Callable[[Exception], None] | None = None,
        sender: str = "",
    ) -> None:
        """Something happened. `done` is called when it is in the journal, with the journal's length.
        `sender`: the node that reported it."""
        if self._over is not None:
            if failed is not None:
                failed(self._over)
            return
        if events or done is not None:
            self._posts.append(Post(events, sender, done, failed))
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

    def hear_load(self, workload: str, source: str, said: Mapping[Signal, float]) -> list[Signal]:
        """Load signals of a service, from any source. Returns those that were refused."""
        return self.mind.ears.hear(self.mind.world, workload, source, said, self.now)

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
        self.post(self._begins(now, anew=self.mind.anew, stepped_ms=self.stepped_ms), *first_words)
        try:
            await together(self._turns(), self._tick())
        except PortError as error:
            self._end(error)
            raise
        finally:
            self._end(Over("the control plane no longer leads"))

    def _begins(self, now: Instant, *, anew: bool, stepped_ms: Millis = 0) -> LeaderChanged:
        return LeaderChanged(
            at=now,
            leader=self.name,
            generation=self.generation,
            anew=anew,
            era=self.clock.era,
            offset=self.clock.offset,
            stepped_ms=stepped_ms,
        )

    def _end(self, error: Exception) -> None:
        if self._over is None:
            self._over = error
        posts, self._posts = self._posts, []
        for post in posts:
            post.failed(self._over)

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
        posts, self._posts = self._posts, []
        try:
            try:
                await self._steps(posts, started)
            except PortError:
                raise
            except Exception as error:
                if self._appending or not posts or not self.began:
                    raise
                await self._one_by_one(posts, error)
        except PortError:
            self._posts, posts = posts + self._posts, []  # they are told why
            raise
        finally:
            for post in posts:  # cut off in the middle of an append, or by a mistake of ours: who knows?
                post.failed(OutcomeUnknown("the leadership was lost while it was being written"))
        self.metrics.turn_seconds.observe((self.now - started) / 1000)

    async def _one_by_one(self, posts: list[Post], error: Exception) -> None:
        """The turn failed before its append. Which of these is to blame?"""
        log.error("a turn failed: what came in is tried one by one", posts=len(posts), exc_info=error)
        await self._read_again()
        await self._steps([], self.now)  # fails too: it was none of them
        for post in posts:
            try:
                await self._steps([post], self.now)
            except PortError:
                raise
            except Exception as error:
                if self._appending:
                    raise
                await self._read_again()
                self._leave_out(post, error)
        self.sound = True
        self.hands.resume()

    def _leave_out(self, post: Post, error: Exception) -> None:
        why = f"{type(error).__name__}: {error}"[:WHY_MAX]
        kinds = [type(event).__name__ for event in post.events]
        log.error("left out what cannot be handled", node=post.sender, events=kinds, why=why)
        self.metrics.unfoldable.inc()
        post.failed(Unfoldable(f"it cannot be handled: {why}"))
        if post.sender:
            self.hands.refuse(post.sender, why)

    async def _read_again(self) -> None:
        """The world as it is in the journal, without the half of a turn that was folded in."""
        self.sound = False
        follower = Follower(self.store)
        await follower.begin()
        await follower.catch_up()
        if follower.length != self.written:
            raise OutcomeUnknown(f"the journal has {follower.length} entries, we wrote {self.written}")
        self.mind.undo(follower.world, self.now)
        self.policy = self.mind.world.policy
        if follower.anew:
            await self._steps([Post((self._begins(self.now, anew=True),))], self.now)

    async def _steps(self, posts: list[Post], now: Instant) -> None:
        self._appending = False
        inbox = [_counts_from(event, now) for post in posts for event in post.events]
        self._measure_failovers(inbox)
        refused = len(self.mind.refused)
        for step in turn(self.mind, inbox, now):
            match step:
                case Append(entries=entries):
                    self._appending = True
                    before = self.now
                    project_of = self.mind.world.project_of
                    try:
                        self.written = await self.store.append(
                            self.generation, self.written, entries, project_of
                        )
                    except Unwritable as error:  # it is for one of those who sent this, not for our term
                        self._appending = False
                        raise Unfoldable(str(error)) from None
                    self.policy = self.mind.world.policy
                    self.metrics.journal_seconds.observe((self.now - before) / 1000)
                    self.metrics.journalled(entries)
                    self._measure_promotions(entries)
                    self._journalled(posts)
                    self._tell_verdicts(entries)
                case Perform():
                    self.hands.perform(step)
                case Send(node=node):
                    self.hands.send_set(node)
        self._journalled(posts)
        for refusal in self.mind.refused[refused:]:
            log.error("refused", action=type(refusal.action).__name__, invariant=refusal.invariant)
        self.mind.refused.clear()

    def _journalled(self, posts: list[Post]) -> None:
        for post in posts:
            post.journalled(self.written)
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
