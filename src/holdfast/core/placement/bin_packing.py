"""How many replicas would go on nodes that are not here yet?

Capacity must not order a machine for what already fits on one that is booting. A bin is such a machine,
empty; replicas are counted into it by division, not one by one. This is only an estimate to order by:
`placement` does the real thing when the node joins.
"""

from collections.abc import Callable, Iterable

import numpy as np

from holdfast.model.node import Node
from holdfast.model.place import Level, Place
from holdfast.model.pool import Offer, Pool
from holdfast.model.resources import GPU, Resources
from holdfast.model.workload import Needs, Spread
from holdfast.model.world import World


class Apart:
    """Failure domains in which there may be one copy each, and which of them have one."""

    def __init__(self, level: Level, taken: set[str]) -> None:
        self.level, self.taken = level, taken

    @classmethod
    def of(cls, world: World, needs: Needs, nodes: Iterable[str]) -> "Apart | None":
        """For copies on these nodes, if they must be apart. Nodes need no counting: a new one has none."""
        level = needs.spread_over
        if needs.spread is not Spread.REQUIRE or level is Level.NODE:
            return None
        return cls(level, {world.nodes[name].place.domain(level) for name in nodes})

    def allows(self, place: Place) -> bool:
        return place.domain(self.level) not in self.taken

    def note(self, place: Place) -> None:
        self.taken.add(place.domain(self.level))


class Bin:
    def __init__(
        self, place: Place, free: Resources, labels: dict[str, str], taints: tuple[str, ...], spot: bool
    ) -> None:
        self.place = place
        self.cpu, self.memory, self.gpu, self.kind = (
            free.cpu_milli,
            free.memory_mib,
            free.gpu_milli,
            free.gpu_kind,
        )
        self.capacity, self.labels, self.taints, self.spot = free, labels, taints, spot

    @classmethod
    def of(cls, node: Node) -> "Bin":
        return cls(node.place, node.capacity, node.labels, node.taints, node.spot)

    @classmethod
    def new(cls, pool: Pool, offer: Offer) -> "Bin":
        return cls(offer.place, offer.capacity, pool.labels, pool.taints, offer.spot)

    def suits(self, needs: Needs) -> bool:
        """Could an empty one take such a replica?"""
        return (
            needs.resources.within(self.capacity)
            and all(self.labels.get(key) == value for key, value in needs.labels.items())
            and all(taint in needs.tolerates for taint in self.taints)
            and (needs.spot or not self.spot)
        )

    def holds(self, needs: Needs) -> int:
        """How many more of these fit."""
        if not self.suits(needs):
            return 0
        asked = needs.resources
        fits = [
            have // want
            for have, want in ((self.cpu, asked.cpu_milli), (self.memory, asked.memory_mib))
            if want
        ]
        if asked.gpu_milli:
            per_gpu = GPU // asked.gpu_milli if asked.gpu_milli < GPU else 0
            fits.append((self.gpu // GPU) * per_gpu if per_gpu else self.gpu // asked.gpu_milli)
        return min(fits, default=1)

    def take(self, needs: Needs, count: int) -> None:
        self.cpu -= count * needs.resources.cpu_milli
        self.memory -= count * needs.resources.memory_mib
        self.gpu -= count * needs.resources.gpu_milli


class Bins:
    """Many of them, in the order in which they are filled. Most are soon full: what is left in each lies in
    columns, so that those with room are found at a glance."""

    def __init__(self, bins: Iterable[Bin] = ()) -> None:
        self.bins: list[Bin] = []
        self._left = np.zeros((3, 64), np.int64)
        for each in bins:
            self.add(each)

    def add(self, bin_: Bin) -> None:
        row = len(self.bins)
        if row == self._left.shape[1]:
            self._left = np.concatenate([self._left, np.zeros_like(self._left)], axis=1)
        self.bins.append(bin_)
        self._left[:, row] = bin_.cpu, bin_.memory, bin_.gpu

    def fill(
        self,
        needs: Needs,
        count: int,
        *,
        one_each: bool,
        apart: Apart | None = None,
        note: Callable[[Place, int], None] | None = None,
    ) -> int:
        """Puts up to `count` into the bins; returns how many went in, and notes how many went where."""
        left, asked = count, needs.resources
        cpu, memory, gpu = self._left[:, : len(self.bins)]
        enough = (cpu >= asked.cpu_milli) & (memory >= asked.memory_mib) & (gpu >= asked.gpu_milli)
        for row in enough.nonzero()[0].tolist():
            if left <= 0:
                break
            bin_ = self.bins[row]
            if apart is not None and not apart.allows(bin_.place):
                continue
            took = min(left, bin_.holds(needs), 1 if one_each or apart is not None else left)
            if took > 0:
                if apart is not None:
                    apart.note(bin_.place)
                bin_.take(needs, took)
                self._left[:, row] = bin_.cpu, bin_.memory, bin_.gpu
                left -= took
                if note is not None:
                    note(bin_.place, took)
        return count - left
