"""The one port: HTTP for people and programs, and the agents' link, told apart by the first request.

uvicorn speaks HTTP. A request to upgrade to `holdfast-link` is taken out of its hands, and from then on the
connection is a `Session` of the hub. So one address, one certificate and one open port are enough.

A connection that sends nothing, or half of a request, is ended after a while; uvicorn alone would keep it. So
is one whose head has no end, and one that takes nothing of what it asked for.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from holdfast.wire.messages import PATH, UPGRADE

REQUEST_WITHIN_S = 10.0
STUCK_S = 60.0  # nothing at all was read of what we have to say
HEAD_MAX = 8_192  # of an agent
CUT = "holdfast.cut"  # in the extensions of an ASGI scope: closes the connection in the middle of an answer
HEADERS_MAX = 65_536  # of anybody
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


class Front(HttpToolsProtocol):
    """uvicorn's protocol, with a door for agents."""

    accept: ClassVar[Callable[[], asyncio.Protocol]]  # makes the session of a new agent

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head = b""
        self._begun = False  # the first bytes are known to be ordinary HTTP
        self._deadline: asyncio.TimerHandle | None = None
        self._headers = 0  # bytes of a head that has not ended yet
        self._in_head = False
        self._unsent = 0  # bytes, when we last looked
        self._stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # So that we hear of everything that is not read. Not 0: over TLS that is a buffer always full.
        transport.set_write_buffer_limits(high=1)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        self._read_on()
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
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()
        self.scope["extensions"] = {CUT: {"close": partial(self._cut, self.cycle)}}

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
    return type("FrontDoor", (Front,), {"accept": staticmethod(accept)})
