"""Where the journal is kept, and who may write it."""

from typing import Protocol

import msgspec

from holdfast.model.event import Event
from holdfast.model.plan import Plan
from holdfast.model.units import Instant, Millis


class Leadership(msgspec.Struct, frozen=True):
    leader: str
    generation: int
    until: Instant  # on the store's clock


class Store(Protocol):
    async def lead(self, name: str, ttl_ms: Millis, now: Instant) -> Leadership:
        """Take or keep the leadership if it is free or ours; the answer says who leads."""

    async def append(self, generation: int, expected: int, entries: tuple[Event | Plan, ...]) -> int:
        """All or nothing, durable when it returns the new length. Fenced if another generation leads, or
        if the journal is not `expected` entries long."""

    async def read(self, since: int = 0) -> tuple[Event | Plan, ...]: ...
