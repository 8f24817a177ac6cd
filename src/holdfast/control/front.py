"""The one port: HTTP for people and programs, and the agents' link, told apart by the first request.

uvicorn speaks HTTP. A request to upgrade to `holdfast-link` is taken out of its hands, and from then on the
connection is a `Session` of the hub. So one address, one certificate and one open port are enough.

A connection that sends nothing, or half of a request, is ended after a while; uvicorn alone would keep it. So
is one whose head has no end, and one that takes nothing of what it asked for.

A stranger must cost little. uvicorn keeps each header as an object, and each request that is sent before the
last one was answered: so both are counted as they come, and a head is small. Connections of one address that
have brought no good token are bounded in number, and one that is refused again and again is closed. What
strangers do wrong is logged once a minute.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from holdfast.control.strangers import Callers
from holdfast.wire.messages import PATH, UPGRADE

REQUEST_WITHIN_S = 10.0
STUCK_S = 60.0  # nothing at all was read of what we have to say
HEAD_MAX = 8_192  # of an agent
CUT = "holdfast.cut"  # in the extensions of an ASGI scope: closes the connection in the middle of an answer
HEADERS_MAX = 16_384  # bytes of a head, of anybody
HEADERS_COUNT = 100
WAITING_MAX = 1_024  # headers of requests that came before others were answered; each request counts as some
REQUEST_AS = 8
REFUSED_MAX = 5  # requests of one connection whose token is none of ours
KNOWN = "holdfast.known"  # in the extensions of an ASGI scope: whoever asks has brought a good token, or none
DRAIN = "holdfast.drain"  # waits until the answer has been taken
SAID_EVERY_S = 60.0
START = f"GET {PATH} ".encode()
SWITCHING = f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {UPGRADE}\r\n\r\n".encode()
PROBLEM = (
    b"HTTP/1.1 426 Upgrade Required\r\nConnection: close\r\nContent-Type: application/problem+json\r\n"
    b"Upgrade: " + UPGRADE.encode() + b"\r\nContent-Length: %d\r\n\r\n%s"
)
EXPLAINED = (
    b'{"title": "Upgrade Required", "status": 426, "detail": "this path is for agents",'
    b' "hint": "holdfast agent --join URL"}'
)


class Seldom(logging.Filter):
    """Of what a stranger can have us log as often as it likes, one line a minute, and how many there were."""

    SAID = (
        "Invalid HTTP request received.",
        "Unsupported upgrade request.",
        "No supported WebSocket library",
    )

    def __init__(self) -> None:
        super().__init__()
        self._count, self._since = 0, -SAID_EVERY_S

    def filter(self, record: logging.LogRecord) -> bool:
        if not str(record.msg).startswith(self.SAID):
            return True
        self._count += 1
        if time.monotonic() - self._since < SAID_EVERY_S:
            return False
        if self._count > 1:
            record.msg = f"{record.msg} (the last of {self._count})"
        self._count, self._since = 0, time.monotonic()
        return True


seldom = Seldom()


class TooMuch(Exception):
    """A head, or what waits behind a request, is larger than it may be."""


class Front(HttpToolsProtocol):
    """uvicorn's protocol, with a door for agents."""

    accept: ClassVar[Callable[[], asyncio.Protocol]]  # makes the session of a new agent
    callers: ClassVar[Callers]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head = b""
        self._begun = False  # the first bytes are known to be ordinary HTTP
        self._deadline: asyncio.TimerHandle | None = None
        self._headers = 0  # bytes of a head that has not ended yet
        self._in_head = False
        self._head_bytes = 0  # of this head, as it was parsed
        self._refused = 0
        self._unsent = 0  # bytes, when we last looked
        self._stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.callers.add(self, self.client[0] if self.client is not None else "")
        # So that we hear of everything that is not read. Not 0: over TLS that is a buffer always full.
        transport.set_write_buffer_limits(high=1)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        self._read_on()
        self.callers.drop(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._read_on()

    def _watch(self) -> None:
        self._unsent = self.transport.get_write_buffer_size()
        self._stuck = self.loop.call_later(STUCK_S, self._look)

    def _look(self) -> None:
        if self.transport.get_write_buffer_size() < self._unsent:
            self._watch()
        else:
            self.transport.abort()

    def _read_on(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def data_received(self, data: bytes) -> None:
        if self._begun:
            if self._deadline is None and self._quiet():
                self._expect()
            self._read(data)
            return
        self._head += data
        if START.startswith(self._head[: len(START)]):
            self._agent()
        else:
            self._begun = True
            self._read(self._head)
            self._head = b""

    def _read(self, data: bytes) -> None:
        super().data_received(data)
        self._headers = self._headers + len(data) if self._in_head else 0
        if self._headers > HEADERS_MAX:
            self.transport.abort()

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._take(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._take(len(name) + len(value) + 4)
        if len(self.headers) >= HEADERS_COUNT:
            raise TooMuch(f"more than {HEADERS_COUNT} headers")
        super().on_header(name, value)

    def _take(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEADERS_MAX:
            raise TooMuch(f"a head of more than {HEADERS_MAX} bytes")

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()
        cycle = self.cycle
        self.scope["extensions"] = {
            CUT: {"close": partial(self._cut, cycle)},
            KNOWN: {"good": self._known, "bad": partial(self._unknown, cycle)},
            DRAIN: {"drained": self.flow.drain},
        }
        heads = [list(waits.scope["headers"]) for waits, _ in self.pipeline]
        if sum(REQUEST_AS + len(head) for head in heads) > WAITING_MAX:
            raise TooMuch("too many requests at a time")

    def _known(self) -> None:
        self._refused = 0
        self.callers.drop(self)

    def _unknown(self, cycle: Any) -> None:
        """Its answer is the last one, if there were too many like it: who guesses has to come again."""
        self._refused += 1
        if self._refused >= REFUSED_MAX:
            cycle.keep_alive = False

    def cut(self) -> None:
        """There are too many of its address."""
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        if self._quiet():
            super().send_400_response(msg)
        else:  # it would stand in the middle of another answer
            self.transport.close()

    def _cut(self, cycle: Any) -> None:
        if not cycle.response_complete:
            cycle.disconnected = True  # uvicorn would report an answer without an end as a mistake
            self.transport.close()

    def on_message_complete(self) -> None:
        self._arrived()
        super().on_message_complete()

    def _quiet(self) -> bool:
        cycle: Any = self.cycle  # None before the first request
        return cycle is None or cycle.response_complete

    def _expect(self) -> None:
        self._deadline = self.loop.call_later(REQUEST_WITHIN_S, self._too_slow)

    def _arrived(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.close()

    def _agent(self) -> None:
        """The head of an agent's request, or the beginning of it."""
        end = self._head.find(b"\r\n\r\n")
        if end < 0:
            if len(self._head) > HEAD_MAX:
                self.transport.close()
            return
        head, rest = self._head[:end].lower(), self._head[end + 4 :]
        if f"\r\nupgrade: {UPGRADE}".encode() not in head:
            self.transport.write(PROBLEM % (len(EXPLAINED), EXPLAINED))
            self.transport.close()
            return
        self._arrived()
        self.callers.drop(self)  # from here on it counts as a stranger of the hub
        self._read_on()  # what is written from here on is the session's to watch, and to be told of
        self.connections.discard(self)
        self._unset_keepalive_if_required()
        session = type(self).accept()
        self.transport.set_protocol(session)
        self.transport.write(SWITCHING)
        session.connection_made(self.transport)
        if rest:
            session.data_received(rest)


def front(accept: Callable[[], asyncio.Protocol]) -> type[Front]:
    logging.getLogger("uvicorn.error").addFilter(seldom)  # the same one is added once
    return type("FrontDoor", (Front,), {"accept": staticmethod(accept), "callers": Callers()})
