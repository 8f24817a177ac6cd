"""A control plane for agents to talk to: the wire for real, over sockets, and no mind behind it.

A test says what the hub answers, message by message, and looks at what the agent said. `Line` is one
connection of an agent; beats are acknowledged by themselves unless the test wants to do it.
"""

import asyncio
import contextlib
import functools
import os
import ssl
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

from holdfast.core.agent.machine import (
    Brief,
    DesiredSet,
    Report,
    Stopping,
    Wanted,
)
from holdfast.model.program import Program
from holdfast.wire import frame
from holdfast.wire.identity import NONCE_BYTES, signed
from holdfast.wire.messages import (
    BOUND,
    PROTOCOL,
    PROTOCOL_OLDEST,
    UPGRADE,
    Ack,
    Beat,
    Challenge,
    Desired,
    FromAgent,
    Hello,
    Message,
    Noted,
    Reports,
    Welcome,
)
from tests.ports import free_port

PATIENCE_S = 30.0
SWITCHING = f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {UPGRADE}\r\n\r\n".encode()
LEASE_MS = 10_000
BEAT_MS = 100

M = TypeVar("M", bound=Message)
P = ParamSpec("P")


async def until(true: Callable[[], bool], what: str = "it") -> None:
    """Waits for a condition, long enough for a slow machine."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not true():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"{what} never came true") from None


class Gone(AssertionError):
    """The agent closed its connection, and what a test waited for did not come."""


class Line:
    """One connection of an agent."""

    def __init__(self, hub: "HubTwin", reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.hub, self.writer = hub, writer
        self.request = b""
        self.nonce = os.urandom(NONCE_BYTES)
        self.hello: Hello | None = None
        self.heard: list[Message] = []  # everything, in order
        self.acknowledges = True
        self.notes = True
        self.over = asyncio.Event()
        self.deaf = asyncio.Event()  # set: it reads nothing
        self._taken: dict[type[Message], int] = {}
        self._reader = reader
        self._frames = frame.Reader(FromAgent, frame.FROM_AGENT_MAX)

    async def serve(self) -> None:
        try:
            self.request = await self._reader.readuntil(b"\r\n\r\n")
            self.hub.lines.append(self)
            await self._listen()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.over.set()
            self.writer.close()

    async def _listen(self) -> None:
        while data := await self._reader.read(1 << 16):
            while self.deaf.is_set():
                await asyncio.sleep(0.01)
            for message in self._frames.feed(data):
                said = cast(Message, message)
                self.heard.append(said)
                if isinstance(said, Beat) and self.acknowledges:
                    self.say(Ack(said.number))
                if isinstance(said, Reports) and self.notes:
                    self.say(Noted(said.first + len(said.reports)))

    # what the hub does

    def upgrade(self) -> None:
        self.raw(SWITCHING)

    def raw(self, data: bytes) -> None:
        self.writer.write(data)

    def say(self, message: Message) -> None:
        if not self.writer.is_closing():
            self.writer.write(frame.pack(message))

    def cut(self) -> None:
        self.writer.transport.abort()

    async def challenge(self, protocol: int = PROTOCOL, oldest: int = PROTOCOL_OLDEST) -> Hello:
        """Upgrades, asks who it is, and checks the signature of the answer."""
        self.upgrade()
        self.say(Challenge(self.nonce, protocol, oldest))
        hello = self.hello = await self.next(Hello)
        channel = hello.channel if hello.protocol >= BOUND else None
        assert signed(hello.key, hello.signature, self.nonce, hello.node, hello.instance, channel)
        return hello

    async def welcome(
        self, lease_ms: int = LEASE_MS, beat_ms: int = BEAT_MS, *others: str, log_bytes_per_s: int = 0
    ) -> Hello:
        hello = await self.challenge()
        self.say(Welcome(1, lease_ms, beat_ms, others, log_bytes_per_s))
        return hello

    # what the agent said

    async def next(self, kind: type[M]) -> M:
        """The next message of this kind that was not taken yet."""
        at = self._taken.get(kind, 0)
        await until(lambda: self.over.is_set() or len(self.all(kind)) > at, f"a {kind.__name__}")
        found = self.all(kind)
        if len(found) <= at:
            raise Gone(f"the agent left without a {kind.__name__}; it said {self.heard}")
        self._taken[kind] = at + 1
        return found[at]

    def all(self, kind: type[M]) -> list[M]:
        return [message for message in self.heard if isinstance(message, kind)]

    def reports(self) -> dict[tuple[str, str], Report]:
        """All reports on this line by replica and what."""
        return {(r.replica, r.what): r for each in self.all(Reports) for r in each.reports}

    async def report(self, replica: str, what: str) -> Report:
        await until(lambda: (replica, what) in self.reports(), f"{replica} {what}")
        return self.reports()[replica, what]


class HubTwin:
    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.lines: list[Line] = []
        self._tls, self._taken = tls, 0
        self._port = free_port()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "HubTwin":
        await self.listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def listen(self) -> None:
        """Also again, on the same port, after a close."""
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self._port, ssl=self._tls, reuse_address=True
        )

    async def close(self) -> None:
        self._server.close()
        for line in self.lines:
            line.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await Line(self, reader, writer).serve()
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            self._tasks.discard(task)

    async def line(self) -> Line:
        """The next connection of an agent."""
        await until(lambda: len(self.lines) > self._taken, "a connection")
        self._taken += 1
        return self.lines[self._taken - 1]

    def welcome_everybody(self) -> None:
        """From now on, without being asked."""
        self._tasks.add(asyncio.get_running_loop().create_task(self._welcome_everybody()))

    async def _welcome_everybody(self) -> None:
        while True:
            with contextlib.suppress(AssertionError):  # nobody came, or left in the middle
                await self.welcomed()

    def reports(self) -> dict[tuple[str, str], Report]:
        """Of all lines."""
        return {key: report for line in self.lines for key, report in line.reports().items()}

    async def welcomed(
        self, lease_ms: int = LEASE_MS, beat_ms: int = BEAT_MS, *, log_bytes_per_s: int = 0
    ) -> Line:
        """The next connection on which an agent says who it is. One given up before that is followed by
        another: an agent waits a few seconds for its hub, and a busy machine may take longer."""
        for _ in range(10):
            line = await self.line()
            try:
                await line.welcome(lease_ms, beat_ms, log_bytes_per_s=log_bytes_per_s)
            except Gone:
                continue
            return line
        raise AssertionError("ten agents left without a word")


def wanted(replica: str, *, exclusive: bool = False) -> Wanted:
    slot, _, epoch = replica.rpartition(".")
    return Wanted(replica, slot, int(epoch), exclusive)


def desired(
    generation: int,
    *those: Wanted,
    command: tuple[str, ...] = ("sleep", "60"),
    stopping: tuple[Stopping, ...] = (),
    leader: int = 1,
    grace_ms: int = 2_000,
) -> Desired:
    """A set in which all workloads run the same program."""
    brief = Brief(Program(command), grace_ms)
    briefs = {each.slot.rsplit("/", 1)[0]: brief for each in those}
    return Desired(DesiredSet(leader, generation, those, stopping, briefs))


def lived(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test that is a coroutine."""

    @functools.wraps(test)
    def run(*args: P.args, **words: P.kwargs) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(2 * PATIENCE_S):
                await test(*args, **words)

        asyncio.run(bounded())

    return run
