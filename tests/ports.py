"""Ports that stay free until whoever asked for one listens there, also minutes later and for a second time.

The kernel hands every connection that goes out a port of its own range, so one that it gave for nothing
(`bind` to port 0) and that was let go again is soon somebody's. These lie below that range: only who asks for
one gets it.
"""

import contextlib
import random
import socket
from pathlib import Path

LOWEST = 12_000
_given: set[int] = set()
_random = random.SystemRandom()  # each process of a parallel run draws for itself


def free_ports(count: int) -> list[int]:
    found: list[int] = []
    for _ in range(1_000):
        if len(found) == count:
            return found
        port = _random.randrange(LOWEST, _lowest_of_the_kernel())
        if port not in _given and _can_be_bound(port):
            _given.add(port)
            found.append(port)
    raise RuntimeError(f"no {count} free ports between {LOWEST} and {_lowest_of_the_kernel()}")


def free_port() -> int:
    return free_ports(1)[0]


def _lowest_of_the_kernel() -> int:
    with contextlib.suppress(OSError, ValueError):
        return max(LOWEST + 1_000, int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]))
    return 32_768


def _can_be_bound(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
