"""All offers side by side: what do we expect of each, now?

Choosing where to launch asks the same of five hundred offers for a thousand workloads, so what is asked about
lies in columns, one row an offer (`model.offer_table`), as nodes do in `model.room`. `fold` notes which
offers and records have changed, and `listed` writes those rows when somebody next asks. What depends on the
time (chances, fading) is worked out for all rows at once, once an instant.

An offer that we know little of is judged by its siblings: those of the same provider, on demand or spot as it
is. The siblings' sums, without its own, become its prior, worth at most `SIBLINGS_WORTH` launches or losses,
so an offer with a record speaks for itself (as pools do in `reliability.rates`). With coming and going it is
the same: how the siblings come and go is what a new offer is expected to do.

The chance of a launch is the product of three: it is there; it is granted although it is there, which is less
than one when lists or our belief promised more than was kept; it comes up.

A node is lost in two ways: alone, at a rate learnt from node-time and losses; or, if it is spot, with the
whole offer when that goes away. The chance to outlive some hours is then a mixture for each, both known
exactly, so what has lasted is expected to last.

Where the numbers come from: `GRANTED` and `UP` are worth four launches, so that one failure among none does
not condemn an offer; nineteen of twenty launches of the public clouds that are granted come up.
`READY_MS_PRIOR`: a virtual machine boots, installs and joins in about three minutes. Losses: the priors of
`reliability.rates`.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.core.market.offer_history import GRID, prior_log_weights
from holdfast.model.market import HALF_LIFE_MS, OfferRecord, key_of
from holdfast.model.offer_table import FIRST_ROWS, SUMS, Floats, Table
from holdfast.model.place import Level
from holdfast.model.resources import Resources
from holdfast.model.units import HOUR, MINUTE, Instant, MicroUsd
from holdfast.model.workload import Needs
from holdfast.model.world import World
from holdfast.reliability import rates

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MEMO_MAX: Final = 4_096  # kinds of needs; workloads come and go, and the table stays
SIBLINGS_WORTH: Final = rates.FLEET_WORTH_MAX
STRANGERS: Final = 2.0  # so many unknown siblings are always among the known ones
GRANTED: Final = (4.0, 4.0)  # granted, of expected
UP: Final = (3.8, 4.0)  # came up, of granted
READY_MS_PRIOR: Final = 3 * MINUTE
READY_WORTH: Final = 2.0


class Outlook(NamedTuple):
    """What is expected at an instant, by row."""

    there: Floats  # the chance that there is one and it is granted
    up: Floats  # that it then comes up
    chance: Floats  # both
    ready_ms: Floats  # mean time to ready, if it comes up
    weights: Floats  # by row and hypothesis: of its coming and going
    loss_shape: Floats  # of the rate at which single nodes are lost: a Gamma distribution
    loss_hours: Floats


# which are there?


def listed(world: World) -> Table:
    """All offers of all pools, with what is remembered of them: the world's own table, brought up to date.
    Rows lie in the order of pools and their lists, whatever came before, so that sums over rows are the same
    after a restart to the last bit; when that order changes, the table is made anew."""
    table = world.market
    if table.outdated:
        offers = [(pool, offer) for pool in world.pools.values() for offer in world.offers[pool.name]]
        keys = [key_of(pool.name, offer.name) for pool, offer in offers]
        if keys != list(table.row):
            table.begin(max(FIRST_ROWS, len(keys)))
        for key, (pool, offer) in zip(keys, offers, strict=True):
            if table.offers.get(key) != (pool, offer):
                table.put(pool, offer, world.records.get(key, OfferRecord(key)))
        table.outdated = False
    for key in table.changed:
        table.note(world.records[key])
    table.changed.clear()
    return table


# whom does it suit?


def domain_level(spread_over: Level) -> Level:
    """Offers are in racks, not on nodes."""
    return Level.RACK if spread_over is Level.NODE else spread_over


def suits(table: Table, needs: Needs) -> Bools:
    """The rows that could take such a replica when empty: `bin_packing.Bin.suits`, of all at once."""
    asked = needs.resources
    key = (asked, tuple(sorted(needs.labels.items())), needs.tolerates, needs.spot)
    found = table.fixed_memo.get(key)
    if not isinstance(found, np.ndarray):
        found = table.bools["used"] & _fits(table, asked) & (~table.bools["spot"] | needs.spot)
        wanted = {f"{name}={value}" for name, value in needs.labels.items()}
        found &= _of_sets([wanted.issubset(pairs) for pairs in table.label_sets.value], table.ints["labels"])
        tolerated = {"", *needs.tolerates}
        allowed = [tolerated.issuperset(taints) for taints in table.taint_sets.value]
        found &= _of_sets(allowed, table.ints["taints"])
        if len(table.fixed_memo) >= MEMO_MAX:
            table.fixed_memo.clear()
        table.fixed_memo[key] = found
    return found


def cheapest(table: Table, rows: Bools) -> MicroUsd:
    """Of these; 0: there is none."""
    key = ("cheapest", rows.tobytes())
    found = table.fixed_memo.get(key)
    if not isinstance(found, int):
        found = table.fixed_memo[key] = int(table.ints["price"][rows].min()) if rows.any() else 0
    return found


def within(table: Table, most_micro_usd: Mapping[str, MicroUsd]) -> Bools:
    """The rows of these pools that cost no more than each may pay."""
    most = np.array([most_micro_usd.get(name, -1) for name in table.pools.number] or [-1], np.int64)
    found: Bools = table.ints["price"] <= most[table.ints["pool"]]
    return found


def outside(table: Table, level: Level, taken: Iterable[str]) -> Bools:
    """The rows in none of these failure domains."""
    numbers = [table.domains[level].number.get(name, -1) for name in taken]
    found: Bools = ~np.isin(table.domain[level], numbers)
    return found


def _fits(table: Table, asked: Resources) -> Bools:
    ints = table.ints
    room: Bools = (ints["cpu"] >= asked.cpu_milli) & (ints["memory"] >= asked.memory_mib)
    if asked.gpu_milli:
        room &= ints["gpu"] >= asked.gpu_milli
        room &= _of_sets([asked.takes_kind(kind) for (kind,) in table.kinds.value], ints["kind"])
    return room


def _of_sets(verdicts: list[bool], column: Ints) -> Bools:
    found: Bools = np.array(verdicts or [False], np.bool_)[column]
    return found


# what is expected?


def outlook(table: Table, now: Instant) -> Outlook:
    memo = table.at(now)
    found = memo.get("outlook")
    if not isinstance(found, Outlook):
        found = memo["outlook"] = _outlook(table, now)
    return found


def _outlook(table: Table, now: Instant) -> Outlook:
    left = 0.5 ** (np.maximum(0, now - table.ints["at"]) / HALF_LIFE_MS)
    left[~table.bools["used"]] = 0.0
    own = {name: table.floats[name] * left for name in SUMS}
    of_siblings = partial(_of_siblings, table.ints["family"], len(table.families.value))
    kin = {name: of_siblings(values) for name, values in own.items()}
    granted = _share(
        own["came_up"] + own["failed"], own["hoped"], kin["came_up"] + kin["failed"], kin["hoped"], GRANTED
    )
    up = _share(
        own["came_up"], own["came_up"] + own["failed"], kin["came_up"], kin["came_up"] + kin["failed"], UP
    )
    weights = _weights(table, left, of_siblings)
    there = np.einsum("rh,rh->r", weights, _chances(table, now)) * granted
    took = own["came_up"] * table.floats["ready_ms"]
    ready = _ready(took, own["came_up"], of_siblings(took), kin["came_up"])
    shape, hours = _loss_rate(table, own, kin)
    return Outlook(there, up, there * up, ready, weights, shape, hours)


def _of_siblings(family: Ints, families: int, values: Floats) -> Floats:
    """The sums over the others of the family."""
    if not families:
        return np.zeros_like(values)
    totals = np.zeros((families, *values.shape[1:]))
    np.add.at(totals, family, values)
    rest: Floats = np.maximum(0.0, totals[family] - values)
    return rest


def _share(yes: Floats, all_: Floats, kin_yes: Floats, kin_all: Floats, prior: tuple[float, float]) -> Floats:
    before = (kin_yes + prior[0]) / (kin_all + prior[1])
    found: Floats = np.minimum(1.0, (yes + SIBLINGS_WORTH * before) / (all_ + SIBLINGS_WORTH))
    return found


def _ready(took: Floats, count: Floats, kin_took: Floats, kin_count: Floats) -> Floats:
    before = (kin_took + READY_WORTH * READY_MS_PRIOR) / (kin_count + READY_WORTH)
    found: Floats = (took + READY_WORTH * before) / (count + READY_WORTH)
    return found


def _weights(table: Table, left: Floats, of_siblings: "partial[Floats]") -> Floats:
    """Of the hypotheses: how well each foretold what was seen of it, times how common it is among the
    siblings."""
    spot = table.bools["spot"][:, None]
    seen = table.log_weights * left[:, None]
    first = _normed(np.where(spot, prior_log_weights(True), prior_log_weights(False)))
    alone = _normed(seen + np.log(first)) * (table.ints["seen_at"] > 0)[:, None] * left[:, None]
    common = of_siblings(alone) + STRANGERS * first
    return _normed(seen + np.log(common))


def _normed(log_weights: Floats) -> Floats:
    raw = np.exp(log_weights - log_weights.max(axis=1, keepdims=True))
    found: Floats = raw / raw.sum(axis=1, keepdims=True)
    return found


def _chances(table: Table, now: Instant) -> Floats:
    """To be there, by row and hypothesis; `reliability.onoff.chances`, of all at once."""
    since = np.maximum(0, now - table.ints["seen_at"]) / HOUR
    fades = np.exp(-since[:, None] * GRID.pace)
    fades[table.ints["seen_at"] == 0] = 0.0
    found: Floats = GRID.usually + (table.bools["there"][:, None] - GRID.usually) * fades
    return found


def _loss_rate(table: Table, own: dict[str, Floats], kin: dict[str, Floats]) -> tuple[Floats, Floats]:
    spot = table.bools["spot"]
    shape = kin["losses"] + np.where(spot, rates.PREEMPTION_PRIOR.shape, rates.NODE_PRIOR.shape)
    hours = kin["served_ms"] / HOUR
    hours += np.where(spot, rates.PREEMPTION_PRIOR.exposure_hours, rates.NODE_PRIOR.exposure_hours)
    scale = np.minimum(1.0, SIBLINGS_WORTH / shape)
    return shape * scale + own["losses"], hours * scale + own["served_ms"] / HOUR


def outlives(expected: Outlook, hours: float, with_offer: Bools) -> Floats:
    """By row: the chance that a node is still there after so long; `with_offer`: it is lost when the offer
    goes away."""
    alone = (1 + hours / expected.loss_hours) ** -expected.loss_shape
    offer = expected.weights @ np.exp(-hours / GRID.stays)
    found: Floats = alone * np.where(with_offer, offer, 1.0)
    return found
