"""Ports for replicas. One is free if nothing is bound to it, and if no other agent of this machine has just
given it away.

Between the choice and the moment the program binds it, a port is spoken for by an abstract unix socket of its
name: the kernel lets one process have a name, among exactly those that share its ports, and takes it back
when that process ends, however it ends. A lock file would be left behind.

Any user of the machine may take such names, all of them too. So a name only helps two agents to keep out of
each other's way: where few can be had, a port is given that nothing is bound to, without one. Two agents
that then choose the same at the same moment see one program fail to bind, and start again.
"""

import contextlib
import random
import socket

from holdfast.ports.errors import CapacityShort

TRIES = 256  # ports that nothing is bound to, and whose names others have


class Ports:
    def __init__(self, first: int, last: int) -> None:
        self._first = first
        self._count = last - first + 1
        self._next = random.randrange(self._count)
        self._held: dict[int, socket.socket | None] = {}

    def allot(self) -> int:
        """The next free one after the last, so that a port that was just given up rests. CapacityShort: none
        is free."""
        unnamed: list[int] = []
        for _ in range(self._count):
            port = self._first + self._next
            self._next = (self._next + 1) % self._count
            if port in self._held:
                continue
            name = _speak_for(port)
            if not _free(port):
                if name is not None:
                    name.close()
            elif name is not None:
                self._held[port] = name
                return port
            else:
                unnamed.append(port)
                if len(unnamed) >= TRIES:
                    break
        if unnamed:
            self._held[unnamed[-1]] = None
            return unnamed[-1]
        raise CapacityShort("every port that replicas may have is taken")

    def keep(self, port: int) -> None:
        """A replica that we found running has it."""
        if port and port not in self._held:
            self._held[port] = _speak_for(port)

    def release(self, port: int) -> None:
        name = self._held.pop(port, None)
        if name is not None:
            name.close()

    def is_free(self, port: int) -> bool:
        """Nothing is bound to it."""
        return _free(port)

    def close(self) -> None:
        for port in list(self._held):
            self.release(port)


def _speak_for(port: int) -> socket.socket | None:
    name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        name.bind(f"\0holdfast port {port}")
    except OSError:
        name.close()
        return None
    return name


def _free(port: int) -> bool:
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as trial:
        # A connection that lingers from before does not keep a server from binding.
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("", port))
        except OSError:
            return False
    return True
