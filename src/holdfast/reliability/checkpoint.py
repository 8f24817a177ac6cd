"""How often should a training run save its work, and how much of its time is then useful?

The rule: a gang of n nodes stops when any of them does, so its MTBF is one node's divided by n. Saving costs
`write_ms` each time; a failure costs the restart and what was done since the last save. Young balanced the
two: every sqrt(2 x write x MTBF). Daly's higher-order form does it for writes that are not small against the
MTBF, and gives up (save once per MTBF) when they are huge.

The useful share is Daly's complete model: to complete one interval and its write, failures strike at a
constant rate, and each throws the run back to the last save; restarts can fail too. The published small-loss
formula, (1 - failures x (restart + interval / 2)) / (1 + write / interval), is kept beside it because papers
quote it: it is within 1 % while a tenth of the time is lost, several percent off at a quarter, and turns
negative where a run would merely crawl.

Refused: fitting the interval to a Weibull (the optimum is flat: saving twice as often as needed adds a fifth
to the waste, half as long again between saves less than a tenth); minimising the complete model numerically
(Daly's form is within seconds of it wherever a run is worth starting).

Where the numbers come from: Young 1974; Daly 2006, "A higher order estimate of the optimum checkpoint
interval"; the small-loss formula as in the 2024 study of two large A100 fleets, which calls the useful share
ETTR (effective training time ratio).
"""

import math

from holdfast.model.units import HOUR, NEVER, Millis


def gang_mtbf_ms(nodes: int, failures_per_hour: float) -> Millis:
    """Mean time between failures of a gang that stops when any of its nodes does."""
    rate = nodes * failures_per_hour
    return min(NEVER, round(HOUR / rate)) if rate > 0.0 else NEVER


def young_ms(write_ms: Millis, mtbf_ms: Millis) -> Millis:
    return round(math.sqrt(2.0 * write_ms * mtbf_ms))


def interval_ms(write_ms: Millis, mtbf_ms: Millis) -> Millis:
    """Work between two saves, after Daly: at least a millisecond, at most one MTBF."""
    if write_ms >= 2 * mtbf_ms:
        return mtbf_ms
    x = write_ms / (2.0 * mtbf_ms)
    best = math.sqrt(2.0 * write_ms * mtbf_ms) * (1.0 + math.sqrt(x) / 3.0 + x / 9.0) - write_ms
    return max(1, round(best))


def useful_share(interval_ms: Millis, write_ms: Millis, restart_ms: Millis, mtbf_ms: Millis) -> float:
    """Useful time over wall time (ETTR). `restart_ms` is from the failure to the next step: detection too."""
    m = float(mtbf_ms)
    exponent = (interval_ms + write_ms) / m
    if exponent + restart_ms / m > 500.0:
        return 0.0  # it never finishes an interval
    return interval_ms / (m * math.exp(restart_ms / m) * math.expm1(exponent))


def useful_share_small_loss(
    interval_ms: Millis, write_ms: Millis, restart_ms: Millis, mtbf_ms: Millis
) -> float:
    """What papers quote: for comparing with them, and for small losses only."""
    return (1.0 - (restart_ms + interval_ms / 2.0) / mtbf_ms) / (1.0 + write_ms / interval_ms)


def lost_per_failure_ms(interval_ms: Millis, restart_ms: Millis) -> Millis:
    """What one failure costs, on average: half an interval done twice, and the time to be running again."""
    return interval_ms // 2 + restart_ms


def best_useful_share(nodes: int, failures_per_hour: float, write_ms: Millis, restart_ms: Millis) -> float:
    """The useful share of a gang that saves as often as it should."""
    mtbf_ms = gang_mtbf_ms(nodes, failures_per_hour)
    return useful_share(interval_ms(write_ms, mtbf_ms), write_ms, restart_ms, mtbf_ms)
