"""Twins of what stands around a gateway's connections: a worker that only notes what it is asked, a transport
that only notes what is written."""

import asyncio
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import h11

from holdfast.core.gateway.quota.local_quota import Purse
from holdfast.core.gateway.routing.endpoints import Replica
from holdfast.core.gateway.routing.updates import ReplicaSpec
from holdfast.gateway import down as downs
from holdfast.gateway.addresses import Addresses
from holdfast.gateway.buffers import Buffers
from holdfast.gateway.counts import Counts
from holdfast.gateway.down import OURS, Down
from holdfast.gateway.exchange import Exchange
from holdfast.gateway.up import Up

SPACES = re.compile(rb"\A([^\r\n ]+) +([^\r\n ]+) +(?=HTTP/)")
HEAD = re.compile(rb"(HTTP/1\.[01] (\d)\d\d)( [^\r\n]*)?(\r\n\r\n|\r\n.*?\r\n\r\n)", re.DOTALL)
Request = tuple[bytes, bytes, list[tuple[bytes, bytes]], bytes]  # method, target, headers, body


class Wire(asyncio.Transport):
    def __init__(self, tls: bool = False) -> None:
        super().__init__()
        self.tls = tls
        self.written = b""
        self.closed = self.aborted = self.ended = False  # ended: our half of it, by us

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def write(self, data: Any) -> None:
        assert not self.closed, "nothing is written after the end"
        assert not self.ended, "nor after the end of our half"
        self.written += data

    def can_write_eof(self) -> bool:
        return not self.tls

    def write_eof(self) -> None:
        assert not self.tls
        self.ended = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True


class Notes:
    """A worker that answers everything with 200, at once or `later`."""

    def __init__(self, body_max: int = 1_000_000) -> None:
        self.body_max = body_max
        self.connections_max = 100
        self.wanted = SimpleNamespace(head_within_s=10.0, body_within_s=300.0, idle_s=75.0)
        self.downs: set[Down] = set()
        self.addresses = Addresses(1_000)
        self.buffers = Buffers(body_max, body_max, body_max)
        self.counts = Counts()
        self.closing = False
        self.purse = Purse("twin", {}, 1.0)
        self.requests: list[Request] = []
        self.loop = self
        self.soon: list[Callable[[], None]] = []
        self.waiting: list[Exchange] = []
        self.time = 1.0

    def now(self) -> float:
        return self.time

    def opened(self, down: Down) -> None:
        self.downs.add(down)

    def closed(self, down: Down) -> None:
        self.downs.discard(down)

    def refused_at_head(self, down: Down) -> None:
        """It knows nobody, and leads everywhere."""

    def next_id(self) -> bytes:
        return b"id"

    def call_soon(self, do: Callable[[], None]) -> None:
        self.soon.append(do)

    def admit(self, exchange: Exchange) -> None:
        down = exchange.down
        lines = [line.rstrip(b"\r\n").partition(b": ") for line in down.forward]
        headers = [(name, value.strip(b" \t")) for name, _, value in lines]  # spaces around it say nothing
        self.requests.append((down.method, down.target, headers, exchange.body))
        self.waiting.append(exchange)

    def turn(self) -> None:
        """Answer, and go on, until nothing is left to do."""
        while self.waiting or self.soon:
            while self.waiting:
                self.waiting.pop().reply(200, b"{}")
            todo, self.soon = self.soon, []
            for do in todo:
                do()


def heard(
    pieces: list[bytes],
    *,
    answered_late: bool = False,
    body_max: int = 1_000_000,
    look: Callable[[Down], None] = lambda down: None,
) -> tuple[Notes, Wire]:
    """What comes out of a client's connection into which these pieces go; `look` is called after each."""
    worker, wire = Notes(body_max), Wire()
    down = Down(worker)  # type: ignore[arg-type]
    with mock.patch.object(downs, "admit", worker.admit):
        down.connection_made(wire)
        for piece in pieces:
            if wire.closed:
                break
            down.data_received(piece)
            look(down)
            if not answered_late:
                worker.turn()
        worker.turn()
        down.connection_lost(None)
    return worker, wire


def read_by_another(data: bytes) -> list[Request]:
    """What h11 reads from the same bytes, as far as it can. It is helped over what ours passes over and
    nobody reads in another way: empty lines before a request, and several spaces in its first line."""
    found: list[Request] = []
    goes_on = True
    while goes_on:
        parser = h11.Connection(h11.SERVER, max_incomplete_event_size=1_000_000)
        parser.receive_data(SPACES.sub(rb"\1 \2 ", data.lstrip(b"\r\n")))
        try:
            event = parser.next_event()
            if not isinstance(event, h11.Request):
                break
            body = b""
            while isinstance(part := parser.next_event(), h11.Data):
                body += bytes(part.data)
        except h11.ProtocolError:
            break
        if not isinstance(part, h11.EndOfMessage):
            break
        headers = [(bytes(name), bytes(value)) for name, value in event.headers]
        kept = [(name, value) for name, value in headers if name not in OURS]
        found.append((bytes(event.method), bytes(event.target), kept, body))
        data = parser.trailing_data[0]
        # it knows no keep-alive of HTTP/1.0: where that ends is another matter
        goes_on = parser.their_state is not h11.MUST_CLOSE or event.http_version == b"1.0"
    return found


class Answered:
    """Whoever asked a replica: what it was told."""

    def __init__(self) -> None:
        self.wire = Wire()
        replica = Replica(ReplicaSpec("r", "http://r"))
        replica.connection_pool = []
        self.up = Up(replica)
        self.body, self.failure, self.complete, self.kept = b"", "", False, False

    def replied(self, up: Up, data: bytes, chunk: bytes = b"") -> None:
        if chunk:  # in the frames it came in: another reads the same from them
            stream = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunk + b"0\r\n\r\n"
            assert answer_by_another(stream) == (200, data)
        assert not self.complete, "what is whole does not go on"
        assert not self.failure, "nor what has failed"
        self.body += data
        self.complete = up.complete

    def failed(self, up: Up, why: str) -> None:
        assert not self.failure
        self.failure = why


def answered(pieces: list[bytes], *, is_head: bool = False) -> Answered:
    """What whoever asked is told, when these pieces come and the connection ends."""
    asked = Answered()
    up = asked.up
    up.connection_made(asked.wire)
    up.ask(asked, b"GET / HTTP/1.1\r\n\r\n", is_head=is_head)
    for piece in pieces:
        if asked.wire.closed or asked.complete:
            break
        up.data_received(piece)
    kept = asked.kept = asked.complete and up.keeps()
    if not asked.wire.closed and not asked.complete:
        up.eof_received()
    if asked.complete:
        up.let_go()
        assert kept is (up in up.replica.connection_pool)  # type: ignore[operator]
    if not kept:
        asked.wire.close()
        up.connection_lost(None)
    return asked


def answer_by_another(data: bytes, *, is_head: bool = False) -> tuple[int, bytes] | None:
    """Status and body that h11 reads from an answer whose connection then ends; None: it is not whole."""
    parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=1_000_000)
    method = "HEAD" if is_head else "GET"
    parser.send(h11.Request(method=method, target="/", headers=[("host", "h")]))
    parser.send(h11.EndOfMessage())
    parser.receive_data(_without_reasons(data.lstrip(b"\r\n")))
    parser.receive_data(b"")
    status, body = 0, b""
    try:
        while True:
            event = parser.next_event()
            if isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return status, body
            elif not isinstance(event, h11.InformationalResponse):
                return None
    except h11.ProtocolError:
        return None


def _without_reasons(data: bytes) -> bytes:
    """They are not passed on: any will do."""
    heads, at = b"", 0
    while head := HEAD.match(data, at):
        heads += head[1] + b" " + head[4]
        at = head.end()
        if head[2] != b"1":  # the answer itself
            break
        while data[at : at + 2] == b"\r\n":  # as before a request
            at += 2
    return heads + data[at:]
