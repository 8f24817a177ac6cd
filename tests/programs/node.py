"""A node without an agent's judgement: a runtime that starts what it is told on its standard input, one task
a line, says what it finds and what happens, and holds a lease for as long as it is told to in its arguments.

    node.py ROOT LEASE_MS [users]
"""

import asyncio
import sys
import time
from pathlib import Path

import msgspec

from holdfast.agent import init, users
from holdfast.agent.processes import ProcessRuntime
from holdfast.ports.runtime import Exit, Task


async def main(root: Path, lease_ms: int, own: users.Users | None, *, contain: bool) -> None:
    runtime = ProcessRuntime(
        root,
        probe_socket=None,
        environment={},
        checkpoint_root=root / "checkpoints",
        cgroup_root=None,
        contain=contain,
        users=own,
    )
    runtime.ready = lambda replica: print("ready", replica, flush=True)
    runtime.ended = ended
    for found in await runtime.adopt():
        if found.exit is not None:
            ended(found.exit)
        else:
            print("found", found.task.wanted.replica, flush=True)
    if lease_ms:
        runtime.renew(time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000 + lease_ms)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        await runtime.start(msgspec.json.decode(line, type=Task))
    await asyncio.sleep(1000)


def ended(exit: Exit) -> None:
    print("ended", exit.replica, exit.how.value, "proven" if exit.proven else "unproven", flush=True)


own = users.Users(users.FIRST, users.COUNT, own_tmp=True) if "users" in sys.argv else None
asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), own, contain=not init.refusal()[0]))
