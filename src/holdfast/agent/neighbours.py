"""How nodes ask after one another: a port on which a node that lives answers, and the asking.

The peer sends a line, and gets it back after our name. Only a program of ours can do that: a port that
somebody else has taken since, or a machine that accepts connections and does nothing with them, is not
mistaken for a node. The listening socket is shared with the shims, which answer while the agent is away; so
a silent agent on a living machine is told from a machine that is gone.
"""

import asyncio
import contextlib
import os
import socket

from holdfast.agent.home import Home
from holdfast.model.node import Answer

GREETING = b"holdfast "
LINE_MAX = 64
ANSWER_WITHIN_S = 2.0
GUESTS_MAX = 64
QUESTIONS_MAX = 64
TIMEOUT_MAX_MS = 10_000
BACKLOG = 128


def listen(home: Home, *, loopback: bool, v6: bool = False) -> socket.socket:
    """On the port of the agent before us if that is possible: peers may still ask there. Its shims hold its
    socket open, hence SO_REUSEPORT."""
    kept = home.read("probe_port")
    before = int(kept) if kept.isdecimal() and 0 < int(kept) < 1 << 16 else 0
    try:
        listener = _bound(before, loopback=loopback, v6=v6)
    except OSError:
        listener = _bound(0, loopback=loopback, v6=v6)
    port = listener.getsockname()[1]
    if port != before:
        home.keep("probe_port", str(port))
    return listener


def _bound(port: int, *, loopback: bool, v6: bool) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((("::1" if v6 else "127.0.0.1") if loopback else "::" if v6 else "0.0.0.0", port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


class Guest(asyncio.Protocol):
    """One peer that asks whether we live."""

    def __init__(self, guests: "dict[Guest, None]") -> None:
        self._guests = guests
        self._line = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._late = asyncio.get_running_loop().call_later(ANSWER_WITHIN_S, transport.abort)
        self._guests[self] = None
        if len(self._guests) > GUESTS_MAX:
            next(iter(self._guests)).leave()

    def data_received(self, data: bytes) -> None:
        self._line += data
        end = self._line.find(b"\n") + 1
        if 0 < end <= LINE_MAX:
            self._transport.write(GREETING + self._line[:end])
            self._transport.close()
        elif len(self._line) >= LINE_MAX:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._late.cancel()
        self._guests.pop(self, None)

    def leave(self) -> None:
        self._guests.pop(self, None)
        self._transport.abort()


class Neighbours:
    def __init__(self, listener: socket.socket) -> None:
        self.port: int = listener.getsockname()[1]
        self._listener = listener
        self._server: asyncio.Server | None = None
        self._guests: dict[Guest, None] = {}
        self._asking = 0

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        copy = self._listener.dup()  # the server closes its own; the shims are given the other
        self._server = await loop.create_server(lambda: Guest(self._guests), sock=copy, backlog=BACKLOG)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for guest in list(self._guests):
            guest.leave()

    async def ask(self, address: str, port: int, timeout_ms: int) -> Answer:
        """Does anybody answer there? Our own troubles are told from theirs: a probe that could not be made is
        no evidence."""
        if self._asking >= QUESTIONS_MAX or not address or not 0 < port < 1 << 16:
            return Answer.FAILED
        self._asking += 1
        try:
            async with asyncio.timeout(min(max(timeout_ms, 1), TIMEOUT_MAX_MS) / 1000):
                return await _probe(address, port)
        except TimeoutError:
            return Answer.TIMEOUT
        except ConnectionError:  # refused, or cut in the middle: its machine lives and nobody answers
            return Answer.REFUSED
        except (OSError, ValueError):  # the latter: what was given is no name of a host
            return Answer.FAILED
        finally:
            self._asking -= 1


async def _probe(address: str, port: int) -> Answer:
    line = os.urandom(12).hex().encode() + b"\n"
    reader, writer = await asyncio.open_connection(address, port, limit=4 * LINE_MAX)
    try:
        writer.write(line)
        with contextlib.suppress(asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            if await reader.readuntil(b"\n") == GREETING + line:
                return Answer.REACHED
        return Answer.REFUSED
    finally:
        writer.transport.abort()
