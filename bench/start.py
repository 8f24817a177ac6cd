"""What does it cost to start a replica, and what do containment and a user of its own add to that?

A real runtime of an agent starts `--starts` replicas of each kind in turn, one at a time, so that noise meets
all kinds alike: a service and a job, as the agent's user and as a user of their own (root only). The program
is `true`; the time is from the order until the runtime has heard that it ended.
"""

import argparse
import asyncio
import os
import tempfile
import time
from pathlib import Path

import numpy as np

from bench._say import say
from holdfast.agent.init import refusal
from holdfast.agent.processes import ProcessRuntime
from holdfast.agent.users import COUNT, FIRST, Users
from holdfast.core.agent.machine import Brief, Wanted
from holdfast.model.program import Program
from holdfast.ports.private_folder import PASSAGE
from holdfast.ports.runtime import Exit, Task

LEASE_MS = 3_600_000


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--starts", type=int, default=200, help="of each kind")


def run(args: argparse.Namespace) -> dict[str, object]:
    contain = not refusal()[0]
    kinds = {"agent": None} | ({"user": Users(FIRST, COUNT, own_tmp=True)} if os.geteuid() == 0 else {})
    with tempfile.TemporaryDirectory(dir="/var/lib" if os.geteuid() == 0 else None) as folder:
        os.chmod(folder, PASSAGE)
        took = asyncio.run(measured(Path(folder), kinds, args.starts, contain=contain))
    measures: dict[str, object] = {"starts": args.starts, "contained": contain}
    for kind, ms in took.items():
        measures[kind] = {name: float(np.percentile(ms, at)) for name, at in (("p50", 50), ("p99", 99))}
    for what in ("service", "job"):
        if f"{what} as user" in took:
            added = np.median(took[f"{what} as user"]) - np.median(took[f"{what} as agent"])
            measures[f"a user of its own adds to a {what}, ms"] = float(added)
    return measures


async def measured(
    folder: Path, kinds: dict[str, Users | None], starts: int, *, contain: bool
) -> dict[str, list[float]]:
    nodes = {kind: await _node(folder / kind, own, contain=contain) for kind, own in kinds.items()}
    took: dict[str, list[float]] = {}
    try:
        for number in range(starts):
            if number % 50 == 0:
                say(f"{number} of {starts}")
            for kind, node in nodes.items():
                for what in ("service", "job"):
                    ms = await _start(node, what, number + 1)
                    took.setdefault(f"{what} as {kind}", []).append(ms)
    finally:
        for node in nodes.values():
            await node.close()
    return took


async def _node(root: Path, own: Users | None, *, contain: bool) -> ProcessRuntime:
    runtime = ProcessRuntime(
        root,
        probe_socket=None,
        environment={},
        checkpoint_root=root / "checkpoints",
        cgroup_root=None,
        contain=contain,
        users=own,
    )
    await runtime.adopt()
    runtime.renew(time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000 + LEASE_MS)
    return runtime


async def _start(node: ProcessRuntime, what: str, epoch: int) -> float:
    ended: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
    node.ended = ended.set_result
    wanted = Wanted(f"{what}/0.{epoch}", f"{what}/0", epoch, exclusive=what == "job")
    began = time.perf_counter()
    await node.start(Task(wanted, what, Brief(Program(("true",)), 1_000, 7), 0))
    exit = await ended
    took = time.perf_counter() - began
    assert exit.how.value == "done", exit
    node.forget(exit.replica)
    return 1_000 * took
