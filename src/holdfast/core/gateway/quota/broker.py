"""How do many workers share one limit without asking for every request?

The broker lends each holder a slice of what there is, and the holder admits from its slice (`purse`). A slice
is taken off the level when it is granted. The rule that keeps the bound of `bucket` over every interval,
however many holders there are: level + held + out <= capacity, always, where `out` is all that was granted
and neither said to be spent, nor returned, nor lapsed. So the broker's bucket is filled only up to capacity -
out: a slice may be spent to the last token at any moment, and until then its room is not given to the clock.

Why it holds. A grant moves from level to out. Spending, once told, moves from out to held, because a running
request may still return a part of it; from there on `bucket` proves the rest. Until it is told it stays in
out, which is stricter. A return moves from out to level. A lapse drops out and raises nothing: it counts as
spent. None of them raises the sum; only the clock does, up to the capacity. A holder spends only what it
holds, and it never holds more than the broker's out for it:
- an ask says in whole what the holder has (not what changed), so a lost grant is returned by the next ask;
- a holder listens only to the answer to its latest ask, and the broker only to asks newer than the last;
- a holder's lease ends `TTL_S` after it sent the ask, the broker's end of the same lease `LAPSE_S` after it
  heard it: later by the way of the message and by half a second for clocks that run unequally. How they are
  set is no matter: no instant is ever sent.
What is told twice because an answer was lost is charged twice, and a return is told once and then never
again: lost messages, late ones and crashes can only admit less.

Places (requests at once) are whole; those of a silent holder come back when the lease lapses, since a crashed
worker's requests died with it. A holder cut off but alive keeps its running requests, so for as long as these
run there may be more at once than the limit; it says so when it is heard again, and then gets no more. Totals
have no clock: what was drawn stays drawn until it is returned, for ever if its holder crashed.

A lowered limit binds all once the slices out there are used or over, which is at most `LAPSE_S`. One that is
taken away is still heard of: what is out of it could be spent, or come back, when it is set again. A clamp is
a lower rate, and begins with a lower level (`bucket`): what is lent at that moment is part of the share that
is left, so level + held + out is at most share * capacity then.

A broker that follows another, which did not end by itself, goes by what that one wrote down (`Tranche`): how
much there was, what was out, and the credit of which it lent without another line, all of which counts as
lent. It begins with level - credit, and with out + credit lent to holders it does not know (`BEFORE`), whose
lease it ends as any other: the sum above holds from its first moment. Where nothing was written
(`resumed` without `tranches`), it lends nothing until the old leases are over and begins empty. Whoever it
refuses for that has used up nothing: the answer says so (`recovering`), as long as the clock alone could not
have brought yet what is wanted.

Refused: asking per request, which costs more than the whole request; counting in each worker and adding up
later, which lets every worker admit the whole limit; dividing the limit by the number of workers, which
refuses what one busy worker needs while the others idle.
"""

from collections.abc import Mapping
from math import ceil, exp, floor, inf

import msgspec

from holdfast.core.gateway.quota.limits import MINUTE_S, PLACE_WAIT_S
from holdfast.core.gateway.quota.token_bucket import ALL_EATEN, Bucket
from holdfast.model.gateway import Limits, Tranche, handed_on, key_of, scope_of_key

TTL_S = 2.0
LAPSE_S = 2.5
SLICE_S = 0.25
TOTAL_SHARE = 0.01
TOTAL_SLICE_MIN = 1_000
PLACES_SHARE = 1 / 16
CREDIT_SHARE = 1 / 4  # of the capacity: so much is lent before it must be written down again
CREDIT_S = 1.0  # at least what so long brings
BETTER_SHARE = 1 / 8  # what was written is written anew when it is that much too low
BEFORE = ""  # the name of all holders of the broker before
KINDS = ("tokens", "requests", "concurrent", "total")
HOLDER_FORGOTTEN_S = 3_600.0  # no message is that late


class Part(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True):
    """What a holder says of one counter."""

    has: float  # all that it holds and has not spent
    wants: float = 0.0  # more than that, whole or not at all
    spent: float = 0.0  # told here for the first time, or again if the last ask had no answer
    debt: float = 0.0  # used beyond what it held
    freed: float = 0.0  # ended: the part of earlier spending that could have come back ...
    back: float = 0.0  # ... and what of it does
    mark: float = 0.0  # how much was eaten when these two were counted


class Ask(msgspec.Struct, frozen=True):
    holder: str  # a new one for every life of a worker
    number: int  # grows with every ask
    term: str  # of the broker, as its last answer said
    full: bool  # the holder has nothing but what is named here
    parts: dict[str, Part]


class Grant(msgspec.Struct, frozen=True, array_like=True):
    amount: float
    mark: float  # how much is eaten
    holds: bool  # all that was said to be spent is held at this mark
    left: float  # what the broker has left
    wait_s: float = 0.0  # until what was wanted may be there; inf: never again
    pressed: bool = False  # somebody was refused lately: what is not used should come back
    recovering: bool = False  # it is not there because the broker came after another, not because of any use


class Grants(msgspec.Struct, frozen=True):
    number: int
    term: str
    grants: dict[str, Grant]


class Lease:
    __slots__ = ("out", "silent", "until")

    def __init__(self) -> None:
        self.out = 0.0
        self.until = 0.0
        self.silent = False  # of a total, which stays lent: its holder has not been heard for too long


class LentRate:
    """A bucket whose capacity is what is not lent out."""

    def __init__(self, per_min: float, burst: float, now: float) -> None:
        self.bucket = Bucket(burst, per_min / MINUTE_S, now)
        self.out = 0.0
        self.credit = 0.0  # so much may be lent before its tranche is written down anew
        self.empty_at = -inf  # it began empty then

    def begin_after(self, written: Tranche, now: float) -> float:
        """Whoever lent before may have lent the whole tranche. What of it may still be used by its holders is
        answered, to be lent to them until it is surely over."""
        bucket = self.bucket
        out = min(max(0.0, written.out + written.credit), bucket.capacity)
        bucket.capacity -= out
        # by when it is over, it may be as low as an empty one, and need not be lower but for debt
        least = min(written.level, 0.0) - bucket.rate * LAPSE_S
        bucket.level = min(bucket.capacity, max(written.level - written.credit, least))
        self.out = out
        if bucket.level <= 0.0:
            self.empty_at = now
        return out

    def tranche(self, now: float) -> Tranche:
        """To be written down before more is lent."""
        self.bucket.fill(now)
        self.credit = max(self.whole * CREDIT_SHARE, self.bucket.rate * CREDIT_S)
        return Tranche(self.bucket.level, self.credit, self.out)

    def is_full(self, now: float) -> bool:
        self.bucket.fill(now)
        return self.out <= 0.0 and self.bucket.level >= self.bucket.capacity

    def begin_empty(self, at: float) -> None:
        self.bucket.level = 0.0
        self.bucket.at = self.empty_at = at

    def begin_at(self, level: float, since: float, now: float) -> None:
        """It had so much then, and nobody has taken any."""
        self.bucket.level = min(level, self.bucket.capacity)
        self.bucket.at = min(since, now)
        self.bucket.fill(now)

    def recovers(self, wants: float, now: float) -> bool:
        """It would not have so much yet if nobody had taken any."""
        return (now - self.empty_at) * self.bucket.rate < wants

    def change(self, per_min: float, burst: float, now: float) -> None:
        self.bucket.change(burst - self.out, per_min / MINUTE_S, now)

    def lower(self, share: float, now: float) -> None:
        """For a clamp that begins. What is out may be spent, so it is counted."""
        self.bucket.lower(self.whole * share - self.out, now)

    @property
    def whole(self) -> float:
        return self.bucket.capacity + self.out

    def _take_home(self, lease: Lease, amount: float) -> None:
        lease.out -= amount
        self.out -= amount
        self.bucket.capacity += amount

    def hear(self, lease: Lease, part: Part, trusted: bool, now: float) -> bool:
        bucket = self.bucket
        bucket.fill(now)
        if trusted and part.freed > 0.0:
            share = exp(min(0.0, part.mark - bucket.eaten))
            freed = min(part.freed * share, bucket.held)
            bucket.held -= freed
            bucket.level += min(part.back * share, freed)
        bucket.level -= part.debt
        gone = max(0.0, lease.out - part.has)
        spent = min(part.spent, gone)
        self.credit += gone - spent - part.debt
        self._take_home(lease, gone)
        bucket.held += spent
        bucket.level += gone - spent
        return spent >= part.spent

    def grant(self, lease: Lease, wants: float, now: float) -> tuple[float, float]:
        bucket = self.bucket
        bucket.fill(now)
        wait = self.wait_s(lease, wants, now)
        if wait > 0.0:
            return 0.0, wait
        amount = max(wants, float(floor(min(bucket.level, bucket.rate * SLICE_S))))
        bucket.level -= amount
        self.credit -= amount
        self._take_home(lease, -amount)
        return amount, 0.0

    def wait_s(self, lease: Lease, wants: float, now: float) -> float:
        """Until so much may be there; 0: it is."""
        bucket = self.bucket
        if bucket.level >= wants:
            return 0.0
        wait = bucket.wait_s(wants, now)
        if wants > bucket.capacity and wants <= bucket.capacity + self.out and bucket.rate > 0.0:
            wait = max(LAPSE_S, (wants - bucket.level) / bucket.rate)
        return wait + max(0.0, bucket.at - now)  # it does not fill before that

    def lapse(self, lease: Lease, now: float) -> None:
        """Its room is the clock's again from the moment at which the lease was over, noticed or not."""
        self.bucket.fill(min(now, lease.until))
        self._take_home(lease, lease.out)

    @property
    def left(self) -> float:
        return self.bucket.level

    @property
    def eaten(self) -> float:
        return self.bucket.eaten


class LentPlaces:
    eaten = 0.0

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.out = 0.0

    def hear(self, lease: Lease, part: Part, trusted: bool, now: float) -> bool:
        """What runs, runs: a holder that was thought silent says what it has, even beyond the limit."""
        self.out += part.has - lease.out
        lease.out = part.has
        return True

    def grant(self, lease: Lease, wants: float, now: float) -> tuple[float, float]:
        wait = self.wait_s(lease, wants, now)
        if wait > 0.0:
            return 0.0, wait
        amount = max(wants, float(floor(min(self.left, self.limit * PLACES_SHARE))))
        self.out += amount
        lease.out += amount
        return amount, 0.0

    def wait_s(self, lease: Lease, wants: float, now: float) -> float:
        if self.left >= wants:
            return 0.0
        return inf if wants > self.limit else PLACE_WAIT_S

    def lapse(self, lease: Lease, now: float) -> None:
        self.out -= lease.out
        lease.out = 0.0

    @property
    def left(self) -> float:
        return self.limit - self.out


def total_slice(limit: float) -> float:
    """Of a budget, and of a small one no more than an eighth: others want some of it too."""
    return max(limit * TOTAL_SHARE, min(TOTAL_SLICE_MIN, limit / 8))


class LentTotal:
    eaten = 0.0

    def __init__(self, limit: int, drawn: float) -> None:
        self.limit = limit
        self.drawn = drawn
        self.out = 0.0  # with holders that are heard

    def hear(self, lease: Lease, part: Part, trusted: bool, now: float) -> bool:
        if lease.silent:
            lease.silent = False
            self.out += lease.out
        gone = max(0.0, lease.out - part.has)
        self.drawn += part.debt - (gone - min(gone, part.spent))
        lease.out -= gone
        self.out -= gone
        return True

    def grant(self, lease: Lease, wants: float, now: float) -> tuple[float, float]:
        wait = self.wait_s(lease, wants, now)
        if wait > 0.0:
            return 0.0, wait
        amount = max(wants, float(floor(min(self.left, total_slice(self.limit)))))
        self.drawn += amount
        self.out += amount
        lease.out += amount
        return amount, 0.0

    def wait_s(self, lease: Lease, wants: float, now: float) -> float:
        if self.left >= wants:
            return 0.0
        others = self.out - lease.out  # what the asker holds idle is no part of what it wants
        return inf if self.left + others < wants else LAPSE_S

    def lapse(self, lease: Lease, now: float) -> None:
        """It stays drawn, and nobody should wait for it; but should its holder be heard again, it may still
        return it."""
        if not lease.silent:
            lease.silent = True
            self.out -= lease.out

    @property
    def left(self) -> float:
        return self.limit - self.drawn


Lent = LentRate | LentPlaces | LentTotal


class Holder:
    __slots__ = ("at", "leases", "number")

    def __init__(self) -> None:
        self.number = -1
        self.at = 0.0
        self.leases: dict[str, Lease] = {}


def recovers(lent: Lent, wants: float, now: float) -> bool:
    return isinstance(lent, LentRate) and lent.recovers(wants, now)


def counter(kind: str, scope: str) -> str:
    return f"{kind}|{scope}"


class Broker:
    """The one that knows what there is. Its host carries messages, calls `lapse` about once a second, and
    writes down `drawn`."""

    def __init__(
        self,
        limits: Mapping[str, Limits],
        now: float,
        boot: str,
        drawn: Mapping[str, int] | None = None,
        resumed: bool = False,
        levels: Mapping[str, float] | None = None,
        since: float = 0.0,
        tranches: Mapping[str, Tranche] | None = None,
    ) -> None:
        """`levels`: what `levels` said at that time, when one before us ended by itself and all its holders
        with it. `resumed`: it did not. Then `tranches` are all that it had written down: a limit that is not
        among them is full. None: it wrote down nothing."""
        self.term = boot  # whose marks these are
        self._drawn = dict(drawn or {})
        self._levels, self._since = dict(levels or {}), since
        self._limits: dict[str, Limits] = {}
        self._clamps: dict[str, float] = {}
        self._counters: dict[str, Lent] = {}
        self._lifted: dict[str, Lent] = {}  # not limited any more: some of them may be out, or come again
        self._eaten = 0.0  # more than of any counter that has ended
        self._holders: dict[str, Holder] = {}
        self._pressed: dict[str, float] = {}  # until when
        self._quiet_until = now + LAPSE_S if resumed else now
        self._before = None if tranches is None or not resumed else dict(tranches)
        self._written: dict[str, Tranche] = dict(self._before or {})
        self._due: dict[str, None] = {}  # of these more was lent than was written down
        for scope, found in limits.items():
            self.set_limits(scope, found, now)

    def set_limits(self, scope: str, limits: Limits, now: float) -> None:
        self._limits[scope] = limits
        share = self._clamps.get(scope, 1.0)
        self._set_rate(counter("tokens", scope), limits.tokens_per_min, limits.tokens_burst, share, now)
        self._set_rate(counter("requests", scope), limits.requests_per_min, limits.requests_burst, share, now)
        if limits.concurrent is None:
            self._lift(counter("concurrent", scope))
        elif isinstance(places := self._known(counter("concurrent", scope)), LentPlaces):
            places.limit = limits.concurrent
        else:
            self._counters[counter("concurrent", scope)] = LentPlaces(limits.concurrent)
        if limits.tokens_total is None:
            self._lift(counter("total", scope))
        elif isinstance(total := self._known(counter("total", scope)), LentTotal):
            total.limit = limits.tokens_total
        else:
            drawn = self._drawn.pop(scope, 0)
            self._counters[counter("total", scope)] = LentTotal(limits.tokens_total, drawn)

    def _set_rate(self, name: str, per_min: int | None, burst: int | None, share: float, now: float) -> None:
        if per_min is None:
            self._lift(name)
            return
        rate, most = per_min * share, per_min if burst is None else burst
        comes_again = name in self._lifted
        if isinstance(known := self._known(name), LentRate):
            known.change(rate, most, now)
            known.credit = 0.0  # whoever reads what was written goes by the new limits
            if comes_again and share < 1.0:
                known.lower(share, now)
            return
        made = self._counters[name] = LentRate(rate, most, now)
        made.bucket.eaten = self._eaten
        level = self._levels.pop(name, None)
        if self._before is not None:
            self._begin_after(self._before.pop(name, None), name, made, now)
        elif now < self._quiet_until:
            made.begin_empty(self._quiet_until)
        elif level is not None:
            made.begin_at(level, self._since, now)
        made.lower(share, now)

    def _begin_after(self, written: Tranche | None, name: str, made: LentRate, now: float) -> None:
        if written is not None and (out := made.begin_after(written, now)):
            lease = self._holders.setdefault(BEFORE, Holder()).leases[name] = Lease()
            lease.out, lease.until = out, max(now, self._quiet_until)
            self._holders[BEFORE].at = now

    def _known(self, name: str) -> Lent | None:
        """The counter of that name, which counts again if it was lifted."""
        if name in self._lifted:
            self._counters[name] = self._lifted.pop(name)
        return self._counters.get(name)

    def _lift(self, name: str) -> None:
        """Nothing is lent of it any more; what was lent is heard of as before."""
        if name in self._counters:
            self._lifted[name] = self._counters.pop(name)

    def _drop(self, name: str) -> None:
        """Another may get its name: what holders say of this one means nothing for that one."""
        self._lift(name)
        self._levels.pop(name, None)
        self._written.pop(name, None)
        self._due.pop(name, None)
        if self._before is not None:
            self._before.pop(name, None)
        lent = self._lifted.pop(name, None)
        if isinstance(lent, LentRate):
            self._eaten = max(self._eaten, lent.eaten + ALL_EATEN)
        for holder in self._holders.values() if lent is not None else ():
            holder.leases.pop(name, None)

    def set_clamp(self, key: str, share: float, now: float) -> None:
        """Let a key have that share of its rates; 1 undoes it. To say it again changes nothing."""
        scope = scope_of_key(key)
        before, self._clamps[scope] = self._clamps.get(scope, 1.0), share
        for kind in ("tokens", "requests"):
            if share < before and isinstance(lent := self._counters.get(counter(kind, scope)), LentRate):
                lent.lower(share, now)
        self.set_limits(scope, self._limits.get(scope, Limits()), now)

    def forget_key(self, key: str, now: float) -> None:
        own = scope_of_key(key)
        for scope in [s for s in {**self._limits, **self._drawn} if key_of(s) == key]:
            self._limits.pop(scope, None)
            self._drawn.pop(scope, None)
            for kind in KINDS:
                self._drop(counter(kind, scope))
        self._clamps.pop(own, None)

    def succeed(self, replaced: Mapping[str, str]) -> None:
        """Keys, each with the one that takes its place. Both may be used for a while, of the same budgets:
        else to replace a key would be to renew them. What is said again changes nothing."""
        for scope in [s for s in self._totals() if key_of(s) in replaced] if replaced else ():
            name = counter("total", handed_on(scope, replaced[key_of(scope)]))
            total = self._lifted.get(counter("total", scope)) or self._counters[counter("total", scope)]
            fresh = self._known(name)
            if isinstance(total, LentTotal) and isinstance(fresh, LentTotal) and fresh is not total:
                total.drawn = max(total.drawn, fresh.drawn)
                self._counters[name] = total

    def _totals(self) -> dict[str, LentTotal]:
        found = {**self._lifted, **self._counters}
        return {n.partition("|")[2]: one for n, one in found.items() if isinstance(one, LentTotal)}

    def drawn(self) -> dict[str, int]:
        """Of each budget: what is used or lent."""
        return {scope: ceil(one.drawn) for scope, one in self._totals().items()}

    def levels(self, now: float) -> dict[str, float]:
        """Of each limit a minute that is not full: what is there. What is still lent or held is spent."""
        found = {}
        for name, lent in {**self._lifted, **self._counters}.items():
            if isinstance(lent, LentRate) and (level := lent.bucket.level_at(now)) < lent.whole:
                found[name] = level
        return found

    def begins(self, now: float) -> dict[str, Tranche]:
        """What is not full though nothing was written of it: to be written first of all, for who comes next
        takes for full what is not."""
        found = {
            name: Tranche(lent.bucket.level, 0.0, lent.out)
            for name, lent in self._counters.items()
            if isinstance(lent, LentRate) and name not in self._written and not lent.is_full(now)
        }
        self._written |= found
        return found

    def due(self, now: float) -> dict[str, Tranche]:
        """Of what more was lent than was written down: to be written before any answer leaves. Said once."""
        return self._written_now(self._due, now)

    def better(self, now: float) -> tuple[dict[str, Tranche], tuple[str, ...]]:
        """Of what was written and is too low by now; and what is full, and need not be written at all.
        Nothing is lent until this is written. Said once."""
        low, full = dict(self._due), []
        for name, written in self._written.items():
            lent = self._counters.get(name) or self._lifted.get(name)
            if not isinstance(lent, LentRate):
                continue
            if lent.is_full(now):
                full.append(name)
                lent.credit = 0.0
                continue
            most = lent.whole * CREDIT_SHARE
            gain = min(lent.bucket.level - most, lent.whole - lent.out - most)
            had = min(written.level - written.credit, lent.whole - written.out - written.credit)
            if gain - had > lent.whole * BETTER_SHARE:
                low[name] = None
        for name in full:
            del self._written[name]
            self._due.pop(name, None)
            low.pop(name, None)
        return self._written_now(low, now), tuple(full)

    def _written_now(self, names: Mapping[str, None], now: float) -> dict[str, Tranche]:
        found = {}
        for name in names:
            lent = self._counters.get(name) or self._lifted.get(name)
            if isinstance(lent, LentRate):
                found[name] = lent.tranche(now)
        self._due.clear()
        self._written |= found
        return found

    def ask(self, ask: Ask, now: float) -> Grants:
        """Hear what the holder says of what it had, then lend what it wants."""
        holder = self._holders.setdefault(ask.holder, Holder())
        if ask.number <= holder.number:
            return Grants(ask.number, self.term, {})
        holder.number, holder.at = ask.number, now
        said = dict(ask.parts)
        if ask.full:
            said |= {name: Part(0.0) for name in holder.leases if name not in said}
        heard = {name: self._hear(holder, name, part, ask.term, now) for name, part in said.items()}
        quiet = self._quiet_until - now
        grants = {}
        for name, part in ask.parts.items():
            if (lent := self._counters.get(name)) is None:
                # it has not heard of that limit yet, or not that there is none any more
                mark = self._lifted[name].eaten if name in self._lifted else 0.0
                grants[name] = Grant(0.0, mark, heard[name], 0.0, PLACE_WAIT_S)
                continue
            amount, wait, recovering = 0.0, 0.0, False
            if part.wants > 0.0:
                lease = holder.leases[name]
                blind = self._before is None or isinstance(lent, LentPlaces)
                if quiet > 0.0 and blind:
                    wait = max(quiet, lent.wait_s(lease, part.wants, now))
                else:
                    amount, wait = lent.grant(lease, part.wants, now)
                if not amount:
                    self._pressed[name] = now + LAPSE_S
                    recovering = (quiet > 0.0 and blind) or recovers(lent, part.wants, now)
            pressed = now < self._pressed.get(name, now)
            grants[name] = Grant(amount, lent.eaten, heard[name], lent.left, wait, pressed, recovering)
        for name in said:
            if isinstance(lent := self._counters.get(name) or self._lifted.get(name), LentRate) and (
                lent.credit < 0.0
            ):
                self._due[name] = None
        for name in [n for n, lease in holder.leases.items() if lease.out == 0.0]:
            del holder.leases[name]
        return Grants(ask.number, self.term, grants)

    def _hear(self, holder: Holder, name: str, part: Part, term: str, now: float) -> bool:
        lent = self._counters.get(name) or self._lifted.get(name)
        if lent is None:
            return False
        lease = holder.leases.setdefault(name, Lease())
        if now >= lease.until:
            lent.lapse(lease, now)
        lease.until = now + LAPSE_S
        return lent.hear(lease, part, term == self.term, now)

    def lapse(self, now: float) -> None:
        """Leases of holders that have said nothing for too long count as spent."""
        for counted in [name for name, until in self._pressed.items() if now >= until]:
            del self._pressed[counted]
        for name, holder in list(self._holders.items()):
            for lent_name, lease in list(holder.leases.items()):
                if now >= lease.until:
                    (self._counters.get(lent_name) or self._lifted[lent_name]).lapse(lease, now)
                    if lease.out == 0.0:
                        del holder.leases[lent_name]
            if now - holder.at > HOLDER_FORGOTTEN_S:
                del self._holders[name]
