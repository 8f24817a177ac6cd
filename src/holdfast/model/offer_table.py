"""All offers and what is remembered of them, as columns: one row an offer.

Choosing where to launch asks the same of hundreds of offers at once, as placement asks nodes (`model.room`).
The columns are an index of the world: `fold` notes what has changed, and `core.market.offers` brings the rows
up to date when somebody asks, so that a journal full of news is replayed without it.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from holdfast.model.market import OfferRecord
from holdfast.model.place import LEVELS, Level
from holdfast.model.pool import Offer, Pool
from holdfast.model.room import Interned
from holdfast.model.units import Instant

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_Kind = TypeVar("_Kind", np.int64, np.float64, np.bool_)

FIRST_ROWS = 64
HYPOTHESES = 25  # of how an offer comes and goes: the grid of `core.market.offer_history`

SUMS = ("came_up", "failed", "hoped", "losses", "served_ms")
INTS = (
    "price",
    "retry_at",
    "seen_at",
    "taken_at",
    "at",
    "cpu",
    "memory",
    "gpu",
    "kind",
    "labels",
    "taints",
    "family",
    "pool",
)
FLOATS = (*SUMS, "ready_ms")
BOOLS = ("spot", "there", "used")


class Table:
    def __init__(self, rows: int = FIRST_ROWS) -> None:
        self.begin(rows)

    def begin(self, rows: int = FIRST_ROWS) -> None:
        """With no offers in it."""
        self.row: dict[str, int] = {}
        self.ids: list[str] = [""] * rows
        self.unused: list[int] = list(range(rows - 1, -1, -1))
        self.kinds, self.label_sets, self.taint_sets = Interned(), Interned(), Interned()
        self.families, self.pools = Interned(), Interned()
        self.domains: dict[Level, Interned] = {level: Interned() for level in LEVELS}
        self.domain: dict[Level, Ints] = {level: np.zeros(rows, np.int64) for level in LEVELS}
        self.ints: dict[str, Ints] = {name: np.zeros(rows, np.int64) for name in INTS}
        self.floats: dict[str, Floats] = {name: np.zeros(rows) for name in FLOATS}
        self.bools: dict[str, Bools] = {name: np.zeros(rows, np.bool_) for name in BOOLS}
        self.log_weights: Floats = np.zeros((rows, HYPOTHESES))
        self.offers: dict[str, tuple[Pool, Offer]] = {}  # by key, as they were put
        self.outdated = True  # offers have changed since
        self.changed: dict[str, None] = {}  # keys of records that have changed since
        self.memo: dict[object, object] = {}  # what was worked out; forgotten when a row changes
        self.memo_at: Instant = -1  # and for another instant
        self.fixed_memo: dict[object, object] = {}  # forgotten when an offer comes, goes or changes

    def put(self, pool: Pool, offer: Offer, record: OfferRecord) -> int:
        """A new offer, or one that has changed."""
        if record.key not in self.row:
            if not self.unused:
                self._grow()
            self.row[record.key] = self.unused.pop()
            self.ids[self.row[record.key]] = record.key
        self.offers[record.key] = (pool, offer)
        row, ints = self.row[record.key], self.ints
        pairs = tuple(f"{key}={value}" for key, value in sorted(pool.labels.items()))
        taints = tuple(sorted(pool.taints))
        family = f"{offer.place.provider}{' spot' if offer.spot else ''}"
        ints["price"][row] = offer.price_micro_usd
        ints["cpu"][row], ints["memory"][row] = offer.capacity.cpu_milli, offer.capacity.memory_mib
        ints["gpu"][row] = offer.capacity.gpu_milli
        ints["kind"][row] = self.kinds.of(offer.capacity.gpu_kind)
        ints["labels"][row] = self.label_sets.of(",".join(pairs), pairs)
        ints["taints"][row] = self.taint_sets.of(",".join(taints), taints)
        ints["family"][row] = self.families.of(family)
        ints["pool"][row] = self.pools.of(pool.name)
        self.bools["spot"][row], self.bools["used"][row] = offer.spot, True
        for level in LEVELS:
            self.domain[level][row] = self.domains[level].of(offer.place.domain(level))
        self.fixed_memo = {}
        self.note(record)
        return row

    def note(self, record: OfferRecord) -> None:
        """Its record has changed. One that is not in the table is nobody's business."""
        row = self.row.get(record.key)
        if row is None:
            return
        for name in FLOATS:
            self.floats[name][row] = getattr(record, name)
        self.ints["retry_at"][row], self.ints["seen_at"][row] = record.retry_at, record.seen_at
        self.ints["at"][row], self.bools["there"][row] = record.at, record.there
        self.ints["taken_at"][row] = record.taken_at
        self.log_weights[row] = record.log_weights or 0.0
        self.memo = {}

    def drop(self, key: str) -> None:
        row = self.row.pop(key, None)
        if row is not None:
            self.ids[row] = ""
            del self.offers[key]
            self.bools["used"][row] = False
            self.unused.append(row)
            self.memo, self.fixed_memo = {}, {}

    def _grow(self) -> None:
        rows = len(self.ids)
        self.ints = {name: _doubled(column) for name, column in self.ints.items()}
        self.floats = {name: _doubled(column) for name, column in self.floats.items()}
        self.bools = {name: _doubled(column) for name, column in self.bools.items()}
        self.domain = {level: _doubled(column) for level, column in self.domain.items()}
        self.log_weights = _doubled(self.log_weights)
        self.ids.extend([""] * rows)
        self.unused = list(range(2 * rows - 1, rows - 1, -1))

    def at(self, now: Instant) -> dict[object, object]:
        """The memo of this instant."""
        if now != self.memo_at:
            self.memo, self.memo_at = {}, now
        return self.memo

    @property
    def names(self) -> Ints:
        """By row: the place of its key in the alphabet, so that equals are ordered alike after a restart."""
        found = self.fixed_memo.get("names")
        if not isinstance(found, np.ndarray):
            found = np.zeros(len(self.ids), np.int64)
            found[np.argsort(np.array(self.ids))] = np.arange(len(self.ids))
            self.fixed_memo["names"] = found
        return found


def _doubled(column: NDArray[_Kind]) -> NDArray[_Kind]:
    return np.concatenate([column, np.zeros_like(column)])
