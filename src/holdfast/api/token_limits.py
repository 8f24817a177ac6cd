"""How much may one token ask for at once?

A control plane is one process, and every request costs it some of the time in which it hears the fleet. So
each token has a rate limit: a token bucket of requests. It fills by REQUESTS_PER_S and holds BURST_S seconds
of that; beyond it the answer is a 429 that says when to come again. A long list counts for more than one, by
how many entries it has, when it has been made: whoever reads a fleet of ten thousand nodes again and again
takes the time in which they are heard. So does any request that held the loop (`LoopTime`) for longer than
its share of LOOP_SHARE: in the long run one token has no more of a processor, however it came to need it. And
so many may be answered at a time, for each answer is in memory until its
client has taken it. Open streams are bounded beside it (`streams`). Whose token is brought counts,
and not from where: programs behind one address do not starve one another, and one program at many addresses
has no more than at one.

What is journalled is kept for months and read by whoever leads next, so each token has a budget of it in
bytes as well (JOURNAL_BYTES): what it sends there, and something for each seat that comes of it. Deleting and
stopping cost next to nothing, so who has used up all of it can still clear up.

Refused: to weigh all requests by what they cost. A reader could not foresee when it is refused; so those that
are short, which are nearly all, count one.

Where the numbers come from: `holdfast status --watch`, a dashboard and a Prometheus ask some five times a
second together, and a script that walks through all workloads of a fleet finishes its burst unhindered. A
gateway borrows quota and reports load several times a second, and many may have one token: ten times as much.
"""

import contextlib
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from holdfast.api.access import Admitted
from holdfast.api.problems import Refused
from holdfast.ports.registry import Role

T = TypeVar("T")

REQUESTS_PER_S = 100.0
BURST_S = 5.0
STREAMS = 32
AT_ONCE = 64  # requests of one token that are being answered
JOURNAL_BYTES_PER_S = 1 << 20
JOURNAL_BYTES = 16 << 20  # at once
SEAT_BYTES = 128  # of the journal, at least, for each seat that is made
LOOP_SHARE = 0.5  # of the processor that the loop runs on: for the requests of one token
ENTRIES = 500  # of a list count for one request more
GATEWAYS_TIMES = 10
TOKENS_KEPT = 4_096


@dataclass(frozen=True)
class TokenLimits:
    requests_per_s: float = REQUESTS_PER_S
    streams: int = STREAMS  # open at a time


USUAL = TokenLimits()


class Rates:
    """What each token has used of its bucket: (used, when)."""

    def __init__(self, per_s: float = REQUESTS_PER_S, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_s, self._clock = per_s, clock
        self._used: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._journalled: OrderedDict[str, tuple[float, float]] = OrderedDict()  # bytes
        self._open: Counter[str] = Counter()

    def journals(self, who: Admitted, size: int) -> None:
        """So many bytes are to be journalled for it. Refused: it has had too many. One that is larger than
        all that there may be at once waits for a full bucket."""
        if not who.token:
            return
        now = self._clock()
        used, at = self._journalled.get(who.token, (0.0, now))
        used = max(0.0, used - JOURNAL_BYTES_PER_S * (now - at))
        over = used + min(size, JOURNAL_BYTES) - JOURNAL_BYTES
        if over > 0:
            wait_s = max(1, math.ceil(over / JOURNAL_BYTES_PER_S))
            raise Refused(
                429,
                f"more is journalled for the token {who.token} than {JOURNAL_BYTES_PER_S >> 20} MiB a second",
                f"nothing was changed; wait {wait_s} s, and change less or less often",
                headers={"Retry-After": str(wait_s)},
            )
        self._journalled[who.token] = (used + size, now)
        self._journalled.move_to_end(who.token)
        if len(self._journalled) > TOKENS_KEPT:
            self._journalled.popitem(last=False)

    @contextlib.contextmanager
    def place(self, who: Admitted) -> Iterator[None]:
        """While one of its requests is answered. Refused: there are too many."""
        most = AT_ONCE * (GATEWAYS_TIMES if who.role is Role.GATEWAY else 1)
        if self._open[who.token] >= most:
            what = f"{most} requests with the token {who.token} are being answered"
            raise Refused(429, what, "ask for less at a time", headers={"Retry-After": "1"})
        self._open[who.token] += 1
        try:
            yield
        finally:
            self._open[who.token] -= 1
            self._open += Counter()  # forgets those that have none

    def held(self, who: Admitted, seconds: float) -> None:
        """One of its requests has held the loop for so long."""
        counts_for = seconds * self._per_s(who) / LOOP_SHARE
        if counts_for > 1 and who.token:  # one it was counted for when it came
            used, at = self._used.get(who.token, (0.0, self._clock()))
            self._used[who.token] = (used + counts_for - 1, at)

    def _per_s(self, who: Admitted) -> float:
        return self.per_s * (GATEWAYS_TIMES if who.role is Role.GATEWAY else 1)

    def listed(self, who: Admitted, entries: int) -> None:
        """A list of so many entries was made for it."""
        used, at = self._used.get(who.token, (0.0, self._clock()))
        if entries >= ENTRIES and who.token:
            self._used[who.token] = (used + entries // ENTRIES, at)

    def take(self, who: Admitted) -> None:
        """One request. Refused: too many. Where tokens are not asked for, there is no limit."""
        if not who.token:
            return
        per_s = self._per_s(who)
        now, most = self._clock(), per_s * BURST_S
        used, at = self._used.get(who.token, (0.0, now))
        used = max(0.0, used - per_s * (now - at)) + 1
        if used > most:
            wait_s = max(1, math.ceil((used - most) / per_s))
            raise Refused(
                429,
                f"more than {per_s:g} requests a second with the token {who.token}",
                f"wait {wait_s} s, and ask less often; streams tell what changes without being asked",
                headers={"Retry-After": str(wait_s)},
            )
        self._used[who.token] = (used, now)
        self._used.move_to_end(who.token)
        if len(self._used) > TOKENS_KEPT:
            self._used.popitem(last=False)


class LoopTime(Generic[T]):
    """Await it in place of the coroutine; `seconds` is for how long it held the loop, on which everybody else
    waits. Only its own steps are counted, in time of the processor: not what it waited for, what others did
    meanwhile, or what it left to a thread. So a busy machine makes nobody's requests dearer."""

    def __init__(self, of: Coroutine[Any, Any, T]) -> None:
        self._of, self.seconds = of, 0.0

    def __await__(self) -> Generator[Any, Any, T]:
        step, given = self._of.send, None
        while True:
            began = time.thread_time()
            try:
                waits_for = step(given)
            except StopIteration as done:
                found: T = done.value
                return found
            finally:
                self.seconds += time.thread_time() - began
            try:
                given = yield waits_for
                step = self._of.send
            except GeneratorExit:
                self._of.close()
                raise
            except BaseException as error:  # it is told to the coroutine, as if nobody stood between
                step, given = self._of.throw, error
