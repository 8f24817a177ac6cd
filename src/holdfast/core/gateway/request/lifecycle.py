"""One request through a gateway: in which order is what done, and what when something fails?

    reserve ── pick ── ask ──┬── content ── its end
       │         │           ├── failed before any content: asked of another, or it waits again
       │         └── wait    ├── late: asked of a second one too; far too late: as failed
       └── refused           └── failed after its content: goes on elsewhere, or is cut

Nothing of an answer is sent before its first content, so until then another replica may give it. There is
one try at a time, two while a late one is hedged or its replica is said to be lost. Where no connection was
made nobody was asked: that is no try. A replica that is gone has left its requests undone: to ask another is
no more load than was meant. Twice, for several may go together, and not more often, for the request itself
may be what ends them. All else is paid from the budget, so that nobody's trouble becomes everybody's.

A request that must not be carried out twice (`once`: an order, not a question to a model) is retried only
while no byte of it was sent: from then on a lost connection, an error or silence leaves open whether it was
carried out, and only its client can find out. It is not hedged at all: of two copies on their way one could
not be called back. Refused: to retry it where the replica surely did not read it (a reset before its first
answer, a 503). It is not sure: a proxy in front of the program answers so, too.

Whatever ends it, `close` is reached once: it settles what was reserved (or gives it back, where no replica
has seen the request), lets go of the replicas and of the place in the line.

The order stands here and nowhere else. The gateway that serves and the simulated one say what a step is in
their world (bytes on a connection, an event in a simulated second), and inherit when it is done: what the
simulator checks is the order that serves. They inherit because this is a hot path: a machine that hands
its host what to do next, as `turn` does, costs two objects and a dozen calls a request, and a chunk that is
only passed on would pass through it. Here it does not: what comes between content and end is the shell's.
"""

from abc import ABC, abstractmethod
from typing import Any, Generic, Protocol, TypeVar

from holdfast.core.gateway.quota.limits import Refusal
from holdfast.core.gateway.quota.local_quota import (
    Purse,
    PurseChain,
    PurseTaken,
    Short,
)
from holdfast.core.gateway.request.service import Served
from holdfast.core.gateway.routing.endpoints import Replica
from holdfast.model.gateway import Key

FREED_MAX = 2
BREATH_S = 0.3  # whoever has just failed it may still be going: a process takes a moment to die
BORROWS_MAX = 100
QUOTA_PATIENCE_S = 10.0  # a change of leader takes some three seconds, on a busy machine a few more
PASSING = ("unavailable", "recovering")  # refusals that say nothing of what was used
LOST = ("lost", "gone")  # while it was asked; gone: and there is no connection to it any more
UNTOLD = (*LOST, "timeout")  # what it has used until then, nobody says


class Attempt(Protocol):
    """The request at one replica."""

    @property
    def replica(self) -> Replica: ...
    @property
    def started(self) -> float: ...


A = TypeVar("A", bound=Attempt)
S = TypeVar("S", bound=Served[Any])


class Course(ABC, Generic[A, S]):
    """Most requests change few of these: as defaults of the class they cost nothing to begin with."""

    key: Key
    service: S | None = None
    model = ""
    named = ""  # as its service names it, a * too
    tokens = 0  # reserved
    cost = 0  # for the balance between replicas
    chain: PurseChain | None = None
    taken: PurseTaken | None = None
    settled = 0  # how often what was taken was settled: once
    short = 0  # how often quota had to be borrowed
    started: float
    tries: list[A]
    tried = 0
    freed = 0  # how often it was asked again because its replica was gone
    excluded: set[str] | None = None  # replicas that have failed it
    winner: A | None
    streams = False  # its answer begins before it is whole
    asked = False  # a replica has seen it
    once = False  # it must not be carried out twice: when a replica has seen it, no other does
    untold = False  # one has, and did not come to say what it used
    over = False
    held_since = -1.0  # never
    not_before = 0.0  # it is not asked again

    # what a step is, in the world of its shell

    @abstractmethod
    def borrow(self, short: Short) -> None:
        """Quota is asked for on its behalf; `take` again when there is an answer."""

    @abstractmethod
    def postpone(self) -> bool:
        """`take` again in a moment. False: too many wait for that."""

    @abstractmethod
    def attempt(self, replica: Replica, now: float) -> A: ...

    @abstractmethod
    def connect(self, attempt: A) -> None:
        """Ask: what comes of it is `chosen`, `passed_over` or `failed`, later."""

    @abstractmethod
    def let_go(self, attempt: A) -> None:
        """Its replica is not listened to any more. Perhaps not for the first time."""

    @abstractmethod
    def refused(self, refusal: Refusal) -> None:
        """Ends it: its quota has no room."""

    @abstractmethod
    def no_capacity(self) -> None:
        """Ends it: nobody can take it."""

    @abstractmethod
    def answer_as_turned_down(self, attempt: A) -> None:
        """Ends it: whoever was asked has enough to do, and there is no other."""

    @abstractmethod
    def answer_as_failed(self, attempt: A, why: str) -> None:
        """Ends it: whoever was asked failed, and there is no other."""

    @abstractmethod
    def answer_as_late(self, attempt: A) -> None:
        """Ends it: no answer in the time it may take."""

    @abstractmethod
    def cut(self, attempt: A, why: str) -> None:
        """Ends it in the middle of its answer."""

    @abstractmethod
    def goes_on(self, attempt: A) -> bool:
        """Can what was said so far be continued by another? Then that is what is asked from now on."""

    @abstractmethod
    def silent_s(self, now: float) -> float:
        """How long nothing has come of an answer that has begun, though it could have."""

    # let in

    def take(self, purse: Purse, now: float) -> None:
        """Reserve it. What is not lent to this gateway yet is asked for; many may want the same, so more than
        once if need be."""
        chain = self.chain = purse.chain(self.key, self.model, now, self.named)
        taken = purse.take(chain, self.tokens, now)
        if type(taken) is PurseTaken:
            self.taken = taken
            self.dispatch(now)
            return
        if isinstance(taken, Short):
            self.short += 1
            if self.short <= BORROWS_MAX:
                self.borrow(taken)
                return
            taken = Refusal("unavailable", "", 0.0, self.tokens, 1.0)
        assert isinstance(taken, Refusal)
        if taken.kind not in PASSING or not self._may_come_back(purse, taken.wait_s, now):
            self.refused(taken)

    def _may_come_back(self, purse: Purse, wait_s: float, now: float) -> bool:
        """Nothing is used up: the broker changes, and a request that can wait is taken when the next one
        lends. Where none has for too long, all are refused at once."""
        service = self.service
        if service is None or service.queue is None:
            return False
        waited_s = max(now - self.started, purse.silent_s(now))
        return waited_s + wait_s <= QUOTA_PATIENCE_S and self.postpone()

    def dispatch(self, now: float) -> None:
        service = self.service
        assert service is not None
        replica = None
        if not service.waiting or self.held_since >= 0 or self.tried:  # nobody is overtaken
            replica = service.pick(self, now)
        if replica is not None:
            self._ask(service, replica, now)
        elif not self._hold(service, now):
            self.no_capacity()

    # held

    def _hold(self, service: Served[Any], now: float) -> bool:
        """It waits until somebody can take it."""
        since = self.held_since if self.held_since >= 0 else now  # patience is for the whole of it
        if service.held(self, since):
            self.held_since = since
            return True
        return False

    def wake(self, now: float) -> bool:
        """There may be room now. False: there is not, and it should go on waiting."""
        service = self.service
        assert service is not None
        if now < self.not_before:
            return False
        replica = service.pick(self, now, patient=True)
        if replica is None:
            return False
        service.woke(now - self.held_since)
        self._ask(service, replica, now)
        return True

    def gave_up_waiting(self, now: float) -> None:
        self.no_capacity()

    # asked

    def _ask(self, service: Served[Any], replica: Replica, now: float) -> None:
        service.pool.dispatch(replica, self.cost)
        attempt = self.attempt(replica, now)
        self.tries.append(attempt)
        self.tried += 1
        self.connect(attempt)

    def chosen(self, attempt: A) -> None:
        """It has content: what it says is the answer, and nothing else is."""
        self.winner = attempt
        if len(self.tries) > 1:
            for other in self.tries[:]:
                if other is not attempt:
                    self._drop(other)

    # failed

    def passed_over(self, attempt: A, wait_s: float | None, now: float) -> None:
        """It was turned down, for so long; None: with an error. Another may take it."""
        service = self.service
        assert service is not None
        if wait_s is None:
            service.pool.failed(attempt.replica, now)
        else:
            service.pool.pushed_back(attempt.replica, wait_s, now)
        if not self._elsewhere(service, attempt, "", now, hold=wait_s is not None):
            self.answer_as_turned_down(attempt)

    def failed(self, attempt: A, why: str, kind: str, now: float) -> None:
        service = self.service
        assert service is not None
        service.failed(attempt.replica, kind, now)
        self.untold = self.untold or kind in UNTOLD
        if self.winner is attempt:
            self._cut(service, attempt, why, now)
        elif not self._elsewhere(service, attempt, kind, now, hold=kind != "error"):
            self._drop(attempt)
            self.answer_as_failed(attempt, why)

    def _elsewhere(self, service: Served[Any], attempt: A, kind: str, now: float, *, hold: bool) -> bool:
        if len(self.tries) > 1:  # the other one of a hedge may still answer
            self._drop(attempt)
            return True
        return self._may_try_again(service, kind, now) and self._try_another(service, attempt, now, hold=hold)

    def _may_try_again(self, service: Served[Any], kind: str, now: float) -> bool:
        if self.once and self.asked:
            return False
        if kind == "connect":
            self.tried -= 1
        elif self.tried >= service.settings.tries:
            return False
        elif kind not in LOST or self.freed >= FREED_MAX:
            return service.may_retry(now)
        else:
            self.freed += 1
        service.retries += 1
        return True

    def _try_another(self, service: Served[Any], attempt: A, now: float, *, hold: bool) -> bool:
        """False: there is no other. Then it may wait until one comes, or this one can again."""
        replica = self._another(service, attempt, now)
        if replica is None:
            self.excluded = None
            self.not_before = now + BREATH_S
            if not (hold and self._hold(service, now)):
                return False
        self._drop(attempt)
        if replica is not None:
            self._ask(service, replica, now)
        return True

    def _another(self, service: Served[Any], attempt: A, now: float) -> Replica | None:
        self.excluded = {*(self.excluded or ()), attempt.replica.id}
        return service.pick(self, now)

    def _cut(self, service: Served[Any], attempt: A, why: str, now: float) -> None:
        """After its first content an answer cannot be had again: go on elsewhere if that is asked for, or say
        what happened."""
        if not self._continue(service, attempt, now):
            self.cut(attempt, why)

    def _continue(self, service: Served[Any], attempt: A, now: float) -> bool:
        if not service.settings.continues or now - self.started > service.settings.total_s:
            return False
        if not (self.goes_on(attempt) and self._may_try_again(service, "", now)):
            return False
        replica = self._another(service, attempt, now)
        if replica is None:
            return False
        self.winner = None
        service.continued += 1
        self._drop(attempt)
        self._ask(service, replica, now)
        return True

    # late

    def look(self, now: float) -> None:
        """Is it late? Asked a few times a second."""
        service = self.service
        if self.over or service is None or not self.tries:
            return
        rules, winner = service.settings, self.winner
        if now - self.started > rules.total_s:
            self._too_late(service, now)
        elif winner is not None:
            silent_s = self.silent_s(now)
            if silent_s > service.stall_s:
                self._nothing_came(winner, silent_s, now)
        elif self.streams and now - self.tries[-1].started > rules.first_byte_s:
            self._nothing_came(self.tries[-1], rules.first_byte_s, now)
        elif len(self.tries) == 1 and not self.once:
            if self.tries[0].replica.lost:
                if self.tried < rules.tries and self._ask_another_too(service, now):
                    service.retries += 1
            elif rules.hedge and service.may_hedge(now - self.started, now):
                service.hedged += self._ask_another_too(service, now)

    def _nothing_came(self, attempt: A, silent_s: float, now: float) -> None:
        self.let_go(attempt)
        self.failed(attempt, f"nothing came for {silent_s:.0f} s", "timeout", now)

    def _too_late(self, service: Served[Any], now: float) -> None:
        attempt = self.winner or self.tries[-1]
        self.untold = True
        self.let_go(attempt)
        if self.winner is not None:
            self._cut(service, attempt, "it took longer than it may", now)
        else:
            self.answer_as_late(attempt)

    def _ask_another_too(self, service: Served[Any], now: float) -> bool:
        """Whoever answers first wins. False: there is no other."""
        excluded = self.excluded
        replica = self._another(service, self.tries[0], now)
        if replica is None:
            self.excluded = excluded
            return False
        self._ask(service, replica, now)
        return True

    # its end

    def _drop(self, attempt: A) -> None:
        """It is not asked there any more."""
        self.tries.remove(attempt)
        service = self.service
        assert service is not None
        service.pool.release(attempt.replica, self.cost)
        self.let_go(attempt)
        if service.waiting:
            service.pump_soon()

    def close(self, purse: Purse, actual: int | None, now: float) -> None:
        """The one end of all of it. None: nobody can say what was used, so all that was reserved."""
        self.over = True
        taken = self.taken
        if taken is not None:
            self.settled += purse.settle(taken, actual, now) if self.asked else purse.refund(taken, now)
        service = self.service
        if service is not None:
            for attempt in self.tries[:]:
                self._drop(attempt)
            if self.held_since >= 0:
                service.unheld(self)
            service.tries.request(now)
