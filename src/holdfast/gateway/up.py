"""A connection to a replica. It serves one request at a time, then waits for the next.

What arrives is parsed to know where the answer ends, and handed to the exchange in the pieces it came in. A
connection that says anything unasked, more than it promised, or a head without end is closed.

Two things come so often that the parser is spared them: an answer with the head of the last one (see
`again`), and whole chunks. A chunk has its size before it and its end behind it, and a parser that stands
between two chunks stands there still when it has not seen one of them.
"""

import asyncio
import select
import socket
from typing import Any, Protocol

import httptools

from holdfast.core.gateway.routing.endpoints import Replica
from holdfast.gateway.again import Again, again

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
KEPT_OR_NOT = frozenset({b"", b"close", b"keep-alive"})
SIZES = {b"%x" % size: size for size in range(1, 4_096)}  # of chunks, as nearly everybody writes them
UNKNOWN = -1  # how much of a chunk is still to come


def named(connection: bytes) -> frozenset[bytes]:
    """Headers that a `connection` header names: they are for this connection alone."""
    return frozenset(name.strip().lower() for name in connection.split(b",")) - KEPT_OR_NOT


def without(names: frozenset[bytes], lines: list[bytes]) -> list[bytes]:
    return [line for line in lines if line.partition(b":")[0] not in names]


def whole_chunks(data: bytes, at: int = 0) -> tuple[list[bytes], int]:
    """What chunks hold that stand there from a place between two on; and how much of the last is missing."""
    found: list[bytes] = []
    size = len(data)
    while at < size:
        line = data.find(b"\r\n", at, at + 5)
        length = SIZES.get(data[at:line]) if line > 0 else None
        if length is None:
            return found, UNKNOWN
        end = line + 2 + length
        if end + 2 > size:
            return found, end + 2 - size
        if data[end : end + 2] != b"\r\n":
            return found, UNKNOWN
        found.append(data[line + 2 : end])
        at = end + 2
    return found, 0


class Asked(Protocol):
    """Whoever a connection works for."""

    def replied(self, up: "Up", data: bytes, chunk: bytes = b"") -> None:
        """`chunk`: the same in the frames it came in, if those were whole."""

    def failed(self, up: "Up", why: str) -> None: ...


class Strange(Exception):
    """What no answer says."""


class Up:
    """An asyncio.Protocol in all but its base, which would cost it the speed of a compiled class."""

    __slots__ = (
        "again",
        "asked",
        "chunked",
        "complete",
        "content_type",
        "fed",
        "head",
        "hops",
        "is_head",
        "keep_alive",
        "length",
        "lines",
        "open",
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
        self.is_head = is_head
        self.fed = 0
        self.head = self.complete = False
        self.transport.write(request)

    def _fresh(self) -> None:
        """Before another head is read."""
        self.again: Again | None = None
        self.head = self.complete = self.chunked = self.keep_alive = False
        self.open = UNKNOWN
        self.lines: list[bytes] = []
        self.hops: frozenset[bytes] = frozenset()
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
            elif name == b"connection":
                self.hops |= named(value)
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
        self.lines.append(b"%s: %s\r\n" % (name, value))

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
        if self.hops:
            self.lines = without(self.hops, self.lines)

    def on_body(self, body: bytes) -> None:
        if not self.complete and not self.is_head:
            self.pieces.append(body)

    def on_message_complete(self) -> None:
        if self.head:
            if not self.complete:
                self.keep_alive = self.parser.should_keep_alive()  # afterwards it speaks of the next answer
            self.complete = True
        else:  # 100 or 103: the answer comes after it, and owes it nothing
            self.lines.clear()
            self.hops = frozenset()
            self.content_type = self.retry_after = b""
            self.length, self.chunked = -1, False

    # what the connection tells

    def data_received(self, data: bytes) -> None:
        asked = self.asked
        if asked is None or self.complete:
            self.transport.abort()  # unasked, or more than it promised
            return
        if not self.fed:
            if self.again is not None and not self.is_head:
                body = self.again.body(data)
                if body is not None:
                    self.fed, self.length = len(data), len(body)
                    self.head = self.complete = True
                    asked.replied(self, body)
                    return
            self._fresh()
            self.status = 0
        elif not self.open:
            line = data.find(b"\r\n", 0, 5)
            if SIZES.get(data[:line]) == len(data) - line - 4 and data[-2:] == b"\r\n":
                asked.replied(self, data[line + 2 : -2], data)  # just one, as nearly always
                return
            chunks, self.open = whole_chunks(data)
            if not self.open:
                asked.replied(self, b"".join(chunks), data)
                return
        elif self.open > 0:
            rest = self.open - len(data)
            self.open = rest if rest >= 0 else whole_chunks(data, self.open)[1]
        self._feed(asked, data)

    def _feed(self, asked: Asked, data: bytes) -> None:
        first = not self.fed
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
        elif first and self.complete and self.used and self.status == 200:
            self.again = again(data)
        elif first and self.chunked:
            self.open = whole_chunks(data, data.find(b"\r\n\r\n") + 4)[1]
        pieces = self.pieces
        if len(pieces) == 1:
            body = pieces[0]
        else:
            body = b"".join(pieces)
        self.pieces = []
        asked.replied(self, body)

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

    def pause_writing(self) -> None:
        """It takes a request more slowly than we have it: that is whole already, and waits."""

    def resume_writing(self) -> None:
        pass

    def connection_lost(self, exc: Exception | None) -> None:
        asked, self.asked = self.asked, None
        if asked is not None:
            why = "it closed the connection" if exc is None else f"connection lost: {exc}"
            asked.failed(self, why)
            return
        idle: Any = self.replica.connection_pool
        if idle and self in idle:
            idle.remove(self)


def idle_connection(replica: Replica, *, surely: bool = False) -> Up | None:
    """`surely`: what is sent by it must not be lost, so the kernel says too whether it was closed."""
    idle = replica.connection_pool
    assert isinstance(idle, list)
    while idle:
        up: Up = idle.pop()
        if surely and has_input(up.transport):  # its end, as nothing else is due on an idle connection
            up.transport.abort()
        elif not up.transport.is_closing():
            return up
    return None


def has_input(transport: asyncio.BaseTransport) -> bool:
    """Something came, or its end, that the event loop has not read yet."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def close_idle(replica: Replica) -> None:
    idle = replica.connection_pool
    assert isinstance(idle, list)
    for up in tuple(idle):
        up.transport.abort()
    idle.clear()
