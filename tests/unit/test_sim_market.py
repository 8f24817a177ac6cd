"""A market over time, read from traces, and the provider's twin that goes by it."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.model.action import LaunchNode
from holdfast.model.place import Place
from holdfast.model.pool import Offer, Pool
from holdfast.model.units import HOUR, MINUTE, NEVER, SECOND
from holdfast.ports.errors import CapacityShort, NotFound, OutcomeUnknown
from holdfast.sim.event_queue import Kernel, immediately
from holdfast.sim.scenario.market import (
    PLENTY,
    Market,
    Step,
    Track,
    by_numbers,
    market,
)
from holdfast.sim.scenario.traces import (
    EVERYWHERE,
    BadTrace,
    Format,
    for_offers,
    offer_log,
    read,
)
from holdfast.sim.twins.provider import (
    GIVE_UP_MS,
    LATE_MS,
    ProviderTraits,
    SimProvider,
    Spike,
)
from tests.play import BIG

USD = 1_000_000
OFFERS = (
    Offer("a", Place("twin", "r", "a"), BIG, USD, spot=True),
    Offer("b", Place("twin", "r", "b"), BIG, USD, spot=True),
    Offer("steady", Place("twin", "r", "a"), BIG, 3 * USD),
)
POOL = Pool("pool", "twin", OFFERS)
TRAITS = ProviderTraits(boot_ms=30 * SECOND, boot_spread=0.0, notice_ms=2 * MINUTE)


def wish(node: str, offer: str = "a") -> LaunchNode:
    it = next(one for one in OFFERS if one.name == offer)
    return LaunchNode(
        node=node,
        pool="pool",
        offer=offer,
        place=it.place,
        capacity=it.capacity,
        price_micro_usd=it.price_micro_usd,
        spot=it.spot,
        why="w",
    )


class Twin:
    """The twin of a provider by itself, and what came of its machines."""

    def __init__(self, **steps: tuple[Step, ...]) -> None:
        self.kernel = Kernel()
        self.provider = SimProvider("twin", TRAITS, self.kernel, "1")
        self.up: list[str] = []
        self.ended: list[tuple[int, str]] = []
        self.provider.booted = lambda request: self.up.append(request.node)
        self.provider.ended = lambda node: self.ended.append((self.kernel.now, node))
        if steps:
            self.provider.follow("pool", market(steps))

    def launch(self, node: str, offer: str = "a", **more: Any) -> None:
        immediately(self.provider.launch(replace(wish(node, offer), **more)))

    def offers(self) -> dict[str, int]:
        return {one.name: one.price_micro_usd for one in immediately(self.provider.offers(POOL))}

    def nodes(self) -> tuple[str, ...]:
        return immediately(self.provider.list("pool"))

    def until(self, at: int) -> None:
        self.kernel.run_until(at)


# tracks


def test_a_step_holds_until_the_next_and_what_it_does_not_say_stays() -> None:
    track = Track.of([Step(2_000, 0), Step(1_000, 3, 5), Step(3_000, price_micro_usd=7), Step(3_500)])
    seen = [(track.left(at), track.price(at, 1)) for at in (0, 1_000, 1_999, 2_000, 3_000, 9_000)]
    assert seen == [(3, 5), (3, 5), (3, 5), (0, 5), (0, 7), (0, 7)]
    assert [track.next_change(at) for at in (0, 1_000, 2_500, 3_000)] == [1_000, 2_000, 3_000, NEVER]


def test_a_market_that_says_nothing_has_everything_at_the_pools_price() -> None:
    empty = Market({})
    assert (empty.of("a").left(0), empty.of("a").price(0, 9)) == (PLENTY, 9)
    assert (empty.next_change(0), empty.last_change(HOUR)) == (NEVER, 0)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=50), st.integers(1, HOUR))
def test_a_trace_of_numbers_says_at_each_step_what_it_says(counts: list[int], step_ms: int) -> None:
    track = by_numbers(step_ms, counts)
    assert [track.left(number * step_ms) for number in range(len(counts))] == counts
    assert [track.left((number + 1) * step_ms - 1) for number in range(len(counts))] == counts
    assert all(a != b for a, b in zip(track.available, track.available[1:], strict=False))


# trace files


def gz(path: Path, text: str) -> Path:
    with gzip.open(path, "wt") as file:
        file.write(text)
    return path


def test_windows_are_picked_by_name_and_hold_everywhere(tmp_path: Path) -> None:
    rows = [
        {"env": "e", "window": n, "step_s": 600, "available": text} for n, text in enumerate(("01", "10"))
    ]
    path = gz(tmp_path / "any.jsonl.gz", "\n".join(map(json.dumps, rows)) + "\n")
    track = read(path, Format.WINDOWS, "e/1")[EVERYWHERE]
    assert (track.left(0), track.left(10 * MINUTE)) == (PLENTY, 0)
    assert read(path, Format.WINDOWS)[EVERYWHERE].left(0) == 0, "none picked: the first"
    with pytest.raises(BadTrace, match="no window e/2"):
        read(path, Format.WINDOWS, "e/2")


def test_zones_and_counts_are_by_zone(tmp_path: Path) -> None:
    path = tmp_path / "zones.jsonl"
    path.write_text(json.dumps({"window": 7, "step_s": 195, "zones": {"a": "10", "b": "01"}}))
    assert {zone: track.left(0) for zone, track in read(path, Format.ZONES, "7").items()} == {
        "a": PLENTY,
        "b": 0,
    }
    path = tmp_path / "counts.json"
    path.write_text(json.dumps({"set": "S", "step_s": 60, "zones": {"a": [4, 1], "c": [0, 0]}}))
    made = for_offers(read(path, Format.COUNTS), OFFERS)
    assert made.of("a").left(MINUTE) == 1
    assert made.of("b").left(MINUTE) == PLENTY, "the trace does not know its zone"


LOG = """t,instance,region,zone,acc,count,price,spot
1000,x_H100,r1,,H100,8,20,6
1000,y_H100,r1,z1,H100,8,22,
1000,x_A10,r1,,A10,1,1,0.5
1060,x_H100,r1,,H100,8,20,9
1120,x_H100,r1,,-,,,
1180,w_H100,r2,,H100,8,18,5
"""


def log(kind: str = "H100", count: str = "8", *, spot: bool) -> dict[str, Track]:
    return offer_log(csv.DictReader(LOG.splitlines()), kind, count, spot=spot)


def test_the_change_log_says_when_an_offer_came_went_and_changed_its_price() -> None:
    tracks = log(spot=True)
    assert set(tracks) == {"x_H100/r1", "y_H100/r1/z1", "w_H100/r2"}
    x, y, w = tracks["x_H100/r1"], tracks["y_H100/r1/z1"], tracks["w_H100/r2"]
    assert [(x.left(at), x.price(at, 0)) for at in (0, MINUTE)] == [(PLENTY, 6 * USD), (PLENTY, 9 * USD)]
    assert [x.left(2 * MINUTE), y.left(0)] == [0, 0], "gone; and one without a spot price"
    assert [w.left(0), w.left(3 * MINUTE)] == [0, PLENTY], "not there before it came"
    assert log(spot=False)["y_H100/r1/z1"].price(0, 0) == 22 * USD
    assert set(log("A10", "", spot=True)) == {"x_A10/r1"}
    assert log("A10", "4", spot=True) == {}


@pytest.mark.parametrize("format", Format)
@pytest.mark.parametrize("text", ["{", "[1]", '{"zones": 3}', "t,instance\n1,x\n"])
def test_a_file_that_is_no_trace_is_told_as_such(tmp_path: Path, format: Format, text: str) -> None:
    (path := tmp_path / "bad").write_text(text)
    with pytest.raises(BadTrace, match="is no trace of"):
        read(path, format)
    with pytest.raises(BadTrace, match="cannot be read: No such file"):
        read(tmp_path / "nowhere", format)


# the twin on a market


def test_no_more_can_be_launched_than_the_trace_has() -> None:
    twin = Twin(a=(Step(0, 2), Step(HOUR, 3)), b=(Step(0, 0),))
    twin.launch("n1")
    twin.launch("n2")
    with pytest.raises(CapacityShort):
        twin.launch("n3")
    with pytest.raises(CapacityShort):
        twin.launch("n3", "b")
    assert twin.offers() == {"steady": 3 * USD}, "what cannot be had is not offered"
    twin.until(HOUR)
    assert set(twin.offers()) == {"a", "steady"}
    twin.launch("n3")
    assert twin.nodes() == ("n1", "n2", "n3")


def test_when_less_can_be_had_the_newest_spot_machines_go_after_their_notice() -> None:
    twin = Twin(a=(Step(0, 3), Step(HOUR, 1), Step(HOUR + MINUTE, 3)), steady=(Step(0, 1), Step(HOUR, 0)))
    for number, offer in enumerate(("a", "a", "a", "steady")):
        twin.until(number * MINUTE)
        twin.launch(f"n{number}", offer)
    twin.until(HOUR + 90 * SECOND)
    assert len(twin.nodes()) == 4, "they have notice, and the return comes too late for them"
    with pytest.raises(CapacityShort):
        twin.launch("n9")
    twin.until(2 * HOUR)
    assert twin.ended == [(HOUR + 2 * MINUTE, "n2"), (HOUR + 2 * MINUTE, "n1")]
    assert twin.nodes() == ("n0", "n3"), "what is on demand stays, though no other can be had"


def test_machines_that_were_there_before_are_taken_too_when_the_trace_begins_with_fewer() -> None:
    twin = Twin(a=(Step(0, 1),))
    for number in range(3):
        twin.provider.adopt(wish(f"n{number}"))
    twin.until(HOUR)
    assert len(twin.nodes()) == 1


@given(
    st.lists(st.tuples(st.integers(1, 100), st.integers(0, 6)), min_size=1, max_size=12),
    st.lists(st.integers(1, 110), min_size=1, max_size=25),
)
def test_no_machine_stays_above_what_can_be_had_for_longer_than_its_notice(
    steps: list[tuple[int, int]], launches: list[int]
) -> None:
    twin = Twin(a=tuple(Step(minute * MINUTE, count) for minute, count in steps))
    track = twin.provider.markets["pool"].of("a")
    asked = sorted(launches)
    for minute in range(1, 120):
        twin.until(minute * MINUTE)
        for number, when in enumerate(asked):
            if when == minute:
                try:
                    twin.launch(f"n{number}")
                except CapacityShort:
                    assert len(twin.nodes()) >= track.left(minute * MINUTE)
        lately = [track.left((minute - ago) * MINUTE) for ago in range(4)]
        assert len(twin.nodes()) <= max(lately)
    assert twin.provider.bill().micro_usd >= 0


def test_spot_machines_pay_the_price_of_the_day_and_others_the_price_they_came_for() -> None:
    twin = Twin(
        a=(Step(0, 9, 1 * USD), Step(HOUR, 9, 4 * USD)), steady=(Step(0, 9, 2 * USD), Step(HOUR, 9, 8 * USD))
    )
    twin.launch("n1")
    twin.until(HOUR)
    assert twin.provider.bill().micro_usd == 1 * USD
    twin.until(2 * HOUR)
    assert (twin.provider.bill().micro_usd, twin.offers()["a"]) == (5 * USD, 4 * USD)
    immediately(twin.provider.terminate("n1"))
    twin.until(3 * HOUR)
    assert twin.provider.bill().micro_usd == 5 * USD, "what is gone costs nothing more"


def test_what_is_on_demand_keeps_the_price_it_was_launched_for() -> None:
    twin = Twin(steady=(Step(0, 9, 2 * USD), Step(HOUR, 9, 8 * USD)))
    twin.launch("n1", "steady")
    twin.until(2 * HOUR)
    assert twin.provider.bill().micro_usd == 4 * USD


# faults of the market


def test_a_price_spike_is_offered_and_paid_while_it_lasts() -> None:
    twin = Twin()
    twin.launch("n1")
    twin.launch("n2", "steady")
    twin.provider.spikes.append(Spike(HOUR, 2 * HOUR, 5.0))
    twin.until(HOUR)
    assert twin.offers() == {"a": 5 * USD, "b": 5 * USD, "steady": 15 * USD}
    twin.until(3 * HOUR)
    assert twin.offers() == {"a": USD, "b": USD, "steady": 3 * USD}
    assert twin.provider.bill().micro_usd == (1 + 5 + 1) * USD + 9 * USD


def test_spot_that_became_dearer_than_it_may_cost_is_refused() -> None:
    twin = Twin()
    twin.provider.spikes.append(Spike(0, HOUR, 5.0))
    with pytest.raises(CapacityShort):
        twin.launch("n1", price_max_micro_usd=4 * USD)
    twin.launch("n1", price_max_micro_usd=5 * USD)
    twin.launch("n2", "steady", price_max_micro_usd=1)


def test_offers_that_vanish_are_listed_and_cannot_be_had() -> None:
    twin = Twin()
    twin.provider.vanish_until = HOUR
    assert set(twin.offers()) == {"a", "b", "steady"}
    with pytest.raises(CapacityShort):
        twin.launch("n1")
    twin.provider.vanish_until, twin.provider.short_until = 0, HOUR
    assert twin.offers() == {}, "a stock-out is not even listed"


def test_a_late_launch_is_a_machine_after_all_and_only_one() -> None:
    twin = Twin()
    twin.provider.late_until = MINUTE
    with pytest.raises(OutcomeUnknown, match="no answer within 60 s"):
        twin.launch("n1")
    assert twin.provider.answer_ms() == GIVE_UP_MS
    twin.until(GIVE_UP_MS)
    assert twin.nodes() == (), "whoever lists when the time-out is over finds nothing yet"
    twin.launch("n1")
    twin.until(HOUR)
    assert (twin.nodes(), twin.up) == (("n1",), ["n1"])


def test_a_late_launch_comes_although_somebody_gave_it_up() -> None:
    twin = Twin()
    twin.provider.late_until = SECOND
    with pytest.raises(OutcomeUnknown):
        twin.launch("n1")
    twin.until(MINUTE)
    with pytest.raises(NotFound):
        immediately(twin.provider.terminate("n1"))
    twin.until(LATE_MS)
    assert twin.nodes() == ("n1",), "it costs money, and a list shows it"
    immediately(twin.provider.terminate("n1"))
    assert twin.nodes() == ()


def test_a_late_termination_happens_after_all() -> None:
    twin = Twin()
    twin.launch("n1")
    twin.provider.late_until = SECOND
    with pytest.raises(OutcomeUnknown):
        immediately(twin.provider.terminate("n1"))
    assert twin.nodes() == ("n1",)
    twin.until(LATE_MS)
    assert twin.nodes() == ()


@pytest.mark.parametrize("count", [1, 1_000])
def test_launches_that_fail_are_taken_and_come_to_nothing(count: int) -> None:
    twin = Twin()
    twin.provider.fails_until = MINUTE
    for number in range(count):
        twin.launch(f"n{number}")
    assert len(twin.nodes()) == count
    twin.until(5 * MINUTE)
    assert (twin.nodes(), twin.up, len(twin.ended)) == ((), [], count)


def test_a_machine_that_has_not_come_up_can_be_taken_too() -> None:
    twin = Twin(a=(Step(0, 1), Step(10 * SECOND, 0)))
    twin.launch("n1")
    twin.until(HOUR)
    assert twin.ended == [(10 * SECOND + TRAITS.notice_ms, "n1")]
