"""What the cluster has now: its partitions, and what their nodes could give to a job."""

import re
from collections.abc import Iterable

import msgspec

from holdfast.adapters.providers.slurm.commands import Commands
from holdfast.adapters.providers.slurm.queue import APART
from holdfast.model.place import Place
from holdfast.model.pool import Offer
from holdfast.model.resources import GPU, Resources

FORMAT = APART.join(("%R", "%a", "%T", "%c", "%m", "%G"))
USABLE = ("idle", "mixed", "allocated", "completing", "planned", "reserved", "powering", "powered")
GRES = re.compile(r"gpu:(?:([^:(,]+):)?([0-9]+)")


class Kind(msgspec.Struct, frozen=True):
    """Nodes of one partition that are alike."""

    partition: str
    has: Resources


async def kinds(commands: Commands) -> tuple[Kind, ...]:
    """Of the partitions that take jobs, and of nodes that answer."""
    said = await commands.look("sinfo", "--noheader", "--exact", f"--format={FORMAT}")
    return parse(said)


def parse(text: str) -> tuple[Kind, ...]:
    found: dict[Kind, None] = {}
    for line in text.splitlines():
        fields = line.split(APART)
        if len(fields) != 6 or fields[1] != "up" or not is_usable(fields[2]):
            continue
        cpus, memory = fields[3].rstrip("+"), fields[4].rstrip("+")
        if cpus.isdecimal() and memory.isdecimal():
            found[Kind(fields[0], _resources(int(cpus), int(memory), fields[5]))] = None
    return tuple(found)


def is_usable(state: str) -> bool:
    """A mark behind it says more: `*` is a node that does not answer."""
    return "*" not in state and state.startswith(USABLE)


def _resources(cpus: int, memory: int, gres: str) -> Resources:
    gpu = GRES.search(gres)
    gpus = int(gpu[2]) if gpu else 0
    return Resources(cpus * 1000, memory, gpus * GPU, (gpu[1] or "") if gpu and gpus else "")


def offered(kinds: Iterable[Kind], partition: str) -> tuple[Offer, ...]:
    """For a pool that says nothing of its own: whole nodes, which cost nothing."""
    return tuple(
        Offer(
            kind.partition if not n else f"{kind.partition}@{n}",
            Place("slurm", zone=kind.partition),
            kind.has,
        )
        for n, kind in _numbered(kind for kind in kinds if partition in ("", kind.partition))
    )


def _numbered(kinds: Iterable[Kind]) -> Iterable[tuple[int, Kind]]:
    seen: dict[str, int] = {}
    for kind in kinds:
        yield seen.get(kind.partition, 0), kind
        seen[kind.partition] = seen.get(kind.partition, 0) + 1


async def answers(commands: Commands, host: str) -> bool:
    """Does the controller hear this compute node? Then what Slurm says of its jobs is what the node said."""
    said = await commands.look("sinfo", "--noheader", f"--nodes={host}", "--format=%T")
    states = said.split()
    heard = (
        "drained",
        "draining",
        "idle",
        "mixed",
        "allocated",
        "completing",
        "planned",
        "reserved",
        "maint",
    )
    return bool(states) and all("*" not in state and state.startswith(heard) for state in states)
