"""What the replicas of a node use, and the end of whoever takes more than its part.

Memory is watched where no control group limits it (`watchdog.py`), the disk everywhere (`disk.py`); a program
that uses more processors than it asked for is told of and goes on. Looking is work itself, so it is done
beside the loop, and takes no more than a part of the time, whatever runs here.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from holdfast.agent.gpus import Gpus, used_milli
from holdfast.agent.kernel import boot_ms
from holdfast.agent.say import Log
from holdfast.agent.watch import disk, watchdog
from holdfast.agent.watch.usage import Meter
from holdfast.ports.runtime import Usage

if TYPE_CHECKING:
    from holdfast.agent.processes import Replica

AGAIN_S = 10.0  # after a look that could not be finished
CLOSE_S = 2.0

Found = TypeVar("Found")


class Limiter:
    def __init__(
        self,
        replicas: "Mapping[str, Replica]",
        end: "Callable[[Replica, str], None]",
        overused: Callable[[str, int, int], None],
        gpus: Gpus,
        log: Log | None = None,
    ) -> None:
        """`replicas`: those of the runtime, as they come and go. `end`: with a reason."""
        self._replicas, self._end, self._overused, self._gpus = replicas, end, overused, gpus
        self._log = log or Log()
        self._jobs: set[asyncio.Future[Any]] = set()  # looks in threads
        self._estimated: set[str] = set()  # of whom that was said
        self._meter, self._overuse = Meter(), watchdog.Overuse()

    def _running(self) -> "dict[str, Replica]":
        return {name: each for name, each in self._replicas.items() if each.handle >= 0}

    def drop(self, replica: str) -> None:
        self._meter.drop(replica)
        self._estimated.discard(replica)

    def usage(self, *, enforced: bool) -> dict[str, Usage]:
        """`enforced`: nobody can use more processors than it asked for."""
        now = boot_ms()
        used = self._meter.read({name: (it.root, it.group) for name, it in self._running().items()}, now)
        wanted = {name: self._replicas[name].task.wanted for name in used}
        if any(each.devices for each in wanted.values()):
            busy = self._gpus.busy(now)
            for name, use in used.items():
                used[name] = msgspec.structs.replace(use, gpu_milli=used_milli(wanted[name], busy))
        if not enforced:
            needs = {name: each.needs for name, each in wanted.items()}
            for name in self._overuse.found(used, needs, now):
                self._overused(name, used[name].cpu_milli, needs[name].cpu_milli)
        return used

    async def watch_memory(self) -> None:
        """Where the kernel does not."""
        memory = watchdog.Memory()
        await self._watching("memory", lambda: self._look_at_memory(memory))

    async def _look_at_memory(self, memory: watchdog.Memory) -> float:
        began = time.monotonic()
        running = {name: it for name, it in self._running().items() if not it.verdict[0]}
        most = {name: each.task.wanted.needs.memory_mib for name, each in running.items()}
        roots = {name: (each.root, most[name]) for name, each in running.items()}
        over = await self._beside(lambda: memory.over(roots))
        for name, used in over.items():
            said = f"used {used} of {most[name]} MiB (limit enforced by the watchdog)"
            self._end_if(running[name], f"out of memory: {said}")
        for name in memory.estimated - self._estimated:
            self._estimated.add(name)
            self._log.warning("memory is estimated: too much to look at", replica=name)
        return max(watchdog.LOOK_S, watchdog.SHARE * (time.monotonic() - began))

    async def watch_disk(self, folder: str, unless: str = "") -> None:
        filling = disk.Filling(folder, unless)
        await self._watching(f"disk of {folder}", lambda: self._look_at_disk(filling))

    async def _look_at_disk(self, filling: disk.Filling) -> float:
        running = self._running()
        writing = {name: disk.Writing(it.folders.written, it.root) for name, it in running.items()}
        with contextlib.suppress(FileNotFoundError):  # nobody has saved anything yet
            for name, why in (await self._beside(lambda: filling.look(writing))).items():
                self._end_if(running[name], why)
        return disk.LOOK_S

    async def _beside(self, look: Callable[[], Found]) -> Found:
        """In a thread, which goes on when whoever waits for it does not any more."""
        job = asyncio.ensure_future(asyncio.to_thread(look))
        self._jobs.add(job)
        job.add_done_callback(self._done)
        return await asyncio.shield(job)

    def _done(self, job: asyncio.Future[Any]) -> None:
        self._jobs.discard(job)
        if not job.cancelled():
            job.exception()  # asked for, in case nobody waits for it any more

    async def close(self) -> None:
        """After the watches were cancelled. A disk that does not answer is not waited for."""
        if self._jobs:
            await asyncio.wait(self._jobs, timeout=CLOSE_S)

    def _end_if(self, replica: "Replica", why: str) -> None:
        """It may have ended, or been told to, while we looked."""
        if self._running().get(replica.name) is replica and not replica.verdict[0]:
            self._end(replica, why)

    async def _watching(self, what: str, look: Callable[[], Coroutine[None, None, float]]) -> None:
        """For ever: whatever a program has thought of that stops one look stops none that comes after."""
        told = ""
        while True:
            (pause,) = await asyncio.gather(look(), return_exceptions=True)
            if isinstance(pause, BaseException):
                if told != repr(pause):
                    told = repr(pause)
                    self._log.warning(f"cannot look at the {what}, and tries again", why=told)
                pause = AGAIN_S
            await asyncio.sleep(pause)
