"""Making a job of a node: what sbatch is told, and what the pilot finds in the node's folder.

The token is in a file that only its owner may read. It is neither in the command line, which every user of
the machine sees, nor in the job's script or environment, which Slurm may keep in its accounts. The folder is
shared with the compute nodes, so nothing secret passes through Slurm at all.
"""

import inspect
import math
import os
import shlex
from pathlib import Path
from typing import Any

import msgspec

from holdfast.adapters.providers.local import tree
from holdfast.adapters.providers.local.folders import write
from holdfast.adapters.providers.slurm import pilot
from holdfast.adapters.providers.slurm.settings import WORD, SlurmSettings
from holdfast.model.action import LaunchNode
from holdfast.model.resources import GPU, Resources
from holdfast.ports import private_folder
from holdfast.ports.errors import Denied
from holdfast.ports.provider import Join, agent_arguments

MINUTE_S = 60


def partition_of(offer: str, settings: SlurmSettings) -> str:
    name = settings.partition or offer.partition("@")[0]
    if not WORD.fullmatch(name):
        raise Denied(f"{name!r} is no name of a partition; call the offer PARTITION, or PARTITION@something")
    return name


def options(request: LaunchNode, settings: SlurmSettings, comment: str, folder: Path) -> list[str]:
    """For sbatch. The operator's own come first, so that ours are what counts."""
    for name in (request.node, request.pool):
        if not WORD.fullmatch(name):
            raise Denied(f"{name!r} cannot be the name of a job: letters, digits, - _ and . are allowed")
    said = {
        "--account": settings.account,
        "--qos": settings.qos,
        "--time": settings.time_s and str(math.ceil(settings.time_s / MINUTE_S)),
        **sizes(request.capacity),
    }
    return [
        *settings.sbatch,
        "--parsable",
        "--no-requeue",
        "--nodes=1",
        "--ntasks=1",
        f"--job-name={request.node}",
        f"--comment={comment}",
        f"--partition={partition_of(request.offer, settings)}",
        f"--signal=B:USR1@{min(settings.notice_s, 65_535)}",
        f"--output={folder / 'job.log'}",
        "--open-mode=append",
        f"--chdir={folder}",
        "--export=ALL",
        *(f"{name}={value}" for name, value in said.items() if value),
    ]


def sizes(capacity: Resources) -> dict[str, str]:
    gpus = math.ceil(capacity.gpu_milli / GPU)
    kind = f"{capacity.gpu_kind}:" if capacity.gpu_kind else ""
    if kind and not WORD.fullmatch(capacity.gpu_kind):
        raise Denied(f"{capacity.gpu_kind!r} is no one kind of GPU, and a job asks for one")
    return {
        "--cpus-per-task": str(max(1, math.ceil(capacity.cpu_milli / 1000))),
        "--mem": f"{capacity.memory_mib}M" if capacity.memory_mib else "",
        "--gres": f"gpu:{kind}{gpus}" if gpus else "",
    }


def script(folder: Path, settings: SlurmSettings) -> bytes:
    command = [settings.python, "-I", "-S", str(folder / "pilot.py"), str(folder)]
    return f"#!/bin/sh\nexec {shlex.join(command)}\n".encode()


def furnish(folder: Path, request: LaunchNode, join: Join, settings: SlurmSettings, squeue: str) -> None:
    """Everything that the pilot needs, before there is a job."""
    token, trust = folder / "token", folder / "ca.pem"
    checkpoints = Path(settings.root) / "checkpoints"
    private_folder.make(checkpoints)
    write(token, join.token.encode())
    told = agent_arguments(
        request, join, root=str(folder / "agent"), token_file=str(token), checkpoints=str(checkpoints)
    )
    if join.ca:
        write(trust, join.ca.encode())
        told += ["--ca", str(trust)]
    command = [*settings.agent_command, *told, "--stop-all-on-exit"]
    say: dict[str, Any] = {"command": command, "squeue": squeue}
    say |= {"notice_s": settings.notice_s, "time_s": settings.time_s}
    write(folder / "pilot.json", msgspec.json.encode(say))
    write(folder / "pilot.py", pilot_text())


def pilot_text() -> bytes:
    """`tree` and `pilot` in one file."""
    lines = [
        "import types",
        "tree = types.ModuleType('tree')",
        f"exec({inspect.getsource(tree)!r}, tree.__dict__)",
        inspect.getsource(pilot),
    ]
    return "\n".join(lines).encode()


def number(said: str) -> int:
    """Of the job, in what sbatch prints: `12`, or `12;cluster`."""
    first = said.strip().splitlines()[-1:] or [""]
    found = first[0].partition(";")[0]
    if not found.isdecimal():
        raise ValueError(said)
    return int(found)


def fleet_of(root: Path) -> str:
    """A name for all control planes that share this root, made by the first of them."""
    path = root / "fleet"
    fresh = root / f".fleet.{os.urandom(8).hex()}"
    if not path.exists():
        fresh.write_text(os.urandom(8).hex(), encoding="ascii")
        try:
            os.link(fresh, path)  # whole or not at all, and only once
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
    return path.read_text(encoding="ascii").strip()
