"""How many warm nodes must stand ready, so that failures hardly ever have to wait for a boot?

The rule: a warm node that was used is replaced by a launch, which takes the boot time. So the warm nodes
missing at any moment are the failures of the last boot time; that number is Poisson with mean nodes x rate x
boot. Keep the smallest count which that number stays within with probability `covered`. It grows with the
square root of the fleet, once the fleet is large: sharing standbys between workloads is where they pay.

Refused: the binomial that others use (it needs the fleet's size as well as its rate, and agrees to the third
digit); standbys for a whole failure domain (those failures come together and are no Poisson: spreading
replicas over domains is the answer, and `core.workloads.redundancy` weighs it).

Where the numbers come from: the fleet's own measured rate and boot time. With one published rate of 0.0012
failures per machine-day and a day to replace, the rule gives that fleet's published table: 2, 2, 3 and 4 for
128 to 1,024 machines.
"""

import math
from typing import Final

from holdfast.model.units import HOUR, Millis

COVERED: Final = 0.99
COVERED_MAX: Final = 1.0 - 1e-12  # beyond this the sums of a float no longer tell
NORMAL_FROM: Final = 700.0  # exp(-mean) leaves the range of a float soon after


def failures_during_boot(nodes: int, failures_per_hour: float, boot_ms: Millis) -> float:
    return nodes * failures_per_hour * boot_ms / HOUR


def standbys(nodes: int, failures_per_hour: float, boot_ms: Millis, covered: float = COVERED) -> int:
    """The fewest warm nodes so that all failures during a boot time find one, with probability `covered`."""
    return poisson_quantile(failures_during_boot(nodes, failures_per_hour, boot_ms), covered)


def coverage(ready: int, nodes: int, failures_per_hour: float, boot_ms: Millis) -> float:
    """The probability that `ready` warm nodes are enough for all failures during a boot time."""
    return poisson_at_most(ready, failures_during_boot(nodes, failures_per_hour, boot_ms))


def poisson_at_most(count: int, mean: float) -> float:
    """P(X <= count)."""
    if mean > NORMAL_FROM:
        return 0.5 * math.erfc((mean - count - 0.5) / math.sqrt(2.0 * mean))
    term = total = math.exp(-mean)
    for i in range(1, count + 1):
        term *= mean / i
        total += term
    return min(1.0, total)


def poisson_quantile(mean: float, probability: float) -> int:
    """The smallest count with P(X <= count) >= `probability`. Bisection: P rises with the count."""
    if not 0.0 <= probability <= COVERED_MAX:
        raise ValueError(
            f"a probability up to {COVERED_MAX} is needed, not {probability}: no count covers all"
        )
    low, high = -1, 1
    while poisson_at_most(high, mean) < probability:
        low, high = high, 2 * high + round(mean)
    while high - low > 1:
        middle = (low + high) // 2
        if poisson_at_most(middle, mean) >= probability:
            high = middle
        else:
            low = middle
    return high
