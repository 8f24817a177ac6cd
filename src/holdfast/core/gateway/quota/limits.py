"""May this request run now, by all the limits that apply to it at once?

Up to six scopes apply to a request: its key, the key for this model, the team, the team for this model, the
model, and all together. Each may limit tokens a minute, requests a minute, requests at once, and tokens in
total. The rule: one step that first looks at every counter and then takes from all of them or from none. It
never waits in between, so within one process nothing can come between the look and the taking; between
processes the same step runs on leases (`lease`).

A request reserves what it may use (`estimate`) and settles exactly once:
- its use is known: the unused comes back, as far as `bucket` allows, and use beyond it is debt;
- its use is unknown: the reservation stays spent. Whoever hides the usage must not get it for nothing;
- nothing was ever asked of a replica: all comes back, the request too.
The place among the requests at once is free again in every case. A total has no clock, so its unused part
always comes back whole.

A refusal names the counter with the longest wait, and that wait is the true one: coming back after it, the
request fits if nobody else took more meanwhile. "never" needs more than a counter can ever hold, and "total"
is a budget that is spent: waiting helps neither. "recovering": whoever counts it has started anew, and does
not lend so much yet. Nobody knows when a running request will end, so a refusal
for want of a place says one second.

Refused: taking scope after scope and undoing it when a later one says no. What was taken for a moment has
meanwhile refused somebody else. Refused too: counting when the answer ends, which admits everything that
arrives before the first answer is complete.
"""

from collections.abc import Mapping
from math import exp, inf

from holdfast.core.gateway.quota.token_bucket import Bucket
from holdfast.model.gateway import (
    GLOBAL,
    Key,
    Limits,
    both,
    key_of,
    scope_of_key,
    scope_of_model,
    scope_of_team,
)

MINUTE_S = 60.0
PLACE_WAIT_S = 1.0
CHAINS_MAX = 100_000  # a caller may invent names of models; forgetting the chains costs microseconds
NO_LIMITS = Limits()


class Places:
    """How many may run at once."""

    __slots__ = ("limit", "scope", "used")

    def __init__(self, limit: int, scope: str) -> None:
        self.limit = limit
        self.scope = scope
        self.used = 0


class Budget:
    """How many tokens there are in all."""

    __slots__ = ("limit", "scope", "used")

    def __init__(self, limit: int, scope: str, used: int = 0) -> None:
        self.limit = limit
        self.scope = scope
        self.used = used


class Meter:
    """The counters of one scope; None: not limited in this way."""

    __slots__ = ("clamp", "limits", "places", "requests", "scope", "tokens", "total")

    def __init__(self, scope: str, limits: Limits, now: float, used: int = 0) -> None:
        self.scope = scope
        self.limits = limits
        self.clamp = 1.0
        self.tokens: Bucket | None = None
        self.requests: Bucket | None = None
        self.places: Places | None = None
        self.total = None if limits.tokens_total is None else Budget(limits.tokens_total, scope, used)
        self.change(limits, now)

    def change(self, limits: Limits, now: float) -> None:
        """New limits: what is counted so far stays counted."""
        self.limits = limits
        self.tokens = self._bucket(self.tokens, limits.tokens_per_min, limits.tokens_burst, now)
        self.requests = self._bucket(self.requests, limits.requests_per_min, limits.requests_burst, now)
        if limits.concurrent is None:
            self.places = None
        elif self.places is None:
            self.places = Places(limits.concurrent, self.scope)
        else:
            self.places.limit = limits.concurrent
        if limits.tokens_total is None:
            self.total = None
        elif self.total is None:
            self.total = Budget(limits.tokens_total, self.scope)
        else:
            self.total.limit = limits.tokens_total

    def _bucket(
        self, bucket: Bucket | None, per_min: int | None, burst: int | None, now: float
    ) -> Bucket | None:
        if per_min is None:
            return None
        capacity, rate = per_min if burst is None else burst, per_min * self.clamp / MINUTE_S
        if bucket is not None:
            bucket.change(capacity, rate, now)
            return bucket
        bucket = Bucket(capacity, rate, now, self.scope)
        bucket.lower(capacity * self.clamp, now)
        return bucket

    def hold_to(self, share: float, now: float) -> None:
        """A share of its rates, and if that is less than before, of what is there."""
        for bucket in (self.tokens, self.requests):
            if bucket is not None and share < self.clamp:
                bucket.lower(bucket.capacity * share, now)
        self.clamp = share
        self.change(self.limits, now)


class Chain:
    """The counters that apply to a key's requests for one model."""

    __slots__ = ("key", "places", "requests", "tokens", "totals")

    def __init__(self, key: Key, meters: list[Meter]) -> None:
        self.key = key
        self.tokens = tuple(meter.tokens for meter in meters if meter.tokens is not None)
        self.requests = tuple(meter.requests for meter in meters if meter.requests is not None)
        self.places = tuple(meter.places for meter in meters if meter.places is not None)
        self.totals = tuple(meter.total for meter in meters if meter.total is not None)


class Taken:
    __slots__ = ("chain", "marks", "settled", "tokens")

    def __init__(self, chain: Chain, tokens: int, marks: list[float]) -> None:
        self.chain = chain
        self.tokens = tokens
        self.marks = marks  # of the chain's token buckets, then of its request buckets
        self.settled = False


class Refusal:
    __slots__ = ("kind", "limit", "needed", "scope", "wait_s")

    def __init__(self, kind: str, scope: str, limit: float, needed: float, wait_s: float) -> None:
        self.kind = kind  # tokens, requests, concurrent, total, held, never, unavailable, recovering
        self.scope = scope
        self.limit = limit
        self.needed = needed
        self.wait_s = wait_s

    def __repr__(self) -> str:
        return f"Refusal({self.kind} {self.scope}: {self.needed:g} of {self.limit:g}, wait {self.wait_s:g} s)"


class Standing:
    """Of the tightest scope; -1 where nothing limits. A reset is when the bucket is full again."""

    __slots__ = (
        "limit_requests",
        "limit_tokens",
        "remaining_requests",
        "remaining_tokens",
        "reset_requests_s",
        "reset_tokens_s",
    )

    def __init__(self) -> None:
        self.limit_tokens = -1
        self.remaining_tokens = -1
        self.reset_tokens_s = -1.0
        self.limit_requests = -1
        self.remaining_requests = -1
        self.reset_requests_s = -1.0


def scopes_of(key: Key, model: str, named: str = "") -> list[str]:
    """All scopes of a request, the narrowest first; the first is the key's own. `named`: as the service that
    answers names the model, if that is by a name for many, `llama-*`: limits of it are those of all together,
    beside those of the one."""
    models = [model, named] if named and named != model else [model]
    own = scope_of_key(key.id)
    found = [own, *(both(own, each) for each in models)]
    if key.team:
        team = scope_of_team(key.team)
        found += [team, *(both(team, each) for each in models)]
    return [*found, *map(scope_of_model, models), GLOBAL]


class Ledger:
    def __init__(
        self, limits: Mapping[str, Limits], now: float, used: Mapping[str, int] | None = None
    ) -> None:
        """`used` is what `totals` once said, so that a budget survives a restart."""
        self._limits = dict(limits)
        self._used = dict(used or {})
        self._clamps: dict[str, float] = {}
        self._chains: dict[str, dict[str, Chain]] = {}
        self._chains_kept = 0
        self._meters = {scope: self._meter(scope, found, now) for scope, found in limits.items()}

    def _meter(self, scope: str, limits: Limits, now: float) -> Meter:
        return Meter(scope, limits, now, self._used.pop(scope, 0))

    def chain(self, key: Key, model: str, now: float) -> Chain:
        chains = self._chains.get(key.id)
        if chains is not None:
            found = chains.get(model)
            if found is not None and found.key is key:
                return found
        return self._link(key, model, now)

    def _link(self, key: Key, model: str, now: float) -> Chain:
        """A key of its own limits has a meter of its own; one without may have one that `set_limits` made."""
        own = scope_of_key(key.id)
        limits = key.limits if key.limits != NO_LIMITS else self._limits.get(own, NO_LIMITS)
        meter = self._meters.get(own)
        if meter is None:
            if limits != NO_LIMITS:
                meter = self._meters[own] = self._meter(own, limits, now)
                self._clamp(meter, key.id, now)
        elif meter.limits != limits:
            meter.change(limits, now)
            self._forget_chains(key.id)
        chain = Chain(key, [found for s in scopes_of(key, model) if (found := self._meters.get(s))])
        if self._chains_kept >= CHAINS_MAX:
            self._chains.clear()
            self._chains_kept = 0
        self._chains_kept += 1
        self._chains.setdefault(key.id, {})[model] = chain
        return chain

    def _forget_chains(self, key: str) -> None:
        self._chains_kept -= len(self._chains.pop(key, ()))

    def set_limits(self, scope: str, limits: Limits, now: float) -> None:
        self._limits[scope] = limits
        meter = self._meters.get(scope)
        if meter is None:
            self._meters[scope] = self._meter(scope, limits, now)
        else:
            meter.change(limits, now)
        self._chains.clear()
        self._chains_kept = 0

    def set_clamp(self, key: str, share: float, now: float) -> None:
        """Let a key have that share of its rates; 1 undoes it. What fitted before fits later (`bucket`)."""
        if share == 1.0:
            self._clamps.pop(key, None)
        else:
            self._clamps[key] = share
        meter = self._meters.get(scope_of_key(key))
        if meter is not None:
            self._clamp(meter, key, now)

    def _clamp(self, meter: Meter, key: str, now: float) -> None:
        share = self._clamps.get(key, 1.0)
        if meter.clamp != share:
            meter.hold_to(share, now)

    def forget_key(self, key: str) -> None:
        """Requests that still run settle as before, with nobody looking."""
        self._forget_chains(key)
        self._clamps.pop(key, None)
        for scope in [s for s in self._meters if key_of(s) == key]:
            del self._meters[scope]
            self._limits.pop(scope, None)

    def totals(self) -> dict[str, int]:
        """What is used of each budget, running requests as reserved."""
        used = {s: meter.total.used for s, meter in self._meters.items() if meter.total is not None}
        return {**self._used, **used}

    def take(self, chain: Chain, tokens: int, now: float) -> Taken | Refusal:
        tokens_of = chain.tokens
        requests_of = chain.requests
        for bucket in tokens_of:
            level = bucket.level
            if now > bucket.at:
                level += bucket.rate * (now - bucket.at)
                bucket.at = now
                if level + bucket.held > bucket.capacity:
                    level = bucket.spill(level)
                bucket.level = level
            if level < tokens:
                return refusal(chain, tokens, now)
        for bucket in requests_of:
            level = bucket.level
            if now > bucket.at:
                level += bucket.rate * (now - bucket.at)
                bucket.at = now
                if level + bucket.held > bucket.capacity:
                    level = bucket.spill(level)
                bucket.level = level
            if level < 1.0:
                return refusal(chain, tokens, now)
        for places in chain.places:
            if places.used >= places.limit:
                return refusal(chain, tokens, now)
        for total in chain.totals:
            if total.used + tokens > total.limit:
                return refusal(chain, tokens, now)
        marks = []
        for bucket in tokens_of:
            bucket.level -= tokens
            bucket.held += tokens
            marks.append(bucket.eaten)
        for bucket in requests_of:
            bucket.level -= 1.0
            bucket.held += 1.0
            marks.append(bucket.eaten)
        for places in chain.places:
            places.used += 1
        for total in chain.totals:
            total.used += tokens
        return Taken(chain, tokens, marks)

    def settle(self, taken: Taken, actual: int | None, now: float) -> bool:
        """Once, and True then. It happens at the moment to which a bucket was last filled, which saves the
        filling: the proof asks in which order, not when. The request as such stays held until time has eaten
        it, which only lowers what others may get back: cheaper than to look for its part."""
        if taken.settled:
            return False
        taken.settled = True
        chain, tokens, marks = taken.chain, taken.tokens, taken.marks
        used = tokens if actual is None else actual
        unused = tokens - used
        for bucket, mark in zip(chain.tokens, marks, strict=False):
            part: float = tokens if mark == bucket.eaten else tokens * exp(mark - bucket.eaten)
            held = bucket.held
            if part > held:
                part = held
            bucket.held = held - part
            bucket.level += unused if unused < part else part
        for places in chain.places:
            places.used -= 1
        if unused:
            for total in chain.totals:
                total.used -= unused
        return True

    def refund(self, taken: Taken, now: float) -> bool:
        """Nothing was ever asked of a replica."""
        if not self.settle(taken, 0, now):
            return False
        first = len(taken.chain.tokens)
        for at, bucket in enumerate(taken.chain.requests, first):
            bucket.settle(1.0, 0.0, taken.marks[at], now)
        return True

    def top_up(self, taken: Taken, more: int, now: float) -> bool:
        """A running request is found to use more than it reserved: now, and not only at its end."""
        if taken.settled or more <= 0:
            return False
        for bucket in taken.chain.tokens:
            bucket.take(more, now)
        for total in taken.chain.totals:
            total.used += more
        taken.tokens += more
        return True

    def standing(self, chain: Chain, now: float) -> Standing:
        return standing(chain, now)


def standing(chain: Chain, now: float) -> Standing:
    found = Standing()
    if chain.tokens:
        bucket, level = tightest(chain.tokens, now)
        found.limit_tokens = int(bucket.capacity)
        found.remaining_tokens = int(level) if level > 0.0 else 0
        found.reset_tokens_s = (bucket.capacity - level) / bucket.rate if bucket.rate > 0.0 else inf
    if chain.requests:
        bucket, level = tightest(chain.requests, now)
        found.limit_requests = int(bucket.capacity)
        found.remaining_requests = int(level) if level > 0.0 else 0
        found.reset_requests_s = (bucket.capacity - level) / bucket.rate if bucket.rate > 0.0 else inf
    return found


def tightest(buckets: tuple[Bucket, ...], now: float) -> tuple[Bucket, float]:
    least = buckets[0]
    level = inf
    for bucket in buckets:
        left = bucket.level
        if now > bucket.at:
            left += bucket.rate * (now - bucket.at)
            if left > bucket.capacity:
                left = bucket.capacity
        if left < level:
            least, level = bucket, left
    return least, level


def refusal(chain: Chain, tokens: int, now: float) -> Refusal:
    """Why not now: the counter that keeps it waiting longest, or for ever."""
    worst = Refusal("", "", 0.0, 0.0, -1.0)
    for kind, buckets, needed in (("tokens", chain.tokens, tokens), ("requests", chain.requests, 1)):
        for bucket in buckets:
            if needed > bucket.capacity:
                return Refusal("never", bucket.scope, bucket.capacity, needed, inf)
            wait = bucket.wait_s(needed, now)
            if wait > worst.wait_s and wait > 0.0:
                worst = Refusal(kind, bucket.scope, bucket.capacity, needed, wait)
    for places in chain.places:
        if places.limit < 1:
            return Refusal("never", places.scope, places.limit, 1, inf)
        if places.used >= places.limit and worst.wait_s < PLACE_WAIT_S:
            worst = Refusal("concurrent", places.scope, places.limit, 1, PLACE_WAIT_S)
    for total in chain.totals:
        if total.used + tokens > total.limit:
            return Refusal("total", total.scope, total.limit, tokens, inf)
    return worst
