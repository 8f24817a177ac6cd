"""A simulated control plane: it leads or waits, turns the real loop, and carries out what the plan says.

Everything it decides comes from `core.turn`; here are its hands (messages, provider calls) and its ways to
fail: crash between any two steps of a turn, pause, lose its store, have its clock set.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.core.agent.desired_set import desired_set, events_of
from holdfast.core.agent.machine import Report
from holdfast.core.state.accounts import begins_at, stepped_ms
from holdfast.core.turn import Append, Entry, Mind, Perform, Send, resume, turn
from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.node import JOINED, Answer, NodeState
from holdfast.model.units import NEVER, SECOND, Instant, Millis
from holdfast.model.verdict import Level, Word
from holdfast.ports.clock import SteadyClock
from holdfast.ports.errors import NotFound, PortError, Unreachable
from holdfast.ports.provider import Provider
from holdfast.sim.event_queue import immediately
from holdfast.sim.twins.host import Host
from holdfast.sim.twins.store import SimStore

if TYPE_CHECKING:
    from holdfast.sim.run import Simulation

LEADER_TTL_MS = 3 * SECOND
TICK_MS = 1 * SECOND
TURN_DELAY_MS = 2  # what comes in together is handled together
TURN_GAP_MS = 10  # at least, between two turns
NO_CRASH = -1


class Crashed(Exception):
    """This control plane just died, in the middle of something."""


class SimClock:
    def __init__(self, sim: "Simulation", machine: str = "") -> None:
        self.sim, self.machine = sim, machine
        self.jump = 0

    def wall(self) -> Instant:
        return self.sim.kernel.now + self.jump

    def monotonic(self) -> Instant:
        return self.sim.kernel.now

    def era(self) -> str:
        return self.machine


class SimControl:
    def __init__(self, name: str, sim: "Simulation") -> None:
        self.name, self.sim, self.kernel = name, sim, sim.kernel
        self.clock = SimClock(sim, name)
        self.steady = SteadyClock(self.clock)
        self.alive = True
        self.store_cut = False  # we cannot reach the store, though others may
        self.paused_until: Instant = 0
        self.mind: Mind | None = None
        self.generation = 0
        self.leads_until: Instant = 0
        self.written = 0  # journal length as we know it
        self.followed_at: Instant = 0  # when we last read what another leader wrote, and how far its instants
        self.seen: Millis | None = None  # are from our monotonic clock, at most
        self.least: Millis | None = None  # and at least
        self.inbox: list[ev.Event] = []
        self.after_append: list[Callable[[], None]] = []  # acknowledgements that wait for the journal
        self.turn_at: Instant = NEVER
        self.crash_at_step = NO_CRASH
        self.last_turn: Instant = -TURN_GAP_MS
        self.reported: dict[str, int] = {}  # node -> reports received, by number
        self.sessions: dict[str, int] = {}  # node -> the connection it last said hello on
        self.unconfirmed: dict[str, int] = {}  # node -> generation of the set it has not confirmed
        self.kernel.tick(int(name[3:]) * 10, self.tick)

    # leadership

    @property
    def running(self) -> bool:
        return self.alive and self.kernel.now >= self.paused_until

    @property
    def leads(self) -> bool:
        return self.mind is not None and self.running

    def now(self) -> Instant:
        return self.steady.now()

    def tick(self) -> None:
        self.kernel.tick(TICK_MS, self.tick)
        if not self.running:
            return
        asked_at = self.kernel.now
        try:
            held = immediately(self._store().lead(self.name, "", LEADER_TTL_MS, mine=self.generation))
        except PortError:
            if self.mind is not None and self.kernel.now >= self.leads_until:
                self.step_down()
            return
        if held.granted:
            self.leads_until = asked_at + held.left_ms
            if self.mind is None or self.generation != held.generation:
                self._take_over(held.generation)
        elif self.mind is not None:
            self.step_down()
        else:
            self._follow()

    def _follow(self) -> None:
        entries = self.sim.store.entries
        if self.followed_at and len(entries) > self.written:
            self.seen = entries[-1].at - self.followed_at
            self.least = entries[-1].at - self.kernel.now
        self.followed_at, self.written = self.kernel.now, len(entries)

    def _store(self) -> SimStore:
        if self.store_cut:
            raise Unreachable(f"{self.name} has no link to the store")
        return self.sim.store

    def step_down(self) -> None:
        self.mind = None
        self.inbox.clear()
        self.after_append.clear()
        self.unconfirmed.clear()
        self.sessions.clear()
        self.reported.clear()
        self.followed_at, self.seen, self.least = 0, None, None
        self.turn_at = NEVER

    def _take_over(self, generation: int) -> None:
        entries = immediately(self.sim.store.read())
        self.mind = Mind.from_journal(entries)
        self.written, self.generation = len(entries), generation
        before, last_at = self.mind.world.leader, max((entry.at for entry in entries[-1:]), default=0)
        monotonic = self.clock.monotonic()
        begins = begins_at(before, self.clock.era(), monotonic, self.least, last_at)
        self.steady = SteadyClock(self.clock, begins)
        now = self.now()
        self.mind.take_over(now)
        self.inbox = [
            ev.LeaderChanged(
                at=now,
                leader=self.name,
                generation=generation,
                era=self.steady.era,
                offset=self.steady.offset,
                stepped_ms=stepped_ms(before, self.steady.era, self.steady.offset, self.seen),
            ),
            *self.sim.first_words(now),
        ]
        self.after_append.clear()
        self.unconfirmed.clear()
        self.sessions.clear()
        self.reported.clear()
        self.sim.leader_changed(self)
        self._turn_now()
        self.sim.opening(self)
        if self.mind is not None:
            for step in list(resume(self.mind.world)):
                self._perform(step)

    # turns

    def post(self, *events: ev.Event) -> None:
        """Something happened; a turn follows soon."""
        if self.mind is not None:
            self.inbox.extend(events)
            self.want_turn(self.kernel.now + TURN_DELAY_MS)

    def want_turn(self, when: Instant) -> None:
        """A turn takes all that came since the last: a thousand answers at once cost one turn."""
        if when < self.turn_at:
            self.turn_at = max(when, self.kernel.now, self.last_turn + TURN_GAP_MS)
            self.kernel.at(self.turn_at, self._turn_due, self.turn_at)

    def _turn_due(self, planned: Instant) -> None:
        if planned == self.turn_at and self.mind is not None:
            self.turn_at = NEVER
            if self.running:
                self._turn_now()
            elif self.alive:
                self.want_turn(self.paused_until)

    def resume_after_pause(self, paused_at: Instant) -> None:
        if self.mind is not None and self.running:
            skew = self.now() - self.kernel.now
            self.mind.senses.last_turn = paused_at + skew
            self.mind.senses.listened(self.now(), paused_at + skew)
            self._turn_now()

    def _turn_now(self) -> None:
        assert self.mind is not None
        self.last_turn = self.kernel.now
        self.sim.deliver_beats()
        inbox, self.inbox = self.inbox, []
        waiting, self.after_append = self.after_append, []
        try:
            self._steps(inbox, waiting)
        except Crashed:
            self.die()
            return
        except PortError:
            self.step_down()
            return
        if self.mind is not None:
            self.sim.after_turn(self)
            self._schedule()

    def _schedule(self) -> None:
        assert self.mind is not None
        agenda = self.mind.world.agenda
        skew = self.now() - self.kernel.now
        due = min(agenda.next_due(), self.mind.ears.next_look())
        if any(agenda.changed.values()) or agenda.room_freed or self.inbox:
            self.want_turn(self.kernel.now + TURN_DELAY_MS)
        elif due < NEVER:
            self.want_turn(due - skew)
        self.sim.watch_silence()

    def _steps(self, inbox: list[ev.Event], waiting: list[Callable[[], None]]) -> None:
        assert self.mind is not None
        appended = False
        for number, step in enumerate(turn(self.mind, inbox, self.now())):
            if self.crash_at_step == number:
                raise Crashed
            match step:
                case Append(entries=entries):
                    self._append(entries)
                    appended = True
                    for acknowledge in waiting:
                        acknowledge()
                case Perform():
                    self._perform(step)
                case Send(node=node):
                    self.send_set(node)
        if not appended:
            for acknowledge in waiting:
                acknowledge()

    def _append(self, entries: tuple[Entry, ...]) -> None:
        self.written = immediately(self._store().append(self.generation, self.written, entries))
        self.sim.journalled(entries, self)

    def die(self) -> None:
        self.alive = False
        self.crash_at_step = NO_CRASH
        self.step_down()

    def revive(self) -> None:
        self.alive = True

    # nodes

    def hear_hello(self, host: Host, sent_at: Instant, session: int, running: tuple[str, ...]) -> None:
        node = self.mind.world.nodes.get(host.id) if self.mind is not None else None
        if node is None or node.state is NodeState.TERMINATING:
            return  # nobody knows it, or wants it: it is refused, and will be found in a list
        joined = ev.NodeJoined(
            at=self.now(),
            node=host.id,
            running=running,
            fencing=host.fencing,
            told=max(0, host.machine.generation),
        )
        self.sessions[host.id] = session
        self.reported.pop(host.id, None)  # a new agent may count from the beginning
        self.after_append.append(lambda: self._welcome(host, sent_at, session))
        self.post(joined)

    def hear_close(self, node: str, session: int) -> None:
        """A connection ended. The node may have made a new one by now: then this is no news about it."""
        if self.sessions.get(node) == session:
            self.post(ev.LinkClosed(at=self.now(), node=node))

    def _welcome(self, host: Host, sent_at: Instant, session: int) -> None:
        """The hello is journalled: answer it, with a lease and the whole desired set."""
        assert self.mind is not None
        node = self.mind.world.nodes.get(host.id)
        row = self.mind.senses.beats.row.get(host.id)
        delay = self.sim.network.arrives(self.name, host.id)
        if node is None or row is None or node.state not in JOINED or delay is None:
            return
        self.kernel.after(delay, self.sim.welcomed, self, host, row, sent_at, session)
        self.kernel.after(delay + 1, self.send_set, host.id)

    def send_set(self, node: str) -> None:
        """Pushes the whole set, and again until it is confirmed."""
        if self.mind is None or node not in self.mind.world.nodes:
            return
        self.unconfirmed[node] = self.mind.world.nodes[node].generation
        self._send_set(node)

    def _send_set(self, node: str) -> None:
        if self.mind is None or node not in self.unconfirmed or not self.alive:
            return
        known = self.mind.world.nodes.get(node)
        if known is None or known.state not in JOINED or known.verdict.level is Level.DEAD:
            self.unconfirmed.pop(node, None)
            return
        desired = desired_set(self.mind.world, node, self.now())
        delay = self.sim.network.arrives(self.name, node)
        if delay is not None and self.running:
            self.kernel.after(delay, self.sim.set_arrived, self, node, desired, self.sessions.get(node, 0))
        self.kernel.after(TICK_MS, self._send_again, node, self.unconfirmed[node])

    def _send_again(self, node: str, generation: int) -> None:
        if self.unconfirmed.get(node) == generation:
            self._send_set(node)

    def set_confirmed(self, node: str, generation: int) -> None:
        if self.unconfirmed.get(node, NEVER) <= generation:
            self.unconfirmed.pop(node, None)

    def hear_reports(self, host: Host, first: int, reports: tuple[Report, ...]) -> None:
        if self.mind is None:
            return
        now = self.now()
        before = first + len(reports)
        known = self.reported.get(host.id, 0)
        self.reported[host.id] = max(known, before)
        self.after_append.append(lambda: self._acknowledge(host, before))
        self.post(*events_of(reports[max(0, known - first) :], host.id, now))

    def _acknowledge(self, host: Host, before: int) -> None:
        delay = self.sim.network.arrives(self.name, host.id)
        if delay is not None:
            self.kernel.after(delay, self.sim.fleet.reports_arrived, host, before)

    def hear_answer(self, node: str, peer: str, answer: Answer) -> None:
        self.post(ev.PeerAnswered(at=self.now(), node=node, peer=peer, answer=answer))

    # hands

    def _perform(self, step: Perform) -> None:
        match step.action:
            case do.AskPeers(node=node, peers=peers):
                for peer in peers:
                    self.sim.ask_peer(self, peer, node)
            case do.AskProvider(node=node):
                self._ask_provider(node)
            case do.ListPool(pool=pool):
                self._list(pool)
            case do.ListOffers(pool=pool):
                self._list_offers(pool)
            case do.LaunchNode(node=node, pool=pool) as launch:
                self._call(pool, node, lambda p: p.launch(launch), ev.NodeLaunched, step.id)
            case do.TerminateNode(node=node):
                self._call(self._pool_of(node), node, lambda p: p.terminate(node), ev.NodeTerminated, step.id)
            case do.ResetNode(node=node):
                self._call(self._pool_of(node), node, lambda p: p.reset(node), ev.NodeReset, step.id)
            case _:
                raise AssertionError(f"nobody carries out {step.action}")

    def _pool_of(self, node: str) -> str:
        assert self.mind is not None
        known = self.mind.world.nodes.get(node)
        return known.pool if known else node.rsplit("-", 1)[0]

    def _call(
        self, pool: str, node: str, call: Callable[[Provider], object], done: type, action_id: str
    ) -> None:
        provider = self.sim.provider_of(pool)
        outcome: Callable[[Instant], ev.Event]
        try:
            immediately(call(provider))  # type: ignore[arg-type]
        except NotFound as error:
            missing = done is ev.NodeTerminated
            why = str(error)
            outcome = (
                (lambda at: ev.NodeTerminated(at=at, node=node, found=False))
                if missing
                else (
                    lambda at: ev.ActionFailed(at=at, action=action_id, node=node, error="NotFound", why=why)
                )
            )
        except PortError as error:
            kind, why, wait = type(error).__name__, str(error), error.retry_after_ms
            outcome = lambda at: ev.ActionFailed(  # noqa: E731
                at=at, action=action_id, node=node, error=kind, why=why, retry_after_ms=wait
            )
        else:
            outcome = lambda at: done(at=at, node=node)  # noqa: E731
        self.kernel.after(provider.answer_ms(), self._outcome, outcome, self.generation)

    def _outcome(self, outcome: Callable[[Instant], ev.Event], generation: int) -> None:
        """An answer reaches the one who asked, if it still leads."""
        if self.mind is not None and self.generation == generation and self.alive:
            self.post(outcome(self.now()))

    def _ask_provider(self, node: str) -> None:
        provider = self.sim.provider_of(self._pool_of(node))
        try:
            word = immediately(provider.state(node))
        except PortError:
            word = Word.UNKNOWN
        answer = lambda at: ev.ProviderAnswered(at=at, node=node, word=word)  # noqa: E731
        self.kernel.after(provider.answer_ms(), self._outcome, answer, self.generation)

    def _list(self, pool: str) -> None:
        provider = self.sim.provider_of(pool)
        asked = self.now()
        try:
            nodes = immediately(provider.list(pool))
            queued = immediately(provider.queued(pool)) if provider.traits.queue_ms else None
        except PortError:
            return
        listed = ev.PoolListed(at=asked, pool=pool, nodes=nodes, asked_at=asked, queued=queued)
        answer = lambda at: replace(listed, at=at)  # noqa: E731
        self.kernel.after(provider.answer_ms(), self._outcome, answer, self.generation)

    def _list_offers(self, name: str) -> None:
        assert self.mind is not None
        provider = self.sim.provider_of(name)
        try:
            offers = immediately(provider.offers(self.mind.world.pools[name]))
        except PortError:
            return
        answer = lambda at: ev.OffersListed(at=at, pool=name, offers=offers)  # noqa: E731
        self.kernel.after(provider.answer_ms(), self._outcome, answer, self.generation)
