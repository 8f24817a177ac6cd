"""The load of services, as far as nobody tells us unasked: what their replicas use, and what a query says.

Nodes tell with their beats what each replica uses. Queries are asked every few seconds, each under a time-out
of its own; one that fails leaves its signal missing, and is said once until it works again. What programs and
gateways post comes in by the API and not through here.
"""

import asyncio
from collections.abc import Iterator

import structlog

from holdfast.control.hub import Hub
from holdfast.control.term import Term
from holdfast.model.replica import Replica, State
from holdfast.model.scale import Scale, Signal
from holdfast.model.workload import Service
from holdfast.ports.errors import PortError
from holdfast.ports.telemetry import Telemetry
from holdfast.wire.messages import Used

EVERY_S = 5.0
BY_NODES = (Signal.CPU, Signal.GPU)

log = structlog.get_logger("holdfast.load")


class Load:
    def __init__(self, term: Term, hub: Hub, telemetry: Telemetry | None) -> None:
        self.term, self.hub, self.telemetry = term, hub, telemetry
        self._failing: set[tuple[str, Signal]] = set()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            self._listen_to_nodes()
            asks = [self._ask(*query) for query in self._queries()]
            if asks:
                await asyncio.gather(*asks)

    def _scales(self) -> Iterator[tuple[str, Scale]]:
        world = self.term.mind.world
        for name in world.scaled:
            shape = world.workloads[name].shape
            if isinstance(shape, Service) and shape.scale is not None:
                yield name, shape.scale

    def _listen_to_nodes(self) -> None:
        world = self.term.mind.world
        for name, scale in self._scales():
            told = [
                signal for signal in BY_NODES if signal in scale.per_replica and signal not in scale.query
            ]
            if not told:
                continue
            for slot in world.of_workload.get(name, ()):
                for replica in (world.replicas[each] for each in world.of_slot[slot]):
                    used = self.hub.used.get(replica.node)
                    if replica.state is State.READY and used is not None:
                        self._hear_use(name, replica, used, told)

    def _hear_use(self, workload: str, replica: Replica, used: Used, told: list[Signal]) -> None:
        """As shares of what it asked for. What its node does not say is missing, and not zero."""
        shares = {}
        if replica.id in used.replicas:
            shares[Signal.CPU] = used.replicas[replica.id][0] / max(1, replica.needs.cpu_milli)
        if replica.id in used.gpu_milli and replica.needs.gpu_milli:
            shares[Signal.GPU] = used.gpu_milli[replica.id] / replica.needs.gpu_milli
        for signal in told:
            if signal in shares:
                self._hear(workload, replica.id, signal, shares[signal])

    def _queries(self) -> Iterator[tuple[str, Signal, str, str]]:
        for name, scale in self._scales():
            for signal, query in scale.query.items():
                yield name, signal, scale.prometheus, query

    async def _ask(self, workload: str, signal: Signal, where: str, query: str) -> None:
        if self.telemetry is None:
            return
        key, why = (workload, signal), ""
        try:
            value = await self.telemetry.ask(where, query)
            if not self._hear(workload, where, signal, value):
                why = f"{value:g} cannot be true"
        except PortError as error:
            why = str(error)
        if why and key not in self._failing:
            log.warning("a query failed", workload=workload, signal=str(signal), why=why)
        (self._failing.add if why else self._failing.discard)(key)

    def _hear(self, workload: str, source: str, signal: Signal, value: float) -> bool:
        """Was it taken?"""
        return not self.term.hear_load(workload, source, {signal: value})
