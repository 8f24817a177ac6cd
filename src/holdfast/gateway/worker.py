"""One process of a gateway: its connections, what it knows, and its link to the keeper.

It listens at the same address as its siblings; the kernel deals the connections out. What it may admit it has
borrowed from the keeper; what it knows of keys and services the keeper has told it. If the keeper is gone, it
ends: an orphan would serve by a book that nobody corrects.
"""

import asyncio
import os
import random
import resource
import time
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.adapters.clock import HostClock
from holdfast.core.gateway.quota.local_quota import Purse, Short
from holdfast.core.gateway.quota.token_bucket import Bucket
from holdfast.core.gateway.request.token_estimate import Estimator
from holdfast.gateway import messages, settings
from holdfast.gateway.addresses import Addresses
from holdfast.gateway.admit import refused_at_head
from holdfast.gateway.attempt import Try
from holdfast.gateway.book import Book
from holdfast.gateway.buffers import Buffers
from holdfast.gateway.connect import Connector
from holdfast.gateway.counts import Counted, Counts, counted
from holdfast.gateway.down import Down
from holdfast.gateway.exchange import ANYBODY, Exchange
from holdfast.gateway.glance import LOOK_EVERY
from holdfast.gateway.messages import SawOne
from holdfast.gateway.replies import Answer
from holdfast.gateway.service import Service
from holdfast.gateway.siblings import Siblings
from holdfast.model.gateway import Key
from holdfast.model.units import Instant
from holdfast.ports.clock import HeldWall
from holdfast.wire.certificates import Certificates

if TYPE_CHECKING:
    from holdfast.gateway.link import Link

LOOK_S = 0.1  # how often we look who is late
FILES_OF_OURS = 64
GUESSES_MAX = 20  # wrong keys from one address at once
GUESSES_PER_S = 1.0
ADDRESSES_KEPT = 4_096
SAW_MAX = 10_000  # told to the keeper every second; more than this are left out
POSTPONED_MAX = 2_000
BORROW_WITHIN_S = 2.0  # as long as a lease: after that nobody can say what is left


def connections_possible() -> int:
    """By the files this process may open: whoever asks needs one, and the replica that answers another."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(16, (files - FILES_OF_OURS) // 2)


class Worker:
    def __init__(self, wanted: messages.Start, link: "Link", loop: asyncio.AbstractEventLoop) -> None:
        self.loop, self.link = loop, link
        self.wanted = wanted
        self.body_max = wanted.body_max
        self.connections_max = min(wanted.connections, connections_possible())
        self.now = time.monotonic
        self.wall = HeldWall(HostClock(), wanted.wall)
        self.draw = random.random
        self.book = Book()
        self.purse = Purse(wanted.name, {}, self.now(), opens=wanted.fail_open)
        self.estimator = Estimator()
        self.counts = Counts()
        self.connector = Connector(self, wanted.upstream_ca)
        self.downs: set[Down] = set()
        self.addresses = Addresses(wanted.connections_per_address, wanted.trusted_proxies)
        self.buffers = Buffers(wanted.buffers, wanted.buffers_per_key, wanted.buffers_per_address)
        self.closing = False
        self._closed = asyncio.Event()
        self._short: list[Exchange] = []  # they need more than is lent to us
        self._borrowing: list[Exchange] = []  # for these we have asked
        self._wants: dict[str, list[float]] = {}
        self._asked_at = 0.0
        self._postponed: list[Exchange] = []  # until a broker lends again
        self._to_pump: set[str] = set()
        self._wanting: set[str] = set()
        self._saw: list[SawOne] = []
        self._guesses: OrderedDict[str, Bucket] = OrderedDict()
        self._keys_changed: set[str] = set()  # what runs by them is looked at
        self.learned = self._looks = 0
        self._ids = 0
        self._id_start = f"req-{os.urandom(5).hex()}".encode()
        self._probing: dict[str, asyncio.Task[None]] = {}
        self.siblings = Siblings(self) if wanted.siblings else None

    # connections

    def opened(self, down: Down) -> Answer | None:
        """One more; or why it is one too many. Who is far over what one address may have has no answer."""
        self.downs.add(down)
        group = down.group = self.addresses.group(down.peer) if down.peer else ""
        count = self.addresses.opened(group) if group else 0
        if count > self.addresses.most + self.addresses.slack:
            down.transport.abort()
            return None
        if count > self.addresses.most:
            text = f"{self.addresses.most} connections from your address are open, and no more are taken"
        elif len(self.downs) > self.connections_max:
            text = f"{self.connections_max} connections are open, and no more are taken"
        else:
            return None
        return Answer(503, "too_many_connections", text, "server_error", wait_s=1.0, close=True)

    def closed(self, down: Down) -> None:
        self.downs.discard(down)
        if down.group:
            self.addresses.closed(down.group)

    # what a request needs

    def refused_at_head(self, down: Down) -> Answer | None:
        return refused_at_head(self, down)

    def next_id(self) -> bytes:
        self._ids += 1
        return b"%s%x" % (self._id_start, self._ids)

    def authenticate(self, down: Down) -> Key | Answer:
        known = down.key
        if known is not None and self.book.keys.get(known.hash) is known and not known.expires_at:
            return known
        if not down.secret and self.wanted.open:
            return ANYBODY
        found = self.book.key_of(down.secret, self.wall())
        if isinstance(found, Key):
            down.key = found
            return found
        if found.status == 401 and self._guessed(down.source()):
            return Answer(429, "too_many_attempts", "too many wrong keys from your address", wait_s=1.0)
        return found

    def _guessed(self, peer: str) -> bool:
        """One more wrong key from there; True: too many. Good keys from the same address are not held up."""
        bucket = self._guesses.get(peer)
        now = self.now()
        if bucket is None:
            bucket = self._guesses[peer] = Bucket(GUESSES_MAX, GUESSES_PER_S, now)
            if len(self._guesses) > ADDRESSES_KEPT:
                self._guesses.popitem(last=False)
        if bucket.level_at(now) < 1:
            return True
        bucket.take(1, now)
        return False

    def models_page(self, names: list[str], wanted: str) -> bytes:
        def one(name: str) -> dict[str, object]:
            service = self.book.service_for(name)
            return {
                "id": name,
                "object": "model",
                "created": 0,
                "owned_by": service.name if service is not None else "",
            }

        if wanted:
            return msgspec.json.encode(one(wanted))
        return msgspec.json.encode({"object": "list", "data": [one(name) for name in names]})

    def connect(self, attempt: Try) -> None:
        self.connector.start(attempt)

    def saw(self, one: SawOne) -> None:
        if len(self._saw) < SAW_MAX:
            self._saw.append(one)

    def looks(self) -> bool:
        """Is this the one of some that is looked at more closely?"""
        self._looks = (self._looks + 1) % LOOK_EVERY
        return not self._looks

    # quota that must be borrowed first

    def borrow(self, exchange: Exchange, short: Short) -> None:
        """One question at a time is on its way; what comes up meanwhile is asked together."""
        self._short.append(exchange)
        for name, amount in short.wants.items():
            self._wants.setdefault(name, []).append(amount)
        if not self._asked_at:
            self._ask(full=False)

    def _ask(self, *, full: bool, leaving: bool = False) -> None:
        wants = {name: self.purse.worth_asking(name, amounts) for name, amounts in self._wants.items()}
        self._wants.clear()
        self._borrowing, self._short = self._short, []
        now = self.now()
        ask = self.purse.ask(now, wants, full, leaving)
        if ask.parts or wants:
            self._asked_at = now
            self.link.send(messages.Asked(ask))

    def postpone(self, exchange: Exchange) -> bool:
        if len(self._postponed) >= POSTPONED_MAX:
            return False
        self._postponed.append(exchange)
        return True

    def _take_again(self) -> None:
        postponed, self._postponed = self._postponed, []
        for exchange in postponed:
            exchange.lent()

    def _granted(self, message: messages.Granted) -> None:
        if self.purse.hear(message.grants, self.now()):
            self._answered()

    def _answered(self) -> None:
        self._asked_at = 0.0
        waiting, self._borrowing = self._borrowing, []
        for exchange in waiting:
            exchange.lent()
        if (self._short or self.purse.hurries) and not self._asked_at:
            self._ask(full=self.purse.hurries)

    # who waits for room

    def pump_soon(self, service: Service) -> None:
        if service.name not in self._to_pump:
            self._to_pump.add(service.name)
            self.loop.call_soon(self._pump, service)

    def _pump(self, service: Service) -> None:
        self._to_pump.discard(service.name)
        service.pump(self.now())

    def wants(self, service: Service) -> None:
        """Somebody waits for this service: the keeper hears of it at once, and again until it has acted."""
        if service.name not in self._wanting:
            self._wanting.add(service.name)
            self.link.send(messages.Wanting(service.name))

    # what the keeper tells

    def told(self, message: messages.ToWorker) -> None:
        now = self.now()
        match message:
            case messages.Granted():
                self._granted(message)
            case messages.KeyPut(key=key):
                self.book.put_key(key)
                self._keys_changed.add(key.id)
            case messages.KeyGone(id=id):
                self.book.drop_key(id)
                self._keys_changed.add(id)
                self.purse.forget_key(id)
            case messages.LimitsPut(scope=scope, limits=limits):
                self.purse.set_limits(scope, limits, now)
            case messages.Clamped(key=key_id, share=share):
                self.purse.set_clamp(key_id, share, now)
            case messages.ServicesPut(services=services):
                self._set_services(services)
            case messages.Shared():
                if self.siblings is not None:
                    self.siblings.told(message)
            case messages.SiblingGone(worker=worker):
                if self.siblings is not None:
                    self.siblings.gone(worker)
            case messages.Close():
                self.close()

    def _set_services(self, wanted: tuple[settings.Service, ...]) -> None:
        services = []
        for each in wanted:
            service = self.book.services.get(each.name)
            if service is None:
                service = Service(each, self)
            else:
                service.change(each)
            services.append(service)
            self._wanting.discard(each.name)
        before = self.book.services
        self.book.set_services(services)
        for name in before.keys() - self.book.services.keys():
            task = self._probing.pop(name, None)
            if task is not None:
                task.cancel()
            before[name].gone()
        for service in services:
            task = self._probing.get(service.name)
            if service.settings.probe and (task is None or task.done()):
                self._probing[service.name] = self.loop.create_task(self.connector.probe(service))

    # now and then

    async def look_after(self) -> None:
        ticks = 0
        while True:
            await asyncio.sleep(LOOK_S)
            ticks += 1
            self._look(self.now())
            if self.siblings is not None:
                self.siblings.tell()
            if ticks % 2 == 0:
                self.report()
            if ticks % 10 == 0:
                self._tell()

    def _look(self, now: float) -> None:
        wall = self.wall()
        changed, self._keys_changed = self._keys_changed, set()
        for down in tuple(self.downs):
            exchange = down.exchange
            if exchange is not None:
                key = exchange.key
                if key.id in changed or (key.expires_at and key.expires_at <= wall):
                    self._check_key(exchange, wall)
            if down.deadline < now:
                down.late()
            elif down.exchange is not None:
                down.exchange.look(now)
        for service in self.book.services.values():
            if service.waiting:
                service.pump(self.now())
                self.link.send(messages.Wanting(service.name))
        if self._asked_at and now - self._asked_at > BORROW_WITHIN_S:
            self.purse.silent()
            self._answered()
        if self._postponed:
            self._take_again()

    def _check_key(self, exchange: Exchange, wall: Instant) -> None:
        """Its key is another than when it was let in. If it is not good any more, nothing goes on by it."""
        key = self.book.keys.get(exchange.key.hash)
        if key is None or key.id != exchange.key.id:
            exchange.revoke(f"the key {exchange.key.id} was deleted")
            return
        refused = self.book.lapsed(key, wall)
        if refused is not None:
            exchange.revoke(refused.message)
        else:
            exchange.key = key

    def report(self) -> None:
        """What we have spent, and what of it we hold on to."""
        if not self._asked_at:
            self._ask(full=True)

    def _tell(self) -> None:
        now = self.now()
        self.link.send(
            messages.CountedNow(
                Counted(
                    len(self.downs),
                    dict(self.counts.by_status),
                    tuple(counted(service, now) for service in self.book.services.values()),
                )
            )
        )
        if self._saw:
            saw, self._saw = self._saw, []
            self.link.send(messages.Saw(saw))

    # its life

    def close(self) -> None:
        """Take nothing new; what runs may end."""
        self.closing = True
        self._closed.set()
        for down in tuple(self.downs):
            if down.idle:
                down.transport.close()

    def _down(self) -> Any:
        return Down(self)

    async def serve(self) -> None:
        files = None
        if self.wanted.certificate:
            files = Certificates(Path(self.wanted.certificate), Path(self.wanted.key), alpn=("http/1.1",))
        tls = files.context if files is not None else None
        server = await self.loop.create_server(
            self._down,
            self.wanted.host,
            self.wanted.port,
            reuse_port=True,
            backlog=4_096,
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else self.wanted.head_within_s,
        )
        self.link.send(messages.Ready())
        looking = self.loop.create_task(self.look_after())
        renewing = self.loop.create_task(files.keep()) if files is not None else None
        try:
            closed = self.loop.create_task(self._closed.wait())
            await asyncio.wait({looking, closed}, return_when=asyncio.FIRST_COMPLETED)
            closed.cancel()
            if looking.done():  # without it nobody would be late any more: end, and begin anew
                looking.result()
            server.close()
            ends = self.now() + self.wanted.close_within_s
            while not all(down.ended for down in self.downs) and self.now() < ends:
                await asyncio.sleep(0.05)
        finally:
            server.close()
            looking.cancel()
            if renewing is not None:
                renewing.cancel()
            self.connector.close()
            for task in self._probing.values():
                task.cancel()
            for down in tuple(self.downs):
                down.transport.abort()
            self._ask(full=True, leaving=True)
            self._tell()
            await self.link.close()
