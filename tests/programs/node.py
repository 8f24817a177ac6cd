"""A node without an agent's judgement: a runtime that starts what it is told on its standard input, one task
a line, says what happens, and holds a lease for as long as it is told to in its arguments.

    node.py ROOT LEASE_MS
"""

import asyncio
import sys
import time
from pathlib import Path

import msgspec

from holdfast.agent.processes import ProcessRuntime
from holdfast.ports.runtime import Task


async def main(root: Path, lease_ms: int) -> None:
    runtime = ProcessRuntime(
        root, probe_socket=None, environment={}, checkpoint_root=root / "checkpoints", cgroup_root=None
    )
    runtime.ready = lambda replica: print("ready", replica, flush=True)
    runtime.ended = lambda exit: print("ended", exit.replica, exit.how.value, flush=True)
    await runtime.adopt()
    if lease_ms:
        runtime.renew(time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000 + lease_ms)
    for line in sys.stdin:
        await runtime.start(msgspec.json.decode(line, type=Task))
        await asyncio.sleep(0)
    await asyncio.sleep(1000)


asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
