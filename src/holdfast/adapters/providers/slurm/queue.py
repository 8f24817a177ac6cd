"""The jobs that are nodes: who they are, how they are, and whether they will ever start.

A job is ours if its comment says so: `holdfast FLEET POOL`. Its name is the node's. A fleet is all control
planes that share a root, so two of them on one cluster, under one user, do not see each other's nodes.

A job that has ended is kept by Slurm for some minutes and then forgotten; and a controller that crashed may
have forgotten one that runs. So a job that is not found is no job that has ended.
"""

import asyncio
from collections.abc import Iterable, Mapping

import msgspec

from holdfast.adapters.providers.slurm.commands import Commands
from holdfast.ports.errors import CapacityShort, Denied, PortError

APART = "\x1f"  # in no name that anybody gives to a job
FORMAT = APART.join(("%i", "%j", "%T", "%r", "%S", "%e", "%N", "%k"))
MARK = "holdfast"
PENDING = "PENDING"
ENDED = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
    *("PREEMPTED", "REVOKED", "TIMEOUT"),
}

# Why a job that waits will not start, however long it waits: the beginnings of Slurm's reasons. A limit is
# one of them: it is our own nodes that use it up, and they stay.
REFUSALS: Mapping[str, type[PortError]] = {
    "JobHeld": Denied,
    "Invalid": Denied,
    "AccountNotAllowed": Denied,
    "QOSNotAllowed": Denied,
    "DependencyNeverSatisfied": Denied,
    "PartitionTimeLimit": Denied,
    "QOSTimeLimit": Denied,
    "AssociationTimeLimit": Denied,
    "TimeLimit": Denied,
    "BadConstraints": CapacityShort,
    "PartitionConfig": CapacityShort,
    "PartitionDown": CapacityShort,
    "PartitionInactive": CapacityShort,
    "PartitionNodeLimit": CapacityShort,
    "NodeDown": CapacityShort,
    "ReqNodeNotAvail": CapacityShort,
    "Nodes_required_for_job_are_DOWN": CapacityShort,
    "Nodes required for job are DOWN": CapacityShort,
    "AssociationJobLimit": CapacityShort,
    "AssociationResourceLimit": CapacityShort,
    "AssocMax": CapacityShort,
    "AssocGrp": CapacityShort,
    "MaxCpuPerAccount": CapacityShort,
    "MaxNodePerAccount": CapacityShort,
    "QOSJobLimit": CapacityShort,
    "QOSResourceLimit": CapacityShort,
    "QOSMax": CapacityShort,
    "QOSMin": CapacityShort,
    "QOSGrp": CapacityShort,
    "QOSUsageThreshold": CapacityShort,
}


class Job(msgspec.Struct, frozen=True):
    id: int
    node: str
    pool: str
    state: str
    reason: str = "None"
    starts_at: float | None = None  # both in seconds since 1970, by the controller's clock; None: not known
    ends_at: float | None = None
    host: str = ""

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @property
    def is_seen_off(self) -> bool:
        """It has ended, and its machine was there to say so."""
        return self.has_ended and self.state not in ("NODE_FAIL", "BOOT_FAIL")

    @property
    def refusal(self) -> PortError | None:
        """Set: it waits, and will do so until somebody changes something."""
        if self.state != PENDING:
            return None
        for beginning, kind in REFUSALS.items():
            if self.reason.startswith(beginning):
                return kind(f"Slurm will not start job {self.id} ({self.node}): {self.reason}")
        return None


def comment(fleet: str, pool: str) -> str:
    return f"{MARK} {fleet} {pool}"


def parse(text: str, fleet: str) -> tuple[Job, ...]:
    """Of this fleet, the oldest first. Lines that say something else are others' jobs."""
    found = []
    for line in text.splitlines():
        fields = line.split(APART)
        if len(fields) != 8 or not fields[0].isdecimal():
            continue
        number, node, state, reason, starts, ends, host, said = fields
        marks = said.split(" ")
        if len(marks) == 3 and marks[:2] == [MARK, fleet]:
            times = _instant(starts), _instant(ends)
            found.append(Job(int(number), node, marks[2], state, reason, *times, host))
    return tuple(sorted(found, key=lambda job: job.id))


def _instant(text: str) -> float | None:
    return float(text) if text.isdecimal() else None


class Queue:
    def __init__(self, commands: Commands, fleet: str) -> None:
        self._commands, self._fleet = commands, fleet
        self._lock = asyncio.Lock()
        self._begun = self._done = 0  # numbers of looks
        self._last: tuple[Job, ...] = ()

    async def of(self, node: str) -> tuple[Job, ...]:
        """Those that have not ended. More than one: somebody asked for it twice at once."""
        found = await self._look(f"--name={node}")
        return tuple(job for job in found if job.node == node and not job.has_ended)

    async def find(self, node: str, number: int) -> Job | None:
        """Also one that has ended."""
        found = await self._look(f"--name={node}", "--states=all")
        return next((job for job in found if job.id == number), None)

    async def all(self) -> tuple[Job, ...]:
        """Whoever asks while a look is under way shares the next one: a hundred nodes that fall silent at
        once are two questions to the controller and not a hundred."""
        asked = self._begun
        async with self._lock:
            if self._done <= asked:
                self._begun += 1
                self._last = tuple(job for job in await self._look() if not job.has_ended)
                self._done = self._begun
            return self._last

    async def _look(self, *words: str) -> tuple[Job, ...]:
        said = await self._commands.look("squeue", "--me", "--noheader", f"--format={FORMAT}", *words)
        return parse(said, self._fleet)


def ids(jobs: Iterable[Job]) -> list[str]:
    return [str(job.id) for job in jobs]
