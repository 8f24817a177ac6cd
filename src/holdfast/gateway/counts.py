"""What a worker counts, as it tells its keeper: the numbers so far, by service."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from holdfast.core.gateway.replicas import Replica
from holdfast.core.gateway.tries import Spread

if TYPE_CHECKING:
    from holdfast.gateway.service import Service


class ReplicaCounted(msgspec.Struct, frozen=True):
    id: str
    streams: int
    outstanding: float
    state: str
    draining: bool


class ServiceCounted(msgspec.Struct, frozen=True):
    """Counters only rise; gauges are as they are now. Spreads are counts by bucket, and their sum."""

    name: str
    requests: int
    by_status: dict[int, int]
    prompt_tokens: int
    completion_tokens: int
    retries: int
    hedged: int
    continued: int
    in_flight: int
    queue: int
    queue_tokens: int
    oldest_wait_s: float
    replicas: tuple[ReplicaCounted, ...]
    first_tokens: list[int]
    first_tokens_s: float
    gaps: list[int]
    gaps_s: float


class Counted(msgspec.Struct, frozen=True):
    connections: int = 0
    refused: dict[int, int] = {}
    services: tuple[ServiceCounted, ...] = ()


COUNTED = (
    "requests",
    "prompt_tokens",
    "completion_tokens",
    "retries",
    "hedged",
    "continued",
    "first_tokens_s",
    "gaps_s",
)


def of_the_ended(before: Counted, ended: Counted) -> Counted:
    """What workers that have ended counted, all together: counters that only rise must not fall with them."""
    services = {each.name: each for each in before.services}
    for each in ended.services:
        services[each.name] = _sum(services.get(each.name), each)
    return Counted(0, added((before.refused, ended.refused)), tuple(services.values()))


def _sum(one: ServiceCounted | None, other: ServiceCounted) -> ServiceCounted:
    at_rest = {"in_flight": 0, "queue": 0, "queue_tokens": 0, "oldest_wait_s": 0.0, "replicas": ()}
    if one is None:
        return msgspec.structs.replace(other, **at_rest)
    sums = {name: getattr(one, name) + getattr(other, name) for name in COUNTED}
    lists = {
        name: [a + b for a, b in zip(getattr(one, name), getattr(other, name), strict=True)]
        for name in ("first_tokens", "gaps")
    }
    by_status = added((one.by_status, other.by_status))
    return ServiceCounted(name=one.name, by_status=by_status, **sums, **lists, **at_rest)  # type: ignore[arg-type]


def added(parts: Iterable[dict[int, int]]) -> dict[int, int]:
    total: dict[int, int] = {}
    for part in parts:
        for status, count in part.items():
            total[status] = total.get(status, 0) + count
    return total


class Counts:
    """Requests that reached no service."""

    __slots__ = ("by_status",)

    def __init__(self) -> None:
        self.by_status: dict[int, int] = {}

    def refused(self, status: int) -> None:
        self.by_status[status] = self.by_status.get(status, 0) + 1


def counted(service: "Service", now: float) -> ServiceCounted:
    queue = service.queue
    return ServiceCounted(
        name=service.name,
        requests=service.requests,
        by_status=dict(service.by_status),
        prompt_tokens=service.prompt_tokens,
        completion_tokens=service.completion_tokens,
        retries=service.retries,
        hedged=service.hedged,
        continued=service.continued,
        in_flight=service.busy(),
        queue=queue.length if queue is not None else 0,
        queue_tokens=int(queue.tokens) if queue is not None else 0,
        oldest_wait_s=queue.oldest_wait_s(now) if queue is not None else 0.0,
        replicas=tuple(
            ReplicaCounted(each.id, each.streams, each.outstanding, _state(each), each.draining)
            for each in (*service.pool.replicas.values(), *service.pool.leaving)
        ),
        first_tokens=spread(service.first_tokens),
        first_tokens_s=service.first_tokens.total_s,
        gaps=spread(service.gaps),
        gaps_s=service.gaps.total_s,
    )


def _state(replica: Replica) -> str:
    return "ejected" if replica.health.ejected else "ready"


def spread(found: Spread) -> list[int]:
    return list(found.counts)
