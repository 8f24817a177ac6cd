"""What is there of one counter that is lent in slices, and what do holders do to it by what they say?

The three kinds (`broker`): a rate, whose bucket has the capacity that is not lent out; places; and a budget.

A holder may lie, or be wrong, and what it says of its spending is all that anybody knows. So it does to a
counter no more by its word than it could do by borrowing: a debt lowers the level of a rate to one capacity
below empty and no further, which time repays within the limit's own window; and what is drawn of a budget to
its limit and a little (`overdraft`). The rest is dropped, and counted (`dropped`).

Refused: to take no more debt from a holder than was lent to it before. Whoever lies may borrow first, and
what ran while nobody lent (`fail_open`) would be forgiven.
"""

from math import exp, floor, inf

import msgspec

from holdfast.core.gateway.quota.limits import MINUTE_S, PLACE_WAIT_S
from holdfast.core.gateway.quota.token_bucket import Bucket
from holdfast.model.gateway import Tranche

LAPSE_S = 2.5
SLICE_S = 0.25
TOTAL_SHARE = 0.01
TOTAL_SLICE_MIN = 1_000
PLACES_SHARE = 1 / 16
CREDIT_SHARE = 1 / 4  # of the capacity: so much is lent before it must be written down again
CREDIT_S = 1.0  # at least what so long brings
PLACES_MAX = 1_000_000.0  # nobody runs more at a time
OVERDRAFT_SHARE, OVERDRAFT_MIN = 1 / 8, 10_000  # of a budget, beyond its limit; and what one request may use


class Part(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True):
    """What a holder says of one counter."""

    has: float  # all that it holds and has not spent
    wants: float = 0.0  # more than that, whole or not at all
    spent: float = 0.0  # told here for the first time, or again if the last ask had no answer
    debt: float = 0.0  # used beyond what it held
    freed: float = 0.0  # ended: the part of earlier spending that could have come back ...
    back: float = 0.0  # ... and what of it does
    mark: float = 0.0  # how much was eaten when these two were counted


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
        self.dropped = 0.0  # debt that nobody could have

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
        self._forgive()
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
        self._forgive()

    def begin_anew(self, now: float, *, quiet: bool) -> None:
        """It owes nothing, and fills from here on. `quiet`: until the leases of the broker before are over it
        may have to be as low as `begin_after` has it."""
        bucket = self.bucket
        bucket.fill(now)
        least = -bucket.rate * LAPSE_S if quiet else 0.0
        bucket.level = max(bucket.level, min(least, bucket.capacity - bucket.held))
        self.credit = 0.0

    def _forgive(self) -> float:
        """How much debt there was beyond one capacity."""
        bucket = self.bucket
        lowest = min(-self.whole, bucket.capacity - bucket.held)
        forgiven = max(0.0, lowest - bucket.level)
        bucket.level += forgiven
        return forgiven

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
        debt = min(part.debt, 2 * self.whole)  # more would not be exact
        bucket.level -= debt
        forgiven = self._forgive()
        self.dropped += part.debt - debt + forgiven
        gone = max(0.0, lease.out - part.has)
        spent = min(part.spent, gone)
        self.credit += gone - spent - debt
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
    eaten = dropped = 0.0

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.out = 0.0

    def hear(self, lease: Lease, part: Part, trusted: bool, now: float) -> bool:
        """What runs, runs: a holder that was thought silent says what it has, even beyond the limit."""
        has = min(float(floor(part.has)), PLACES_MAX)
        self.out += has - lease.out
        lease.out = has
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


def overdraft(limit: float) -> float:
    """So much more than a budget may be known to be used."""
    return max(limit * OVERDRAFT_SHARE, OVERDRAFT_MIN)


class LentTotal:
    eaten = 0.0

    def __init__(self, limit: int, drawn: float) -> None:
        self.limit = limit
        self.drawn = drawn
        self.out = 0.0  # with holders that are heard
        self.dropped = 0.0

    def hear(self, lease: Lease, part: Part, trusted: bool, now: float) -> bool:
        if lease.silent:
            lease.silent = False
            self.out += lease.out
        gone = max(0.0, lease.out - part.has)
        debt = min(part.debt, max(0.0, self.limit + overdraft(self.limit) - self.drawn))
        self.dropped += part.debt - debt
        self.drawn += debt - (gone - min(gone, part.spent))
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
