"""An agent in this process, on a runtime without processes, for a hub twin to talk to."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.agent.agent import Agent
from holdfast.agent.home import Home, Unusable
from holdfast.agent.neighbours import Neighbours, listen
from holdfast.agent.say import Log
from holdfast.agent.settings import read
from holdfast.model.resources import Resources
from tests.runtime_twin import RuntimeTwin

CAPACITY = Resources(2_000, 4_096)


class Rig:
    def __init__(self, root: Path, join: str, words: tuple[str, ...], runtime: RuntimeTwin) -> None:
        arguments = ("--join", join, "--name", "n1", "--root", str(root), "--token", "t0", *words)
        self.home = Home(root)
        self.home.enter()
        self.runtime = runtime
        self._listener = listen(self.home, loopback=True)
        self.neighbours = Neighbours(self._listener)
        settings = read(arguments, {})
        self.agent = Agent(settings, self.home, runtime, self.neighbours, CAPACITY, Log())

    async def run(self) -> None:
        try:
            await self.agent.run()
        finally:
            self.close()

    def close(self) -> None:
        self._listener.close()
        self.home.leave()


@contextlib.asynccontextmanager
async def agent(root: Path, join: str, *words: str, runtime: RuntimeTwin | None = None) -> AsyncIterator[Rig]:
    """Lives inside the block, and is ended after it."""
    rig = Rig(root, join, words, runtime or RuntimeTwin())
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.run())
        yield rig
        rig.agent.end()


@contextlib.asynccontextmanager
async def refused(root: Path, join: str, *words: str) -> AsyncIterator[list[Unusable]]:
    """One that must end by itself after what is done in the block; afterwards the list holds the reason."""
    rig, reason = Rig(root, join, words, RuntimeTwin()), list[Unusable]()
    running = asyncio.ensure_future(rig.run())
    try:
        yield reason
        with pytest.raises(Unusable) as caught:
            await running
        reason.append(caught.value)
    finally:
        running.cancel()
