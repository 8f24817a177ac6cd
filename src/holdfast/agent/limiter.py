"""What the replicas of a node use, and the end of whoever takes more than its part.

Memory is watched where no control group limits it (`watchdog.py`), the disk everywhere (`disk.py`); a program
that uses more processors than it asked for is told of and goes on. Looking is work itself, so it takes no
more than a part of the time, whatever runs here.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from holdfast.agent import disk, watchdog
from holdfast.agent.gpus import Gpus, used_milli
from holdfast.agent.kernel import boot_ms
from holdfast.agent.usage import Meter
from holdfast.ports.runtime import Usage

if TYPE_CHECKING:
    from holdfast.agent.processes import Replica


class Limiter:
    def __init__(
        self,
        replicas: "Mapping[str, Replica]",
        end: "Callable[[Replica, str], None]",
        overused: Callable[[str, int, int], None],
        gpus: Gpus,
    ) -> None:
        """`replicas`: those of the runtime, as they come and go. `end`: with a reason."""
        self._replicas, self._end, self._overused, self._gpus = replicas, end, overused, gpus
        self._meter, self._overuse = Meter(), watchdog.Overuse()

    def _running(self) -> "dict[str, Replica]":
        return {name: each for name, each in self._replicas.items() if each.handle >= 0}

    def drop(self, replica: str) -> None:
        self._meter.drop(replica)

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
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            running = {name: it for name, it in self._running().items() if not it.verdict[0]}
            most = {name: each.task.wanted.needs.memory_mib for name, each in running.items()}
            over = watchdog.over_memory({name: (each.root, most[name]) for name, each in running.items()})
            for name, used in over.items():
                said = f"used {used} MiB of {most[name]} MiB (limit enforced by the watchdog)"
                self._end(running[name], f"out of memory: {said}")
            await asyncio.sleep(max(watchdog.LOOK_S, watchdog.SHARE * (loop.time() - began)))

    async def watch_disk(self, root: str) -> None:
        filling = disk.Filling(root)
        while True:
            await asyncio.sleep(disk.LOOK_S)
            writing = {name: it.folders.written for name, it in self._running().items()}
            for name, why in (await filling.look(writing)).items():
                found = self._running().get(name)
                if found is not None and not found.verdict[0]:
                    self._end(found, why)
