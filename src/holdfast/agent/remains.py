"""What a killed shim has left behind: killed, until nothing of it can be found.

In a PID namespace the kernel does it, and tells when it is done. Elsewhere there is a control group, a mark
in the environment, the session, and what descends from those: whoever has left all of them is not found.
"""

import asyncio
import signal

from holdfast.agent import cgroup, procfs, replicas
from holdfast.agent.environment import MARK

LOOK_AGAIN_S = 0.01
LOOK_AGAIN_MAX_S = 1.0


async def emptied(folder: str) -> None:
    """Waits until the first process of its namespace is gone, and with it all others: the kernel kills
    the others first. It was killed when the shim died; it is killed again all the same."""
    first, start = replicas.first_process(folder)
    pause = LOOK_AGAIN_S
    while first and (seen := procfs.look(first)) and seen.start == start and not seen.dead:
        procfs.kill([first], signal.SIGKILL)
        await asyncio.sleep(pause)
        pause = min(2 * pause, LOOK_AGAIN_MAX_S)


async def clear(mark: str, group: str, session: int = 0) -> None:
    """Kill until nothing is left. A session is asked for only if its shim has just died: later the number
    may be somebody else's."""
    pause = LOOK_AGAIN_S
    while True:
        if group:
            cgroup.kill(group)
        left, hidden = await asyncio.to_thread(_found, mark, session)
        if not left and (not group or cgroup.empty(group)):
            break
        procfs.kill([*hidden, *left], signal.SIGKILL)  # in this order: later they are nobody's
        await asyncio.sleep(pause)
        pause = min(2 * pause, LOOK_AGAIN_MAX_S)
    if group:
        cgroup.remove(group)


def _found(mark: str, session: int) -> tuple[list[int], list[int]]:
    """What is known by its mark or its session, and what descends from that."""
    left = procfs.marked(f"{MARK}={mark}") if mark else []
    seen = procfs.scan() if left or session else {}
    if session:
        left += [pid for pid, it in seen.items() if it.session == session and not it.dead]
    children = procfs.families(seen)
    return left, [pid for each in left for pid in procfs.descendants(each, seen, children)]
