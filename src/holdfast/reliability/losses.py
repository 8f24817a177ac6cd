"""How do spot nodes go, alone or in rows, and how much of what was promised has been used up?

Two things are remembered of a service's spot nodes, and both fade with age.

What follows a loss: a zone that takes one node away and leaves others may take those too within minutes, or
it may not. `follows` is how often it did, from one case each way before anything was seen.

How short the service was: `burn` is the share of time with fewer ready than wanted, over the share that the
promise allows. At 1 the promise is just kept; above, it is being broken. Before anything was seen it is 1,
for as long a time as is remembered.

Refused: a rate of losses by zone here. `reliability.onoff` has it, and knows how long a zone will stay.

Where the numbers come from: half of it is forgotten in three days, so that a week is remembered, with its
days and nights. One day was tried too and cost a little more on a public record. The window after a loss is
ten minutes: in that record (AWS1) more were gone in the next five minutes in 58 of 100 cases, in the five
after in 21, later in about 8. In another (GCP1) losses do not come in rows, which is why it is learnt.
"""

from typing import Final

import msgspec

from holdfast.model.units import HOUR, MINUTE, Instant

HALF_MS: Final = 72 * HOUR
AFTER_LOSS_MS: Final = 10 * MINUTE


class Losses(msgspec.Struct):
    """Of one service. It is told what happened, in the order of time."""

    at: Instant = 0
    short_ms: float = 0.0
    watched_ms: float = 0.0
    alone: float = 0.0  # losses of one node at a time
    followed: float = 1.0
    cases: float = 2.0
    open: dict[str, Instant] = msgspec.field(default_factory=dict)  # zones that took some and left some
    took: dict[str, Instant] = msgspec.field(default_factory=dict)  # when a zone last took some

    def watch(self, now: Instant, *, short: bool) -> None:
        """Since it was last told, the service was short, or it was not."""
        passed = now - self.at if self.at else 0
        kept = 0.5 ** (passed / HALF_MS)
        self.short_ms = self.short_ms * kept + passed * short
        self.watched_ms = self.watched_ms * kept + passed
        self.alone *= kept
        self.at = now
        for zone, since in list(self.open.items()):
            if now - since >= AFTER_LOSS_MS:
                self._close(zone, followed=False)

    def lose(self, now: Instant, zone: str, count: int, left: int) -> None:
        """The zone took `count` at once and left so many there."""
        if zone in self.open:
            self._close(zone, followed=True)
        if left:
            self.open[zone] = now
        self.took[zone] = now
        self.alone += count == 1

    def burn(self, short_share_max: float) -> float:
        assumed = HALF_MS * short_share_max
        return (self.short_ms + assumed) / (self.watched_ms + HALF_MS) / short_share_max

    @property
    def follows(self) -> float:
        """The chance that a zone that took some and left some takes more within minutes."""
        return self.followed / self.cases

    @property
    def alone_per_hour(self) -> float:
        """Losses of one node at a time: those that a spare elsewhere would have made good."""
        return self.alone / ((self.watched_ms + HOUR) / HOUR)

    def is_taking(self, now: Instant, zone: str) -> bool:
        return zone in self.took and now - self.took[zone] < AFTER_LOSS_MS

    def _close(self, zone: str, *, followed: bool) -> None:
        del self.open[zone]
        self.cases += 1
        self.followed += followed
