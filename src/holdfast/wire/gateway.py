"""What gateways and control planes say to each other about quota and load; about keys: `wire.keys`."""

from collections.abc import Callable, Iterable
from math import inf

import msgspec
from msgspec.structs import replace

from holdfast.core.gateway.key_audit.audit import Row
from holdfast.core.gateway.quota.broker import Ask, Grant, Grants
from holdfast.model.scale import Signal

NEVER_S = 1e12  # JSON has no infinity
AMOUNT_MAX = 1e15
HOLDER_MAX = 512
NUMBER_MAX = 1 << 53


class ServiceLoad(msgspec.Struct, frozen=True):
    """How it goes with one service, as far as one gateway knows. Rates are those of the last second."""

    name: str
    in_flight: float = 0.0
    queue: float = 0.0
    oldest_wait_ms: float = 0.0
    requests_per_s: float = 0.0
    tokens_per_s: float = 0.0
    latency_ms: float = 0.0  # to the first token, on average; 0: nobody asked


def signals(service: ServiceLoad) -> dict[Signal, float]:
    """What a workload that scales goes by."""
    return {
        Signal.IN_FLIGHT: service.in_flight,
        Signal.QUEUE: service.queue,
        Signal.OLDEST_WAIT: service.oldest_wait_ms,
        Signal.REQUESTS: service.requests_per_s,
        Signal.TOKENS: service.tokens_per_s,
        Signal.LATENCY: service.latency_ms,
    }


class LoadTold(msgspec.Struct, frozen=True):
    gateway: str  # its name: the same each time
    services: tuple[ServiceLoad, ...] = ()
    keys: tuple[Row, ...] | None = None  # its report of keys; none: as before
    acts: bool = False  # it does not only watch keys that seem to be nobody's


def strange(ask: Ask) -> str:
    """What of an ask cannot be true; empty: nothing."""
    if not 0 < len(ask.holder) <= HOLDER_MAX or ask.number > NUMBER_MAX:
        return f"{ask.holder[:HOLDER_MAX]!r} is no name of a holder, or {ask.number} no number"
    for name, part in ask.parts.items():
        said = (part.has, part.wants, part.spent, part.debt, part.freed, part.back)
        if not all(0.0 <= amount <= AMOUNT_MAX for amount in said):
            return f"{ask.holder} says of {name}: {part}"
    return ""


def to_send(grants: Iterable[Grants]) -> list[Grants]:
    """As it can be written in JSON."""
    return [_with_waits(each, lambda wait: min(wait, NEVER_S)) for each in grants]


def as_meant(grants: Iterable[Grants]) -> list[Grants]:
    return [_with_waits(each, lambda wait: inf if wait >= NEVER_S else wait) for each in grants]


def _with_waits(grants: Grants, change: Callable[[float], float]) -> Grants:
    def changed(grant: Grant) -> Grant:
        return replace(grant, wait_s=change(grant.wait_s)) if grant.wait_s else grant

    return replace(grants, grants={name: changed(grant) for name, grant in grants.grants.items()})
