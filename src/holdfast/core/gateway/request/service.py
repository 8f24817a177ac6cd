"""A service as any gateway sees it: its replicas, who waits for them, and who may be asked once more.

The pool, the hold and the budgets are the judgement (`picker`, `hold`, `tries`); here is how a gateway uses
them, the same for one that serves and for a simulated one. What a service counts and tells is its shell's.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from holdfast.core.gateway.routing.balancer import Pool
from holdfast.core.gateway.routing.endpoints import Replica
from holdfast.core.gateway.routing.fair_queue import Hold
from holdfast.core.gateway.routing.retry_budget import Tries
from holdfast.core.gateway.routing.updates import ReplicaSpec

if TYPE_CHECKING:
    from holdfast.core.gateway.request.lifecycle import Course

UNREACHABLE = ("connect", "gone")


class Rules(Protocol):
    """How patient a gateway is with a service."""

    @property
    def tries(self) -> int: ...
    @property
    def first_byte_s(self) -> float: ...
    @property
    def stall_s(self) -> float: ...
    @property
    def total_s(self) -> float: ...
    @property
    def hedge(self) -> bool: ...
    @property
    def continues(self) -> bool: ...


R = TypeVar("R", bound=Rules)


class Served(ABC, Generic[R]):
    name: str
    settings: R
    pool: Pool
    tries: Tries
    queue: "Hold[Course[Any, Any]] | None" = None  # None: nobody waits, all are refused
    retries = 0
    hedged = 0
    continued = 0

    @property
    def waiting(self) -> int:
        return self.queue.length if self.queue is not None else 0

    @property
    def stall_s(self) -> float:
        return min(self.settings.stall_s, self.tries.stall_after_s())

    def set_replicas(
        self, wanted: Iterable[ReplicaSpec], leaving: Collection[str] | None, now: float
    ) -> None:
        """Those that there are now, and those that end what they have begun. Whoever is neither answers no
        more. None: nobody says who is leaving, so all are."""
        self.pool.set_replicas(wanted, now)
        for replica in self.pool.replicas.values():
            replica.lost = False
        for replica in self.pool.leaving:
            replica.lost = leaving is not None and replica.id not in leaving

    # whom to ask

    @abstractmethod
    def pick(self, course: Any, now: float, *, patient: bool = False) -> Replica | None:
        """Of those that have not failed it."""

    def may_retry(self, now: float) -> bool:
        if self.tries.may_retry(now):
            self.retries += 1
            return True
        return False

    def may_hedge(self, waited_s: float, now: float) -> bool:
        saturation = self.pool.saturation()
        return waited_s > self.tries.hedge_after_s(saturation) and self.tries.may_hedge(saturation, now)

    def failed(self, replica: Replica, kind: str, now: float) -> None:
        if kind in UNREACHABLE:
            self.pool.unreachable(replica, now)
        else:
            self.pool.failed(replica, now)

    # who waits

    @abstractmethod
    def wanted(self) -> None:
        """Somebody has begun to wait: whoever could make room should know."""

    @abstractmethod
    def woke(self, waited_s: float) -> None:
        """Somebody waits no longer, because there is room."""

    @abstractmethod
    def pump_soon(self) -> None:
        """There may be room: `pump`, but not now."""

    def held(self, course: "Course[Any, Any]", since: float) -> bool:
        if self.queue is None or not self.queue.add(course, course.key.id, course.cost, since):
            return False
        self.wanted()
        return True

    def unheld(self, course: "Course[Any, Any]") -> None:
        if self.queue is not None:
            self.queue.drop(course)

    def pump(self, now: float) -> None:
        """Those who wait, in their turn, as long as there is room."""
        queue = self.queue
        if queue is None:
            return
        for late in queue.expired(now):
            late.gave_up_waiting(now)
        while True:
            course = queue.next(now)
            if course is None:
                return
            if not course.wake(now):
                queue.add(course, course.key.id, course.cost, course.held_since)
                return
