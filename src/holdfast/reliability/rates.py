"""How often does a node fail, and a failure domain, when we have watched them for a while?

The rule: failures arrive at a constant rate which we do not know, and what we believe of it is a Gamma
distribution: `shape` failures seen in `exposure` hours. Watching adds to both. The prior is a record kept by
somebody else, worth a few failures, so zero deaths in ten minutes does not mean "never fails", and a year of
our own quickly outweighs the prior. Plans use a bound above which the rate lies with small probability:
ignorance costs a little redundancy, and knowledge gives it back.

A fleet informs its pools in the same way: the fleet's record becomes the pool's prior, but is worth at most a
few failures, so that one bad pool among twenty good ones is not talked out of its own deaths.

Spot nodes suffer what other nodes suffer, and two things more. A node is *preempted* alone; or a *drought*
takes all the spot nodes of a domain at once. In public traces of GPU spot markets the second is nearly as
common as the first, which is why more spot replicas in one zone buy little.

Refused: Weibull lifetimes (failures do cluster after a repair, but a fleet mixes ages, and the repair ladder
handles a node that keeps failing); a full hierarchical model (it needs sampling, and moves the answer less
than one more death does); the exact Gamma quantile (it needs an iteration over the incomplete gamma function;
Wilson and Hilferty's cube is within 3 % of it from half a failure upwards, for bounds of 80 and 95 %).

Where the numbers come from: each prior says it beside its name. They are meant to be overruled by
measurement.
"""

import math
from statistics import NormalDist
from typing import Final

import msgspec

from holdfast.model.units import HOUR, MINUTE, Millis

YEAR_HOURS: Final = 8_766.0
DAY_HOURS: Final = 24.0
CREDIBLE: Final = 0.8  # plan for a rate that the truth stays below four times in five
FLEET_WORTH_MAX: Final = 4.0  # failures; a pool with more deaths than this speaks mainly for itself


class Gamma(msgspec.Struct, frozen=True):
    """What we believe of a rate: as if `shape` failures had been seen in `exposure_hours`."""

    shape: float
    exposure_hours: float


class Record(msgspec.Struct, frozen=True):
    """What was seen: so many events while things were watched for so long, all of them added up."""

    events: int = 0
    exposure_ms: Millis = 0
    down_ms: Millis = 0  # how long the events lasted in all; known for domains and droughts


class Records(msgspec.Struct, frozen=True):
    nodes: Record = Record()  # deaths, over node-time
    domains: Record = Record()  # whole domains lost, over domain-time
    preemptions: Record = Record()  # spot nodes taken one by one, over spot node-time
    droughts: Record = Record()  # spot gone from a whole domain at once, over domain-time


# The 15 systems of many small nodes in the LANL record of 1996-2005 have 0.3 to 3.0 failures per node-year,
# 1.0 on average, spread like a Gamma of shape 2.3. (Its few huge NUMA machines, at 15 and more, are left
# out.) Two A100 fleets reported 2.34 and 6.50 per 1,000 node-days: 0.9 and 2.4 per node-year.
NODE_PRIOR: Final = Gamma(shape=2.0, exposure_hours=2.0 * YEAR_HOURS)
# Post-mortems of the large clouds: a zone has a bad afternoon about once a year. Weak: worth half an event.
DOMAIN_PRIOR: Final = Gamma(shape=0.5, exposure_hours=0.5 * YEAR_HOURS)
DOMAIN_REPAIR_MS: Final = 3 * HOUR
# Published spot traces of V100 and A100 zones lose from 0.6 to 20 nodes per node-day; CPU spot markets lose
# far fewer. Weak, because markets differ by a factor of a thousand: a quiet week must be able to say so.
PREEMPTION_PRIOR: Final = Gamma(shape=0.5, exposure_hours=0.5 * DAY_HOURS)
# The same traces: a zone goes from some to none 0 to 9 times a day, and stays empty for an hour or two.
DROUGHT_PRIOR: Final = Gamma(shape=0.5, exposure_hours=0.25 * DAY_HOURS)
DROUGHT_MS: Final = 90 * MINUTE


class Priors(msgspec.Struct, frozen=True):
    nodes: Gamma = NODE_PRIOR
    domains: Gamma = DOMAIN_PRIOR
    preemptions: Gamma = PREEMPTION_PRIOR
    droughts: Gamma = DROUGHT_PRIOR
    domain_repair_ms: Millis = DOMAIN_REPAIR_MS
    drought_ms: Millis = DROUGHT_MS


class Rates(msgspec.Struct, frozen=True):
    """What to plan with. The last three concern spot nodes only, and come on top of the others."""

    node_failures_per_hour: float
    domain_failures_per_hour: float
    domain_repair_ms: Millis
    preemptions_per_hour: float = 0.0
    droughts_per_hour: float = 0.0
    drought_ms: Millis = 0


def updated(prior: Gamma, seen: Record) -> Gamma:
    return Gamma(prior.shape + seen.events, prior.exposure_hours + seen.exposure_ms / HOUR)


def mean_per_hour(belief: Gamma) -> float:
    return belief.shape / belief.exposure_hours


def bound_per_hour(belief: Gamma, credible: float = CREDIBLE) -> float:
    """The rate below which the truth lies with probability `credible`."""
    a, z = belief.shape, NormalDist().inv_cdf(credible)
    cube = 1.0 - 1.0 / (9.0 * a) + z / (3.0 * math.sqrt(a))
    return mean_per_hour(belief) * max(0.0, cube) ** 3


def weakened(belief: Gamma, worth_max: float = FLEET_WORTH_MAX) -> Gamma:
    """The same mean, worth no more than `worth_max` failures."""
    scale = min(1.0, worth_max / belief.shape)
    return Gamma(belief.shape * scale, belief.exposure_hours * scale)


def repair_ms(prior_ms: Millis, seen: Record) -> Millis:
    """The mean length of an event; the prior counts as one more event."""
    return (prior_ms + seen.down_ms) // (1 + seen.events)


def informed(fleet: Records, priors: Priors | None = None) -> Priors:
    """The priors of one pool, once the record of the whole fleet is known."""
    before = priors or Priors()
    return Priors(
        nodes=weakened(updated(before.nodes, fleet.nodes)),
        domains=weakened(updated(before.domains, fleet.domains)),
        preemptions=weakened(updated(before.preemptions, fleet.preemptions)),
        droughts=weakened(updated(before.droughts, fleet.droughts)),
        domain_repair_ms=repair_ms(before.domain_repair_ms, fleet.domains),
        drought_ms=repair_ms(before.drought_ms, fleet.droughts),
    )


def measured(seen: Records, priors: Priors | None = None, credible: float = CREDIBLE) -> Rates:
    """Rates to plan with, from what a pool's own record adds to its priors."""
    before = priors or Priors()
    return Rates(
        node_failures_per_hour=bound_per_hour(updated(before.nodes, seen.nodes), credible),
        domain_failures_per_hour=bound_per_hour(updated(before.domains, seen.domains), credible),
        domain_repair_ms=repair_ms(before.domain_repair_ms, seen.domains),
        preemptions_per_hour=bound_per_hour(updated(before.preemptions, seen.preemptions), credible),
        droughts_per_hour=bound_per_hour(updated(before.droughts, seen.droughts), credible),
        drought_ms=repair_ms(before.drought_ms, seen.droughts),
    )


def settled(rates: Rates, steps_per_decade: int = 12) -> Rates:
    """Each rate raised to the next step of a coarse scale: a plan must not change with every hour watched."""
    return Rates(
        node_failures_per_hour=_stepped(rates.node_failures_per_hour, steps_per_decade),
        domain_failures_per_hour=_stepped(rates.domain_failures_per_hour, steps_per_decade),
        domain_repair_ms=rates.domain_repair_ms,
        preemptions_per_hour=_stepped(rates.preemptions_per_hour, steps_per_decade),
        droughts_per_hour=_stepped(rates.droughts_per_hour, steps_per_decade),
        drought_ms=rates.drought_ms,
    )


def _stepped(rate: float, steps: int) -> float:
    if rate <= 0.0:
        return 0.0
    nearly_on_it = 1e-9  # a rate that is a step already stays there
    return float(10.0 ** (math.ceil(math.log10(rate) * steps - nearly_on_it) / steps))
