"""A shim's answer to "are you there": the machine lives, even when its agent does not.

Agent and shims wait on one listening socket; whoever accepts first answers `holdfast ` and the line it was
sent. A peer that is slow or says nothing costs a place for two seconds and holds up nobody; when all places
are taken the one that has waited longest gives way.
"""

import _socket
import os
import select

PLACES = 16
PATIENCE_MS = 2_000
LINE_BYTES = 64
GREETING = b"holdfast "


class Answers:
    def __init__(self, listener: int, epoll: select.epoll) -> None:
        self._epoll = epoll
        self._socket = _socket.socket(fileno=listener)
        self._socket.setblocking(False)
        self._listener = listener
        self._open: dict[int, tuple[int, bytes]] = {}  # since when, and what has come so far
        # Exclusive: one question wakes one shim, not all of them.
        epoll.register(listener, select.EPOLLIN | select.EPOLLEXCLUSIVE)

    @property
    def waiting(self) -> bool:
        return bool(self._open)

    def handle(self, ready: int, now: int) -> bool:
        """False: that is not one of ours."""
        if ready == self._listener:
            self._accept(now)
        elif ready in self._open:
            self._receive(ready)
        else:
            return False
        return True

    def drop_slow(self, now: int) -> None:
        for handle, (since, _) in list(self._open.items()):
            if now - since >= PATIENCE_MS:
                self._close(handle)

    def _accept(self, now: int) -> None:
        try:
            handle, _ = self._socket._accept()  # type: ignore[attr-defined]
        except OSError:  # somebody else was quicker, or the peer has gone
            return
        os.set_blocking(handle, False)
        if len(self._open) >= PLACES:
            self._close(next(iter(self._open)))
        self._open[handle] = (now, b"")
        self._epoll.register(handle, select.EPOLLIN)

    def _receive(self, handle: int) -> None:
        since, line = self._open[handle]
        try:
            part = os.read(handle, LINE_BYTES - len(line))
        except BlockingIOError:
            return
        except OSError:
            part = b""
        line += part
        if part and b"\n" not in line and len(line) < LINE_BYTES:
            self._open[handle] = (since, line)
            return
        if b"\n" in line:
            self._answer(handle, line[: line.index(b"\n") + 1])
        self._close(handle)

    def _answer(self, handle: int, line: bytes) -> None:
        try:
            os.write(handle, GREETING + line)
        except OSError:  # it has gone; an answer fits into any buffer
            return

    def _close(self, handle: int) -> None:
        del self._open[handle]
        self._epoll.unregister(handle)  # a fork of ours may still hold it
        os.close(handle)
