"""What runs replicas on a node: processes here, containers perhaps later.

The runtime keeps what it runs when the agent ends, and finds it again when it starts: `adopt`. It enforces
the lease by itself, agent or no agent.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec

from holdfast.core.agent.machine import Brief, Wanted
from holdfast.model.event import Ended
from holdfast.model.node import Fencing, Isolation, LimitedBy
from holdfast.model.units import Instant, Millis


class Task(msgspec.Struct, frozen=True):
    """A replica to run."""

    wanted: Wanted
    workload: str
    brief: Brief
    port: int


class Exit(msgspec.Struct, frozen=True):
    replica: str
    how: Ended  # DONE, FAILED, STOPPED, or FENCED when the lease ran out
    why: str  # "exit code 1", "killed by signal 9", "no such command: foo", ...
    progress_ms: Millis = 0
    proven: bool = True  # False: its shim was killed, and something that it started may still run


class Adopted(msgspec.Struct, frozen=True):
    """A replica that an earlier agent started: it still runs, or has ended and nobody was told."""

    task: Task
    ready: bool
    exit: Exit | None = None


class Usage(msgspec.Struct, frozen=True):
    cpu_milli: int
    memory_mib: int
    gpu_milli: int | None = None  # None: it has none, or nobody can say


class Runtime(Protocol):
    """Instants here are the node's own boot-time clock, in ms. `ended` is called once for each replica that
    ends; `ready` once when it first passes its readiness probe."""

    ended: Callable[[Exit], None]
    ready: Callable[[str], None]
    overused: Callable[[str, int, int], None]  # more processors than it asked for, in thousandths, for long

    async def adopt(self) -> list[Adopted]:
        """Called once, before anything else."""

    async def start(self, task: Task) -> None:
        """Errors are exits: `ended` is called with FAILED and the reason."""

    def stop(self, replica: str, deadline: Instant) -> None:
        """Ask it to end; kill the whole tree at the deadline."""

    def kill(self, replica: str) -> None: ...

    def tell(self, wanted: Wanted) -> None:
        """Its role, epoch, gang or peers changed: write it down where the program can read it."""

    def renew(self, until: Instant) -> None:
        """Exclusive replicas may run until then."""

    def lease_until(self) -> Instant:
        """What was last written, by this agent or one before it; 0: nothing."""

    def forget(self, replica: str) -> None:
        """The control plane has journalled its end: nothing needs to be kept of it but its log."""

    def fencing(self) -> Fencing: ...

    def limits(self) -> LimitedBy: ...

    def isolation(self) -> Isolation: ...

    def usage(self) -> dict[str, Usage]: ...

    def answers(self) -> dict[str, str]:
        """What the last probe of each replica answered that was not well; those that are well are left
        out."""

    def progress(self, replica: str) -> Millis:
        """What the program says that its last checkpoint holds; 0: nothing."""

    def read_log(self, replica: str, offset: int, size: int) -> tuple[bytes, int]:
        """Up to `size` bytes from `offset` of all that it has written (the oldest may be gone; negative:
        from the end), and the offset after them."""

    def has_log(self, replica: str) -> bool:
        """Is what it wrote still here? It may be nothing."""

    async def close(self) -> None:
        """The agent ends; what runs goes on."""
