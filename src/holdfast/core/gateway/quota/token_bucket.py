"""How much may be taken now, so that no interval ever holds more than its share?

The rule is a token bucket: a level that fills with `rate` a second up to `capacity`. A request reserves
before it runs and settles when its real use is known, so what is taken early may come back late. The promise,
for every interval of length T, wherever it begins: what the requests admitted in it really use is at most
`capacity + rate * T`, as long as no request uses more than it reserved.

Why it holds. Two numbers: `level`, what may be taken, and `held`, what running requests may still give back.
Always level + held <= capacity. Taking moves an amount from level to held. Time raises the level; where that
would lift the sum above the capacity, held gives way: what the clock has already brought back, no request may
bring back again. Giving back moves at most the request's own part of held to the level, and the rest of that
part is spent. So the sum starts an interval at no more than the capacity, rises by no more than rate * T, and
falls by what each request of that interval used, whether it was eaten, spent, or is still held at the end.

Capping late returns at the capacity is not enough, though it is what is usually done: reserve the whole
bucket, wait until it is full again, take it whole a second time, and only then give the first one back
unused. A third request now takes the bucket whole in the same instant as the second.

Whose part gives way is free for the proof. All parts shrink in proportion, because then one number says it
for all: a part taken when `eaten` was x is now amount * exp(x - eaten). No list, O(1), and nothing shrinks
while a busy bucket's running requests have reserved less than its capacity.

What it costs: while the reservations that run fit in the capacity together, callers get the whole rate.
Beyond that the bound itself forbids it, since all of them might use all that they reserved: with answers a
quarter as long as reserved and requests half as long as the bucket takes to fill, two thirds of the rate. A
larger burst or a closer estimate buys it back.

Use beyond what was reserved is debt: the level goes below zero and time repays it. It is never forgiven.

Refused: windows. A window lets twice the limit through at its edge, and a return that crosses the edge makes
the next window larger than its limit. Refused too: holding the refill back while requests run (level +
reserved <= capacity). It is as strict, but streams longer than the bucket is deep would get less than the
rate.

A clamp (`lower`, and a share of the rate) lowers level and held once, to that share of the capacity, and not
the capacity. So from the moment at which it begins an interval holds at most share * (capacity + rate * T):
nobody has a last burst of all that was saved. What is not used then adds up to the whole capacity, only
slowly: a request that fitted before fits later. Refused: a share of the capacity too, for then such a request
never fits, and whoever may ask five times a minute may not ask at all. Refused too: keeping the level, which
lets a key that should be held back take its whole burst first.

A clock that steps back brings nothing, and what it steps forward again over is not counted twice. Changed
limits hold from that moment: an interval then holds at most the capacity at its start plus what the rates of
its parts bring, and a raised capacity fills at the rate instead of appearing at once.
"""

from math import exp, inf, log

ALL_EATEN = 50.0  # exp(-50) of any reservation is nothing
ROUNDING_S = 1e-6  # a wait ends after the level has passed the amount, not within a rounding error of it


class Bucket:
    __slots__ = ("at", "capacity", "eaten", "held", "level", "rate", "scope")

    def __init__(self, capacity: float, rate: float, now: float, scope: str = "") -> None:
        self.scope = scope
        self.capacity = float(capacity)
        self.rate = float(rate)
        self.level = self.capacity
        self.held = 0.0
        self.eaten = 0.0
        self.at = now

    def level_at(self, now: float) -> float:
        """What there is to take then; asks only."""
        if now <= self.at:
            return self.level
        return min(self.capacity, self.level + self.rate * (now - self.at))

    def fill(self, now: float) -> None:
        """Bring the level to this moment. `quota.take` has these lines in its loop, for speed."""
        if now > self.at:
            level = self.level + self.rate * (now - self.at)
            self.at = now
            if level + self.held > self.capacity:
                level = self.spill(level)
            self.level = level

    def spill(self, level: float) -> float:
        """The level, and then what is held, give way to the capacity; answers the level that is left."""
        held = self.held
        room = self.capacity - level
        if room <= 0.0:
            level = self.capacity
            if held:
                self.eaten += ALL_EATEN
                self.held = 0.0
        elif held > room:
            self.eaten += log(held / room)
            self.held = room
        return level

    def take(self, amount: float, now: float) -> float:
        """Take it whether it is there or not, and answer the mark to give back with. Who takes asks first."""
        self.fill(now)
        self.level -= amount
        self.held += amount
        return self.eaten

    def part(self, amount: float, mark: float) -> float:
        """How much of an amount taken at that mark may still come back."""
        return amount if mark >= self.eaten else amount * exp(mark - self.eaten)

    def settle(self, amount: float, used: float, mark: float, now: float) -> None:
        """End what was taken at that mark: the unused comes back as far as its part allows; use beyond it is
        debt."""
        self.fill(now)
        part = min(self.part(amount, mark), self.held)
        self.held -= part
        self.level += min(amount - used, part)

    def give(self, amount: float, now: float) -> None:
        """Put back what was taken at no known mark: never above the capacity, which is all it promises."""
        self.fill(now)
        self.level = self.spill(self.level + amount)

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until the amount fits, if nobody else takes any."""
        if amount > self.capacity:
            return inf
        short = amount - self.level_at(now)
        if short <= 0.0:
            return 0.0
        return short / self.rate + ROUNDING_S if self.rate > 0.0 else inf

    def lower(self, most: float, now: float) -> None:
        """What may be taken, and come back, is at most this now; from here on it fills as ever."""
        capacity = self.capacity
        self.change(most, self.rate, now)
        self.capacity = capacity

    def change(self, capacity: float, rate: float, now: float) -> None:
        self.fill(now)
        self.capacity = float(capacity)
        self.rate = float(rate)
        self.level = self.spill(self.level)
