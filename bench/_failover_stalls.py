"""The other price of quick detection: a machine that stops for a moment and goes on.

A virtual machine that is moved, a host that swaps, a long collection of garbage: all processes of a node
stand still for a while, and nothing is wrong. The node with the copy is frozen for so long and woken again;
if the copy was started elsewhere, that was a false failover. How long may it last before each of them gives
the node up? What is given up after half a second cannot be patient with a second.
"""

import time

from bench._failover_fleet import Fleet
from bench._failover_rounds import tell
from bench._ray_cluster import Cluster
from holdfast.adapters.providers.local import tree

STALLS_S = (0.3, 0.6, 0.9, 1.2, 2.0, 2.5, 3.0)
AFTERWARDS_S = 3.0  # for what was set in motion to show


def ours(fleet: Fleet, rounds: int) -> dict[str, int]:
    """False failovers by length of the stall."""
    return {f"{stall_s:g}s": sum(_ours(fleet, stall_s) for _ in range(rounds)) for stall_s in STALLS_S}


def _ours(fleet: Fleet, stall_s: float) -> bool:
    fleet.whole()
    time.sleep(1.0)
    old = fleet.ready("web")
    fault = fleet.harm(old["node"], "hang")
    time.sleep(max(0.0, fault.at + stall_s - time.monotonic()))
    fleet.harm(old["node"], "wake")
    time.sleep(AFTERWARDS_S)
    given_up = bool(
        fleet.watch.since(
            fault.mark, lambda line: line.subject == fault.node and line.text.startswith("dead")
        )
    )
    tell(f"stalled for {stall_s:g} s: {'failed over' if given_up else 'kept'}")
    # Its next stall is to find a node without a history, and patience is part of a history.
    fleet.clear(old["node"])
    return given_up


def theirs(made: Cluster, rounds: int) -> dict[str, int]:
    return {f"{stall_s:g}s": sum(_theirs(made, stall_s) for _ in range(rounds)) for stall_s in STALLS_S}


def _theirs(made: Cluster, stall_s: float) -> bool:
    made.whole()
    root, mark, at = str(made.last("root")), len(made.news), time.monotonic()
    tree.stop(root)
    time.sleep(max(0.0, at + stall_s - time.monotonic()))
    tree.resume(root)
    time.sleep(AFTERWARDS_S)
    given_up = any("alive" in news for news in made.news[mark:])
    tell(f"ray stalled for {stall_s:g} s: {'failed over' if given_up else 'kept'}")
    if given_up:
        tree.kill(root)
        made.add_worker()
    return given_up
