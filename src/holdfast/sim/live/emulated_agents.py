"""Agents without machines: the real wire, the real agent's judgement, pretended processes.

Thousands of them fit into one process, each with a real connection of its own. They are for measuring a
control plane and for testing its hub. What they run is ready at once and never ends by itself.
"""

import asyncio
import random
from typing import cast

import msgspec

from holdfast.core.agent.machine import Do, Instruction, NodeMachine
from holdfast.model.event import Ended
from holdfast.model.node import Answer, Fencing
from holdfast.model.place import Place
from holdfast.model.resources import Resources
from holdfast.ports.clock import Clock
from holdfast.wire import frame
from holdfast.wire.address import REPLICA_PORTS
from holdfast.wire.identity import Key
from holdfast.wire.messages import (
    BOUND,
    PATH,
    PROTOCOL,
    UPGRADE,
    Ack,
    AlsoRunning,
    Ask,
    Beat,
    Challenge,
    Confirmed,
    Desired,
    Hello,
    Message,
    Moved,
    Noted,
    Probed,
    Refused,
    Reports,
    ToAgent,
    Used,
    Welcome,
)

REQUEST = f"GET {PATH} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: {UPGRADE}\r\n\r\n".encode()
LEASE_MS = 30_000
NAMES = 1_000  # in one message


class EmulatedFleet:
    """Knows who lives: a probe of one agent by another is answered from here."""

    def __init__(self, clock: Clock, pool: str, capacity: Resources, zones: tuple[str, ...] = ("a",)) -> None:
        self.clock, self.pool, self.capacity, self.zones = clock, pool, capacity, zones
        self.agents: dict[str, EmulatedAgent] = {}
        self.by_port: dict[int, EmulatedAgent] = {}
        self.address = "127.0.0.1"  # as all of them report it
        self.lowest_port = REPLICA_PORTS[0]  # of their replicas

    def add(self, node: str, key: Key, token: str = "") -> "EmulatedAgent":
        number = len(self.agents)
        place = Place("emulated", "-", self.zones[number % len(self.zones)], f"r{number % 97}")
        agent = EmulatedAgent(self, node, key, place, number + 1, token)
        self.agents[node] = self.by_port[number + 1] = agent
        return agent

    def probe(self, port: int) -> Answer:
        target = self.by_port.get(port)
        return Answer.REACHED if target is not None and target.lives else Answer.REFUSED


class EmulatedAgent(asyncio.Protocol):
    def __init__(
        self, fleet: EmulatedFleet, node: str, key: Key, place: Place, port: int, token: str
    ) -> None:
        self.fleet, self.node, self.key, self.place, self.port, self.token = (
            fleet,
            node,
            key,
            place,
            port,
            token,
        )
        self.machine = NodeMachine(LEASE_MS)
        self.instance = f"{node}-1"
        self.protocol = PROTOCOL
        self.lives = True
        self.tells_use = False
        self.also_used: tuple[str, ...] = ()  # that it does not stop, whatever it is told
        self.also_running: tuple[str, ...] = ()  # that nobody knows of
        self.welcomed = asyncio.Event()
        self.ended = asyncio.Event()  # the connection
        self.refused: Refused | None = None
        self.moved: Moved | None = None
        self.acks = 0
        self._transport: asyncio.Transport | None = None
        self._switched = False
        self._head = b""
        self._beat_s = 1.0
        self._sent: dict[int, int] = {}
        self._number = self._heard = 0
        self._hello_at = 0
        self._timer: asyncio.TimerHandle | None = None

    async def connect(self, host: str, port: int) -> None:
        self.welcomed.clear()
        self.ended.clear()
        await asyncio.get_running_loop().create_connection(lambda: self, host, port)

    def die(self) -> None:
        """As a machine that loses everything on it: its connection closes, its probe port refuses."""
        self.lives = False
        self.hang_up()

    @property
    def replica_port(self) -> int:
        """All its replicas share one; nothing listens there."""
        return self.fleet.lowest_port + self.port % (REPLICA_PORTS[1] - REPLICA_PORTS[0])

    def hang_up(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop has a class of its own
        self._switched, self._head = False, b""
        self._reader = frame.Reader(ToAgent, frame.TO_AGENT_MAX)
        self._transport.write(REQUEST)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        self.ended.set()

    def data_received(self, data: bytes) -> None:
        if not self._switched:
            self._head += data
            head, end, data = self._head.partition(b"\r\n\r\n")
            if not end:
                return
            if not head.startswith(b"HTTP/1.1 101"):
                raise AssertionError(f"no switch: {head!r}")
            self._switched = True
        for message in self._reader.feed(data):
            self._receive(message)

    def send(self, message: Message) -> None:
        if self._transport is not None:
            self._transport.write(frame.pack(message))

    # what the control plane says

    def _receive(self, message: object) -> None:
        now = self.fleet.clock.monotonic()
        match message:
            case Ack(number=number):
                self._heard = number
                self.acks += 1
                sent = self._sent.pop(number, 0)
                if sent:
                    self.machine.renewed(sent)
            case Challenge(nonce=nonce):
                self._hello_at = now
                self._introduce(self._hello(nonce))
            case Welcome(lease_ms=lease_ms, beat_ms=beat_ms):
                self.machine.lease_ms = lease_ms
                self._beat_s = beat_ms / 1000
                if self.welcomed.is_set():
                    return  # the policy has changed
                self.machine.renewed(self._hello_at)
                self._number = self._heard = 0
                self._sent.clear()
                self._report()
                self._later(random.random() * self._beat_s)
                self.welcomed.set()
            case Desired(desired=desired):
                self._carry_out(self.machine.wants(desired, now), now)
                self.send(Confirmed(desired.generation))
                self._report()
            case Noted(before=before):
                self.machine.acknowledged(before)
            case Ask(question=question, port=port):
                self.send(Probed(question, self.fleet.probe(port)))
            case Refused():
                self.refused = message
            case Moved():
                self.moved = message
            case _:
                pass

    def _introduce(self, hello: Hello) -> None:
        rest = [self.also_running[at : at + NAMES] for at in range(0, len(self.also_running), NAMES)]
        self.send(msgspec.structs.replace(hello, more=len(rest)))
        for names in rest:
            self.send(AlsoRunning(names))

    def _hello(self, nonce: bytes) -> Hello:
        return Hello(
            self.protocol,
            self.node,
            self.key.public,
            self.key.sign(nonce, self.node, self.instance, b"" if self.protocol >= BOUND else None),
            self.instance,
            self.token,
            self.machine.running(),
            self.fleet.pool,
            "",
            self.place,
            self.fleet.capacity,
            self.fleet.address,
            self.port,
            fencing=Fencing.KERNEL.value,
        )

    def _later(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._beat)

    def _beat(self) -> None:
        if self._transport is not None and self.lives:
            self._number += 1
            self._sent[self._number] = self.fleet.clock.monotonic()
            self.send(Beat(self._number, self._heard, self._used() if self.tells_use else None))
            self._later(self._beat_s)

    def _used(self) -> Used:
        names = dict.fromkeys((*self.machine.processes, *self.also_used), (100, 64))
        return Used(100 * len(names), 64 * len(names), names)

    def _carry_out(self, instructions: list[Instruction], now: int) -> None:
        for instruction in instructions:
            replica = instruction.wanted.replica
            if instruction.do is Do.ALLOT:
                self.machine.given_port(replica, self.replica_port)
            elif instruction.do is Do.START:
                self.machine.given_port(replica, self.replica_port)
                self.machine.became_ready(replica)
            elif instruction.do in (Do.STOP, Do.KILL):
                self._carry_out(self.machine.ended(replica, Ended.STOPPED, 0, "", now), now)

    def _report(self) -> None:
        if self.machine.reports:
            self.send(Reports(self.machine.first_report, tuple(self.machine.reports)))
