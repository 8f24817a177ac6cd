"""What a worker counts, as it tells its keeper: the numbers so far, by service."""

from collections.abc import Iterable
from itertools import zip_longest
from typing import TYPE_CHECKING

import msgspec

from holdfast.core.gateway.routing.endpoints import Replica

if TYPE_CHECKING:
    from holdfast.gateway.service import Service


class ReplicaCounted(msgspec.Struct, frozen=True):
    id: str
    streams: int
    outstanding: float
    state: str
    draining: bool


class ModelCounted(msgspec.Struct, frozen=True):
    """Counters only rise. Spreads are counts by bucket, and their sum."""

    name: str  # as the file names it, a * too; empty: requests for other paths
    by_status: dict[int, int] = {}
    prompt_tokens: int = 0
    completion_tokens: int = 0
    first_tokens: list[int] = []
    first_tokens_s: float = 0.0
    gaps: list[int] = []
    gaps_s: float = 0.0


class ServiceCounted(msgspec.Struct, frozen=True):
    """Counters only rise; gauges are as they are now."""

    name: str
    requests: int = 0
    retries: int = 0
    hedged: int = 0
    continued: int = 0
    in_flight: int = 0
    queue: int = 0
    queue_tokens: int = 0
    oldest_wait_s: float = 0.0
    replicas: tuple[ReplicaCounted, ...] = ()
    models: tuple[ModelCounted, ...] = ()

    @property
    def tokens(self) -> int:
        return sum(each.prompt_tokens + each.completion_tokens for each in self.models)

    @property
    def first_tokens(self) -> tuple[int, float]:
        """How many answers have begun, and how long that took them together."""
        return sum(sum(each.first_tokens) for each in self.models), sum(e.first_tokens_s for e in self.models)


class Counted(msgspec.Struct, frozen=True):
    connections: int = 0
    refused: dict[int, int] = {}
    services: tuple[ServiceCounted, ...] = ()


def of_the_ended(before: Counted, ended: Counted) -> Counted:
    """What workers that have ended counted, all together: counters that only rise must not fall with them."""
    services = {each.name: each for each in before.services}
    for each in ended.services:
        services[each.name] = _sum(services.get(each.name), each)
    return Counted(0, added((before.refused, ended.refused)), tuple(services.values()))


def _sum(one: ServiceCounted | None, other: ServiceCounted) -> ServiceCounted:
    if one is None:
        one = ServiceCounted(other.name)
    models = {each.name: each for each in one.models}
    for each in other.models:
        models[each.name] = model_sum(each.name, [models.get(each.name, ModelCounted(each.name)), each])
    return ServiceCounted(
        one.name,
        one.requests + other.requests,
        one.retries + other.retries,
        one.hedged + other.hedged,
        one.continued + other.continued,
        models=tuple(models.values()),
    )


def model_sum(name: str, parts: list[ModelCounted]) -> ModelCounted:
    return ModelCounted(
        name,
        added(part.by_status for part in parts),
        sum(part.prompt_tokens for part in parts),
        sum(part.completion_tokens for part in parts),
        _columns([part.first_tokens for part in parts]),
        sum(part.first_tokens_s for part in parts),
        _columns([part.gaps for part in parts]),
        sum(part.gaps_s for part in parts),
    )


def _columns(lists: list[list[int]]) -> list[int]:
    return [sum(column) for column in zip_longest(*lists, fillvalue=0)]


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
        models=tuple(
            ModelCounted(
                name,
                dict(each.by_status),
                each.prompt_tokens,
                each.completion_tokens,
                list(each.first_tokens.counts),
                each.first_tokens.total_s,
                list(each.gaps.counts),
                each.gaps.total_s,
            )
            for name, each in service.models.items()
        ),
    )


def _state(replica: Replica) -> str:
    return "ejected" if replica.health.ejected else "ready"
