"""Tells the control plane how it goes: every second, and at once when somebody begins to wait.

While anybody waits it is told again and again: a word that is lost wakes nobody, and the next one does. What
workers counted is up to a second old; that somebody waits we know from the worker at once.
"""

import asyncio
import contextlib
import socket

import msgspec

from holdfast.core.gateway.key_audit.audit import Row
from holdfast.gateway.counts import Counted, ServiceCounted
from holdfast.gateway.keeper import Keeper
from holdfast.gateway.plane import Away, ControlPlane, Denied
from holdfast.wire.gateway import LoadTold, ServiceLoad

PATH = "/v1/gateway/load"
EVERY_S = 1.0
GAP_S = 0.1  # between two, at least
WAITS_S = 0.5  # workers say every 0.1 s that somebody waits; then nobody does
WITHIN_S = 2.0
REPORT_S = 10.0
ROWS_MAX = 10_000  # the most suspect ones


class Rates:
    """What one worker did between its last two words."""

    def __init__(self) -> None:
        self.last: Counted | None = None
        self.at = 0.0
        self.by_service: dict[str, tuple[float, float, float]] = {}  # requests/s, tokens/s, latency_ms

    def see(self, counted: Counted, now: float) -> None:
        if counted is self.last:
            return
        before = {each.name: each for each in self.last.services} if self.last is not None else {}
        for_s = max(0.1, now - self.at) if self.last is not None else EVERY_S
        self.by_service = {each.name: _rates(each, before.get(each.name), for_s) for each in counted.services}
        self.last, self.at = counted, now


def _rates(now: ServiceCounted, before: ServiceCounted | None, for_s: float) -> tuple[float, float, float]:
    if before is None or before.requests > now.requests:  # its worker is another one
        before = None
    requests = now.requests - (before.requests if before else 0)
    tokens = now.tokens - (before.tokens if before else 0)
    begun, took_s = now.first_tokens
    if before is not None:
        begun_before, took_before_s = before.first_tokens
        begun, took_s = begun - begun_before, took_s - took_before_s
    return requests / for_s, max(0, tokens) / for_s, max(0.0, 1000 * took_s / begun) if begun > 0 else 0.0


class Load:
    def __init__(self, keeper: Keeper, plane: ControlPlane, name: str) -> None:
        """`name`: the same for each life of this gateway; empty: made of the machine's and the port."""
        self.keeper, self.plane, self.name = keeper, plane, name
        self._rates: dict[str, Rates] = {}
        self._since: dict[str, float] = {}  # when somebody began to wait
        self._last: dict[str, float] = {}  # and when we last heard so
        self._wake = asyncio.Event()
        self._reported_at = -REPORT_S
        keeper.on_wanting = self.wanting

    def wanting(self, service: str) -> None:
        now = self.keeper.now()
        if now - self._last.get(service, -WAITS_S) >= WAITS_S:
            self._since[service] = now
        self._last[service] = now
        self._wake.set()

    async def run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EVERY_S):
                    await self._wake.wait()
            self._wake.clear()
            with contextlib.suppress(Away, Denied):  # the next one comes soon
                await self.plane.post(PATH, msgspec.json.encode(self.told()), WITHIN_S)
            await asyncio.sleep(GAP_S)

    def told(self) -> LoadTold:
        now = self.keeper.now()
        rows: tuple[Row, ...] | None = None
        if now - self._reported_at >= REPORT_S:
            self._reported_at, rows = now, self._rows()
        name = self.name or f"{socket.gethostname()}:{self.keeper.port}"
        return LoadTold(name, tuple(self._services(now)), rows, not self.keeper.wanted.shadow)

    def _rows(self) -> tuple[Row, ...]:
        """Of keys that were used here; the control plane knows the others too."""
        used = [row for row in self.keeper.watch.report() if row.idle_ms >= 0]
        return tuple(used[:ROWS_MAX])

    def _services(self, now: float) -> list[ServiceLoad]:
        parts: dict[str, list[tuple[ServiceCounted, tuple[float, float, float]]]] = {}
        for seat in self.keeper.seats:
            if seat.counted is None or seat.link is None:
                continue
            rates = self._rates.setdefault(seat.name, Rates())
            rates.see(seat.counted, now)
            for each in seat.counted.services:
                parts.setdefault(each.name, []).append((each, rates.by_service[each.name]))
        names = dict.fromkeys(service.name for service in self.keeper.services)
        return [self._service(name, parts.get(name, []), now) for name in names]

    def _service(
        self, name: str, parts: list[tuple[ServiceCounted, tuple[float, float, float]]], now: float
    ) -> ServiceLoad:
        queue = float(sum(each.queue for each, _ in parts))
        oldest_s = max((each.oldest_wait_s for each, _ in parts), default=0.0)
        if now - self._last.get(name, -WAITS_S) < WAITS_S:
            queue, oldest_s = max(1.0, queue), max(oldest_s, now - self._since[name])
        requests = sum(rates[0] for _, rates in parts)
        slow = sum(rates[2] * rates[0] for _, rates in parts)
        return ServiceLoad(
            name=name,
            in_flight=float(sum(each.in_flight for each, _ in parts)),
            queue=queue,
            oldest_wait_ms=1000 * oldest_s if queue else 0.0,
            requests_per_s=requests,
            tokens_per_s=sum(rates[1] for _, rates in parts),
            latency_ms=slow / requests if requests else 0.0,
        )
