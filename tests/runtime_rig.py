"""Real replicas on this machine, for tests of the runtime: start them, wait for them, and leave none."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from holdfast.agent import cgroup, procfs
from holdfast.agent.processes import ProcessRuntime
from holdfast.core.agent.machine import Brief, Wanted
from holdfast.model.program import Program
from holdfast.ports.runtime import Adopted, Exit, Task

PROGRAMS = Path(__file__).parent / "programs"
PYTHON = (sys.executable, "-I", "-S")
PATIENCE_S = 30.0
NAME = "web/0.1"


def boot_ms() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def program(name: str, *arguments: str) -> tuple[str, ...]:
    return (*PYTHON, str(PROGRAMS / name), *arguments)


async def until(condition: Callable[[], Any]) -> Any:
    """Waits for it to become true, and returns what it says then."""
    async with asyncio.timeout(PATIENCE_S):
        while not (answer := condition()):
            await asyncio.sleep(0.005)
        return answer


def alive(pid: int) -> bool:
    """A process that has ended and waits to be reaped does not count."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return not procfs.Seen(stat).dead


def task_for(
    command: tuple[str, ...],
    name: str = NAME,
    *,
    port: int = 0,
    wanted: dict[str, Any] | None = None,
    **more: Any,
) -> Task:
    slot, _, epoch = name.rpartition(".")
    brief = Brief(Program(command, **more), grace_ms=10_000)
    told = {"exclusive": False, **(wanted or {})}
    return Task(Wanted(name, slot, int(epoch), **told), slot.rpartition("/")[0], brief, port)


class Node:
    """A runtime, and what it has said."""

    def __init__(self, runtime: ProcessRuntime) -> None:
        self.runtime = runtime
        self.exits: dict[str, Exit] = {}
        self.readies: list[str] = []
        self.adopted: list[Adopted] = []
        runtime.ended = self._ended
        runtime.ready = self.readies.append

    def _ended(self, exit: Exit) -> None:
        assert exit.replica not in self.exits, "an end was told twice"
        self.exits[exit.replica] = exit

    async def start(self, command: tuple[str, ...], name: str = NAME, **more: Any) -> None:
        await self.runtime.start(task_for(command, name, **more))

    async def ready(self, name: str = NAME) -> None:
        await until(lambda: name in self.readies or name in self.exits)
        assert name in self.readies, self.exits[name]

    async def exit(self, name: str = NAME) -> Exit:
        await until(lambda: name in self.exits)
        return self.exits[name]

    async def said(self, text: str, name: str = NAME) -> str:
        """What it has written, as soon as that includes the text."""
        await until(lambda: text in self.log(name) or name in self.exits)
        assert text in self.log(name), self.exits.get(name)
        return self.log(name)

    def log(self, name: str = NAME) -> str:
        return self.runtime.read_log(name, 0, 1 << 20)[0].decode()

    async def pids(self, name: str = NAME) -> list[int]:
        """What `stubborn.py` says."""
        line = await self.said("here", name)
        return [int(word) for word in line.split()[:4]]


class Rig:
    """Everything that is started through it carries its mark, and is gone when it closes."""

    def __init__(self, folder: Path, cgroup_root: Path | None) -> None:
        self.root = folder / "node"
        self.checkpoints = folder / "checkpoints"
        self.cgroup_root = cgroup_root
        self.mark = os.urandom(8).hex()
        self.listener: socket.socket | None = None

    def folder(self, name: str = NAME) -> Path:
        return self.root / "replicas" / name.replace("/", "%2F")

    def runtime(self, **more: Any) -> ProcessRuntime:
        given = {
            "probe_socket": self.listener,
            "environment": {"HOLDFAST_TEST": self.mark, "HOLDFAST_NODE": "n1"},
            "checkpoint_root": self.checkpoints,
            "cgroup_root": self.cgroup_root,
            "contain": True,
        }
        return ProcessRuntime(self.root, **(given | more))

    @contextlib.asynccontextmanager
    async def node(self, **more: Any) -> AsyncIterator[Node]:
        node = Node(self.runtime(**more))
        node.adopted = await node.runtime.adopt()
        try:
            yield node
        finally:
            await node.runtime.close()

    def shim(self, name: str = NAME) -> int:
        lines = (self.folder(name) / "running").read_text().splitlines()
        return int(dict(line.split(" ", 1) for line in lines)["shim"])

    def left(self) -> list[int]:
        return procfs.marked(f"HOLDFAST_TEST={self.mark}")

    def end(self) -> list[int]:
        """Ends what is left, through the shims: they see to their own. Kills and returns what had none."""
        for pid in self.left():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if b"agent/shim.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    Path(f"/proc/{pid}/cwd/stop").write_text("deadline 1\n")
                    os.kill(pid, signal.SIGTERM)
                    os.kill(pid, signal.SIGCONT)
        deadline = time.monotonic() + PATIENCE_S
        while self.left() and time.monotonic() < deadline:
            time.sleep(0.01)
        left = self.left()
        procfs.kill(left, signal.SIGKILL)
        self.reap()
        return left

    def reap(self) -> None:
        """Shims that outlived their runtime are children of this process."""
        for folder in self.root.glob("replicas/*"):
            with contextlib.suppress(FileNotFoundError, ChildProcessError):
                os.waitpid(self.shim(folder.name), os.WNOHANG)

    @property
    def group(self) -> Path:
        assert self.cgroup_root
        return self.cgroup_root / f"holdfast-n1-{zlib.crc32(bytes(self.root)):08x}"


@contextlib.contextmanager
def rig_in(folder: Path, cgroup_root: Path | None = None) -> Iterator[Rig]:
    rig = Rig(folder, cgroup_root)
    try:
        yield rig
    finally:
        if rig.listener:
            rig.listener.close()
        assert rig.end() == []
        if cgroup_root and rig.group.exists():
            rig.group.rmdir()  # fails if a replica's group was left in it


def writable_group() -> Path | None:
    found = cgroup.find()
    return Path(found) if found else None
