"""May this request run now, by the slices that this worker holds?

A purse answers as a `quota.Ledger` does, in one step over all counters, but from what the broker lent it
(`lease`). Where a slice is too small it answers `Short`: its owner asks the broker and tries once more, and
then it is admitted, or refused with the broker's true wait. A refusal is remembered for a moment, so that a
caller who hammers does not make the worker hammer the broker.

What is taken goes with the batch of requests that the next ask tells as spent:
- settled before that ask: the unused goes straight back into the slice, if the lease it came from still runs;
- settled after it: the unused is told to the broker, which held it from then on, and counts as far as its
  bucket allows;
- settled while the answer is on its way: it waits for the answer. If that is lost, so is the unused part.
What is used beyond its reservation is told as debt.

When the lease is over and the broker is silent, closed (the default) refuses and open admits, counts, and
tells it all as debt later. Meanwhile it asks on for what it was short of, with nothing to tell: only an
answer ends the silence. Which is right is the operator's to say: a limit that guards money stays closed,
one that shares out spare capacity may open.

What of a slice stays here when nobody uses it: `pocket`.
"""

from collections.abc import Mapping
from math import exp, floor, inf

from holdfast.core.gateway.quota.broker import TTL_S, Ask, Grant, Grants, counter
from holdfast.core.gateway.quota.lent import LAPSE_S, Part
from holdfast.core.gateway.quota.limits import (
    CHAINS_MAX,
    MINUTE_S,
    NO_LIMITS,
    PLACE_WAIT_S,
    Refusal,
    Standing,
    scopes_of,
)
from holdfast.core.gateway.quota.slice import Batch, Pocket
from holdfast.model.gateway import Key, Limits, key_of, scope_of_key

READY_MAX = 64  # counters of which something is held ready: each is told with every full ask
HURRY_S = 0.02  # unused tokens of a counter that has little left are told at once, but not more often
DENIAL_S = 0.25  # a refusal of the broker holds for so long; others may return theirs earlier than it thought


class PurseChain:
    __slots__ = ("key", "named", "places", "requests", "tokens", "totals")

    def __init__(self, key: Key, named: str, pockets: list[Pocket]) -> None:
        self.key = key
        self.named = named  # as its service names the model
        self.tokens = tuple(one for one in pockets if one.kind == "tokens")
        self.requests = tuple(one for one in pockets if one.kind == "requests")
        self.places = tuple(one for one in pockets if one.kind == "concurrent")
        self.totals = tuple(one for one in pockets if one.kind == "total")


class PurseTaken:
    __slots__ = ("at", "batches", "chain", "settled", "tokens", "topped")

    def __init__(self, chain: PurseChain, tokens: int, batches: list[Batch] | None, at: float) -> None:
        self.chain = chain
        self.tokens = tokens
        self.batches = batches  # of the chain's tokens, then of its requests; None: admitted without a lease
        self.at = at
        self.topped = 0
        self.settled = False


class Short:
    """The slices do not suffice; the broker may have more."""

    __slots__ = ("wants",)

    def __init__(self, wants: dict[str, float]) -> None:
        self.wants = wants


class Purse:
    def __init__(self, holder: str, limits: Mapping[str, Limits], now: float, opens: bool = False) -> None:
        self.holder = holder
        self.opens = opens  # admit when the broker is silent
        self._limits = dict(limits)
        self._own: dict[str, Limits] = {}  # of keys that bring their limits with them
        self._clamps: dict[str, float] = {}
        self._pockets: dict[str, Pocket] = {}
        self._active: dict[Pocket, None] = {}
        self._chains: dict[str, dict[str, PurseChain]] = {}
        self._chains_kept = 0
        self._asked_at = now
        self._asked_of: list[Pocket] = []
        self._number = 0
        self._heard = 0
        self._term = ""
        self._alone = False
        self._alone_since = now
        self.hurries = False  # something came back that others may wait for

    # --- limits

    def chain(self, key: Key, model: str, now: float, named: str = "") -> PurseChain:
        chains = self._chains.get(key.id)
        if chains is not None:
            found = chains.get(model)
            if found is not None and found.key is key and found.named == named:
                return found
        return self._link(key, model, named)

    def _link(self, key: Key, model: str, named: str) -> PurseChain:
        own = scope_of_key(key.id)
        if self._own.get(own, NO_LIMITS) != key.limits:
            self._own[own] = key.limits
            self._chains_kept -= len(self._chains.pop(key.id, ()))
        pockets = [one for scope in scopes_of(key, model, named) for one in self._pockets_of(scope)]
        chain = PurseChain(key, named, pockets)
        if self._chains_kept >= CHAINS_MAX:
            self._forget_chains()
        self._chains_kept += 1
        self._chains.setdefault(key.id, {})[model] = chain
        return chain

    def _pockets_of(self, scope: str) -> list[Pocket]:
        limits = self._own.get(scope, NO_LIMITS)
        if limits == NO_LIMITS:
            limits = self._limits.get(scope, NO_LIMITS)
        if limits == NO_LIMITS:
            return []
        share = self._clamps.get(scope, 1.0)
        tokens = limits.tokens_per_min if limits.tokens_burst is None else limits.tokens_burst
        requests = limits.requests_per_min if limits.requests_burst is None else limits.requests_burst
        rows = (
            ("tokens", limits.tokens_per_min, tokens, share),
            ("requests", limits.requests_per_min, requests, share),
            ("concurrent", limits.concurrent, limits.concurrent, 1.0),
            ("total", limits.tokens_total, limits.tokens_total, 1.0),
        )
        found = []
        for kind, per_min, most, clamp in rows:
            if per_min is None or most is None:
                continue
            name = counter(kind, scope)
            pocket = self._pockets.get(name) or self._pockets.setdefault(name, Pocket(kind, scope))
            pocket.capacity, pocket.rate = float(most), per_min * clamp / MINUTE_S
            found.append(pocket)
        return found

    def _forget_chains(self) -> None:
        self._chains.clear()
        self._chains_kept = 0

    def set_limits(self, scope: str, limits: Limits, now: float) -> None:
        self._limits[scope] = limits
        self._forget_chains()

    def set_clamp(self, key: str, share: float, now: float) -> None:
        """When it begins, what is held counts less, as the rest does, and what runs returns nothing to it."""
        own = scope_of_key(key)
        before = self._clamps.get(own, 1.0)
        for kind in ("tokens", "requests") if share < before else ():
            pocket = self._pockets.get(counter(kind, own))
            if pocket is not None:
                pocket.have = float(floor(pocket.have * share / before))
                pocket.batch = Batch()
        self._clamps[own] = share
        self._forget_chains()

    def clamp_of(self, key: str) -> float:
        return self._clamps.get(scope_of_key(key), 1.0)

    def forget_key(self, key: str) -> None:
        own = scope_of_key(key)
        self._forget_chains()
        self._clamps.pop(own, None)
        self._own.pop(own, None)
        for scope in [s for s in self._limits if key_of(s) == key]:
            del self._limits[scope]
        for name in [n for n, one in self._pockets.items() if key_of(one.scope) == key]:
            del self._pockets[name]

    # --- requests

    def take(self, chain: PurseChain, tokens: int, now: float) -> PurseTaken | Refusal | Short:
        for pocket in chain.tokens:
            if pocket.have < tokens or now >= pocket.until:
                return self._lacking(chain, tokens, now)
        for pocket in chain.requests:
            if pocket.have < 1.0 or now >= pocket.until:
                return self._lacking(chain, tokens, now)
        for pocket in chain.places:
            if pocket.have < 1.0 or now >= pocket.until:
                return self._lacking(chain, tokens, now)
        for pocket in chain.totals:
            if pocket.have < tokens:
                return self._lacking(chain, tokens, now)
        batches = []
        for pocket in chain.tokens:
            pocket.have -= tokens
            pocket.spent += tokens
            batches.append(pocket.batch)
        for pocket in chain.requests:
            pocket.have -= 1.0
            pocket.spent += 1.0
            batches.append(pocket.batch)
        for pocket in chain.places:
            pocket.have -= 1.0
            pocket.busy += 1.0
        for pocket in chain.totals:
            pocket.have -= tokens
            pocket.busy += tokens
        return PurseTaken(chain, tokens, batches, now)

    def _lacking(self, chain: PurseChain, tokens: int, now: float) -> PurseTaken | Refusal | Short:
        """Never, not now, or not here: in this order."""
        wants: dict[str, float] = {}
        worst: Refusal | None = None
        for pockets, need in (
            (chain.tokens, float(tokens)),
            (chain.requests, 1.0),
            (chain.places, 1.0),
            (chain.totals, float(tokens)),
        ):
            for pocket in pockets:
                if need > pocket.capacity:
                    kind = "total" if pocket.kind == "total" else "never"
                    return Refusal(kind, pocket.scope, pocket.capacity, need, inf)
                pocket.expire(now)
                pocket.need = max(pocket.need, need)
                if pocket.have >= need and now < pocket.until:
                    continue
                self._active[pocket] = None
                wants[pocket.name] = max(1.0, need - pocket.have)
                answer = denial(pocket, need, now)
                if answer is not None and (worst is None or answer.wait_s > worst.wait_s):
                    worst = answer
        if self._alone:
            return self._without_lease(chain, tokens, now)
        return worst or Short(wants)

    def _without_lease(self, chain: PurseChain, tokens: int, now: float) -> PurseTaken | Refusal:
        if not self.opens:
            return Refusal("unavailable", "", 0.0, tokens, PLACE_WAIT_S)
        for pocket in chain.places:
            pocket.busy += 1.0
            self._active[pocket] = None
        for pocket in chain.tokens + chain.requests + chain.totals:
            self._active[pocket] = None
        return PurseTaken(chain, tokens, None, now)

    def settle(self, taken: PurseTaken, actual: int | None, now: float) -> bool:
        return self._end(taken, taken.tokens + taken.topped if actual is None else actual, False, now)

    def refund(self, taken: PurseTaken, now: float) -> bool:
        return self._end(taken, 0, True, now)

    def _end(self, taken: PurseTaken, used: int, refunded: bool, now: float) -> bool:
        if taken.settled:
            return False
        taken.settled = True
        chain, tokens, batches = taken.chain, taken.tokens, taken.batches
        for pocket in chain.places:
            pocket.busy -= 1.0
            if now < pocket.until and batches is not None:
                pocket.have += 1.0
                self.hurries = self.hurries or pocket.scarce
        if batches is None:
            self._owe(chain, used, 0.0 if refunded else 1.0)
            return True
        unused = tokens - used
        for pocket in chain.totals:
            pocket.busy -= tokens
            if unused > 0:
                pocket.spent += used
                pocket.have += unused
            else:
                pocket.spent += tokens
        if unused < 0:
            self._owe(chain, max(0, -unused - taken.topped), 0.0)
            unused = 0
        for pocket, batch in zip(chain.tokens, batches, strict=False):
            if unused and pocket.left < pocket.capacity / 2 and now - self._asked_at >= HURRY_S:
                self.hurries = True  # whoever is refused meanwhile would be told to wait for too long
            if batch is not pocket.batch:
                self._tell_later(pocket, batch, tokens, unused)
            elif unused and now < pocket.until and taken.at >= pocket.since:
                pocket.have += unused
                pocket.spent -= unused
        if refunded:
            for pocket, batch in zip(chain.requests, batches[len(chain.tokens) :], strict=True):
                if batch is not pocket.batch:
                    self._tell_later(pocket, batch, 1.0, 1.0)
                elif now < pocket.until and taken.at >= pocket.since:
                    pocket.have += 1.0
                    pocket.spent -= 1.0
        return True

    def _owe(self, chain: PurseChain, tokens: float, requests: float) -> None:
        for pocket in chain.tokens + chain.totals:
            pocket.debt += tokens
            self._active[pocket] = None
        for pocket in chain.requests:
            pocket.debt += requests
            self._active[pocket] = None

    def _tell_later(self, pocket: Pocket, batch: Batch, reserved: float, unused: float) -> None:
        """The broker was told that this is spent; of what it does not hold, nothing comes back."""
        if batch is pocket.asked:
            batch.later.append((reserved, unused))
        elif batch.mark > -inf and batch.term == self._term:
            pocket.let_go(reserved, unused, batch.mark)
            self._active[pocket] = None

    def top_up(self, taken: PurseTaken, more: int, now: float) -> bool:
        """Told as debt at once; of this nothing comes back."""
        if taken.settled or more <= 0:
            return False
        taken.topped += more
        if taken.batches is not None:
            self._owe(taken.chain, more, 0.0)
        return True

    def standing(self, chain: PurseChain, now: float) -> Standing:
        """By what it holds and what the broker last had."""
        found = Standing()
        if chain.tokens:
            pocket, level = tightest(chain.tokens)
            found.limit_tokens, found.remaining_tokens = int(pocket.capacity), int(level)
            found.reset_tokens_s = (pocket.capacity - level) / pocket.rate if pocket.rate > 0.0 else inf
        if chain.requests:
            pocket, level = tightest(chain.requests)
            found.limit_requests, found.remaining_requests = int(pocket.capacity), int(level)
            found.reset_requests_s = (pocket.capacity - level) / pocket.rate if pocket.rate > 0.0 else inf
        return found

    # --- the broker

    def ask(
        self,
        now: float,
        wants: Mapping[str, float] | None = None,
        full: bool = False,
        leaving: bool = False,
    ) -> Ask:
        """What to send to the broker: with the wants of a `Short` when one came, and in full every `SLICE_S`
        and when something hurries. `leaving`: for the last time, and nothing is kept. An earlier ask without
        an answer is given up: its answer will not be listened to."""
        wanted = wants or {}
        self.hurries = self.hurries and not full
        for name in wanted:
            if name in self._pockets:
                self._active[self._pockets[name]] = None
        told = self._to_tell() if full else [self._pockets[n] for n in wanted if n in self._pockets]
        parts: dict[str, Part] = {}
        resting = 0
        for pocket in told:
            pocket.expire(now)
            want = wanted.get(pocket.name, 0.0)
            if full:
                pocket.rest()
                if not want:
                    resting += pocket.rests > 0
                    if pocket.rests and resting > READY_MAX:
                        pocket.have = 0.0
                    else:
                        pocket.have = pocket.keep()
                        want = pocket.beforehand()
                if leaving:
                    pocket.have = want = 0.0
                if pocket.idle and pocket.home and not want and not self._alone:
                    del self._active[pocket]
                    continue
            parts[pocket.name] = pocket.part(want)
        self._asked_at = now
        self._asked_of = [pocket for pocket in told if pocket.name in parts]
        self._number += 1
        return Ask(self.holder, self._number, self._term, full, parts)

    def _to_tell(self) -> list[Pocket]:
        """Not of keys that were deleted: one made anew under the same name has counters of its own."""
        for pocket in [one for one in self._active if self._pockets.get(one.name) is not one]:
            del self._active[pocket]
        return list(self._active)

    def worth_asking(self, name: str, amounts: list[float]) -> float:
        """What to want when many are short of it: all of it if the broker seemed to have that much, for it
        lends what is wanted whole or not at all; at least what the largest needs."""
        pocket = self._pockets.get(name)
        left = pocket.left if pocket is not None else 0.0
        return max(max(amounts), min(sum(amounts), left))

    def hear(self, grants: Grants, now: float) -> bool:
        """The broker's answer, if it is the one to the latest ask."""
        if grants.number != self._number or grants.number == self._heard:
            return False
        self._heard = grants.number
        self._alone = False
        known = grants.term == self._term
        if not known:
            self._term = grants.term
            for pocket in self._pockets.values():
                pocket.begin_anew(now)
        for pocket in self._asked_of:
            pocket.spent -= pocket.sent_spent
            pocket.debt -= pocket.sent_debt
            batch, pocket.asked = pocket.asked, None
            grant = grants.grants.get(pocket.name)
            if grant is None or batch is None:
                continue
            self._fill(pocket, grant, known, now)
            pocket.home = pocket.sent_none and not grant.amount
            if grant.holds:
                batch.term, batch.mark = grants.term, grant.mark
                for reserved, unused in batch.later:
                    pocket.let_go(reserved, unused, batch.mark)
            batch.later.clear()
        return True

    def _fill(self, pocket: Pocket, grant: Grant, known: bool, now: float) -> None:
        if known and pocket.freed:
            share = exp(min(0.0, pocket.mark - grant.mark))
            pocket.freed *= share
            pocket.back *= share
        pocket.mark = grant.mark
        if now >= pocket.until:
            pocket.have = 0.0
            pocket.since = now
        if pocket.kind != "total":
            pocket.until = self._asked_at + TTL_S
        if now < pocket.until:
            pocket.have += grant.amount
        pocket.left = max(0.0, grant.left)
        pocket.pressed = grant.pressed
        pocket.denied_until = now + DENIAL_S if grant.wait_s > 0.0 else 0.0
        pocket.denied_need = pocket.sent_need
        pocket.ready_at = now + grant.wait_s
        pocket.recovering = grant.recovering

    def silent(self) -> None:
        """The broker did not answer; until it does, the policy for that holds where the slices end."""
        if not self._alone:
            self._alone_since = self._asked_at
        self._alone = True

    def silent_s(self, now: float) -> float:
        """How long the broker has not answered; 0: it has."""
        return now - self._alone_since if self._alone else 0.0


def denial(pocket: Pocket, need: float, now: float) -> Refusal | None:
    """What the broker said a moment ago, as far as it says something of this need."""
    ready_at = pocket.ready_at
    more = need - pocket.denied_need
    if pocket.kind in ("tokens", "requests") and pocket.rate > 0.0:
        ready_at += more / pocket.rate
    elif more < 0.0:
        return None
    if now >= pocket.denied_until or now >= ready_at:
        return None
    kind = pocket.kind
    if pocket.recovering and ready_at < inf:
        kind = "recovering"
    elif kind == "total" and (ready_at < inf or pocket.busy):
        kind = "held"  # requests that run, here or elsewhere, may return what they do not use
        ready_at = min(ready_at, now + LAPSE_S)
    return Refusal(kind, pocket.scope, pocket.capacity, need, ready_at - now)


def tightest(pockets: tuple[Pocket, ...]) -> tuple[Pocket, float]:
    least = pockets[0]
    level = inf
    for pocket in pockets:
        left = pocket.have + pocket.left
        if left < level:
            least, level = pocket, left
    return least, level if level < least.capacity else least.capacity
