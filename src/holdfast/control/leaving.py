"""Ending what was launched, before we end ourselves: for a control plane whose nodes are not to outlive it.

A machine costs money as long as it is there, whoever launched it, so every node of every pool that can end
its nodes is ended; those that joined by themselves are not ours. It is asked again what failed, until its
provider confirms it, somebody is in a hurry, or the time is over. Then what is left is named: it stays in the
journal, and whoever starts again with that finds it.

A launch may have been under way when we were stopped. So each pool is listed when all of it that is known is
gone, and what came meanwhile is ended, too.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import NamedTuple

from holdfast.control.perform import CALL_S, CALLS_AT_ONCE, answer_of, why_of
from holdfast.model.pool import Pool
from holdfast.model.units import many
from holdfast.model.world import World
from holdfast.ports.errors import Denied, NotFound, PortError
from holdfast.ports.provider import Provider

END_S = 120.0  # for all of it: a cloud takes a minute to end a machine
AGAIN_S = 1.0
TELL_S = 5.0  # who is still waited for is said so often


class Wanted(NamedTuple):
    node: str
    pool: Pool
    sure: bool  # it was a machine: if its provider knows nothing of it, it is gone


class Leaving:
    def __init__(self, tell: Callable[[str], None], within_s: float = END_S) -> None:
        self.tell, self.within_s = tell, within_s
        self.hurry = asyncio.Event()
        self.left: dict[str, str] = {}  # what could not be ended, and why
        self._gone: list[str] = []
        self._gates: dict[str, asyncio.Semaphore] = {}

    async def end(
        self, world: World, pools: Iterable[Pool], providers: Callable[[Pool], Provider]
    ) -> list[str]:
        """All nodes of these pools. Those that are surely gone."""
        ours = [pool for pool in pools if pool.can_terminate]
        known = [
            Wanted(name, pool, world.nodes[name].answered or world.nodes[name].joined_at > 0)
            for pool in ours
            for name in world.in_pool[pool.name]
        ]
        for pool in ours:
            names = [each.node for each in known if each.pool is pool]
            if names:
                self.tell(f"ending {many(len(names), 'node')} of {pool.name}: {', '.join(names)}")
        async with asyncio.TaskGroup() as group:
            working = group.create_task(self._all(known, ours, providers))
            hurried = group.create_task(self.hurry.wait())
            await asyncio.wait((working, hurried), timeout=self.within_s, return_when=asyncio.FIRST_COMPLETED)
            working.cancel()
            hurried.cancel()
        return self._gone

    async def _all(
        self, known: list[Wanted], pools: list[Pool], providers: Callable[[Pool], Provider]
    ) -> None:
        """Each pool by itself: one that stands still keeps no other from being listed."""
        async with asyncio.TaskGroup() as group:
            for pool in pools:
                group.create_task(self._pool(pool, [each for each in known if each.pool is pool], providers))

    async def _pool(self, pool: Pool, known: list[Wanted], providers: Callable[[Pool], Provider]) -> None:
        await self._each(known, providers)
        try:
            listed = await answer_of(lambda: providers(pool).list(pool.name), CALL_S)
        except PortError:  # then only what is known was there
            return
        await self._each([Wanted(name, pool, True) for name in listed if name not in self.left], providers)

    async def _each(self, wanted: list[Wanted], providers: Callable[[Pool], Provider]) -> None:
        for each in wanted:
            self.left[each.node] = "there was no time for it"
        async with asyncio.TaskGroup() as group:
            ending = [group.create_task(self._one(each, providers)) for each in wanted]
            telling = group.create_task(self._say_who_is_left(wanted))
            if ending:
                await asyncio.wait(ending)
            telling.cancel()

    async def _say_who_is_left(self, wanted: list[Wanted]) -> None:
        while True:
            await asyncio.sleep(TELL_S)
            names = [each.node for each in wanted if each.node in self.left]
            self.tell(f"still waiting for {', '.join(names)} (Ctrl-C: not any longer)")

    async def _one(self, wanted: Wanted, providers: Callable[[Pool], Provider]) -> None:
        node, pool = wanted.node, wanted.pool
        async with self._gates.setdefault(pool.name, asyncio.Semaphore(CALLS_AT_ONCE)):
            while True:
                try:
                    await answer_of(lambda: providers(pool).terminate(node), CALL_S)
                except NotFound:
                    break
                except PortError as error:
                    self.left[node] = why_of(error)
                    if isinstance(error, Denied):
                        return
                    await asyncio.sleep(max(AGAIN_S, error.retry_after_ms / 1000))
                else:
                    break
        self.left.pop(node, None)  # two pools may list the same
        if wanted.sure:
            self._gone.append(node)
        self.tell(f"{node} is gone")
