"""A control plane: it leads or follows, and shows its edges one face in both cases.

Once a second it asks the store for the leadership. If it is ours, a term runs: the loop, its hands, and the
hub full of agents. If it is another's, the journal is read along, so that reads are answered here too and a
take-over begins where the reading has come to.

The leadership counts from before we asked, on our own monotonic clock, so we stop renewing leases before
anybody else can lead. A store that fails ends the term; the next second tries again, from the journal.

The store knows leaders by name, and two machines may have one name. So a leadership is ours only if we began
it in this process, or nobody had begun it: what is held under our name besides has to run out first.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial

import structlog
from prometheus_client import CollectorRegistry

from holdfast.control.enrol import Enrolment
from holdfast.control.follow import Follower, settle
from holdfast.control.gateways import Gateways
from holdfast.control.hub import Hub
from holdfast.control.last_words import LastWords, Log, NotKept, kept, missing
from holdfast.control.load import Load
from holdfast.control.log_reader import LogReader
from holdfast.control.mark import Behind
from holdfast.control.metrics import Metrics
from holdfast.control.perform import Performer, Providers
from holdfast.control.session import Gone, Session
from holdfast.control.term import Over, Term
from holdfast.control.together import together
from holdfast.control.trial import ForALook
from holdfast.core.explain.history import workload_of
from holdfast.core.health.detect import Senses
from holdfast.core.scaling.demand import Ears
from holdfast.core.state import accounts
from holdfast.core.turn import Mind
from holdfast.model.event import Event, NodeTerminated
from holdfast.model.node import JOINED
from holdfast.model.scale import Signal
from holdfast.model.units import SECOND, Instant, Millis
from holdfast.model.world import World
from holdfast.ports.chaos import Chaos, MarketChaos
from holdfast.ports.clock import JUMP_MS, Clock, HeldWall, SteadyClock
from holdfast.ports.errors import NotFound, PortError
from holdfast.ports.provider import Provider
from holdfast.ports.registry import Registry
from holdfast.ports.store import Leadership, Store
from holdfast.ports.telemetry import Telemetry
from holdfast.wire.messages import Silence, Used

LEADER_TTL_MS = 3 * SECOND
ASK_EVERY_S = 1.0
FOLLOW_EVERY_S = 0.25
SOON_S = 0.02
ANNOUNCE_EVERY_S = 15.0
BEGIN_S = 1.0  # for a node that is asked for the log of what runs
ENDED_S = 5.0  # and of what has ended
HISTORY = 2_000  # lines looked through for a replica that has ended

Harm = Callable[[], Awaitable[None]]

log = structlog.get_logger("holdfast.leader")


class NotLeading(Exception):
    """Another control plane leads (`url`), or nobody does (empty)."""

    def __init__(self, url: str, why: str = "") -> None:
        super().__init__(why or (f"{url} leads" if url else "nobody leads at the moment"))
        self.url = url


class Unsupported(Exception):
    """What was asked for is not possible with this node or provider."""


class NotReachable(Exception):
    """The node that has what was asked for is not connected."""


class Plane:
    def __init__(
        self,
        name: str,
        url: str,
        store: Store,
        registry: Registry,
        enrolment: Enrolment,
        clock: Clock,
        providers: Providers,
        *,
        opening: Callable[[World, Instant], Iterable[Event]] = lambda world, now: (),
        ending: Callable[[World], Awaitable[Iterable[str]]] | None = None,
        telemetry: Telemetry | None = None,
        own_pools: Collection[str] = (),
        look: ForALook | None = None,
        leader_ttl_ms: Millis = LEADER_TTL_MS,
        behind: Behind | None = None,
    ) -> None:
        """`opening`: what every term begins with. `ending`: at the very end, given the last that we knew,
        names nodes that are gone. `own_pools`: come with us, whatever was asked for. `look`: makes the
        provider of a pool that is not wanted yet, for a while. All control planes of
        a store count with the same `leader_ttl_ms`. `behind`: why the store may be an old copy."""
        self.name, self.url, self.store, self.registry = name, url, store, registry
        self.clock, self.providers, self.opening, self.ending = clock, providers, opening, ending
        self.telemetry, self.own_pools, self.leader_ttl_ms = telemetry, own_pools, leader_ttl_ms
        self.look = look
        self.unlisted: dict[str, str] = {}  # pools that could not be asked what they offer -> why
        self._metrics = Metrics()
        self.last_words = LastWords(store)
        self.hub = Hub(clock, enrolment, self._metrics, self.last_words)
        self._behind = behind
        if behind is not None:
            self.hub.claims.highest = behind.generation
        self._follower, self._reader = Follower(store), Follower(store)
        self._fresh = False  # has the follower read anything yet?
        self._caught_up_at: Instant = 0  # by the monotonic clock
        self._seen: Millis | None = None  # how far the leader's instants are from that clock, as we watched,
        self._least: Millis | None = None  # at most, and at least
        self._term: Term | None = None
        self._last = World()  # of the last term
        self._gateways: Gateways | None = None
        self._leadership = Leadership("", 0, 0)
        self._generation = 0  # of the last term that we began
        self._namesake = ""  # the address of a leader with our name
        self._trouble = "it has just started"
        self._failure = ""
        self._steady = SteadyClock(clock)
        self.wall = HeldWall(clock)  # for what ends at a date
        self._clock_off = False
        self._length = 0
        self._known: tuple[str, ...] = ()  # addresses of all control planes
        self._news = asyncio.Condition()
        self._waking: set[asyncio.Task[None]] = set()
        self._metrics.watch(
            lambda: self.world, lambda: self.leading, self._lease_age, self.now, self.demand_heard
        )

    # the face

    @property
    def world(self) -> World:
        return self._term.mind.world if self._term is not None else self._follower.world

    @property
    def last(self) -> World:
        """Of the last term, when it has ended."""
        return self._last

    @property
    def senses(self) -> Senses | None:
        return self._term.mind.senses if self._term is not None else None

    @property
    def ears(self) -> Ears | None:
        return self._term.mind.ears if self._term is not None else None

    @property
    def leading(self) -> bool:
        return self._term is not None and self._term.open

    @property
    def ready(self) -> bool:
        return self.leading or (self._fresh and bool(self._leadership.leader) and not self._trouble)

    @property
    def failure(self) -> str:
        """What keeps it from leading and from following: its store, as a rule."""
        return self._failure

    @property
    def trouble(self) -> str:
        """Why it is not ready; empty: it is."""
        return "" if self.ready else self._trouble or "nobody leads at the moment"

    @property
    def length(self) -> int:
        """Of the journal, as far as we know it."""
        return self._length

    @property
    def metrics(self) -> CollectorRegistry:
        return self._metrics.registry

    def audit_dropped(self, records: int) -> None:
        self._metrics.audit_dropped.inc(records)

    def now(self) -> Instant:
        return self._term.now if self._term is not None else self._steady.now()

    @property
    def clock_off_ms(self) -> Millis:
        """How far the clock of this machine is ahead of the fleet's time; 0: no further than clocks are."""
        off_ms = self.clock.wall() - self.now()
        return off_ms if abs(off_ms) > JUMP_MS else 0

    async def leader(self) -> Leadership:
        return self._leadership

    async def tell(self, *events: Event) -> int:
        """Journals what a user or a program did; the journal's length when it is durable."""
        term = self._term
        if term is None or not term.open:
            raise NotLeading("" if self._leadership.leader == self.name else self._leadership.address)
        try:
            return await term.tell(*events)
        except Over:
            raise NotLeading("", "the leadership was lost meanwhile; nothing was written") from None

    def hear(self, workload: str, source: str, said: Mapping[Signal, float]) -> list[Signal]:
        """What somebody tells of a workload's load; the signals that were not taken. Nothing is written."""
        term = self._term
        if term is None or not term.open:
            raise NotLeading("" if self._leadership.leader == self.name else self._leadership.address)
        return term.hear_load(workload, source, said)

    @property
    def gateways(self) -> Gateways:
        if self._gateways is None or not self.leading:
            raise NotLeading("" if self._leadership.leader == self.name else self._leadership.address)
        return self._gateways

    def demand_heard(self, workload: str) -> float | None:
        """The load of a service at the last look, in replicas. None: it was not heard, or not here."""
        ear = self.ears.of(workload) if self.ears is not None else None
        return None if ear is None or ear.size is None or ear.reading.missing else ear.reading.demand

    def used(self, node: str) -> Used | None:
        return self.hub.used.get(node)

    def probe_answer(self, node: str, replica: str) -> tuple[str, Millis] | None:
        """What the last probe of a replica answered that is not well, and for how long it has been that."""
        return self.hub.answers.of(node, replica, self.hub.clock.monotonic())

    async def open_log(self, replica: str, *, offset: int | None, last: int, follow: bool) -> Log:
        """From an offset, or the `last` bytes, or (0) all that is kept: from its node or, if that has it no
        longer, what is kept of the end. LookupError: nobody knows of it. NotKept: not from that offset on."""
        node = await self._node_of(replica)
        try:
            reader = self.hub.read_log(node, replica, -last if offset is None else offset, follow=follow)
        except Gone as error:
            return await self._kept(replica, node, offset, last, str(error), follow=follow)
        good = False
        try:
            runs = replica in self.world.replicas
            begun = await reader.begun(BEGIN_S if runs else ENDED_S)
            if not begun and not runs:
                raise Gone("its node does not answer")
            note = _beginning(reader, replica, offset, last)
            good = True
        except Gone as error:
            return await self._kept(replica, node, offset, last, str(error), follow=follow)
        finally:
            if not good:
                reader.close()
        return Log(reader.parts(), note, reader.start, reader.close)

    async def _kept(
        self, replica: str, node: str, offset: int | None, last: int, why: str, *, follow: bool
    ) -> Log:
        known = self.world.nodes.get(node)
        if known is None or known.state not in JOINED:
            why = f"{node} is gone"
        tail = await self.last_words.of(replica)
        if tail is not None:
            try:
                return kept(tail, offset, last, why, follow=follow)
            except Gone as error:
                why = str(error)
                if known is None or known.state not in JOINED:
                    raise NotFound(why) from None
        if why.endswith("is gone"):
            raise NotFound(f"{replica} ran on {node}, which is gone; nothing that it wrote is kept")
        raise NotReachable(why)

    async def _node_of(self, replica: str) -> str:
        """Where it runs, or ran: its node keeps the log for a while."""
        known = self.world.replicas.get(replica)
        if known is not None:
            return known.node
        lines = await self.store.history(workload=workload_of(replica), limit=HISTORY)
        for line in reversed(lines):
            if line.subject == replica and line.node:
                return line.node
        tail = await self.last_words.of(replica)
        if tail is not None:
            return tail.node
        raise LookupError(f"there is no replica {replica}")

    async def free_name(self, node: str) -> None:
        """Whoever takes it next brings a join token."""
        await self.hub.enrolment.forget(node)

    def harm(self, deed: str, node: str, for_ms: int) -> Harm:
        """Chaos: what is to be called to do it. Refused here, nothing has happened and nothing is told."""
        known = self.world.nodes.get(node)
        if known is None:
            raise LookupError(f"there is no node {node}")
        if deed == "partition":
            self._speaker(node)
            return partial(self._silence, node, for_ms)
        provider = self.providers(self.world.pools[known.pool])
        if deed == "notice":
            return partial(self._market_of(provider, known.pool).notice, node, for_ms)
        if not isinstance(provider, Chaos):
            raise Unsupported(f"nodes of the pool {known.pool} cannot be harmed on purpose")
        deeds = {"kill": provider.kill, "hang": provider.hang, "resume": provider.resume}
        return partial(deeds[deed], node)

    async def _silence(self, node: str, for_ms: int) -> None:
        self._speaker(node).send(Silence(for_ms))

    def _speaker(self, node: str) -> Session:
        try:
            return self.hub.may_be_silenced(node)
        except (Gone, PermissionError) as error:
            raise Unsupported(str(error)) from None

    def sell_out(self, pool: str, offer: str, for_ms: int) -> Harm:
        """Chaos: nothing can be had there for so long. As `harm`."""
        provider = self.providers(self.world.pools[pool])
        return partial(self._market_of(provider, pool).sell_out, pool, offer, for_ms)

    def _market_of(self, provider: Provider, pool: str) -> MarketChaos:
        if not isinstance(provider, MarketChaos):
            raise Unsupported(f"the market of the pool {pool} is not ours to change")
        return provider

    async def wait_for(self, length: int, timeout_s: float) -> int:
        """Returns when the journal is longer than that, or when the time is up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._news:
                await self._news.wait_for(lambda: self._length > length)
        return self._length

    def _note_planes(self) -> None:
        """Agents are told when this changes. It is compared at every beat, so it is kept, not made anew."""
        urls = (self._leadership.address, self.url, *self._known)
        planes = tuple(dict.fromkeys(url for url in urls if url))
        if planes != self.hub.control_planes:
            self.hub.control_planes = planes

    def _lease_age(self) -> int:
        return self._term.lease_age_ms() if self._term is not None else 0

    def _grown(self, length: int) -> None:
        if length != self._length:
            self._length = length
            task = asyncio.get_running_loop().create_task(self._notify())
            self._waking.add(task)
            task.add_done_callback(self._waking.discard)

    async def _notify(self) -> None:
        async with self._news:
            self._news.notify_all()

    # leading and following

    async def run(self) -> None:
        """Until it is cancelled; then the leadership is given up, so that another can lead at once."""
        try:
            await together(self._govern(), self._sweep(), self._announce())
        finally:
            try:
                await self._end()
            finally:
                await self._resign()
                await self.hub.close()
                await self.last_words.close()

    async def _end(self) -> None:
        """What ended with us is written down, so that the next start need not find it out."""
        if self.ending is None:
            return
        gone = await self.ending(self._last)
        held, length = self._leadership, self._length
        if self._ours(held):
            facts = tuple(NodeTerminated(at=self._steady.now(), node=name) for name in gone)
            with contextlib.suppress(PortError, TimeoutError):
                async with asyncio.timeout(2):
                    await self.store.append(held.generation, length, facts)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(1)
            self.hub.sweep()
            self._look_at_clock()

    def _look_at_clock(self) -> None:
        """The fleet's time goes by its journal: a clock that is wrong, or was once, changes nothing of it."""
        self.wall()
        off_ms = self.clock_off_ms
        self._metrics.clock_off.set(off_ms / SECOND)
        if off_ms and not self._clock_off:
            hint = "set it right (NTP). If it is right, one that led was wrong: times of events are too"
            log.error("this machine's clock is far from the fleet's time", off_s=off_ms // SECOND, hint=hint)
        self._clock_off = bool(off_ms)

    async def _announce(self) -> None:
        """Agents are told of every control plane there is, so that they find the next leader."""
        while True:
            with contextlib.suppress(PortError):
                self._known = await self.store.announce(self.name, self.url)
                self._note_planes()
            await asyncio.sleep(ANNOUNCE_EVERY_S)

    async def _resign(self) -> None:
        held = self._leadership
        if self._ours(held):
            with contextlib.suppress(PortError, TimeoutError):
                async with asyncio.timeout(2):
                    await self.store.resign(self.name, held.generation)

    async def _govern(self) -> None:
        while True:
            try:
                if self._trouble:  # what cannot be written, as on a full disk, can often still be read
                    await self._catch_up()
                held = await self.store.leader()
                if 0 < held.left_ms <= self.leader_ttl_ms and not self._ours(held):
                    self._note(held)
                    await self._follow(held)
                elif (held := await self._ask(self._generation)).granted:
                    await self._lead(held)
                else:
                    await self._follow(held)
            except Outdone:
                log.error("leading on under a generation above", obeyed=self.hub.claims.highest)
            except PortError as error:
                self._failed(f"{type(error).__name__}: {error}")
                await asyncio.sleep(ASK_EVERY_S)
            except Exception as error:  # a mistake of ours must not end the fleet's only supervisor
                log.exception("the loop failed")
                self._failed(f"a mistake in holdfast: {error!r}")
                await asyncio.sleep(ASK_EVERY_S)

    def _failed(self, why: str) -> None:
        if why != self._trouble:
            log.error("the store failed", why=why)
        self._trouble = self._failure = why
        self._leadership = Leadership("", self._leadership.generation, 0)
        self.hub.leader_url = ""
        self._note_planes()

    def _check_name(self, held: Leadership) -> None:
        namesake = held.leader == self.name and held.address != self.url
        if namesake and held.address != self._namesake:
            log.error(
                "another control plane has the same name: give each its own --name",
                name=self.name,
                address=held.address,
            )
        self._namesake = held.address if namesake else ""

    def _ours(self, held: Leadership) -> bool:
        return (held.leader, held.generation) == (self.name, self._generation)

    def _note(self, held: Leadership) -> None:
        self._leadership, self.hub.leader_url = held, held.address
        self._note_planes()

    async def _ask(self, mine: int) -> Leadership:
        asked_at = self.clock.monotonic()
        above = self.hub.claims.highest
        held = await self.store.lead(self.name, self.url, self.leader_ttl_ms, above, mine)
        self._note(held)
        if held.granted:
            self.hub.leads_until = asked_at + min(held.left_ms, self.leader_ttl_ms)
        return held

    async def _follow(self, held: Leadership) -> None:
        self._check_name(held)
        await self._catch_up()
        self._trouble = self._failure = ""
        await asyncio.sleep(min(FOLLOW_EVERY_S, held.left_ms / 1000 + SOON_S))

    async def _catch_up(self) -> None:
        asked_at, before = self.clock.monotonic(), self._follower.length
        follower = self._follower if self._fresh else self._reader
        if not self._fresh:
            await follower.begin()
        try:
            await follower.catch_up()
        except NotFound:  # we were away for so long that what comes next is no longer kept
            await follower.begin()
            await follower.catch_up()
        self._follower = follower  # nobody is shown a journal of which half is read
        if self._fresh and self._follower.length > before:  # after we looked last, the newest was written
            self._seen = self._follower.last_at - self._caught_up_at
            self._least = self._follower.last_at - self.clock.monotonic()
        self._fresh, self._caught_up_at = True, asked_at
        self._grown(self._follower.length)

    async def _lead(self, held: Leadership) -> None:
        """One term, from the journal's end to whatever ends it."""
        await self._catch_up()
        if self._follower.world.leader.generation == held.generation and not self._ours(held):
            raise Lost(f"another control plane is called {self.name} too, and leads: give one another --name")
        follower, self._fresh = self._follower, False
        self._follower, self._reader = Follower(self.store), Follower(self.store)
        settle()
        before, era, monotonic = follower.world.leader, self.clock.era(), self.clock.monotonic()
        begins = accounts.begins_at(before, era, monotonic, self._least, follower.last_at)
        steady = SteadyClock(self.clock, begins)
        mind = Mind(follower.world, anew=follower.anew)
        journal = follower.length, follower.saved
        term = Term(self.name, held.generation, mind, *journal, self.store, steady, self._metrics, self._seen)
        self._seen = self._least = None  # from now on our own clock counts
        self.unlisted = {}
        performer = Performer(term, self.hub, self.providers, self.unlisted)
        term.hands, term.on_append = performer, self._grown
        self._term, self._steady = term, steady
        self._trouble = self._failure = ""
        self.hub.take_over(term)
        self._gateways = Gateways(term, lambda: self.clock.monotonic() / 1000, self.hub.may_renew)
        log.info("leading", name=self.name, generation=held.generation, journal=follower.length)
        try:
            load = Load(term, self.hub, self.telemetry)
            first_words = [*self._doubts(mind.world), *self.opening(mind.world, steady.now())]
            await together(
                term.run(first_words),
                self._keep(held.generation),
                self._outdone(),
                load.run(),
                self._gateways.run(),
            )
        finally:
            self._generation = held.generation if term.began else self._generation
            self._term, self._gateways, self._last = None, None, mind.world
            if self._leadership.leader == self.name:
                self.hub.leader_url = ""  # nobody leads now, least of all we
            self.hub.step_down()
            await performer.close()
            log.warning("not leading any more", name=self.name, generation=held.generation)

    def _doubts(self, world: World) -> Iterable[Event]:
        """Once, with the first term of ours. Where no node has ever joined, nothing can run."""
        behind, self._behind = self._behind, None
        if behind is None or not world.nodes:
            return
        log.error("the journal is behind: exclusive replicas wait until leases are over", why=behind.why)
        yield behind.told(world, self._steady.now())

    async def _outdone(self) -> None:
        """Agents have obeyed leaders that our journal does not know of: none would take a set of ours."""
        self.hub.outdone.clear()
        await self.hub.outdone.wait()
        raise Outdone

    async def _keep(self, generation: int) -> None:
        """Renews the leadership; raises when it is surely lost."""
        while True:
            await asyncio.sleep(ASK_EVERY_S)
            left = (self.hub.leads_until - self.clock.monotonic()) / 1000
            try:
                async with asyncio.timeout(max(0.0, left)):
                    held = await self._ask(generation)
            except TimeoutError:
                raise Lost("the store did not renew the leadership in time") from None
            except PortError as error:
                if self.clock.monotonic() >= self.hub.leads_until:
                    raise
                log.warning("the leadership was not renewed yet", why=str(error))
                continue
            if not held.granted or held.generation != generation:
                raise Lost(f"{held.leader} leads at {held.address}")


def _beginning(reader: LogReader, replica: str, offset: int | None, last: int) -> str:
    """What is to be known about where it begins. NotKept: it must begin where it was asked for."""
    start = reader.start or 0
    why = "its node keeps only so much of a log"
    if offset is None:
        return missing(replica, 0, start, why) if start and not last else ""
    if start > offset:
        raise NotKept(missing(replica, offset, start, why))
    return ""


class Lost(PortError):
    """We do not lead any more."""


class Outdone(Exception):
    """We lead on, under a higher generation."""
