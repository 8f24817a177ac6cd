"""Is a pilot's node surely gone? What its folder tells, against what Slurm tells.

Slurm's word that a job has ended is no proof. When a compute node falls silent, Slurm calls its jobs ended
after some minutes, while their processes may go on where nobody hears them; and work that must never run
twice would run twice. So a node is gone only if one of these holds:

- it never began;
- its pilot or its keeper wrote `ended`, after they saw the last process off;
- Slurm knows the job, says that it has ended, and hears its machine: then that machine said so itself;
- its time is over: a pilot ends by itself soon after its limit, heard or not.

Otherwise we do not know. An operator who knows may make the file `ended`.
"""

import time
from pathlib import Path

import msgspec

from holdfast.adapters.providers.slurm import partitions
from holdfast.adapters.providers.slurm.commands import Commands
from holdfast.adapters.providers.slurm.queue import Queue
from holdfast.ports.errors import Unreachable

SHORT_S = 60.0  # what Slurm's times are rounded to
SLACK_S = 600.0  # a pilot waits two minutes for Slurm to end it; the rest is for clocks that differ


class Began(msgspec.Struct, frozen=True):
    job: str = ""
    host: str = ""
    at: float = 0.0


def began(folder: Path) -> Began | None:
    try:
        return msgspec.json.decode((folder / "began").read_bytes(), type=Began)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError:  # the disk was full, or it is being written
        return Began()


def is_over(folder: Path) -> bool:
    return (folder / "ended").exists()


class Told(msgspec.Struct, frozen=True):
    """What a node's folder tells, at one look."""

    began: Began | None
    over: bool


def told(folder: Path) -> Told:
    return Told(began(folder), is_over(folder))


async def is_gone(node: str, told: Told, time_s: int, queue: Queue, commands: Commands) -> bool:
    """Of a node whose job is not in the queue any more."""
    life = told.began
    if life is None or told.over:
        return True
    if time_s and life.at and time.time() > life.at + time_s + SLACK_S:
        return True
    try:
        job = await queue.find(node, int(life.job)) if life.job.isdecimal() else None
        return job is not None and job.is_seen_off and await partitions.answers(commands, job.host)
    except Unreachable:
        return False


def last_words(folder: Path) -> str:
    """The end of what the job and the agent wrote, for whoever must find out why it ended."""
    said: list[str] = []
    for name in ("job.log", "agent.log"):
        try:
            said += (folder / name).read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
        except OSError:
            continue
    return " / ".join(line.strip() for line in said)[-600:] or "it wrote nothing"
