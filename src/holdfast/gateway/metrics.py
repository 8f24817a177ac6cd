"""The metrics of a gateway, added up over its workers, after the conventions of Prometheus."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from holdfast.core.gateway.routing.retry_budget import upper_end
from holdfast.gateway.counts import ModelCounted, ServiceCounted, added, model_sum
from holdfast.model.units import SECOND

if TYPE_CHECKING:
    from holdfast.gateway.keeper import Keeper


def page(keeper: "Keeper") -> tuple[bytes, str]:
    registry = CollectorRegistry()
    registry.register(Added(keeper))
    return generate_latest(registry), CONTENT_TYPE_LATEST


class Added(Collector):
    def __init__(self, keeper: "Keeper") -> None:
        self.keeper = keeper

    def collect(self) -> Iterator[Metric]:
        seats = [seat.counted for seat in self.keeper.seats if seat.counted is not None]
        told = [*seats, self.keeper.ended]
        yield GaugeMetricFamily(
            "holdfast_gateway_workers", "Workers that serve.", sum(seat.ready for seat in self.keeper.seats)
        )
        yield GaugeMetricFamily(
            "holdfast_gateway_connections", "Clients connected.", sum(each.connections for each in told)
        )
        yield GaugeMetricFamily(
            "holdfast_gateway_clock_jump_seconds",
            "How far the wall clock is from what is believed; 0 while it is believed.",
            self.keeper.wall.jump_ms / SECOND,
        )
        refused = CounterMetricFamily(
            "holdfast_gateway_refused_requests", "Requests that reached no service.", labels=["status"]
        )
        for status, count in added(each.refused for each in told).items():
            refused.add_metric([str(status)], count)
        yield refused
        by_name: dict[str, list[ServiceCounted]] = {}
        for each in told:
            for service in each.services:
                by_name.setdefault(service.name, []).append(service)
        yield from _services(by_name)


OF_MODELS = {
    "prompt_tokens": ("holdfast_gateway_prompt_tokens", "Tokens of prompts, as upstream told."),
    "completion_tokens": ("holdfast_gateway_completion_tokens", "Tokens of answers, as upstream told."),
}
COUNTERS = {
    "retries": ("holdfast_gateway_retries", "Requests asked of another replica."),
    "hedged": ("holdfast_gateway_hedges", "Late requests asked of a second replica."),
    "continued": ("holdfast_gateway_continued_streams", "Streams that went on at another replica."),
}
GAUGES = {
    "in_flight": ("holdfast_gateway_in_flight", "Requests that replicas work on."),
    "queue": ("holdfast_gateway_queue", "Requests that wait for a replica."),
    "queue_tokens": ("holdfast_gateway_queue_tokens", "Tokens that they may take."),
}
SPREADS = {
    "first_tokens": ("holdfast_gateway_first_token_seconds", "From the request to its first content."),
    "gaps": ("holdfast_gateway_token_gap_seconds", "Between two events of a stream."),
}


def _models(by_name: dict[str, list[ServiceCounted]]) -> Iterator[Metric]:
    rows = []
    for service, parts in by_name.items():
        by_model: dict[str, list[ModelCounted]] = {}
        for each in (model for part in parts for model in part.models):
            by_model.setdefault(each.name, []).append(each)
        rows += [([service, name], model_sum(name, found)) for name, found in by_model.items()]
    requests = CounterMetricFamily(
        "holdfast_gateway_requests",
        "Requests for a service, by status.",
        labels=["service", "model", "status"],
    )
    for labels, model in rows:
        for status, count in model.by_status.items():
            requests.add_metric([*labels, str(status)], count)
    yield requests
    for field, (title, text) in OF_MODELS.items():
        counter = CounterMetricFamily(title, text, labels=["service", "model"])
        for labels, model in rows:
            counter.add_metric(labels, getattr(model, field))
        yield counter
    for field, (title, text) in SPREADS.items():
        family = HistogramMetricFamily(title, text, labels=["service", "model"])
        for labels, model in rows:
            family.add_metric(labels, _buckets(getattr(model, field)), getattr(model, f"{field}_s"))
        yield family


def _buckets(counts: list[int]) -> list[tuple[str, float]]:
    found, so_far = [], 0
    for at, count in enumerate(counts):
        so_far += count
        found.append((f"{upper_end(at):.6g}" if at < len(counts) - 1 else "+Inf", float(so_far)))
    return found


def _services(by_name: dict[str, list[ServiceCounted]]) -> Iterator[Metric]:
    yield from _models(by_name)
    for field, (title, text) in COUNTERS.items():
        counter = CounterMetricFamily(title, text, labels=["service"])
        for name, parts in by_name.items():
            counter.add_metric([name], sum(getattr(part, field) for part in parts))
        yield counter
    for field, (title, text) in GAUGES.items():
        gauge = GaugeMetricFamily(title, text, labels=["service"])
        for name, parts in by_name.items():
            gauge.add_metric([name], sum(getattr(part, field) for part in parts))
        yield gauge
    oldest = GaugeMetricFamily(
        "holdfast_gateway_oldest_wait_seconds", "How long the first in the queue waits.", labels=["service"]
    )
    for name, parts in by_name.items():
        oldest.add_metric([name], max(part.oldest_wait_s for part in parts))
    yield oldest
    yield from _replicas(by_name)


def _replicas(by_name: dict[str, list[ServiceCounted]]) -> Iterator[Metric]:
    """Workers judge for themselves: a replica is ejected by so many of them."""
    load = GaugeMetricFamily(
        "holdfast_gateway_replica_in_flight", "Requests at a replica.", labels=["service", "replica"]
    )
    ejected = GaugeMetricFamily(
        "holdfast_gateway_replica_ejected", "Workers that avoid it.", labels=["service", "replica"]
    )
    for name, parts in by_name.items():
        for replica in {each.id: None for part in parts for each in part.replicas}:
            seen = [each for part in parts for each in part.replicas if each.id == replica]
            load.add_metric([name, replica], sum(each.streams for each in seen))
            ejected.add_metric([name, replica], sum(each.state == "ejected" for each in seen))
    yield load
    yield ejected
