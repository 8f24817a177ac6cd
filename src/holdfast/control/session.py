"""One agent's connection, from its first byte to its last.

The connection was opened by the agent and handed over by `front` after the HTTP upgrade. Garbage, silence and
floods end it within bounds. The beat is the hot path: a thousand agents beat a thousand times a second, so it
is decoded, noted and acknowledged in one go, without a task.
"""

import asyncio
import os
import socket
from itertools import chain
from typing import TYPE_CHECKING, cast

import msgspec
import structlog
from msgspec.structs import replace

from holdfast.control.intake import JOURNALLED, Allowance, Intake
from holdfast.control.strangers import FRAME_MAX, HELLO_WITHIN_MS
from holdfast.model.place import Place
from holdfast.model.policy import Policy
from holdfast.model.resources import NODE_MAX, Resources
from holdfast.wire import frame
from holdfast.wire.identity import NONCE_BYTES
from holdfast.wire.messages import (
    PROTOCOL,
    PROTOCOL_OLDEST,
    Ack,
    AlsoRunning,
    Beat,
    Challenge,
    Found,
    FromAgent,
    Hello,
    LogPart,
    Message,
    Moved,
    Noticed,
    Refused,
    Reports,
)

if TYPE_CHECKING:
    from holdfast.control.hub import Hub

UNSENT_MAX = 8 << 20  # bytes: a peer that does not read is cut off
GONE_MS = 60_000  # a machine that lost its power says no goodbye: its connection ends when nothing answers
KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, GONE_MS),
)
PORT_MAX = (1 << 16) - 1
LEFT_MS_MAX = 1 << 40
COUNTED_MAX = 1 << 62  # leaders, sets, epochs: they are counted one by one
TEXT_MAX = 500  # as in files
PARTS_MAX = 64  # of a hello
DEAF_BEATS = 3  # a node that has heard none of our last answers does not count: it will connect anew

log = structlog.get_logger("holdfast.hub")


class Gone(Exception):
    """The node is not connected here, or has not what was asked for."""


class Session(asyncio.Protocol):
    def __init__(self, hub: "Hub") -> None:
        self.hub = hub
        self.nonce = os.urandom(NONCE_BYTES)
        self.opened = hub.clock.monotonic()
        self.hello: Hello | None = None
        self.node = ""  # set when it is welcomed
        self.policy: Policy | None = None  # that it was told of: leases and beats
        self.planes: tuple[str, ...] = ()  # that it was told of: control planes
        self.log_allowance: Allowance | None = None  # for the ends of running replicas' logs
        self._reader = frame.Reader(FromAgent, FRAME_MAX)
        self._admitted = False  # it has proved whose it is
        self._rest: asyncio.Future[None] | None = None  # of its hello, while that is not complete
        self._parts: list[AlsoRunning] = []
        self._transport: asyncio.Transport | None = None
        self.intake = Intake(hub.metrics, hub.clock.monotonic)
        self._paused = False  # reading, by the rate limit
        self._later: asyncio.TimerHandle | None = None  # reading goes on
        self._drain: asyncio.TimerHandle | None = None  # of what the rate limit holds back
        self.peer = "?"
        self.ends = ("", "")  # the addresses of the agent and of us
        self.over_tls = False  # and it ends here

    # the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop has a class of its own
        host, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        if isinstance(host, tuple):
            self.peer, self.ends = f"{host[0]}:{host[1]}", (str(host[0]), str(own[0]))
        self.over_tls = transport.get_extra_info("ssl_object") is not None
        self._transport.set_write_buffer_limits(high=UNSENT_MAX)
        for level, option, value in KEEP_ALIVE:
            transport.get_extra_info("socket").setsockopt(level, option, value)
        self.send(Challenge(self.nonce, PROTOCOL, PROTOCOL_OLDEST, FRAME_MAX))
        self.hub.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._complete()
        for timer in (self._drain, self._later):
            if timer is not None:
                timer.cancel()
        self.hub.closed(self)

    def pause_writing(self) -> None:
        log.warning("agent does not read", node=self.node or "?", peer=self.peer)
        self.close(at_once=True)

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._reader.feed(data):
                self._receive(message)
                if self._transport is None:
                    return
            if self._admitted:
                self._slow_down()
            elif not self.hub.strangers.holds(self, self._reader.held):
                raise frame.BadFrame("too much that is not complete waits from its address")
        except frame.BadFrame as error:
            log.warning("garbage on the link", node=self.node or "?", peer=self.peer, why=str(error))
            self.close(at_once=True)

    def _receive(self, message: msgspec.Struct) -> None:
        asked = type(message) is LogPart and self.hub.waits_for(self, message.request)
        self.intake.read(self._reader.size, asked=asked)
        if type(message) is Beat:
            self._beat(message)
            return
        _check(message)
        if self.node and isinstance(message, JOURNALLED):
            self.intake.put(message)
            self._pass_on()
        elif self.node:
            self.hub.received(self, message)
        elif type(message) is Hello and self.hello is None:
            self._greet(message)
        elif type(message) is AlsoRunning and self.hello is not None and len(self._parts) < self.hello.more:
            self._parts.append(message)
            self._complete()
        else:
            raise frame.BadFrame(f"{type(message).__name__} before it was welcomed")

    def _greet(self, hello: Hello) -> None:
        self.hello = hello
        if hello.more and self._transport is not None:
            self._transport.pause_reading()  # until it has proved whose it is
        self.hub.strangers.said_hello(self)
        self.hub.greeted(self, hello)

    async def admit(self) -> Hello:
        """It has proved whose it is; its hello, when that is complete."""
        assert self.hello is not None
        self.hub.strangers.drop(self)
        self._admitted, self._reader.largest = True, frame.FROM_AGENT_MAX
        if not self.hello.more or self._transport is None:
            return self.hello
        self._transport.resume_reading()
        self._rest = asyncio.get_running_loop().create_future()
        self._complete()
        async with asyncio.timeout(HELLO_WITHIN_MS / 1000):
            await self._rest
        names = (self.hello.running, *(part.running for part in self._parts))
        self._parts.clear()
        self.hello = replace(self.hello, running=tuple(chain.from_iterable(names)), more=0)
        return self.hello

    def _complete(self) -> None:
        lost = self._transport is None
        if self._rest is not None and not self._rest.done():
            if lost or (self.hello is not None and len(self._parts) >= self.hello.more):
                self._rest.set_result(None)

    def _pass_on(self) -> None:
        """What the rate limit lets through now. Nothing more is read while much of it waits."""
        if self._drain is not None:
            self._drain.cancel()
            self._drain = None
        for message in self.intake.take():
            self.hub.received(self, message)
        if self._transport is None or self._transport.is_closing():
            return
        if wait := self.intake.wait_s:
            self._drain = asyncio.get_running_loop().call_later(wait, self._pass_on)
        self._slow_down()

    def _slow_down(self) -> None:
        """Reads no more while much waits, or more was read than an honest node sends."""
        if self._transport is None or self._transport.is_closing():
            return
        wait = self.intake.read_wait_s
        if (pause := self.intake.full or wait > 0) != self._paused:
            self._paused = pause
            self._transport.pause_reading() if pause else self._transport.resume_reading()
        if wait and self._later is None:
            self._later = asyncio.get_running_loop().call_later(wait, self._look_again)

    def _look_again(self) -> None:
        self._later = None
        self._slow_down()

    def _beat(self, beat: Beat) -> None:
        if not self.node:
            return
        if beat.number - beat.heard > DEAF_BEATS or not self.hub.beat(self):
            return  # what is not counted is not acknowledged either: its lease must not outlast our count
        if beat.used is not None:
            self.hub.uses(self.node, beat.used)
        if beat.answers:
            self.hub.answers.heard(self.node, beat.answers, self.hub.clock.monotonic())
        self.send(Ack(beat.number))

    # what we say

    def send(self, message: Message) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame.pack(message))

    def refuse(self, code: str, why: str, hint: str = "") -> None:
        node = self.hello.node if self.hello else "?"
        log.warning("agent refused", node=node, peer=self.peer, code=code, why=why)
        self.hub.metrics.refused.labels(code).inc()
        self.send(Refused(code, why, hint))
        self.close()

    def send_on(self, leader: str, all_of_them: tuple[str, ...]) -> None:
        self.send(Moved(leader, all_of_them))
        self.close()

    def close(self, *, at_once: bool = False) -> None:
        if self._transport is not None:
            self._transport.abort() if at_once else self._transport.close()

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()


def _check(message: msgspec.Struct) -> None:
    """What a node says of itself is believed and counted with, so it must be something that can be."""
    numbers: tuple[tuple[int, int], ...] = ()
    match message:
        case Hello(capacity=capacity, probe_port=port, obeyed=obeyed, told=told, epoch=epoch, led=led):
            _check_texts(message)
            has, counted = capacity or Resources(), (obeyed, told, epoch, led)
            claimed = (has.cpu_milli, has.memory_mib, has.gpu_milli, port, message.more, *counted)
            most = (NODE_MAX.cpu_milli, NODE_MAX.memory_mib, NODE_MAX.gpu_milli, PORT_MAX, PARTS_MAX)
            numbers = tuple(zip(claimed, (*most, *(COUNTED_MAX for _ in counted)), strict=True))
        case Noticed(left_ms=left):
            numbers = ((left, LEFT_MS_MAX),)
        case Reports(first=first, reports=reports):
            numbers = ((first, COUNTED_MAX), *((report.port, PORT_MAX) for report in reports))
        case Found(finding=finding) if not 0 <= finding.confidence <= 1:  # and so it is a number
            raise frame.BadFrame(f"a finding with a confidence of {finding.confidence}")
        case _:
            pass
    if any(not 0 <= number <= most for number, most in numbers):
        raise frame.BadFrame(f"{type(message).__name__} with numbers that cannot be: {numbers}")


def _check_texts(hello: Hello) -> None:
    """They are journalled with each hello, and kept of each node."""
    place, has = hello.place or Place(""), hello.capacity or Resources()
    texts = (*msgspec.structs.astuple(place), has.gpu_kind, hello.pool, hello.offer, hello.instance)
    if any(len(text) > TEXT_MAX for text in texts):
        raise frame.BadFrame(f"a hello with a text of more than {TEXT_MAX} characters")
