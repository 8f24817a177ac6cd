"""Nodes that are agents on this machine: places, sizes and prices are pretended, the processes are real.

It is the provider of `holdfast up`, and the one that the live system is tried with: a node can be killed or
hung as a whole (`ports.chaos`), and its provider then tells the truth about it. Each pool may pretend a
market (`market`). All state is on disk (`folders`), so nodes outlive the control plane that launched them and
any other finds them again.

A node is up while any of its processes lives (`tree`). One whose agent ended while replicas go on is a
running machine whose agent crashed: `supervise` starts that agent again. One where nothing is left is a dead
machine and stays dead: replacing it is for the control plane to decide.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog
from msgspec.structs import replace

from holdfast.adapters.providers.inherited import inherited
from holdfast.adapters.providers.local import market, tree
from holdfast.adapters.providers.local.folders import Folders, Started, wall_ms
from holdfast.adapters.providers.local.market import LocalTraits
from holdfast.adapters.providers.local.plainly import plainly
from holdfast.adapters.providers.local.start import answers, boot_id, is_running, start
from holdfast.adapters.providers.local.threads import Survey, seen_through
from holdfast.adapters.providers.settings import told
from holdfast.model.action import LaunchNode
from holdfast.model.pool import Offer, Pool
from holdfast.model.units import Millis
from holdfast.model.verdict import Word
from holdfast.ports.errors import CapacityShort, Denied, NotFound, PortError, Unreachable
from holdfast.ports.provider import Credentials

AGENT = (sys.executable, "-m", "holdfast.agent")
CREDENTIALS_S = 10.0
CALL_S = 10.0  # for a killed agent to be gone
NOT_HERE = (
    "local nodes run on the control plane's own host, as its user, and can read its tokens and its database: "
    "holdfast serve --allow-local lets them"
)
LOOK_S = 0.5  # how often `supervise` looks
REVIVE_S = 0.15  # the first wait before an agent is started again; doubled each time
REVIVE_MAX_S = 10.0
HURRY_S = 0.1  # how soon somebody in a hurry is heard
STEADY_S = 30.0  # an agent that has lived so long begins anew with its waits

log = structlog.get_logger()


class Revival(msgspec.Struct):
    """An agent that ended before its node did."""

    wait_s: float
    due: float
    started: float = 0.0


class LocalProvider:
    takes = market.TAKES

    def __init__(
        self,
        root: Path,
        credentials: Credentials,
        *,
        agent_command: Sequence[str] = AGENT,
        traits: LocalTraits | None = None,
        inherit_env: Sequence[str] = (),
        may_start: bool = True,
    ) -> None:
        """`inherit_env`: names of variables that agents get besides the usual ones. `may_start`: false leaves
        what runs, and starts nothing."""
        self.traits = traits or LocalTraits()  # of pools that say nothing else
        self._pools: dict[str, Pool] = {}
        self._folders = Folders(root)
        self._credentials = credentials
        self._command = tuple(agent_command)
        self._environment = inherited(inherit_env)
        self.may_start = may_start
        self._boots: dict[str, asyncio.Task[None]] = {}
        self._survey = Survey()
        self._children: set[int] = set()  # to be waited for when they end, or they stay as zombies
        self._agents: dict[str, Started] = {}  # what we last read of each node; the truth is on disk
        self._dead: dict[str, Started] = {}  # nodes of which nothing was left under this agent
        self._revivals: dict[str, Revival] = {}

    def of(self, pool: Pool) -> "LocalProvider":
        """Ourselves, and now we know what the pool's market is like. One provider serves all pools: their
        nodes are in the same folders."""
        self._pools[pool.name] = pool
        return self

    def check_allowed(self) -> None:
        """Denied: nothing is started here."""
        if not self.may_start:
            raise Denied(NOT_HERE)

    def _traits(self, pool: str) -> LocalTraits:
        known = self._pools.get(pool)
        if known is None:
            return self.traits
        wrong = self.takes.wrong(known.settings, [offer.name for offer in known.offers])
        if wrong:
            raise Denied(f"the settings of {pool} cannot be used: {told(wrong)}")
        return market.traits(known.settings, self.traits)

    # the port

    async def launch(self, request: LaunchNode) -> None:
        node = request.node
        self.check_allowed()
        with plainly(node, exhausted=CapacityShort):
            self._folders.reach()
            fresh = await seen_through(self._folders.enter, request, self._traits(request.pool))
            if not fresh and not self._folders.has(node):
                return  # its name is spent
            if self._folders.fate(node).boot_ms:
                self._boot_later(node)
                return
            try:
                await self._boot(node, fresh=fresh)
            except (PortError, OSError):
                if fresh:
                    await self._end(node, spend=False)
                raise

    async def terminate(self, node: str) -> None:
        with plainly(node):
            self._folders.reach()
            await self._end(node, spend=True)

    async def reset(self, node: str) -> None:
        self.check_allowed()
        with plainly(node):
            self._folders.reach()
            async with self._folders.held(node) as folder:
                if self._folders.is_ending(node):
                    raise NotFound(f"{node} is being terminated")
                await seen_through(tree.kill, str(folder))
                self._folders.note_started(node, None)
                fate = self._folders.fate(node)
                if fate.boot_ms:
                    self._folders.note_fate(node, replace(fate, boots_at=wall_ms() + fate.boot_ms))
                else:
                    await self._start(node)
            self._reap()
            if fate.boot_ms:
                self._boot_later(node)

    async def state(self, node: str) -> Word:
        with plainly(node):
            self._folders.reach()
            return Word.RUNNING if await self._is_up(node) else Word.STOPPED

    async def list(self, pool: str) -> tuple[str, ...]:
        found = []
        with plainly(pool):
            for node in self._folders.names():
                with contextlib.suppress(NotFound):  # it left while we looked
                    if self._folders.request(node).pool == pool:
                        found.append(node)
        return tuple(found)

    async def offers(self, pool: Pool) -> tuple[Offer, ...]:
        with plainly(pool.name):
            self._folders.reach()
            traits = self.of(pool)._traits(pool.name)
            short = self._folders.shortage
            return tuple(offer for offer in pool.offers if not short(pool.name, offer.name, traits))

    # chaos

    async def kill(self, node: str) -> None:
        with plainly(node):
            async with self._folders.held(node) as folder:
                await seen_through(tree.kill, str(folder))
                if self._folders.started(node) is None:  # it was booting
                    self._folders.note_started(node, Started(0, 0, boot_id()))
            self._reap()

    async def hang(self, node: str) -> None:
        with plainly(node):
            async with self._folders.held(node) as folder:
                await seen_through(tree.stop, str(folder))

    async def resume(self, node: str) -> None:
        with plainly(node):
            async with self._folders.held(node) as folder:
                await seen_through(tree.resume, str(folder))

    async def notice(self, node: str, left_ms: Millis) -> None:
        with plainly(node):
            async with self._folders.held(node):
                fate = market.sooner(self._folders.fate(node), wall_ms(), left_ms)
                self._folders.note_fate(node, fate)
                self._folders.tell_fate(node, fate)

    async def sell_out(self, pool: str, offer: str, for_ms: Millis) -> None:
        with plainly(pool):
            self._folders.reach()
            self._folders.sell_out(pool, offer, wall_ms() + for_ms)

    # for whoever runs us

    async def supervise(self) -> None:
        """Until cancelled: start agents again that ended before their node, boot what was left half booted by
        a control plane that ended, and take away what the market wants back."""
        if not self.may_start:
            return
        await self._call_over()
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                with plainly("this machine"):
                    await self._look_after()
            except PortError as error:
                log.warning("supervise_failed", why=str(error))

    async def stop_all(self, grace_ms: Millis, hurry: asyncio.Event | None = None) -> tuple[str, ...]:
        """Ask every replica to end, wait for that, unless somebody is in a hurry, then terminate every node.
        The nodes that are surely gone."""
        with plainly("this machine"):
            names = self._folders.names()
            for node in names:
                self._folders.note_ending(node)
            roots = [str(self._folders.of(node)) for node in names]
            asked = await seen_through(_ask_to_end, roots)
            await _ended(asked, grace_ms / 1000, hurry or asyncio.Event())
        ends = await asyncio.gather(*(self.terminate(node) for node in names), return_exceptions=True)
        for node, end in zip(names, ends, strict=True):
            if isinstance(end, PortError) and not isinstance(end, NotFound):
                log.error("node_left_behind", node=node, why=str(end))
            elif isinstance(end, BaseException) and not isinstance(end, PortError):
                raise end
        return tuple(
            n for n, end in zip(names, ends, strict=True) if end is None or isinstance(end, NotFound)
        )

    async def close(self) -> None:
        """Nodes go on."""
        boots = list(self._boots.values())
        for boot in boots:
            boot.cancel()
        await asyncio.gather(*boots, return_exceptions=True)
        self._reap()

    # starting and ending

    def _boot_later(self, node: str) -> None:
        if node not in self._boots:
            boot = self._boots[node] = asyncio.create_task(self._boot_after(node), name=f"boot {node}")
            boot.add_done_callback(lambda _: self._boots.pop(node))

    async def _boot_after(self, node: str) -> None:
        try:
            fate = self._folders.fate(node)  # if the clock was set meanwhile, a boot still takes no longer
            await asyncio.sleep(min(max(0, fate.boots_at - wall_ms()), fate.boot_ms) / 1000)
            with plainly(node):
                await self._boot(node, fresh=False)
        except NotFound:
            pass  # terminated while it booted
        except PortError as error:
            log.warning("boot_failed", node=node, why=str(error))  # `supervise` tries again

    async def _boot(self, node: str, *, fresh: bool) -> None:
        async with self._folders.held(node) as folder:
            if self._folders.is_ending(node) or self._folders.started(node) is not None:
                return
            if not fresh and await self._find_agent(node, folder):
                return
            await self._start(node)

    async def _start(self, node: str) -> None:
        try:
            async with asyncio.timeout(CREDENTIALS_S):
                join = await self._credentials(node)
        except TimeoutError as error:
            raise Unreachable(f"no credentials for {node} within {CREDENTIALS_S:g} s") from error
        request = self._folders.request(node)
        started = await seen_through(start, self._folders, request, join, self._command, self._environment)
        self._children.add(started.pid)

    async def _find_agent(self, node: str, folder: Path) -> bool:
        """An agent that was started by somebody who could not note it any more."""
        found = await asyncio.to_thread(tree.agent_of, str(folder), str(folder / "agent"))
        if found is not None:
            self._folders.note_started(node, Started(found.pid, found.start, boot_id()))
        return found is not None

    async def _end(self, node: str, *, spend: bool) -> None:
        async with self._folders.held(node) as folder:
            self._folders.note_ending(node)
            await seen_through(tree.kill, str(folder))
            await seen_through(self._folders.leave, node, spend=spend)
        self._reap()
        for memory in (self._agents, self._dead, self._revivals):
            memory.pop(node, None)

    def _reap(self) -> None:
        for pid in tuple(self._children):
            try:
                ended, _ = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                ended = pid
            if ended:
                self._children.discard(pid)

    # who is up

    async def _is_up(self, node: str) -> bool:
        if not self._folders.has(node):
            return False
        started = self._folders.started(node)
        if started is None:
            return not self._folders.is_ending(node)  # it boots
        return is_running(started) or await self._has_processes(node)

    async def _has_processes(self, node: str) -> bool:
        """As `tree.alive`, with scans that are shared."""
        root = str(self._folders.of(node))
        return (
            root in await self._survey()
            or await asyncio.to_thread(tree.is_populated, root)
            or root in await self._survey()
        )

    def _agent_runs(self, node: str) -> bool:
        known = self._agents.get(node)
        if known is not None and is_running(known):
            return True
        found = self._folders.started(node)
        if found is None:
            self._agents.pop(node, None)
            return False
        self._agents[node] = found
        return found != known and is_running(found)

    async def _look_after(self) -> None:
        self._reap()
        names = self._folders.names()
        for memory in (self._agents, self._dead, self._revivals):
            for node in memory.keys() - set(names):
                del memory[node]
        async with asyncio.TaskGroup() as group:
            for node in names:
                try:
                    needed = self._care(node)
                except PortError as error:
                    log.warning("node_not_looked_after", node=node, why=str(error))
                    continue
                if needed is not None:
                    group.create_task(needed)

    def _care(self, node: str) -> Coroutine[Any, Any, None] | None:
        """What it needs now."""
        if self._is_wanted_back(node):
            return self._take_away(node)
        if self._agent_runs(node) or self._folders.is_ending(node) or node in self._boots:
            return None
        agent = self._agents.get(node)
        if agent is None:
            self._boot_later(node)
            return None
        return self._look_at_crash(node, agent) if self._dead.get(node) != agent else None

    def _is_wanted_back(self, node: str) -> bool:
        """Its market wants it back now. If soon, the node is told."""
        fate, now = self._folders.fate(node), wall_ms()
        if not fate.goes_at or now < fate.told_at:
            return False
        if now < fate.goes_at:
            self._folders.tell_fate(node, fate)
        return now >= fate.goes_at

    async def _take_away(self, node: str) -> None:
        """As real ones are: it is neither listed nor found any more."""
        try:
            with plainly(node), contextlib.suppress(NotFound):
                await self._end(node, spend=True)
                log.info("node_taken_away", node=node)
        except PortError as error:
            log.warning("node_not_taken_away", node=node, why=str(error))

    async def _call_over(self) -> None:
        """Agents of a control plane that was killed, when we listen at another address than it did: nobody
        else will ever answer them."""
        for node in self._folders.names():
            try:
                with plainly(node):
                    await self._call_if_lonely(node)
            except PortError as error:
                log.warning("agent_not_called_over", node=node, why=str(error))

    async def _call_if_lonely(self, node: str) -> None:
        agent = self._folders.started(node)
        if agent is None or not agent.urls or not is_running(agent) or self._folders.is_ending(node):
            return
        ours = (await self._credentials(node)).urls
        if set(ours) & set(agent.urls) or await answers(agent.urls):
            return
        async with self._folders.held(node):
            if self._folders.started(node) == agent and (process := tree.look(agent.pid)) is not None:
                tree.send(process, signal.SIGKILL)
                await seen_through(tree.wait, [process], CALL_S)
                await self._start(node)
                log.info("agent_called_over", node=node)

    async def _look_at_crash(self, node: str, agent: Started) -> None:
        try:
            with plainly(node):
                if not await self._has_processes(node):
                    self._dead[node] = agent
                elif self._is_due(node):
                    await self._revive(node, agent)
        except PortError as error:
            log.warning("agent_not_started_again", node=node, why=str(error))

    def _is_due(self, node: str) -> bool:
        now = time.monotonic()
        known = self._revivals.get(node)
        if known is None or (known.started and now - known.started > STEADY_S):
            self._revivals[node] = Revival(REVIVE_S, now + REVIVE_S)
            return False
        if now < known.due:
            return False
        known.wait_s = min(2 * known.wait_s, REVIVE_MAX_S)
        known.started, known.due = now, now + known.wait_s
        return True

    async def _revive(self, node: str, agent: Started) -> None:
        async with self._folders.held(node) as folder:
            if self._folders.is_ending(node) or self._folders.started(node) != agent:
                return
            if not await self._has_processes(node) or await self._find_agent(node, folder):
                return
            await self._start(node)
            log.info("agent_started_again", node=node)


def _ask_to_end(roots: Sequence[str]) -> list[tree.Process]:
    tree.resume(*roots)  # what is hung hears nothing
    asked = tree.shims(*roots)
    for shim in asked:
        tree.send(shim, signal.SIGTERM)
    return asked


async def _ended(processes: list[tree.Process], within_s: float, hurry: asyncio.Event) -> None:
    ends = time.monotonic() + within_s
    while processes and not hurry.is_set() and (left_s := ends - time.monotonic()) > 0:
        processes = await seen_through(tree.wait, processes, min(HURRY_S, left_s))
