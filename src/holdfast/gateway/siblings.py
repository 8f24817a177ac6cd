"""What the workers of one gateway tell one another, so that they route as one.

Each would otherwise know a part of the prompts and a part of the load, and a conversation that comes to
another worker would find its replica by luck. Ten times a second each tells where prompts went and what it
has in flight; the keeper passes it on. Nobody waits for it: what is heard late was merely not known yet.
"""

from typing import TYPE_CHECKING

from holdfast.core.gateway.routing.balancer import summed
from holdfast.core.gateway.routing.endpoints import Replica
from holdfast.core.gateway.routing.updates import Load, Went
from holdfast.gateway.messages import Shared, Sharing

if TYPE_CHECKING:
    from holdfast.gateway.exchange import Exchange
    from holdfast.gateway.worker import Worker

WENT_MAX = 1_000  # told at once, of one service: more say nothing new
PROMPT_MIN = 1_024  # bytes: to work out less again costs next to nothing


class Siblings:
    def __init__(self, worker: "Worker") -> None:
        self.worker = worker
        self._went: dict[str, list[Went]] = {}
        self._loads: dict[str, dict[str, dict[str, Load]]] = {}  # by service and sibling
        self._told: dict[str, dict[str, Load]] = {}

    def note(self, exchange: "Exchange", replica: Replica) -> None:
        """A request was sent there."""
        service = exchange.service
        session = exchange.down.session
        if service is None or not (session or exchange.prompt_bytes >= PROMPT_MIN):
            return
        went = service.pool.went(exchange.prefix, session.decode("latin1"), replica)
        if went is not None:
            said = self._went.setdefault(service.name, [])
            if len(said) < WENT_MAX:
                said.append(went)

    def tell(self) -> None:
        """What is new since the last time."""
        sharing: dict[str, Sharing] = {}
        for service in self.worker.book.services.values():
            went, loads = self._went.pop(service.name, []), service.pool.in_flight()
            if went or loads != self._told.get(service.name, {}):
                self._told[service.name] = loads
                sharing[service.name] = Sharing(went, loads)
        self._went.clear()
        if sharing:
            self.worker.link.send(Shared(self.worker.wanted.name, sharing))

    def told(self, shared: Shared) -> None:
        for name, sharing in shared.services.items():
            service = self.worker.book.services.get(name)
            if service is None:
                continue
            for went in sharing.went:
                service.pool.told(went)
            siblings = self._loads.setdefault(name, {})
            siblings[shared.worker] = sharing.loads
            service.pool.told_load(summed(siblings.values()))
            if service.waiting:
                self.worker.pump_soon(service)

    def gone(self, worker: str) -> None:
        """It has ended: nothing of it is in flight any more."""
        for name, siblings in self._loads.items():
            service = self.worker.book.services.get(name)
            if siblings.pop(worker, None) and service is not None:
                service.pool.told_load(summed(siblings.values()))
