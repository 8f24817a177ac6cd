"""The replicas of services that answer with tokens: the simulated processes, as those see them who ask.

A replica reads the prompt, sooner if it has read its beginning before, and then says a token every few
milliseconds. Its machine decides what becomes of that: a process that ends closes its connections, a
machine without power says nothing any more, one that hangs goes on when it thaws, and over a cut network
nothing comes until it is mended. An answer has two events, its first token and its last one, so that a
hundred thousand of them take seconds; what was said in between follows from the clock.
"""

from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

from holdfast.core.gateway.routing.endpoints import Replica
from holdfast.model.units import NEVER, SECOND, Instant, Millis
from holdfast.sim.scenario.scenario import Program
from holdfast.sim.traffic.requests import Want
from holdfast.sim.twins.fleet import SLOW_SPEED
from holdfast.sim.twins.host import Host
from holdfast.sim.twins.programs import Process

if TYPE_CHECKING:
    from holdfast.sim.run import Simulation

BEGINNINGS_KEPT = 64  # what a replica remembers of what it read


class Asker(Protocol):
    """Whoever a replica answers."""

    want: Want

    def sent(self, attempt: "Stream") -> None:
        """It is on a connection."""

    def won(self, attempt: "Stream") -> None:
        """Its first token is there."""

    def completed(self, attempt: "Stream") -> None: ...
    def turned_down(self, attempt: "Stream") -> None:
        """429."""

    def lost(self, attempt: "Stream", why: str, kind: str) -> None: ...


class Stream:
    """A request at one replica."""

    __slots__ = (
        "asker",
        "cut",
        "due",
        "engine",
        "first_at",
        "front",
        "frozen",
        "gap_ms",
        "over",
        "replica",
        "silent_since",
        "started",
    )

    def __init__(self, asker: Asker, front: str, replica: Replica, started: float) -> None:
        self.asker, self.front, self.replica = asker, front, replica
        self.started = started  # in seconds, as the core has it; all else here is in milliseconds
        self.engine: Engine | None = None
        self.due: Instant = NEVER  # of the first token, then of the last
        self.first_at: Instant = -1
        self.gap_ms: Millis = 0
        self.silent_since: Instant = -1  # nothing comes since then; -1: it comes
        self.frozen = self.cut = self.over = False

    def said(self, now: Instant) -> int:
        """How many tokens have come."""
        if self.first_at < 0:
            return 0
        until = now if self.silent_since < 0 else self.silent_since
        return min(self.asker.want.answer, 1 + (until - self.first_at) // max(1, self.gap_ms))


class Engine:
    """A process that answers: whom, and what it has read."""

    __slots__ = ("host", "process", "program", "read", "streams")

    def __init__(self, process: Process, host: Host, program: Program) -> None:
        self.process, self.host, self.program = process, host, program
        self.streams: dict[Stream, None] = {}
        self.read: OrderedDict[int, None] = OrderedDict()

    def first_ms(self, want: Want) -> Millis:
        """From a request to its first token."""
        unread = want.prompt
        if want.beginning:
            if want.beginning in self.read:
                unread -= want.prompt // 2
                self.read.move_to_end(want.beginning)
            else:
                self.read[want.beginning] = None
                if len(self.read) > BEGINNINGS_KEPT:
                    self.read.popitem(last=False)
        reads = unread * SECOND // max(1, self.program.prompt_per_s)
        return self._slowed(self.program.first_ms + reads)

    def gap_ms(self) -> Millis:
        return self._slowed(self.program.gap_ms)

    def _slowed(self, ms: Millis) -> Millis:
        return int(ms / SLOW_SPEED) if self.host.slow else ms

    @property
    def full(self) -> bool:
        return 0 < self.program.at_once <= len(self.streams)


class Serving:
    def __init__(self, sim: "Simulation") -> None:
        self.sim, self.kernel, self.fleet = sim, sim.kernel, sim.fleet
        self.hop_ms = sim.scenario.network.delay_ms
        self.engines: dict[str, Engine] = {}  # by replica
        self.streams: dict[Stream, None] = {}  # that have been sent and are not over
        self.closed: list[str] = []  # replicas whose connections were closed, until somebody reads it

    # asked

    def connect(self, stream: Stream, within_ms: Millis) -> None:
        """On a new connection. Where nobody listens it is refused at once; where nobody is, it times out."""
        engine, silent = self._look(stream)
        if silent:
            self.kernel.after(within_ms, self._not_connected, stream, "no connection in time")
        elif engine is None:
            self.kernel.after(2 * self.hop_ms, self._not_connected, stream, "connection refused")
        else:
            self._begin(stream, engine, 3 * self.hop_ms)

    def send(self, stream: Stream) -> None:
        """On a connection that was idle. If its machine is gone without a word, nothing will come."""
        engine, silent = self._look(stream)
        if engine is not None and not silent:
            self._begin(stream, engine, self.hop_ms)
            return
        self.streams[stream] = None
        stream.asker.sent(stream)
        stream.silent_since = self.kernel.now
        if engine is not None:  # it is sent again and again, until the machine thaws or the cut is mended
            stream.frozen = engine.host.frozen
            stream.cut = not self._open(stream.front, engine.host.id)
            self._take_in(stream, engine, self.hop_ms)

    def _look(self, stream: Stream) -> tuple[Engine | None, bool]:
        """Who answers there, and whether nothing at all comes from there."""
        node, id = stream.replica.address, stream.replica.id
        host = self.fleet.hosts.get(node)
        if host is None or not host.powered:
            return None, True
        engine = self.engines.get(id)
        process = host.processes.get(id)
        if engine is None and process is not None and process.ready:
            program = self.fleet.programs[process.workload]
            engine = self.engines[id] = Engine(process, host, program)
        return engine, host.frozen or not self._open(stream.front, node)

    def _open(self, front: str, node: str) -> bool:
        network = self.sim.network
        return not network.cuts or (network.open(front, node) and network.open(node, front))

    def _not_connected(self, stream: Stream, why: str) -> None:
        if not stream.over:
            stream.asker.lost(stream, why, "connect")

    def _begin(self, stream: Stream, engine: Engine, on_the_way_ms: Millis) -> None:
        self.streams[stream] = None
        stream.asker.sent(stream)
        if engine.full:
            self.kernel.after(on_the_way_ms + self.hop_ms, self._turned_down, stream)
            return
        self._take_in(stream, engine, on_the_way_ms)
        self.kernel.at(stream.due, self._step, stream, stream.due)

    def _take_in(self, stream: Stream, engine: Engine, on_the_way_ms: Millis) -> None:
        engine.streams[stream] = None
        stream.engine = engine
        stream.due = self.kernel.now + on_the_way_ms + engine.first_ms(stream.asker.want) + self.hop_ms

    def _turned_down(self, stream: Stream) -> None:
        if not stream.over:
            stream.asker.turned_down(stream)

    # answered

    def _step(self, stream: Stream, due: Instant) -> None:
        if stream.over or stream.due != due or stream.silent_since >= 0:
            return
        if stream.first_at >= 0:
            self._done(stream)
            return
        engine = stream.engine
        assert engine is not None
        stream.first_at, stream.gap_ms = due, engine.gap_ms()
        stream.asker.won(stream)
        rest = stream.asker.want.answer - 1
        stream.due = due + rest * stream.gap_ms
        if rest:
            self.kernel.at(stream.due, self._step, stream, stream.due)
        else:
            self._done(stream)

    def _done(self, stream: Stream) -> None:
        asker = stream.asker
        self.let_go(stream)
        asker.completed(stream)

    def let_go(self, stream: Stream) -> None:
        """Nobody reads it any more, or it is at its end."""
        stream.over = True
        self.streams.pop(stream, None)
        if stream.engine is not None:
            stream.engine.streams.pop(stream, None)

    # what becomes of the machines

    def changed(self, workload: str) -> None:
        """A process of it began, ended, stopped or goes on."""
        for id, engine in [e for e in self.engines.items() if e[1].process.workload == workload]:
            host = engine.host
            if self.fleet.hosts.get(host.id) is host and host.processes.get(id) is engine.process:
                for stream in list(engine.streams):
                    self._freeze(stream, host.frozen)
                continue
            del self.engines[id]
            says_so = host.powered and not host.frozen
            if says_so:
                self.closed.append(id)
            for stream in list(engine.streams):
                stream.engine = None
                if says_so and self._open(stream.front, host.id):
                    self.kernel.after(self.hop_ms, self._lost, stream)
                self._silence(stream)

    def _lost(self, stream: Stream) -> None:
        if not stream.over:
            stream.asker.lost(stream, "the connection was lost", "lost")

    def reach(self) -> None:
        """The network is another one."""
        for stream in list(self.streams):
            if stream.engine is None:
                continue
            cut = not self._open(stream.front, stream.engine.host.id)
            if cut and not stream.cut:
                stream.cut = True
                self._silence(stream)
            elif stream.cut and not cut:
                stream.cut = False
                self._go_on(stream)

    def _freeze(self, stream: Stream, frozen: bool) -> None:
        if frozen and not stream.frozen:
            stream.frozen = True
            self._silence(stream)
        elif stream.frozen and not frozen:
            stream.frozen = False
            stream.due += self.kernel.now - stream.silent_since
            if stream.first_at >= 0:
                stream.first_at += self.kernel.now - stream.silent_since
            self._go_on(stream)

    def _silence(self, stream: Stream) -> None:
        if stream.silent_since < 0:
            stream.silent_since = self.kernel.now

    def _go_on(self, stream: Stream) -> None:
        if not (stream.frozen or stream.cut):
            stream.silent_since = -1
            stream.due = max(stream.due, self.kernel.now)
            self.kernel.at(stream.due, self._step, stream, stream.due)
