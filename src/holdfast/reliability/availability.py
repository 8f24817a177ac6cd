"""With what probability are at least k of n replicas up?

The rule: a thing that fails at a rate and is repaired in a time is down for rate x time / (1 + rate x time)
of its life. Every replica sits on a node of its own; nodes are down independently, but a failure domain that
is down takes all of its nodes with it. Replicas are spread evenly. So one domain has a small distribution of
how many of its nodes are up (a binomial, mixed with "none"), and the fleet's is the convolution of its
domains': exact, a few microseconds, no sampling.

Two things that it shows and a rule of thumb hides: with nothing to spare, spreading makes it *worse* (any of
d domains can break it), and with something to spare, the nodes that a domain takes at once are what has to be
spared.

Refused: the normal approximation (wrong in the tail, which is all that matters here); Markov chains of the
repair queue (repairs here are launches, and launches do not queue for one another); nested domains, racks
within zones (one level at a time: the widest that a workload is spread over dominates).

Probabilities of being *short* are summed directly and never as one minus a sum, so that nine nines are still
right to many digits.
"""

import math
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from holdfast.model.units import DAY, HOUR, Millis

Floats = npt.NDArray[np.float64]

MONTH: Final[Millis] = 365 * DAY // 12
NINES_MAX: Final = 15.0  # what a float can still tell from certainty


def unavailability(failures_per_hour: float, repair_ms: Millis) -> float:
    """The share of its life that a thing is down: MTTR / (MTBF + MTTR)."""
    load = failures_per_hour * repair_ms / HOUR
    return load / (1.0 + load)


def spread(nodes: int, domains: int) -> tuple[int, ...]:
    """How many nodes each domain holds when they are spread evenly, fullest first."""
    used = max(1, min(domains, nodes))
    each, left = divmod(nodes, used)
    return (each + 1,) * left + (each,) * (used - left)


def up_odds(nodes: int, domains: int, q_node: float, q_domain: float) -> Floats:
    """The probability that exactly 0, 1, ... `nodes` are up."""
    odds = np.ones(1)
    by_size: dict[int, Floats] = {}
    for size in spread(nodes, domains):
        if size not in by_size:
            by_size[size] = _domain_odds(size, q_node, q_domain)
        odds = np.convolve(odds, by_size[size])
    return odds


def short_of(k: int, n: int, domains: int, q_node: float, q_domain: float) -> float:
    """The probability that fewer than `k` of `n` are up."""
    return float(min(1.0, up_odds(n, domains, q_node, q_domain)[: max(0, k)].sum()))


def at_least(k: int, n: int, domains: int, q_node: float, q_domain: float) -> float:
    return 1.0 - short_of(k, n, domains, q_node, q_domain)


def binomial(n: int, q: float) -> Floats:
    """The probability that exactly 0, 1, ... `n` are up when each is down with probability `q`."""
    up = np.arange(n + 1)
    if q <= 0.0 or q >= 1.0:
        return np.where(up == (n if q <= 0.0 else 0), 1.0, 0.0)
    ways = _log_factorials(n)
    return np.asarray(np.exp(ways[n] - ways - ways[::-1] + up * math.log1p(-q) + up[::-1] * math.log(q)))


def series(*availabilities: float) -> float:
    """All of them are needed."""
    return math.prod(availabilities)


def parallel(*availabilities: float) -> float:
    """Any one of them will do."""
    return 1.0 - math.prod(1.0 - a for a in availabilities)


def nines(availability: float) -> float:
    """0.999 is 3.0 nines, 0.9995 is 3.3."""
    short = 1.0 - availability
    return min(NINES_MAX, -math.log10(short)) if short > 0.0 else NINES_MAX


def from_nines(count: float) -> float:
    return float(1.0 - 10.0**-count)


def whole_nines(availability: float) -> int:
    return int(nines(availability) + 1e-6)  # 1 - 1e-8 is not quite eight nines to a float


def downtime_ms(availability: float, period_ms: Millis = MONTH) -> Millis:
    return round((1.0 - availability) * period_ms)


def percent(availability: float) -> str:
    """`99.97 %`: one digit after the last nine, and never rounded up into a promise."""
    digits = max(1, whole_nines(availability) - 1)
    scale = 10.0**digits
    shown = f"{math.floor(availability * 100.0 * scale + 1e-6) / scale:.{digits}f}"
    return f"{shown.rstrip('0').rstrip('.')} %"


def _domain_odds(size: int, q_node: float, q_domain: float) -> Floats:
    odds = (1.0 - q_domain) * binomial(size, q_node)
    odds[0] += q_domain
    return odds


@cache
def _log_factorials(n: int) -> Floats:
    return np.concatenate([np.zeros(1), np.cumsum(np.log(np.arange(1, n + 1)))])
