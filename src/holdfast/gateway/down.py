"""A client's connection: whole requests come out of it, one at a time, and nothing that could be read twice.

httptools (llhttp) parses, and is strict: lengths that contradict each other, bare line feeds, folded headers
and odd characters end the connection. What it lets pass and we do not: any transfer coding but chunked, a
request without a host or with two, a version without keep-alive that sends chunks, an absolute target, the
first line of another protocol. So no two readers of the same bytes can disagree about where a request ends.

There is no task for a connection or a request: whoever is late is found by the worker's look at all of them.
What was read of a head stands until another one is read: see `again`.

A head is judged before its body: whose key it is, and whether its path leads anywhere. Who is refused there
has the answer at once, nothing of the body is kept, and the connection ends: so nobody without a key takes
memory. What is kept of bodies has a budget: see `buffers`.
"""

import asyncio
import re
import socket
import zlib
from typing import TYPE_CHECKING, Any

import httptools

from holdfast.gateway.admit import admit
from holdfast.gateway.again import Again, again
from holdfast.gateway.buffers import SMALL
from holdfast.gateway.exchange import Exchange
from holdfast.gateway.replies import Answer, whole
from holdfast.gateway.up import HOP_BY_HOP, named, without
from holdfast.model.gateway import Key

if TYPE_CHECKING:
    from holdfast.gateway.worker import Worker

HEAD_MAX = 32_768
HEADERS_MAX = 100
PIECE_SMALL = 1_024  # smaller ones are put together: an object for each takes more than what is in it
PIECE_LARGE = 65_536
BACKLOG_MAX = 65_536  # of requests sent before the last was answered
BODY_PIECE_WITHIN_S = 20.0
NOT_READ_S = 60.0  # of what we have sent
LINGER_S = 2.0  # for whoever was refused while it still sends: to close at once would reset the answer away
LINGER_MAX = 8_388_608
NEVER = float("inf")
OFFER = re.compile(rb"\r\nupgrade:[^\r\n]*", re.IGNORECASE)
H2C = b"h2c"  # offered by clients that speak HTTP/1.1 as well (Java's)
NOTHING: frozenset[bytes] = frozenset()
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
# not passed on: ours, or said anew
OURS = HOP_BY_HOP | {
    b"host",
    b"authorization",
    b"x-api-key",
    b"content-length",
    b"expect",
    b"accept-encoding",
    b"x-request-id",
    b"x-forwarded-for",
    b"forwarded",
}


class Unacceptable(Exception):
    """It is refused before all of it was read."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.message)
        self.answer = answer


class Malformed(Unacceptable):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(Answer(status, code, message, close=True))


def too_large() -> Malformed:
    return Malformed(431, "invalid_request", f"at most {HEADERS_MAX} headers and {HEAD_MAX} bytes")


class Offered(Exception):
    """Another protocol, by this head and what came with it. It may be passed over."""

    def __init__(self, head: bytes) -> None:
        super().__init__()
        self.head = head


class Down:
    """An asyncio.Protocol in all but its base, as `Up` is."""

    __slots__ = (
        "again",
        "agent_hash",
        "backlog",
        "begins",
        "beside",
        "body",
        "body_size",
        "buffered",
        "buffered_of",
        "chunked",
        "deadline",
        "exchange",
        "forward",
        "forwarded_for",
        "fresh_at",
        "group",
        "has_host",
        "head_size",
        "headers",
        "headers_size",
        "hops",
        "host",
        "in_head",
        "keep_alive",
        "key",
        "length",
        "line",
        "linger",
        "method",
        "parser",
        "path",
        "paused",
        "peer",
        "peer_hash",
        "pieces",
        "pipelined",
        "request_id",
        "secret",
        "session",
        "target",
        "transport",
        "upgrade",
        "version",
        "wants_continue",
        "worker",
    )

    transport: asyncio.Transport

    def __init__(self, worker: "Worker") -> None:
        self.worker = worker
        self.exchange: Exchange | None = None
        self.again: Again | None = None
        self.backlog = b""
        self.paused = False
        self.linger = -1  # bytes that are still thrown away before it is closed; -1: it was not refused
        self.peer = self.group = ""
        self.peer_hash = 0
        self.buffered = 0  # bytes of its body that are counted
        self.buffered_of = ("", "")  # as those of this key and this address

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.peer = (transport.get_extra_info("peername") or ("",))[0]
            self.peer_hash = zlib.crc32(self.peer.encode())
        worker = self.worker
        self.deadline = worker.now() + worker.wanted.head_within_s
        self.parser: Any = httptools.HttpRequestParser(self)  # None: the connection is closed
        self.fresh()
        refused = worker.opened(self)
        if refused is not None:
            self.refuse(refused)

    def fresh(self) -> None:
        """Before another head is read."""
        self.again = None
        self.begins: tuple[object, bytes] | None = None  # how it is asked of whom
        self.target = self.host = self.secret = self.request_id = self.session = b""
        self.forwarded_for = self.upgrade = b""
        self.key: Key | None = None  # that its secret was found to be
        self.agent_hash = 0
        self.forward: list[bytes] = []
        self.hops: frozenset[bytes] = NOTHING
        self.body = b""
        self.pieces: list[bytes | bytearray] | None = None
        self.body_size = self.head_size = self.headers = self.headers_size = 0
        self.beside = 0  # bytes that came since the last of the body
        self.length = -1
        self.line = b""  # it begins with the first one
        self.in_head = True
        self.chunked = self.has_host = self.wants_continue = self.pipelined = False
        self.fresh_at = 0.0

    # what the parser tells

    def on_message_begin(self) -> None:
        self.pipelined = self.exchange is not None  # the next one came along: it is read again in its turn

    def on_url(self, url: bytes) -> None:
        if not self.pipelined:
            self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.in_head:
            return  # trailers, and what is pipelined
        self.headers += 1
        if self.head_size > HEAD_MAX:  # some of it may be the body
            self.headers_size += len(name) + len(value)
        if self.headers > HEADERS_MAX or self.headers_size > HEAD_MAX:  # before more of them are kept
            raise too_large()
        name = name.lower()
        if name not in OURS:
            if name == b"user-agent":
                self.agent_hash = zlib.crc32(value)
            elif name == b"x-session-id":
                self.session = value
            elif name == b"content-encoding" and value.lower() != b"identity":
                raise Malformed(415, "unsupported_encoding", "send the body without a content-encoding")
            self.forward.append(b"%s: %s\r\n" % (name, value.strip(b" \t")))
        elif name == b"authorization":
            if value[:7].lower() == b"bearer ":
                self.secret = value[7:].strip()
        elif name == b"x-api-key":
            self.secret = self.secret or value
        elif name == b"host":
            if self.has_host:
                raise Malformed(400, "invalid_request", "two hosts are named")
            self.host, self.has_host = value, True
        elif name == b"content-length":
            self.length = int(value)
        elif name == b"transfer-encoding":
            if value.lower() != b"chunked" or self.chunked:
                raise Malformed(501, "invalid_request", "no transfer-encoding but chunked is known here")
            self.chunked = True
        elif name == b"expect":
            self.wants_continue = value.lower() == b"100-continue"
        elif name == b"x-request-id":
            self.request_id = value[:128]
        elif name == b"connection":
            self.hops |= named(value)
        elif name == b"upgrade":
            self.upgrade = value.lower()
        elif name == b"x-forwarded-for":
            self.forwarded_for += b"," + value

    def on_headers_complete(self) -> None:
        if self.pipelined:
            return
        self.in_head = False
        self.version = version = self.parser.get_http_version()
        self.method = self.parser.get_method()
        line, self.line = self.line.lstrip(b"\r\n"), b""
        end = line.find(b"\r\n")
        if version not in ("1.1", "1.0") or line[end - 9 : end - 3] != b" HTTP/":  # or RTSP, or ICE
            raise Malformed(400, "invalid_request", "speak HTTP/1.1")
        if (version == "1.0" and self.chunked) or (version == "1.1" and not self.has_host):
            raise Malformed(400, "invalid_request", "a host must be named, and HTTP/1.0 has no chunks")
        if not self.target.startswith(b"/"):
            raise Malformed(400, "invalid_request", "the target must be a path")
        if self.upgrade and self.parser.should_upgrade():
            if self.upgrade != H2C:
                raise Malformed(501, "invalid_request", "no other protocol is spoken here")
            raise Offered(line)
        if self.headers_size + len(self.target) > HEAD_MAX:
            raise too_large()
        if self.length > self.worker.body_max:
            raise Malformed(413, "request_too_large", f"at most {self.worker.body_max} bytes are taken")
        if self.hops:
            self.forward = without(self.hops, self.forward)
        self.path = self.target.partition(b"?")[0]
        refused = self.worker.refused_at_head(self)
        if refused is not None:
            raise Unacceptable(refused)
        self.fresh_at = now = self.worker.now()
        self.deadline = now + min(BODY_PIECE_WITHIN_S, self.worker.wanted.body_within_s)
        if self.wants_continue and self.length and version == "1.1":  # before it nobody knew of that answer
            self.transport.write(CONTINUE)

    def on_body(self, body: bytes) -> None:
        if self.pipelined:
            return
        self.body_size += len(body)
        if self.body_size > self.worker.body_max:
            raise Malformed(413, "request_too_large", f"at most {self.worker.body_max} bytes are taken")
        if self.body_size > SMALL:
            refused = self._buffer()
            if refused is not None:
                raise Unacceptable(refused)
        if self.pieces is not None:
            self._keep(self.pieces, body)
        elif self.body:
            self.pieces, self.body = [self.body], b""
            self._keep(self.pieces, body)
        else:
            self.body = body

    def _keep(self, pieces: list[bytes | bytearray], body: bytes) -> None:
        """One more piece of it. Small ones go into one another, so that what is counted is what is kept."""
        last = pieces[-1]
        if len(body) >= PIECE_SMALL or len(last) >= PIECE_LARGE:
            pieces.append(body)
        elif isinstance(last, bytearray):
            last += body
        else:
            pieces[-1] = bytearray(last) + body

    def _buffer(self) -> Answer | None:
        """What came of the body since the last time is counted; or there is no room for it."""
        if not self.buffered:
            self.buffered_of = (self.key.id if self.key is not None else "", self.source())
        size = self.body_size - self.buffered
        refused = self.worker.buffers.take(size, *self.buffered_of)
        if refused is None:
            self.buffered += size
        return refused

    def source(self) -> str:
        """The address that it comes from, as it is counted; empty: a trusted proxy, which says of nobody."""
        return self.group or self.worker.addresses.before(self.forwarded_for)

    def on_message_complete(self) -> None:
        if self.pipelined:
            return
        if self.pieces is not None:
            self.body, self.pieces = b"".join(self.pieces), None
        self.keep_alive = self.parser.should_keep_alive() and not self.worker.closing
        self.deadline = NEVER
        self.exchange = Exchange(self.worker, self)

    # what the connection tells

    def data_received(self, data: bytes) -> None:
        if self.exchange is not None or self.backlog:
            self._wait(data)
            return
        if self.in_head:
            if not self.head_size:
                if self.paused and self.linger < 0:
                    self._wait(data)  # until it has read what we have said so far
                    return
                if self.again is not None and self._same_again(self.again, data):
                    return
                if self.linger >= 0:
                    self._throw_away(data)
                    return
                self.fresh()
                self.deadline = self.worker.now() + self.worker.wanted.head_within_s
            self.head_size += len(data)
            self.line += data
        else:
            self._more(data)
            return
        self._feed(data)
        if self.head_size > HEAD_MAX and self.in_head:
            self.refuse(Answer(431, "invalid_request", f"a head has at most {HEAD_MAX} bytes", close=True))

    def _wait(self, data: bytes) -> None:
        """It comes after what is answered now."""
        self.backlog += data
        if len(self.backlog) > BACKLOG_MAX:
            self.transport.abort()

    def _more(self, data: bytes) -> None:
        """Of a request whose head was read. What is no body is a size, or trailers: those end too."""
        now = self.worker.now()
        self.deadline = min(now + BODY_PIECE_WITHIN_S, self.fresh_at + self.worker.wanted.body_within_s)
        before = self.body_size
        self._feed(data)
        self.beside = self.beside + len(data) if self.body_size == before else 0
        if self.beside > HEAD_MAX and self.exchange is None:
            self.refuse(Answer(431, "invalid_request", f"trailers have at most {HEAD_MAX} bytes", close=True))

    def _same_again(self, again: Again, data: bytes) -> bool:
        body = again.body(data)
        if body is None or len(body) > SMALL or len(body) > self.worker.body_max:
            return False
        self.body = body
        self.length = len(body)
        self.keep_alive = not self.worker.closing
        self.deadline = NEVER
        self.exchange = exchange = Exchange(self.worker, self)
        admit(exchange)
        return True

    def _feed(self, data: bytes) -> None:
        whole_head = self.in_head and self.head_size == len(data)  # this request begins here
        stopped = False
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            if not self.pipelined:
                self.exchange = None
                self.refuse(Answer(501, "invalid_request", "no other protocol is spoken here", close=True))
                return
        except httptools.HttpParserCallbackError as error:
            if not self._stopped_by(error.__context__):
                raise
            stopped = True
        except httptools.HttpParserError as error:
            if self.exchange is None:  # else: what comes after this request, and nobody will read it
                self.refuse(Answer(400, "invalid_request", f"this is not HTTP: {error}", close=True))
                return
            self.pipelined = True
        if stopped:
            self._read_without_offer()
        elif self.exchange is not None:
            if self.pipelined:
                self._read_again(data, whole_head)
            elif whole_head and self.keep_alive and not self.wants_continue:
                self.again = again(data)
            admit(self.exchange)

    def _stopped_by(self, why: BaseException | None) -> bool:
        """False: that was a mistake. By itself, because whoever holds on to an exception in the frame that
        caught it makes a circle, and what was read stays with it."""
        if isinstance(why, Offered):
            self.line = why.head
        elif isinstance(why, Unacceptable):
            self.line = b""
            self.refuse(why.answer)
        else:
            return False
        return True

    def _read_without_offer(self) -> None:
        """HTTP/2 was offered beside HTTP/1.1, and the latter is what it gets (RFC 9110, 7.8). The parser
        would stop after such a head, and its body would be read as the next request."""
        if not self.line:
            return
        head, end, rest = self.line.partition(b"\r\n\r\n")
        self.parser = httptools.HttpRequestParser(self)
        self.in_head, self.head_size = True, 0
        self.data_received(OFFER.sub(b"", head) + end + rest)

    def _read_again(self, data: bytes, whole_head: bool) -> None:
        """What came along with this request waits, if we can tell where it begins; else whoever sent it must
        send it again."""
        self.parser = httptools.HttpRequestParser(self)
        if whole_head and not self.chunked:
            start = len(data) - len(data.lstrip(b"\r\n"))  # the parser skips empty lines before a request
            self.backlog = data[data.index(b"\r\n\r\n", start) + 4 + max(0, self.length) :]
        else:
            self.keep_alive = False

    def refuse(self, answer: Answer) -> None:
        """Before there was a whole request. Nothing after it can be read any more, but it is taken for a
        while: whoever still sends would meet a reset, and never read why it was refused."""
        if self.transport.is_closing() or self.linger >= 0:
            return
        self._drop_body()
        self.line, self.forward = b"", []
        self.worker.counts.refused(answer.status)
        id = self.request_id or self.worker.next_id()
        more = answer.more() + b"x-request-id: %s\r\n" % id
        self.transport.write(whole(answer.status, answer.body(), more, close=True))
        if self.transport.can_write_eof():  # TLS ends both ways at once: see `_enough`
            self.transport.write_eof()
        self.again = None
        self.in_head, self.head_size = True, 0
        self.linger = LINGER_MAX
        self.deadline = self.worker.now() + LINGER_S

    def _throw_away(self, data: bytes) -> None:
        self.linger -= len(data)
        if self.linger < 0:
            self.linger = 0
            self._enough()

    def _enough(self) -> None:
        """It had time to read why it was refused. Over TLS it was not told yet that nothing more comes, and
        is so first."""
        if self.transport.can_write_eof() or self.transport.is_closing():
            self.transport.abort()
        else:
            self._close(LINGER_S)

    def finished(self) -> None:
        """The answer is on its way; on to the next request."""
        self.exchange = None
        self._drop_body()
        if self.transport.is_closing():
            return
        if not self.keep_alive or self.worker.closing:
            self._close()
            return
        self.deadline = self.worker.now() + self.worker.wanted.idle_s
        self.in_head = True
        self.head_size = 0
        if self.backlog and not self.paused:
            self.worker.loop.call_soon(self._go_on)

    def _drop_body(self) -> None:
        self.body, self.pieces = b"", None
        if self.buffered:
            self.worker.buffers.give_back(self.buffered, *self.buffered_of)
            self.buffered = 0

    def _go_on(self) -> None:
        if self.exchange is None and self.backlog and not self.transport.is_closing():
            data, self.backlog = self.backlog, b""
            self.data_received(data)

    def _close(self, within_s: float = NOT_READ_S) -> None:
        """When all of it was read, but not whenever that may be."""
        self.deadline = self.worker.now() + within_s
        self.transport.close()

    @property
    def idle(self) -> bool:
        """Nothing of a request has come that would have to be answered."""
        return self.exchange is None and self.in_head and not self.head_size and not self.backlog

    @property
    def ended(self) -> bool:
        """And what we have said is on its way."""
        return self.idle and not self.transport.get_write_buffer_size()

    def late(self) -> None:
        """The worker noticed that the deadline is over."""
        if self.paused or self.transport.is_closing():
            self.transport.abort()
        elif self.linger >= 0:
            self._enough()
        elif self.head_size or not self.in_head:
            self.refuse(Answer(408, "request_timeout", "the request did not come in time", close=True))
        else:
            self._close()

    def pause_writing(self) -> None:
        self.paused = True
        self.deadline = self.worker.now() + NOT_READ_S
        if self.exchange is not None:
            self.exchange.pause()

    def resume_writing(self) -> None:
        self.paused = False
        self.deadline = NEVER if self.exchange is not None else self.worker.now() + self.worker.wanted.idle_s
        if self.exchange is not None:
            self.exchange.resume()
        elif self.backlog:
            self.worker.loop.call_soon(self._go_on)

    def eof_received(self) -> None:
        """Whoever says no more has left: the transport is closed."""

    def connection_lost(self, exc: Exception | None) -> None:
        self.worker.closed(self)
        if self.exchange is not None:
            self.exchange.left()
        self._release()

    def _release(self) -> None:
        """Parser and connection refer to each other: what is not released here stays, with its last body,
        until the garbage collector runs, which is seldom in a worker."""
        self.parser = self.exchange = self.again = self.begins = None
        self._drop_body()
        self.backlog = b""
