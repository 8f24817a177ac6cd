"""How much may one token ask for at once?

A control plane is one process, and every request costs it some of the time in which it hears the fleet. So
each token has a rate limit: a token bucket of requests. It fills by REQUESTS_PER_S and holds BURST_S seconds
of that; beyond it the answer is a 429 that says when to come again. Open streams are bounded beside it
(`streams`). Whose token is brought counts, and not from where: programs behind one address do not starve one
another, and one program at many addresses has no more than at one.

Refused: to weigh requests by what they cost. What is dear has its own bound already (dry runs wait for one
another, bodies are at most 4 MiB), and a reader could not foresee when it is refused.

Where the numbers come from: `holdfast status --watch`, a dashboard and a Prometheus ask some five times a
second together, and a script that walks through all workloads of a fleet finishes its burst unhindered. A
gateway borrows quota and reports load several times a second, and many may have one token: ten times as much.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.api.access import Admitted
from holdfast.api.problems import Refused
from holdfast.ports.registry import Role

REQUESTS_PER_S = 100.0
BURST_S = 5.0
STREAMS = 32
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

    def take(self, who: Admitted) -> None:
        """One request. Refused: too many. Where tokens are not asked for, there is no limit."""
        if not who.token:
            return
        per_s = self.per_s * (GATEWAYS_TIMES if who.role is Role.GATEWAY else 1)
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
