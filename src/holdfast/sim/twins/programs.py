"""What runs on the simulated nodes: processes that become ready, work, save checkpoints, finish or fail.

Checkpoints live in shared storage, which survives every node, as real ones do. The members of a gang make
progress together, and only while the whole generation is there; when it meets again it goes back to the last
checkpoint.
"""

import msgspec

from holdfast.core.agent.machine import Wanted
from holdfast.model.replica import Role
from holdfast.model.units import Instant, Millis
from holdfast.model.workload import Training, Workload
from holdfast.sim.scenario.scenario import Program


class Process(msgspec.Struct):
    wanted: Wanted
    workload: str
    node: str
    started_at: Instant
    number: int  # tells this process from an earlier one of the same replica
    ready: bool = False
    resumed_ms: Millis = 0  # progress when it became ready
    work_since: Instant = 0  # 0: not working (not ready, or frozen)
    speed: float = 1.0


class Storage:
    """Checkpoints by slot (or, for a gang, by workload)."""

    def __init__(self) -> None:
        self.saved: dict[str, Millis] = {}

    def key(self, workload: Workload, slot: str) -> str:
        return workload.name if isinstance(workload.shape, Training) else slot

    def load(self, workload: Workload, slot: str) -> Millis:
        return self.saved.get(self.key(workload, slot), 0) if workload.checkpoint_ms else 0

    def save(self, workload: Workload, slot: str, progress: Millis) -> None:
        if workload.checkpoint_ms:
            whole = progress - progress % workload.checkpoint_ms
            key = self.key(workload, slot)
            self.saved[key] = max(self.saved.get(key, 0), whole)


def progress_of(process: Process, now: Instant) -> Millis:
    if not process.work_since:
        return process.resumed_ms
    return process.resumed_ms + int((now - process.work_since) * process.speed)


def done_at(process: Process, program: Program) -> Instant:
    """When it will have finished, if nothing happens to it."""
    return process.work_since + int((program.run_ms - process.resumed_ms) / process.speed)


def works(process: Process) -> bool:
    return process.wanted.role is Role.ACTIVE
