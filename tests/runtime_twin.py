"""A runtime without processes, for tests of the agent: what is started runs until the test ends it.

`Disk` is what outlives an agent, so a second runtime on the same one adopts what the first left.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.core.agent.machine import Wanted
from holdfast.model.event import Ended
from holdfast.model.node import Fencing, Isolation, LimitedBy
from holdfast.model.units import Millis
from holdfast.ports.runtime import Adopted, Exit, Task, Usage


@dataclass
class Disk:
    running: dict[str, Task] = field(default_factory=dict)
    ready: set[str] = field(default_factory=set)
    exits: dict[str, tuple[Task, Exit]] = field(default_factory=dict)  # that nobody was told of
    logs: dict[str, bytes] = field(default_factory=dict)
    rotated: dict[str, int] = field(default_factory=dict)  # bytes of them that are gone
    progress: dict[str, int] = field(default_factory=dict)
    lease_until: int = 0


class RuntimeTwin:
    def __init__(self, disk: Disk | None = None) -> None:
        self.disk = disk or Disk()
        self.did: list[tuple[str, str]] = []  # what was asked of it, in order
        self.gate = asyncio.Event()  # cleared: starts take until it is set
        self.gate.set()
        self.stops_at_once = True
        self.breaks = ""  # why no replica can be started
        self.told: list[Wanted] = []
        self.ended: Callable[[Exit], None] = lambda gone: None
        self.ready: Callable[[str], None] = lambda replica: None
        self.overused: Callable[[str, int, int], None] = lambda replica, used_milli, asked_milli: None
        self.closed = False
        self.probes: dict[str, str] = {}  # what those that are not well answered
        self.read_bytes = 0  # of logs
        self._port = 20_000
        self.taken: set[int] = set()  # ports that somebody else has bound

    async def adopt(self) -> list[Adopted]:
        living = [Adopted(task, name in self.disk.ready) for name, task in self.disk.running.items()]
        return living + [Adopted(task, False, gone) for task, gone in self.disk.exits.values()]

    async def start(self, task: Task) -> None:
        await self.gate.wait()
        if self.breaks:
            raise OSError(11, self.breaks)
        self.disk.running[task.wanted.replica] = task
        self.did.append(("start", task.wanted.replica))

    def stop(self, replica: str, deadline: int) -> None:
        self.did.append(("stop", replica))
        if self.stops_at_once:
            self.end(replica, Ended.STOPPED, "it was asked to")

    def kill(self, replica: str) -> None:
        self.did.append(("kill", replica))
        self.end(replica, Ended.STOPPED, "killed")

    def tell(self, wanted: Wanted) -> None:
        self.did.append(("tell", wanted.replica))
        self.told.append(wanted)

    def renew(self, until: int) -> None:
        self.disk.lease_until = max(self.disk.lease_until, until)

    def lease_until(self) -> int:
        return self.disk.lease_until

    def forget(self, replica: str) -> None:
        self.did.append(("forget", replica))
        self.disk.exits.pop(replica, None)

    def fencing(self) -> Fencing:
        return Fencing.KERNEL

    def isolation(self) -> Isolation:
        return Isolation.NONE

    def limits(self) -> LimitedBy:
        return LimitedBy.WATCHDOG

    def usage(self) -> dict[str, Usage]:
        return {name: Usage(250, 10) for name in self.disk.running}

    def answers(self) -> dict[str, str]:
        return {name: answer for name, answer in self.probes.items() if name in self.disk.running}

    def progress(self, replica: str) -> Millis:
        return self.disk.progress.get(replica, 0)

    def read_log(self, replica: str, offset: int, size: int) -> tuple[bytes, int]:
        log = self.disk.logs.get(replica, b"")
        offset = max(0, len(log) + offset) if offset < 0 else min(offset, len(log))
        offset = max(offset, self.disk.rotated.get(replica, 0))
        part = log[offset : offset + size]
        self.read_bytes += len(part)
        return part, offset + len(part)

    def has_log(self, replica: str) -> bool:
        return replica in self.disk.logs or replica in self.disk.running

    async def close(self) -> None:
        self.closed = True

    def allot_port(self) -> int:
        self._port += 1
        return self._port

    def is_free(self, port: int) -> bool:
        return port not in self.taken

    def release_port(self, port: int) -> None:
        self.did.append(("release", str(port)))

    # what a test does to it

    def become_ready(self, replica: str) -> None:
        self.disk.ready.add(replica)
        self.ready(replica)

    def end(self, replica: str, how: Ended, why: str = "") -> None:
        """In the next turn of the loop, as a real one would hear of it."""
        task = self.disk.running.pop(replica, None)
        if task is not None:
            gone = Exit(replica, how, why)
            self.disk.exits[replica] = (task, gone)
            if not self.closed:
                asyncio.get_running_loop().call_soon(self.ended, gone)
