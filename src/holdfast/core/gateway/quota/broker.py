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

A holder may lie, or be wrong: what it says does little to others (`lent`). Whoever lends knows so many
holders of one owner, those heard last, and nobody speaks for the holders of another. A limit that is set anew
by hand owes nothing.

Refused: asking per request, which costs more than the whole request; counting in each worker and adding up
later, which lets every worker admit the whole limit; dividing the limit by the number of workers, which
refuses what one busy worker needs while the others idle.
"""

from collections.abc import Mapping
from math import ceil

import msgspec

from holdfast.core.gateway.quota.lent import (
    CREDIT_SHARE,
    LAPSE_S,
    Lease,
    Lent,
    LentPlaces,
    LentRate,
    LentTotal,
    Part,
)
from holdfast.core.gateway.quota.limits import PLACE_WAIT_S
from holdfast.core.gateway.quota.token_bucket import ALL_EATEN
from holdfast.model.gateway import Limits, Tranche, handed_on, key_of, scope_of_key

TTL_S = 2.0
BETTER_SHARE = 1 / 8  # what was written is written anew when it is that much too low
BEFORE = ""  # the name of all holders of the broker before
KINDS = ("tokens", "requests", "concurrent", "total")
HOLDER_FORGOTTEN_S = 3_600.0  # no message is that late
HOLDERS_MAX = 1_024  # of one owner


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


class Holder:
    __slots__ = ("at", "leases", "number", "owner")

    def __init__(self, owner: str = "") -> None:
        self.owner = owner
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
        self._owned: dict[str, dict[str, None]] = {}  # holders by owner, the one heard last at the end
        self.dropped: dict[str, float] = {}  # by kind: what was said and cannot be
        self._pressed: dict[str, float] = {}  # until when
        self._quiet_until = now + LAPSE_S if resumed else now
        self._before = None if tranches is None or not resumed else dict(tranches)
        self._written: dict[str, Tranche] = dict(self._before or {})
        self._due: dict[str, None] = {}  # of these more was lent than was written down
        for scope, found in limits.items():
            self.set_limits(scope, found, now)

    def set_limits(self, scope: str, limits: Limits, now: float) -> None:
        before = self._limits.get(scope, limits)
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
        if before != limits and before != Limits():
            self._owe_nothing(scope, now)

    def _owe_nothing(self, scope: str, now: float) -> None:
        for kind in ("tokens", "requests"):
            if isinstance(lent := self._counters.get(counter(kind, scope)), LentRate):
                lent.begin_anew(now, quiet=now < self._quiet_until)

    def reset(self, scope: str, now: float) -> None:
        """By hand: what was used counts no more, only what is lent now. A rate begins empty, if it owes."""
        self._owe_nothing(scope, now)
        name = counter("total", scope)
        if isinstance(total := self._counters.get(name), LentTotal):
            names = [n for n, one in self._counters.items() if one is total]  # a key and its successor
            leases = [holder.leases.get(each) for holder in self._holders.values() for each in names]
            total.drawn = sum(lease.out for lease in leases if lease is not None)

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

    def ask(self, ask: Ask, now: float, owner: str = "") -> Grants:
        """Hear what the holder says of what it had, then lend what it wants."""
        holder = self._holder(ask.holder, owner, now)
        if holder is None or ask.number <= holder.number:
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

    def _holder(self, name: str, owner: str, now: float) -> Holder | None:
        """None: nobody may have that name, or its owner has too many whose leases still run."""
        holder = self._holders.get(name)
        owned = self._owned.setdefault(owner, {})
        if holder is None:
            if name == BEFORE:
                return None
            if len(owned) >= HOLDERS_MAX:
                oldest = next(iter(owned))
                if any(now < lease.until for lease in self._holders[oldest].leases.values()):
                    return None
                self._forget(oldest, now)
            holder = self._holders[name] = Holder(owner)
        elif holder.owner != owner or name == BEFORE:
            return None
        owned.pop(name, None)
        owned[name] = None
        return holder

    def _forget(self, name: str, now: float) -> None:
        """What is lent to it counts as spent."""
        holder = self._holders.pop(name)
        for lent_name, lease in holder.leases.items():
            if lease.out:
                (self._counters.get(lent_name) or self._lifted[lent_name]).lapse(lease, now)
        owned = self._owned.get(holder.owner, {})
        owned.pop(name, None)
        if not owned:
            self._owned.pop(holder.owner, None)

    def _hear(self, holder: Holder, name: str, part: Part, term: str, now: float) -> bool:
        lent = self._counters.get(name) or self._lifted.get(name)
        if lent is None:
            return False
        lease = holder.leases.setdefault(name, Lease())
        if now >= lease.until:
            lent.lapse(lease, now)
        lease.until = now + LAPSE_S
        before = lent.dropped
        holds = lent.hear(lease, part, term == self.term, now)
        if lent.dropped > before:
            kind = name.partition("|")[0]
            self.dropped[kind] = self.dropped.get(kind, 0.0) + lent.dropped - before
        return holds

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
                self._forget(name, now)
