"""One simulated request from its arrival to its end, at one gateway.

The twin of `gateway.exchange`, without bytes: what is decided (quota, which replica, who waits, whether it
may be tried again) the real core decides, and when it is asked is the same here as there. The two cannot be
one: the live one is a hot path of raw protocols, and neither of the packages may know the other.

Whatever ends it, `_end` is reached once: it settles what was reserved, lets go of the replicas, and is
counted as answered, as refused with a reason, or as cut after its first content.
"""

import enum
from typing import TYPE_CHECKING

from holdfast.core.gateway.purse import PurseTaken, Short
from holdfast.core.gateway.replicas import Replica
from holdfast.model.units import SECOND, Instant, Millis
from holdfast.sim.requests import Want
from holdfast.sim.serving import Stream
from holdfast.sim.traffic_checks import Taking

if TYPE_CHECKING:
    from holdfast.sim.front import Front
    from holdfast.sim.fronted import Fronted

FREED_MAX = 2  # as `gateway.exchange` has these four
BREATH_MS: Millis = 300
LEARN_ALL = 1_000
LEARN_EVERY = 8
BORROWS_MAX = 100


class End(enum.StrEnum):
    ANSWERED = "answered"
    REFUSED = "refused"
    CUT = "cut"  # after its first content
    GONE = "gone"  # with its gateway


class Exchange:
    __slots__ = (
        "end",
        "excluded",
        "first_at",
        "freed",
        "front",
        "held_since",
        "not_before",
        "reason",
        "service",
        "short",
        "started",
        "streams",
        "taken",
        "taking",
        "tokens",
        "tried",
        "waiting_for",
        "want",
        "winner",
    )

    def __init__(self, front: "Front", service: "Fronted", want: Want, now: Instant) -> None:
        self.front, self.service, self.want, self.started = front, service, want, now
        self.tokens = front.estimator.reserve(service.name, want.key.id, want.prompt_bytes, 0, want.most, 1)
        self.taken: PurseTaken | None = None
        self.taking: Taking | None = None  # for those who check
        self.streams: list[Stream] = []
        self.winner: Stream | None = None
        self.excluded: set[str] = set()  # replicas that have failed it
        self.short = self.tried = self.freed = 0
        self.held_since: Instant = -1
        self.not_before: Instant = 0  # it is not asked again
        self.first_at: Instant = -1
        self.end: End | None = None
        self.reason = ""
        self.waiting_for = ""  # quota, room: where it is, when it is not asked of anybody

    # let in

    def take(self) -> None:
        front, now_s = self.front, self.front.now_s
        self.waiting_for = ""
        chain = front.purse.chain(self.want.key, self.service.name, now_s)
        taken = front.purse.take(chain, self.tokens, now_s)
        if isinstance(taken, PurseTaken):
            self.taken = taken
            lent = taken.batches is not None
            self.taking = front.traffic.took(self.want.key, self.service.name, self.tokens, lent=lent)
            self.dispatch()
        elif isinstance(taken, Short):
            self.short += 1
            if self.short <= BORROWS_MAX:
                self.waiting_for = "quota"
                front.borrow(self, taken)
            else:
                self.refuse("unavailable")
        else:
            self.refuse(taken.kind, taken.scope)

    def dispatch(self) -> None:
        service, now = self.service, self.front.now
        replica = None
        if not service.waiting or self.held_since >= 0 or self.tried:
            replica = service.pick(self, now)
        if replica is not None:
            self._ask(replica, now)
        elif not self._hold(now):
            self._no_capacity()

    # held

    def _hold(self, now: Instant) -> bool:
        since = self.held_since if self.held_since >= 0 else now
        if not self.service.held(self, since):
            return False
        self.held_since, self.waiting_for = since, "room"
        return True

    def wake(self) -> bool:
        """There may be room now. False: there is not, and it should go on waiting."""
        now = self.front.now
        if now < self.not_before:
            return False
        replica = self.service.pick(self, now, patient=True)
        if replica is None:
            return False
        self.waiting_for = ""
        self.service.woke(self, now)
        self._ask(replica, now)
        return True

    def gave_up_waiting(self) -> None:
        self.front.traffic.checks.held_until(self, self.front.now)
        self._no_capacity()

    def _no_capacity(self) -> None:
        self.refuse("model_warming" if self.service.empty else "no_capacity")

    # asked

    def _ask(self, replica: Replica, now: Instant) -> None:
        self.front.traffic.checks.asked(self.service.pool, replica, now)
        self.service.pool.dispatch(replica, self.tokens)
        stream = Stream(self, self.front.name, replica, now)
        self.streams.append(stream)
        self.tried += 1
        serving = self.front.serving
        if self.service.idle_connection(replica):
            serving.send(stream)
        else:
            serving.connect(stream, self.front.traits.connect_ms)

    def won(self, stream: Stream) -> None:
        now = self.front.now
        self.winner, self.first_at = stream, now
        self.service.answered(stream.replica, now - self.started)
        for other in self.streams[:]:
            if other is not stream:
                self._drop(other)

    def completed(self, stream: Stream) -> None:
        want, front = self.want, self.front
        front.learned += 1
        self.service.keep_connection(stream.replica)
        if front.learned <= LEARN_ALL or front.learned % LEARN_EVERY == 0:
            front.estimator.learn(
                self.service.name, want.key.id, want.prompt_bytes, 0, want.prompt, want.answer
            )
            took_s = (front.now - self.first_at) / SECOND
            self.service.went(stream.replica, want.answer - 1, took_s, stream.gap_ms / SECOND)
        self._end(End.ANSWERED, want.prompt + want.answer)

    # failed

    def turned_down(self, stream: Stream) -> None:
        """429: another may take it; if none can, this is the answer."""
        now = self.front.now
        self.service.keep_connection(stream.replica)
        self.service.pool.pushed_back(stream.replica, 0.0, now / SECOND)
        if len(self.streams) > 1:
            self._drop(stream)
        elif not (self._may_try_again(now) and self._try_another(stream, now, hold=True)):
            self.refuse("busy")

    def failed(self, stream: Stream, why: str, kind: str) -> None:
        now = self.front.now
        self.service.failed(stream.replica, kind, now)
        if self.winner is stream:
            self.service.cut(stream.replica)
            self._end(End.CUT, None, why)
        elif len(self.streams) > 1:
            self._drop(stream)
        elif not (self._may_try_again(now, kind) and self._try_another(stream, now, hold=True)):
            self.refuse("upstream_failed")

    def _may_try_again(self, now: Instant, kind: str = "") -> bool:
        """As the live gateway has it: no connection is no try; what a replica that is gone left undone is
        asked of another, twice at most; all else is paid from the budget."""
        if kind == "connect":
            self.tried -= 1
        elif self.tried >= self.front.traits.tries:
            return False
        elif kind != "lost" or self.freed >= FREED_MAX:
            return self.service.tries.may_retry(now / SECOND)
        else:
            self.freed += 1
        return True

    def _try_another(self, stream: Stream, now: Instant, *, hold: bool) -> bool:
        self.excluded.add(stream.replica.id)
        replica = self.service.pick(self, now)
        if replica is None:
            self.excluded.clear()
            self.not_before = now + BREATH_MS
            if not (hold and self._hold(now)):
                return False
        self._drop(stream)
        self.service.asked_again(stream.replica)
        if replica is not None:
            self._ask(replica, now)
        return True

    def look(self, now: Instant) -> None:
        """Is it late?"""
        if not self.streams:
            return
        traits, winner = self.front.traits, self.winner
        if now - self.started > traits.total_ms:
            self._too_late()
        elif winner is not None:
            silent = winner.silent_since
            if 0 <= silent < now - self.service.stall_ms:
                self._late(winner, now - silent)
        elif now - self.streams[-1].started > traits.first_byte_ms:
            self._late(self.streams[-1], traits.first_byte_ms)
        elif traits.hedge and len(self.streams) == 1 and self.service.may_hedge(now - self.started, now):
            self.excluded.update(stream.replica.id for stream in self.streams)
            replica = self.service.pick(self, now)
            if replica is not None:
                self.service.hedged += 1
                self._ask(replica, now)

    def _late(self, stream: Stream, silent_ms: Millis) -> None:
        self.failed(stream, f"nothing came for {silent_ms / SECOND:.0f} s", "timeout")

    def _too_late(self) -> None:
        if self.winner is not None:
            self._end(End.CUT, None, "it took longer than it may")
        else:
            self.refuse("upstream_timeout")

    # its end

    def _drop(self, stream: Stream) -> None:
        self.streams.remove(stream)
        self.service.pool.release(stream.replica, self.tokens)
        self.front.serving.let_go(stream)
        if self.service.waiting:
            self.front.pump_soon(self.service)

    def refuse(self, reason: str, scope: str = "") -> None:
        self.reason = f"{reason} {scope}".strip()
        self._end(End.REFUSED, 0, self.reason)

    def _end(self, end: End, actual: int | None, reason: str = "") -> None:
        self.end, self.reason = end, reason
        front, now_s = self.front, self.front.now_s
        if self.taken is not None:
            assert self.taking is not None
            self.taking.used = self._used(actual)
            if self.tried:
                self.taking.settled += front.purse.settle(self.taken, actual, now_s)
            else:  # nothing was ever asked of a replica
                self.taking.settled += front.purse.refund(self.taken, now_s)
        for stream in self.streams[:]:
            self._drop(stream)
        if self.held_since >= 0:
            self.service.unheld(self)
        self.service.tries.request(now_s)
        front.ended(self)

    def _used(self, actual: int | None) -> int:
        """What it really used, as far as it was reserved: what goes beyond is debt."""
        if actual is None and self.winner is not None:
            actual = self.want.prompt + self.winner.said(self.front.now)
        used: int = actual or 0
        return min(self.tokens, used)

    def gone(self) -> None:
        """Its gateway died. What it had reserved its lease covers, and nobody settles it any more."""
        self.end = End.GONE
        if self.taking is not None:
            self.taking.used, self.taking.orphaned = self._used(None), True
        for stream in self.streams:
            self.front.serving.let_go(stream)
