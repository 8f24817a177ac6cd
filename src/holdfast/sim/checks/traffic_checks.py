"""What must hold of single requests, whatever happens to gateways, replicas and control planes.

Each promise is a small function named by its sentence; it answers with what breaks it. Some are asked when a
request is sent or let go, for the moment would be over; the others at the end, when it is known what every
request really used.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from holdfast.core.gateway.key_audit.audit import HOLDS, Family, Judgement
from holdfast.core.gateway.key_audit.enforcement import RESTORED_MS
from holdfast.core.gateway.quota.limits import scopes_of
from holdfast.core.gateway.routing.balancer import Pool
from holdfast.core.gateway.routing.endpoints import Replica
from holdfast.model.gateway import Grade, Key, Limits
from holdfast.model.units import MINUTE, NEVER, SECOND, Instant, Millis, many, seconds

if TYPE_CHECKING:
    from holdfast.sim.traffic.exchange import Exchange
    from holdfast.sim.traffic.traffic import Traffic

ROUNDING = 1e-6
LOOK_MS: Millis = 100  # a gateway looks so often who is late
LATE_MS = 3 * LOOK_MS  # nobody is told to the millisecond
KNOWN_MS = 5 * SECOND  # by then a gateway that is connected has heard of it


class Taking:
    """What was reserved for a request, and what came of it."""

    __slots__ = ("at", "lent", "orphaned", "reserved", "scopes", "settled", "used")

    def __init__(self, at: Instant, scopes: tuple[str, ...], reserved: int, *, lent: bool) -> None:
        self.at, self.scopes, self.reserved = at, scopes, reserved
        self.lent = lent  # under a lease; else let in because nobody could say what is left
        self.used: int | None = None  # as far as it was reserved; None: not over
        self.settled = 0
        self.orphaned = False  # its gateway died: nobody settles it any more


class Checks:
    def __init__(self, traffic: "Traffic") -> None:
        self.traffic = traffic
        self._scopes: dict[tuple[str, str], tuple[str, ...]] = {}
        self._restored: dict[str, Instant] = {}

    def scopes(self, key: Key, model: str) -> tuple[str, ...]:
        """Those of its scopes that have a limit."""
        found = self._scopes.get((key.id, model))
        if found is None:
            limits = self.traffic.limits
            found = self._scopes[key.id, model] = tuple(s for s in scopes_of(key, model) if s in limits)
        return found

    # as it happens

    def asked(self, pool: Pool, replica: Replica) -> None:
        why = nobody_is_asked_who_is_out_while_others_could_answer(pool, replica)
        if why:
            self.traffic.sim.truth.violated(why)

    def held_until(self, exchange: "Exchange", now_s: float) -> None:
        """Its patience is for the whole of it: if that was over when it had to wait again, it is refused."""
        waited = round((now_s - exchange.held_since) * SECOND)
        asked = round((exchange.lined_up_at - exchange.held_since) * SECOND)
        patience = max(self.traffic.traits.patience_ms, asked)
        why = whoever_is_held_is_answered_or_refused_in_its_patience(waited, patience)
        if why:
            self.traffic.sim.truth.violated(f"{exchange.service.name} at {exchange.front.name}: {why}")

    def judged(self, key: str, judgement: Judgement) -> None:
        why = no_key_is_held_back_on_drain_alone(judgement)
        if why:
            self.traffic.sim.truth.violated(f"{key}: {why}")

    def keys_changed(self, before: Mapping[str, Key], after: Mapping[str, Key]) -> None:
        now = self.traffic.sim.kernel.now
        for id, key in after.items():
            was = before.get(id)
            if was is not None and was.grade in HOLDS and key.grade is Grade.FINE:
                self._restored[id] = now
            elif key.grade in HOLDS and (was is None or was.grade not in HOLDS):
                why = a_restored_key_is_left_alone_for_a_day(now - self._restored.get(id, -RESTORED_MS))
                if why:
                    self.traffic.sim.truth.violated(f"{id}: {why}")

    def served(self, exchange: "Exchange") -> None:
        """Asked when a request comes to a gateway that could know."""
        id, front = exchange.key.id, exchange.front
        restored_at = self._restored.get(id, NEVER)
        if self.traffic.sim.kernel.now - restored_at > KNOWN_MS and front.seen == self.traffic.newest:
            why = a_restored_key_serves_again(exchange.key, front.purse.clamp_of(id))
            if why:
                self.traffic.sim.truth.violated(f"{id} at {front.name}: {why}")

    # at the end

    def audit(self) -> None:
        traffic = self.traffic
        found = [
            *no_interval_admits_more_than_its_limit(traffic.takings, traffic.limits),
            *no_budget_is_overdrawn(traffic.takings, traffic.limits),
            *every_reservation_is_settled_exactly_once(traffic.takings),
            *no_request_is_lost(traffic),
        ]
        for why in found:
            traffic.sim.truth.violated(why)
        for front in traffic.fronts.values():
            for exchange in front.exchanges:
                if exchange.waiting_for == "room":
                    self.held_until(exchange, front.now_s)


def no_interval_admits_more_than_its_limit(
    takings: Iterable[Taking], limits: Mapping[str, Limits]
) -> Iterator[str]:
    """Over all gateways together: what was admitted within T uses at most the capacity and what T brings.

    A bucket that leaks at the rate and takes in what was used never holds more than the capacity: that is the
    same for every interval at once. What was let in without a lease is not promised."""
    rows = [taking for taking in takings if taking.lent]
    for scope, found in limits.items():
        mine = [taking for taking in rows if scope in taking.scopes]
        tokens = [(t.at, t.reserved if t.used is None else t.used) for t in mine]
        requests = [(t.at, 1) for t in mine if t.used != 0]
        yield from _within(scope, "tokens", tokens, found.tokens_per_min, found.tokens_burst)
        yield from _within(scope, "requests", requests, found.requests_per_min, found.requests_burst)


def _within(
    scope: str, what: str, used: list[tuple[Instant, int]], per_min: int | None, burst: int | None
) -> Iterator[str]:
    if per_min is None:
        return
    capacity, rate = float(per_min if burst is None else burst), per_min / MINUTE
    level, last = 0.0, 0
    for at, amount in used:
        level = max(0.0, level - rate * (at - last)) + amount
        last = at
        if level > capacity * (1 + ROUNDING) + ROUNDING:
            more = f"{level - capacity:.1f} {what} more than {capacity:g} and {per_min} a minute"
            yield f"{scope}: by {at / SECOND:.1f}s {more} were admitted"
            return


def no_budget_is_overdrawn(takings: Iterable[Taking], limits: Mapping[str, Limits]) -> Iterator[str]:
    rows = [taking for taking in takings if taking.lent]
    for scope, found in limits.items():
        if found.tokens_total is not None:
            used = sum(t.reserved if t.used is None else t.used for t in rows if scope in t.scopes)
            if used > found.tokens_total:
                yield f"{scope}: {used} tokens were used of a budget of {found.tokens_total}"


def every_reservation_is_settled_exactly_once(takings: Iterable[Taking]) -> Iterator[str]:
    """Of a request that is over and whose gateway lives."""
    for taking in takings:
        over = taking.used is not None and not taking.orphaned
        if taking.settled != over:
            yield f"what was reserved at {taking.at / SECOND:.1f}s was settled {many(taking.settled, 'time')}"


def no_request_is_lost(traffic: "Traffic") -> Iterator[str]:
    """Each was answered, refused with a reason, or cut after its content; or is there, and on its way."""
    for name, tally in traffic.tallies.items():
        there = sum(e.service.name == name for f in traffic.fronts.values() for e in f.exchanges)
        if tally.asked != tally.over + there:
            yield f"{name}: {tally.asked} were asked, {tally.over} ended and {there} are on their way"
    for front in traffic.fronts.values():
        for exchange in front.exchanges:
            if not exchange.tries and not exchange.waiting_for:
                since = f"{exchange.started:.1f}s"
                yield f"{exchange.service.name} at {front.name}: nobody works on a request of {since}"


def nobody_is_asked_who_is_out_while_others_could_answer(pool: Pool, replica: Replica) -> str:
    """Draining: never. Ejected: for its trial, or because most of its level is out and we doubt ourselves."""
    if replica.draining:
        return f"{replica.id} is asked, though it is draining"
    if not replica.health.ejected:
        return ""
    level = replica.level
    if replica.health.early and 2 * len(level.ready) >= len(level.members):
        return f"{replica.id} is asked before its trial is due, with {len(level.ready)} others ready"
    return ""


def no_key_is_held_back_on_drain_alone(judgement: Judgement) -> str:
    """That it takes much is no reason: a launch does that."""
    if judgement.grade in HOLDS and all(reason.family is Family.DRAIN for reason in judgement.reasons):
        return f"it is to be held back ({judgement.grade}), and nothing but what it takes speaks against it"
    return ""


def a_restored_key_is_left_alone_for_a_day(after_ms: Millis) -> str:
    """A person has looked."""
    if after_ms < RESTORED_MS:
        return f"it is held back again {seconds(after_ms)} after it was restored"
    return ""


def a_restored_key_serves_again(key: Key, share: float) -> str:
    if key.suspended:
        return "it was restored, and is refused as suspended"
    return f"it was restored, and gets {share:.0%} of what it may" if share < 1.0 else ""


def whoever_is_held_is_answered_or_refused_in_its_patience(waited_ms: Millis, patience_ms: Millis) -> str:
    if waited_ms > patience_ms + LATE_MS:
        return f"a request was held for {seconds(waited_ms)}, and its patience is {seconds(patience_ms)}"
    return ""
