"""How do spot nodes go, alone or in rows, and how much of what was promised has been used up?

Two things are remembered of a service's spot nodes (`model.market.Losses`), and time spent fades with age.

What follows a loss: a zone that takes one node away and leaves others may take those too within minutes, or
it may not. `follows` is how often it did, from one case each way before anything was seen. Nodes that go
within `AT_ONCE_MS` of the first are one loss: notices and verdicts of one blow arrive one by one.

How short the service was: `burn` is the share of time with fewer ready than wanted, over the share that the
promise allows. At 1 the promise is just kept; above, it is being broken. Before anything was seen it is 1,
for as long a time as is remembered. The sums are integrals of time that fades, so it does not matter how
often anybody looks: whoever is told of changes only knows the same as whoever watches every second.

Refused: a rate of losses by zone here. `reliability.onoff` has it, and knows how long a zone will stay.

Where the numbers come from: half of it is forgotten in three days, so that a week is remembered, with its
days and nights. One day was tried too and cost a little more on a public record. The window after a loss is
ten minutes: in that record (AWS1) more were gone in the next five minutes in 58 of 100 cases, in the five
after in 21, later in about 8. In another (GCP1) losses do not come in rows, which is why it is learnt. A
silent node is judged within some four seconds and notices of one blow come within seconds: half a minute
holds them together, and is well below the five minutes in which others follow.
"""

import math
from typing import Final

from msgspec.structs import replace

from holdfast.model.market import Losses
from holdfast.model.units import HOUR, MINUTE, SECOND, Instant

HALF_MS: Final = 72 * HOUR
AFTER_LOSS_MS: Final = 10 * MINUTE
AT_ONCE_MS: Final = 30 * SECOND


def as_of(losses: Losses, now: Instant) -> Losses:
    """The same at that instant, if nothing happened since."""
    if not losses.at:
        return replace(losses, at=now)
    passed = max(0, now - losses.at)
    kept = 0.5 ** (passed / HALF_MS)
    grown = (1 - kept) * HALF_MS / math.log(2)  # of the time passed, what is left of it
    over = [zone for zone, since in losses.open.items() if now - since >= AFTER_LOSS_MS]
    return replace(
        losses,
        at=losses.at + passed,
        short_ms=losses.short_ms * kept + grown * losses.short,
        watched_ms=losses.watched_ms * kept + grown,
        alone=losses.alone * kept,
        cases=losses.cases + len(over),
        open={zone: since for zone, since in losses.open.items() if zone not in over},
        last={zone: loss for zone, loss in losses.last.items() if now - loss[0] <= AT_ONCE_MS},
    )


def told(losses: Losses, now: Instant, *, short: bool) -> Losses:
    """From now on the service is short, or it is not."""
    return replace(as_of(losses, now), short=short)


def lost(losses: Losses, now: Instant, zone: str, left: int, count: int = 1) -> Losses:
    """The zone took so many and left so many there."""
    losses = as_of(losses, now)
    since, before = losses.last.get(zone, (now, 0))
    open_ = {other: at for other, at in losses.open.items() if other != zone}
    followed = zone in losses.open and not before
    return replace(
        losses,
        alone=max(0.0, losses.alone + (before + count == 1) - (before == 1)),
        cases=losses.cases + followed,
        followed=losses.followed + followed,
        open={**open_, zone: since} if left else open_,
        last={**losses.last, zone: (since, before + count)},
    )


def burn(losses: Losses, short_share_max: float) -> float:
    assumed = HALF_MS * short_share_max
    return (losses.short_ms + assumed) / (losses.watched_ms + HALF_MS) / short_share_max


def follows(losses: Losses) -> float:
    """The chance that a zone that took some and left some takes more within minutes."""
    return losses.followed / losses.cases


def alone_per_hour(losses: Losses) -> float:
    """Losses of one node at a time: those that a spare elsewhere would have made good."""
    return losses.alone / ((losses.watched_ms + HOUR) / HOUR)
