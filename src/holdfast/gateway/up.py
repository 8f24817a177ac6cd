"""A connection to a replica. It serves one request at a time, then waits for the next.

What arrives is parsed to know where the answer ends, and handed to the exchange in the pieces it came in. A
connection that says anything unasked, more than it promised, or a head without end is closed.
"""

import asyncio
import socket
from typing import Any, Protocol

import httptools

from holdfast.core.gateway.replicas import Replica

HEAD_MAX = 65_536
IDLE_MAX = 256  # connections kept for one replica
HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)


class Asked(Protocol):
    """Whoever a connection works for."""

    def replied(self, up: "Up", data: bytes) -> None: ...

    def failed(self, up: "Up", why: str) -> None: ...


class Strange(Exception):
    """What no answer says."""


class Up(asyncio.Protocol):
    __slots__ = (
        "asked",
        "chunked",
        "complete",
        "content_type",
        "fed",
        "head",
        "headers",
        "is_head",
        "keep_alive",
        "length",
        "parser",
        "pieces",
        "replica",
        "retry_after",
        "reused",
        "status",
        "transport",
        "used",
    )

    transport: asyncio.Transport

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.asked: Asked | None = None
        self.parser = httptools.HttpResponseParser(self)  # one answer after the other
        self.used = False  # it has answered before
        self.reused = self.is_head = False
        self.status = self.fed = 0
        self._fresh()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, asked: Asked, request: bytes, *, is_head: bool = False) -> None:
        self.asked = asked
        self.reused, self.used = self.used, True
        self.status = 0
        self.is_head = is_head
        self.fed = 0
        self._fresh()
        self.transport.write(request)

    def _fresh(self) -> None:
        self.head = self.complete = self.chunked = self.keep_alive = False
        self.headers: list[tuple[bytes, bytes]] = []
        self.pieces: list[bytes] = []
        self.content_type = b""
        self.length = -1
        self.retry_after = b""

    # what the parser tells

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.head:
            return  # trailers say nothing that we pass on
        name = name.lower()
        if name in HOP_BY_HOP:
            if name == b"transfer-encoding":
                if (
                    self.chunked or value.lower() != b"chunked"
                ):  # we would pass it on undecoded, and nobody told of it
                    raise Strange("it sends by a coding that nobody asked for")
                self.chunked = True
            return
        if name == b"content-type":
            self.content_type = value
        elif name == b"content-length":
            self.length = int(value)
            return
        elif name == b"retry-after":
            self.retry_after = value
        elif name == b"x-request-id" or name.startswith(b"x-ratelimit-"):
            return  # it speaks of its limits, and ours are what the client meets
        self.headers.append((name, value))

    def on_message_begin(self) -> None:
        if self.complete:
            self.used = False  # more than it promised: this answer is whole, the connection is of no use

    def on_headers_complete(self) -> None:
        if self.complete:
            return
        self.status = self.parser.get_status_code()
        if self.status < 100:
            raise Strange(f"its status is {self.status}")
        self.head = self.status >= 200

    def on_body(self, body: bytes) -> None:
        if not self.complete and not self.is_head:
            self.pieces.append(body)

    def on_message_complete(self) -> None:
        if self.head:
            if not self.complete:
                self.keep_alive = self.parser.should_keep_alive()  # afterwards it speaks of the next answer
            self.complete = True
        else:  # 100 or 103: the answer comes after it, and owes it nothing
            self.headers.clear()
            self.content_type = self.retry_after = b""
            self.length, self.chunked = -1, False

    # what the connection tells

    def data_received(self, data: bytes) -> None:
        asked = self.asked
        if asked is None or self.over():
            self.transport.abort()  # unasked, or more than it promised
            return
        self.fed += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail("it switched protocols unasked")
            return
        except httptools.HttpParserError as error:
            if not self.complete:
                self._fail(f"it does not speak HTTP: {error.__context__ or error}")
                return
            self.used = False
        if not self.head:
            if self.fed > HEAD_MAX:
                self._fail("its head has no end")
            return
        if self.is_head:
            self.complete = True
        pieces = self.pieces
        if len(pieces) == 1:
            body = pieces[0]
        else:
            body = b"".join(pieces)
        self.pieces = []
        asked.replied(self, body)

    def over(self) -> bool:
        return self.complete

    def _fail(self, why: str) -> None:
        asked, self.asked = self.asked, None
        self.transport.abort()
        if asked is not None:
            asked.failed(self, why)

    def keeps(self) -> bool:
        """The connection can be used again."""
        return (
            self.complete
            and self.used
            and not self.is_head
            and not self.transport.is_closing()
            and self.keep_alive
        )

    def let_go(self) -> None:
        """Nobody waits for it any more. What is not finished is not wanted: upstream shall stop its work."""
        self.asked = None
        idle = self.replica.connection_pool
        assert isinstance(idle, list)
        if self.keeps() and len(idle) < IDLE_MAX and not self.replica.draining:
            idle.append(self)
        else:
            self.transport.abort()

    def eof_received(self) -> None:
        """An answer without a length ends with its connection."""
        promised = self.length >= 0 or self.chunked
        if self.asked is not None and self.head and not self.complete and not promised:
            self.complete, self.used = True, False
            self.asked.replied(self, b"")

    def connection_lost(self, exc: Exception | None) -> None:
        asked, self.asked = self.asked, None
        if asked is not None:
            why = "it closed the connection" if exc is None else f"connection lost: {exc}"
            asked.failed(self, why)
            return
        idle: Any = self.replica.connection_pool
        if idle and self in idle:
            idle.remove(self)


def idle_connection(replica: Replica) -> Up | None:
    idle = replica.connection_pool
    assert isinstance(idle, list)
    while idle:
        up: Up = idle.pop()
        if not up.transport.is_closing():
            return up
    return None


def close_idle(replica: Replica) -> None:
    idle = replica.connection_pool
    assert isinstance(idle, list)
    for up in tuple(idle):
        up.transport.abort()
    idle.clear()
