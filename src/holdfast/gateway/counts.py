"""What a worker counts, as it tells its keeper: the numbers so far, by service."""

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
    connections: int
    refused: dict[int, int]
    services: tuple[ServiceCounted, ...]


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
