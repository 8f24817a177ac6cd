"""One simulated request from its arrival to its end, at one gateway, without bytes.

What is done when is `core.gateway.request.lifecycle`, the same as in the gateway that serves; here is what
its steps are in simulated time, and who looks on: the checks, the tallies and the teller of the story. Times
are seconds, as the core has them.

Whatever ends it, `_end` is reached once, and it is counted as answered, as refused with a reason, or as cut
after its first content.
"""

import enum
from typing import TYPE_CHECKING, Any

from holdfast.core.gateway.quota.limits import Refusal
from holdfast.core.gateway.quota.local_quota import Short
from holdfast.core.gateway.request.lifecycle import Course
from holdfast.core.gateway.request.service import Served
from holdfast.core.gateway.request.token_estimate import LEARN_ALL, LEARN_EVERY
from holdfast.core.gateway.routing.endpoints import Replica
from holdfast.model.gateway import Key
from holdfast.model.units import SECOND
from holdfast.sim.checks.traffic_checks import Taking
from holdfast.sim.traffic.replicas import Stream
from holdfast.sim.traffic.requests import Want

if TYPE_CHECKING:
    from holdfast.sim.traffic.gateway import Front
    from holdfast.sim.traffic.service import Fronted


class End(enum.StrEnum):
    ANSWERED = "answered"
    REFUSED = "refused"
    CUT = "cut"  # after its first content
    GONE = "gone"  # with its gateway


class Exchange(Course[Stream, "Fronted"]):
    service: "Fronted"
    streams = True
    taking: Taking | None = None  # for those who check
    first_at = -1.0
    end: End | None = None
    reason = ""
    lined_up_at = -1.0  # when it began to wait, for the first time or again
    waiting_for = ""  # quota, room: where it is, when it is not asked of anybody

    def __init__(self, front: "Front", service: "Fronted", want: Want, key: Key) -> None:
        self.front, self.service, self.want, self.started = front, service, want, front.now_s
        self.key, self.model = key, service.name
        self.tokens = self.cost = front.estimator.reserve(
            service.name, key.id, want.prompt_bytes, 0, want.most, 1
        )
        self.tries = []
        self.winner = None

    # let in

    def lent(self) -> None:
        self.waiting_for = ""
        self.take(self.front.purse, self.front.now_s)

    def borrow(self, short: Short) -> None:
        self.waiting_for = "quota"
        self.front.borrow(self, short)

    def postpone(self) -> bool:
        self.waiting_for = "quota"
        self.front.postponed.append(self)
        return True

    def refused(self, refusal: Refusal) -> None:
        self.refuse(refusal.kind, refusal.scope)

    def dispatch(self, now: float) -> None:
        assert self.taken is not None
        lent = self.taken.batches is not None
        self.taking = self.front.traffic.took(self.key, self.model, self.tokens, lent=lent)
        super().dispatch(now)

    # held

    def _hold(self, service: Served[Any], now: float) -> bool:
        held = super()._hold(service, now)
        if held:
            self.waiting_for, self.lined_up_at = "room", now
        return held

    def wake(self, now: float) -> bool:
        if not super().wake(now):
            return False
        self.front.traffic.checks.held_until(self, now)
        return True

    def gave_up_waiting(self, now: float) -> None:
        self.front.traffic.checks.held_until(self, now)
        super().gave_up_waiting(now)

    def no_capacity(self) -> None:
        self.refuse("model_warming" if self.service.empty else "no_capacity")

    # asked

    def attempt(self, replica: Replica, now: float) -> Stream:
        self.front.traffic.checks.asked(self.service.pool, replica)
        self.waiting_for = ""
        return Stream(self, self.front.name, replica, now)

    def connect(self, attempt: Stream) -> None:
        if self.service.idle_connection(attempt.replica):
            self.front.serving.send(attempt)
        else:
            self.front.serving.connect(attempt, self.front.traits.connect_ms)

    def sent(self, attempt: Stream) -> None:
        """There is a connection, and the request is on it."""
        self.asked = True

    def won(self, attempt: Stream) -> None:
        now = self.front.now_s
        self.chosen(attempt)
        self.service.succeeded(attempt.replica)
        if self.first_at < 0:
            self.first_at = now
            self.service.began(now - self.started)

    def completed(self, attempt: Stream) -> None:
        want, front = self.want, self.front
        front.learned += 1
        self.service.keep_connection(attempt.replica)
        if front.learned <= LEARN_ALL or front.learned % LEARN_EVERY == 0:
            front.estimator.learn(self.model, self.key.id, want.prompt_bytes, 0, want.prompt, want.answer)
            took_s = front.now_s - attempt.first_at / SECOND
            self.service.went(attempt.replica, want.answer - 1, took_s, attempt.gap_ms / SECOND)
        self._end(End.ANSWERED, want.prompt + want.answer)

    # failed

    def turned_down(self, attempt: Stream) -> None:
        """429, and it does not say for how long."""
        self.service.keep_connection(attempt.replica)
        self.passed_over(attempt, 0.0, self.front.now_s)

    def lost(self, attempt: Stream, why: str, kind: str) -> None:
        self.failed(attempt, why, kind, self.front.now_s)

    def _try_another(self, service: Served[Any], attempt: Stream, now: float, *, hold: bool) -> bool:
        another = super()._try_another(service, attempt, now, hold=hold)
        if another:
            self.service.asked_again(attempt.replica)
        return another

    def _ask_another_too(self, service: Served[Any], now: float) -> bool:
        replica = self.tries[0].replica
        another = super()._ask_another_too(service, now)
        if another and replica.lost:
            self.service.asked_again(replica)
        return another

    def answer_as_turned_down(self, attempt: Stream) -> None:
        self.refuse("busy")

    def answer_as_failed(self, attempt: Stream, why: str) -> None:
        self.refuse("upstream_failed")

    def answer_as_late(self, attempt: Stream) -> None:
        self.refuse("upstream_timeout")

    def cut(self, attempt: Stream, why: str) -> None:
        self.service.cut(attempt.replica)
        self._end(End.CUT, None, why)

    def goes_on(self, attempt: Stream) -> bool:
        """What was said becomes part of what is read."""
        said = attempt.said(self.front.now)
        if said >= self.want.answer:
            return False
        self.want = self.want.after(said)
        return True

    def silent_s(self, now: float) -> float:
        winner = self.winner
        return now - winner.silent_since / SECOND if winner is not None and winner.silent_since >= 0 else 0.0

    # its end

    def let_go(self, attempt: Stream) -> None:
        self.front.serving.let_go(attempt)

    def refuse(self, reason: str, scope: str = "") -> None:
        """Where an answer has begun, and what should go on with it does not, it is cut."""
        if self.first_at >= 0:
            self._end(End.CUT, None, reason)
        else:
            self._end(End.REFUSED, None if self.untold else 0, f"{reason} {scope}".strip())

    def _end(self, end: End, actual: int | None, reason: str = "") -> None:
        self.end, self.reason = end, reason
        used = self._used(actual)
        self.close(self.front.purse, actual, self.front.now_s)
        if self.front.purse.hurries:
            self.front.report()
        if self.taking is not None:
            self.taking.used, self.taking.settled = used, self.settled
        self.front.ended(self)

    def _used(self, actual: int | None) -> int:
        """What it really used, as far as it was reserved: what goes beyond is debt."""
        if actual is None and self.first_at >= 0:
            said = self.winner.said(self.front.now) if self.winner is not None else 0
            actual = self.want.prompt + said
        used: int = actual or 0
        return min(self.tokens, used)

    def gone(self) -> None:
        """Its gateway died. What it had reserved its lease covers, and nobody settles it any more."""
        self.end = End.GONE
        if self.taking is not None:
            self.taking.used, self.taking.orphaned = self._used(None), True
        for attempt in self.tries:
            self.front.serving.let_go(attempt)
