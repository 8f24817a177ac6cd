"""Those who hold a little, each as a process of its own, at full speed until its time is over:

    python -m bench._hostile_attackers node|reader|keyless WANTED      (WANTED: `Wanted` as JSON)

node: enrolled with an ordinary join token. It reports the exclusive job of another node as ended, done, saved
and started, fills its findings, beats without a pause, and tries sizes and names that are not its own.
reader: has a token of the role read. It reads all there is, plans huge files, guesses tokens, and takes as
many streams as it gets.
keyless: has nothing. It sends large bodies to the gateway and goes in the middle, holds connections open byte
by byte, and speaks garbage to the control plane, before and after the upgrade of an agent.

What it did is its last line of output, as JSON. Its priority is the lowest: in life it is another machine's
processor that is busy with it, here it would be the scheduler of one machine that is measured.
"""

import asyncio
import contextlib
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from urllib.parse import urlsplit

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from holdfast.adapters.clock import HostClock
from holdfast.core.agent.machine import Report
from holdfast.model.event import Ended
from holdfast.model.finding import Finding, Severity
from holdfast.model.resources import Resources
from holdfast.sim.live.emulated_agents import REQUEST, EmulatedAgent, EmulatedFleet
from holdfast.wire import frame
from holdfast.wire.identity import Key
from holdfast.wire.messages import Beat, Found, Message, Reports

UNSENT_MAX = 1 << 20
BODY = 31 << 20
PIECE = b"x" * (256 << 10)
READ = ("status", "nodes", "replicas", "workloads", "findings", "history?limit=1000", "pools", "plan/desired")
STREAMS = 300
SLOW = 100


class Wanted(msgspec.Struct, frozen=True):
    control: str
    gateway: str
    seconds: float
    token: str = ""
    pool: str = "fleet"
    victim: str = "once"  # a job that must never run twice


class Attack:
    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.did: Counter[str] = Counter()
        self.until = time.monotonic() + wanted.seconds
        self.chance = random.Random(1)

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.until

    async def together(self, *deeds: Callable[[], Awaitable[None]]) -> None:
        """Each again and again until the time is over; what is refused or cut off is tried anew."""

        async def again(deed: Callable[[], Awaitable[None]]) -> None:
            while not self.over:
                try:
                    async with asyncio.timeout(max(0.1, self.until - time.monotonic())):
                        await deed()
                except (OSError, asyncio.IncompleteReadError, TimeoutError, ValueError):
                    self.did["cut_off"] += 1
                    await asyncio.sleep(0.001)

        async with asyncio.TaskGroup() as group:
            for deed in deeds:
                group.create_task(again(deed))

    # HTTP, with as little work as possible on this side

    async def open(self, url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        place = urlsplit(url)
        return await asyncio.open_connection(place.hostname, place.port)

    async def ask(self, url: str, paths: Iterator[tuple[str, str, bytes]], token: str) -> None:
        """One request after the other on one connection, until it is closed."""
        reader, writer = await self.open(url)
        with contextlib.closing(writer):
            while not self.over:
                method, path, body = next(paths)
                head = f"{method} {path} HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\n"
                head += f"Authorization: Bearer {token}\r\n" if token else ""
                head += f"Content-Type: application/yaml\r\nContent-Length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
                await writer.drain()
                answered = await reader.readuntil(b"\r\n\r\n")
                self.did[f"answered_{answered.split(b' ', 2)[1].decode()}"] += 1
                lines = answered.lower().split(b"\r\n")
                lengths = [int(line[15:]) for line in lines if line.startswith(b"content-length:")]
                if not lengths:
                    return
                left = lengths[0]
                while left > 0:
                    left -= len(await reader.readexactly(min(left, 1 << 16)))
                if b"connection: close" in lines:
                    return


# the enrolled node


class Rogue(Attack):
    def agent(self, fleet: EmulatedFleet, node: str, token: str = "") -> EmulatedAgent:
        return fleet.add(node, Key(Ed25519PrivateKey.generate()), token)

    async def run(self) -> None:
        # so small that no work of others is put there: what a node was given it can always ruin
        small = Resources(1, 1)
        fleet = EmulatedFleet(HostClock(), self.wanted.pool, small)
        rogue = self.agent(fleet, "rogue-1", self.wanted.token)
        huge = EmulatedFleet(HostClock(), self.wanted.pool, Resources(1 << 39, 1 << 39, 1 << 39, "h100"))
        await self.together(
            lambda: self.lie(rogue), lambda: self.boast(huge), lambda: self.boast(fleet), self.overlong
        )

    async def connect(self, agent: EmulatedAgent) -> None:
        place = urlsplit(self.wanted.control)
        await agent.connect(place.hostname or "", place.port or 80)
        waits = [asyncio.ensure_future(event.wait()) for event in (agent.welcomed, agent.ended)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def lie(self, rogue: EmulatedAgent) -> None:
        await self.connect(rogue)
        self.did["welcomed" if rogue.welcomed.is_set() else "turned_away"] += 1
        while not rogue.ended.is_set() and not self.over:
            for message in self.lies(rogue):
                rogue.send(message)
                self.did[type(message).__name__.lower()] += 1
            transport = rogue._transport
            while transport is not None and transport.get_write_buffer_size() > UNSENT_MAX and not self.over:
                self.did["held_back"] += 1
                await asyncio.sleep(0.01)
                transport = rogue._transport
            await asyncio.sleep(0)
        rogue.hang_up()

    def lies(self, rogue: EmulatedAgent) -> Iterator[Message]:
        first = rogue.machine.first_report + len(rogue.machine.reports)
        job = self.wanted.victim
        for epoch in range(1, 9):
            replica = f"{job}/0.{epoch}"
            ended = [Report(replica, "ended", how, why="forged") for how in Ended]
            saved = [Report(replica, "saved", progress_ms=1 << 40), Report(replica, "started", port=22)]
            yield Reports(first, (*ended, *saved))
        for _ in range(20):
            name, long = f"noise-{self.chance.getrandbits(40)}", "x" * 10_000
            yield Found(Finding(name, "rogue-1", Severity.REPLACE, 1.0, long, 0, long))
            yield Found(Finding(name, "good-1", Severity.REPLACE, 1.0, "slander", 0))
            yield Beat(self.chance.getrandbits(32), 1 << 40)

    async def boast(self, fleet: EmulatedFleet) -> None:
        """Under the names of others, and larger than any machine."""
        name = self.chance.choice(("good-1", "good-2", "", "../x", "n" * 300, "rogue-2"))
        boaster = self.agent(fleet, name)
        await self.connect(boaster)
        self.did["boasts_taken" if boaster.welcomed.is_set() else "boasts_refused"] += 1
        boaster.hang_up()
        fleet.agents.pop(name, None)
        fleet.by_port.clear()

    async def overlong(self) -> None:
        """The largest frame, as somebody who was not welcomed."""
        reader, writer = await self.open(self.wanted.control)
        with contextlib.closing(writer):
            writer.write(REQUEST + frame.LENGTH.pack(frame.FROM_AGENT_MAX) + PIECE * 3)
            await writer.drain()
            self.did["overlong_frames"] += 1
            await asyncio.wait_for(reader.read(), 2)


# the holder of a read token


class Reader(Attack):
    async def run(self) -> None:
        control, token = self.wanted.control, self.wanted.token
        rows = "\n---\n".join(f"kind: sweep\nname: s{n}\ntasks: 10000\ncommand: 'true'" for n in range(20))

        def reads() -> Iterator[tuple[str, str, bytes]]:
            while True:
                yield "GET", f"/v1/{self.chance.choice(READ)}", b""

        def writes() -> Iterator[tuple[str, str, bytes]]:
            while True:
                yield "POST", "/v1/plan", rows.encode()
                yield "POST", "/v1/apply", rows.encode()
                yield "POST", "/v1/tokens", b'{"role": "admin"}'
                yield "DELETE", f"/v1/workloads/{self.wanted.victim}", b""
                yield "GET", "/v1/gateway/watch", b""

        deeds = [lambda: self.ask(control, reads(), token)] * 6
        deeds += [lambda: self.ask(control, writes(), token)] * 2
        deeds += [lambda: self.ask(control, reads(), f"hf_{self.chance.getrandbits(128):x}")]
        await self.together(*deeds, *[self.stream] * STREAMS)

    async def stream(self) -> None:
        reader, writer = await self.open(self.wanted.control)
        with contextlib.closing(writer):
            head = "GET /v1/events?since=0 HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n"
            place = urlsplit(self.wanted.control).netloc
            writer.write(
                f"{head}Authorization: Bearer {self.wanted.token}\r\n\r\n".replace("x", place, 1).encode()
            )
            answered = await reader.readuntil(b"\r\n\r\n")
            self.did[f"stream_{answered.split(b' ', 2)[1].decode()}"] += 1
            while answered.startswith(b"HTTP/1.1 200") and await reader.read(1 << 16):
                await asyncio.sleep(0.2)
            await asyncio.sleep(0.5)


# a stranger


class Keyless(Attack):
    async def run(self) -> None:
        control = self.wanted.control

        def asks() -> Iterator[tuple[str, str, bytes]]:
            while True:
                yield "GET", "/v1/status", b""
                yield "POST", "/v1/apply", PIECE

        deeds: list[Callable[[], Awaitable[None]]] = [self.large] * 4
        deeds += [self.slow] * SLOW
        deeds += [lambda: self.ask(control, asks(), "")] * 2
        deeds += [self.garbage] * 4
        await self.together(*deeds)

    def head(self) -> bytes:
        lines = (
            "POST /v1/chat/completions HTTP/1.1",
            f"Host: {urlsplit(self.wanted.gateway).netloc}",
            "Authorization: Bearer nobody",
            f"Content-Length: {BODY}",
        )
        return "\r\n".join((*lines, "", "")).encode()

    async def large(self) -> None:
        """Nearly all of the largest body, cut at any point."""
        _, writer = await self.open(self.wanted.gateway)
        left = self.chance.randrange(1, BODY)
        with contextlib.closing(writer):
            writer.write(self.head())
            self.did["large_bodies"] += 1
            while left > 0 and not self.over:
                writer.write(PIECE[:left])
                await writer.drain()
                left -= len(PIECE)
            writer.transport.abort()

    async def slow(self) -> None:
        """A body byte by byte."""
        reader, writer = await self.open(self.wanted.gateway)
        with contextlib.closing(writer):
            writer.write(self.head() + PIECE)
            self.did["slow_bodies"] += 1
            while not reader.at_eof() and not writer.is_closing():
                writer.write(b"x")
                await writer.drain()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(1 << 16), 0.5)

    async def garbage(self) -> None:
        reader, writer = await self.open(self.wanted.control)
        with contextlib.closing(writer):
            upgrade = REQUEST if self.chance.random() < 0.5 else b""
            writer.write(upgrade + self.chance.randbytes(1 << 16))
            await writer.drain()
            self.did["garbage"] += 1
            await asyncio.wait_for(reader.read(1 << 16), 1)


KINDS: dict[str, type[Rogue] | type[Reader] | type[Keyless]] = {
    "node": Rogue,
    "reader": Reader,
    "keyless": Keyless,
}


def main(words: list[str]) -> None:
    os.nice(19)
    attack = KINDS[words[0]](msgspec.json.decode(words[1], type=Wanted))
    asyncio.run(attack.run())
    print(msgspec.json.encode(dict(sorted(attack.did.items()))).decode(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
