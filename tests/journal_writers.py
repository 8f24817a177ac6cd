"""Processes that write a journal, for tests that kill, stop and race them.

They are forked from a server that has imported everything, so that a round costs milliseconds.
"""

import asyncio
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any

from sqlalchemy import event

from holdfast.adapters.stores.open import open_store
from holdfast.adapters.stores.store import SqlStore
from holdfast.model import event as ev
from holdfast.ports.errors import Fenced, PortError

LONG_MS = 600_000
SHORT_MS = 250
WAIT_S = 60


def entry(number: int) -> ev.Event:
    return ev.LinkClosed(at=number, node=f"n{number}")


class Writer:
    """A process, and what it has said."""

    def __init__(self, target: Callable[..., None], *args: object) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self.pipe, theirs = context.Pipe(duplex=False)
        self.process: ForkServerProcess = context.Process(target=target, args=(theirs, *args), daemon=True)
        self.process.start()
        theirs.close()
        self.said: list[Any] = []

    def hear(self, count: int) -> None:
        """Waits until it has said so much."""
        deadline = time.monotonic() + WAIT_S
        while len(self.said) < count:
            if not self.pipe.poll(max(0, deadline - time.monotonic())):
                raise AssertionError(f"it said {len(self.said)} of {count} things in {WAIT_S} s")
            self.said.append(self.pipe.recv())

    def hear_out(self) -> None:
        """All it said before it ended."""
        try:
            while self.pipe.poll(0):
                self.said.append(self.pipe.recv())
        except EOFError:
            pass

    def kill(self) -> None:
        self.process.kill()
        self.process.join(WAIT_S)
        self.hear_out()

    def close(self) -> None:
        self.process.kill()
        self.process.join(WAIT_S)
        self.process.close()
        self.pipe.close()


@contextmanager
def writer(target: Callable[..., None], *args: object) -> Iterator[Writer]:
    made = Writer(target, *args)
    try:
        yield made
    finally:
        made.close()


def append_for_ever(pipe: Connection, url: str) -> None:
    """Numbered entries, from where the journal ends; says the journal's length after each append."""
    asyncio.run(_append_for_ever(pipe, url))


async def _append_for_ever(pipe: Connection, url: str) -> None:
    store, _ = await open_store(url)
    generation = (await store.lead("cp-1", "", LONG_MS)).generation
    length = await _length(store, 0)
    chance = random.Random(os.getpid())
    while True:
        more = range(length + 1, length + 1 + chance.randint(1, 4))
        try:
            length = await store.append(generation, length, tuple(entry(number) for number in more))
        except Fenced:  # the one before us was killed while its COMMIT was under way
            length = await _length(store, length)
            continue
        pipe.send(length)


async def _length(store: SqlStore, known: int) -> int:
    return known + len(await store.read(known))


def open_and_close(pipe: Connection, url: str, begin_at: float) -> None:
    """Says what came of it. All begin at the same moment."""

    async def once() -> str:
        await asyncio.sleep(max(0.0, begin_at - time.time()))
        try:
            store, _ = await open_store(url)
        except PortError as error:
            return f"{type(error).__name__}: {error}"
        await store.close()
        return "fine"

    pipe.send(asyncio.run(once()))


def stop_in_a_commit(pipe: Connection, url: str) -> None:
    """Stands still when its append is about to be committed."""

    async def once() -> None:
        store, _ = await open_store(url)
        generation = (await store.lead("cp-1", "", SHORT_MS)).generation

        def stand_still(*_: object) -> None:
            pipe.send("stopped")
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(WAIT_S)  # the signal reaches all threads, but not in no time

        event.listen(store.database.writing, "commit", stand_still)
        await store.append(generation, 0, (entry(1),))

    asyncio.run(once())


def race(pipe: Connection, url: str, name: str) -> None:
    """Leads when it can, writes under its generation, and now and then sleeps too long. Says what was
    acknowledged: (generation, length)."""
    asyncio.run(_race(pipe, url, name))


async def _race(pipe: Connection, url: str, name: str) -> None:
    store, _ = await open_store(url)
    chance = random.Random(name)
    length = 0
    while True:
        held = await store.lead(name, "", SHORT_MS)
        if held.leader != name:
            await asyncio.sleep(0.01)
            continue
        try:
            length = await _length(store, length)
            for _ in range(chance.randint(1, 8)):
                mark = ev.LeaderChanged(at=length + 1, leader=name, generation=held.generation)
                length = await store.append(held.generation, length, (mark,))
                pipe.send((held.generation, length))
                if chance.random() < 0.2:
                    await asyncio.sleep(chance.uniform(0.5, 1.5) * SHORT_MS / 1000)
        except Fenced:
            pipe.send((held.generation, 0))
