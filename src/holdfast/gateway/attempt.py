"""A request at one replica: what comes of it is held until it has content, then it goes to the client.

An exchange has one try at a time, or two while a late one is hedged. A try knows nothing of the others: it
tells its exchange that it may win, was turned down, or failed.
"""

from typing import TYPE_CHECKING

from holdfast.core.gateway.routing.endpoints import Replica
from holdfast.gateway.continued import Rest
from holdfast.gateway.sse import Events
from holdfast.gateway.up import Up

if TYPE_CHECKING:
    from holdfast.gateway.exchange import Exchange

HELD_MAX = 262_144  # bytes of an answer that is no stream: more is passed on as it comes


class Try:
    """The request at one replica."""

    __slots__ = (
        "events",
        "exchange",
        "held",
        "known",
        "over",
        "passes",
        "replica",
        "rest",
        "sent",
        "size",
        "started",
        "tail",
        "up",
    )

    def __init__(self, exchange: "Exchange", replica: Replica, now: float) -> None:
        self.exchange, self.replica, self.started = exchange, replica, now
        self.up: Up | None = None
        self.events: Events | None = None
        self.rest: Rest | None = None  # it goes on where another was cut
        self.held: list[bytes] = []
        self.size = 0
        self.tail = b""
        self.known = self.over = False  # its head was looked at; it has ended
        self.sent = False  # by a connection that ended before anything came
        self.passes = False  # what comes in whole chunks goes on in them

    def replied(self, up: Up, data: bytes, chunk: bytes = b"") -> None:
        exchange = self.exchange
        if chunk and self.passes and self.events is not None and self.events.plain(data):
            exchange.passed(len(data), chunk)
            return
        if not self.known:
            self.known = True
            if up.content_type.startswith(b"text/event-stream"):
                self.events = Events(strip=exchange.strip, reads=exchange.worker.looks())
        events = self.events
        if events is not None:
            came = data
            data = events.feed(data) if data else data
            if up.complete:
                data += events.rest()
            if data is not came:
                chunk = b""
        if exchange.winner is self:
            exchange.forward(self, data, chunk)
            return
        if data:
            self.held.append(data)
            self.size += len(data)
        if up.status == 429 or up.status >= 500:
            if up.complete or self.size > HELD_MAX:
                exchange.turned_down(self, up)
        elif events is not None and events.failed and (exchange.head or not events.content):
            exchange.failed(self, f"it failed: {events.failed}", "error", exchange.worker.now())
        elif up.complete or self.size > HELD_MAX or (events is not None and events.content):
            exchange.win(self, up)

    def failed(self, up: Up | None, why: str, kind: str = "") -> None:
        if self.over:
            return
        exchange = self.exchange
        if up is not None and up.reused and not up.fed and exchange.winner is None and not exchange.once:
            exchange.ask_again(self)  # it was closed while it was idle: that says nothing of the replica
            return
        kind = kind or ("lost" if up is not None else "gone" if self.sent else "connect")
        exchange.failed(self, why, kind, exchange.worker.now())
