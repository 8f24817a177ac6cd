"""The market's bench: what a log is taken to mean, and that nobody sees the future."""

import argparse
import gzip
from pathlib import Path

import pytest

from bench import offers
from bench._offers_log import HOLE_S, Log, Row, build, logs, synthetic
from bench._offers_policies import Known, made, requests

H = 3600
KIND = ("H100", 8)


def log_of(*rows: tuple[int, str, float | None]) -> Log:
    """Hours, offer (its provider is its first letter), and price; none: it vanished."""
    return build(
        "stock",
        [Row(h * H, offer, KIND if p else None, p or 0.0, offer[0], offer) for h, offer, p in rows],
    )


def test_a_change_happened_at_some_time_since_the_poll_before() -> None:
    log = log_of((0, "a", 2.0), (7, "b", 1.0), (14, "a", None), (21, "b", None))
    (stay,) = log.items["a"].stays
    assert stay.start == 0
    assert 7 * H < stay.end < 14 * H
    assert log.items["a"].at(7 * H) == stay
    assert log.items["a"].at(14 * H) is None


def test_a_change_of_price_is_not_the_end_of_a_stay() -> None:
    log = log_of((0, "a", 2.0), (7, "a", 3.0), (14, "a", None))
    first, second = log.items["a"].stays
    assert (first.price, second.price) == (2.0, 3.0)
    assert log.items["a"].gone_at(0) == second.end


def test_nothing_is_known_in_holes_and_after_the_end() -> None:
    log = log_of((0, "a", 1.0), (7, "a", 2.0), (100, "a", 3.0), (107, "a", 4.0))
    assert 93 * H > HOLE_S
    assert log.known(1 * H, 6 * H)
    assert not log.known(6 * H, 8 * H)
    assert not log.known(50 * H, 50 * H)
    assert not log.known(101 * H, 108 * H)


@pytest.mark.parametrize(("name", "proves"), [("shadeform", True), ("vast_2025", False)])
def test_files_are_read_whatever_they_are_called(name: str, proves: bool, tmp_path: Path) -> None:
    lines = [
        "t,instance,region,zone,acc,count,price,spot",
        "0,north_H100x8,r1,,RTX-A6000,8,2.5,",
        "25000,south_H100x8,r2,,A6000,8,2,",
        "50000,north_H100x8,r1,,-,,,",
    ]
    (tmp_path / f"{name}.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    (log,) = logs(tmp_path)
    assert log.proves is proves
    assert {(item.provider, item.kind) for item in log.items.values()} == {
        ("north", ("A6000", 8)),
        ("south", ("A6000", 8)),
    }


def test_a_log_in_which_nothing_ever_vanishes_is_a_price_list() -> None:
    assert log_of((0, "a", 1.0), (7, "b", 1.0), (14, "b", None)).proves
    assert not log_of(*((7 * n, f"a{n}", 1.0) for n in range(200))).proves


def test_policies_choose_alike_whatever_the_future_brings() -> None:
    """The same past, two futures: at the same instant everybody tries the same."""
    whole = synthetic(3)
    rows = [row for poll in whole.polls for row in whole.changes[poll]]
    half = whole.polls[len(whole.polls) // 2]
    cut = build("made", [row for row in rows if row.at <= half])
    asked = requests([whole], 1, 400, 0.3, (2.0, 72.0))
    request = next(r for r in asked if r.at >= half)._replace(at=half + 60.0)
    orders = []
    for log in (whole, cut):
        known = Known()
        policies = made(known, 0.5)
        for poll in (poll for poll in log.polls if poll <= half):
            known.poll(log, poll)
            for policy in policies.values():
                policy.poll(log, poll)
        orders.append({name: list(policy.order(request, half + 60.0)) for name, policy in policies.items()})
    assert orders[0] == orders[1]
    assert all(orders[0].values())


def test_nobody_is_served_more_often_than_the_union_allows_within_its_tries(tmp_path: Path) -> None:
    args = argparse.Namespace(data=tmp_path, requests=120, list_requests=0, seed=4, lost_share=0.5)
    measured = offers.run(args)
    figures = {name: found for name, found in measured.items() if isinstance(found, dict)}
    assert figures["oracle"]["served_pct"] == figures["union"]["served_pct"]
    assert figures["oracle"]["outlived_pct"] >= figures["ours"]["outlived_pct"]
    assert figures["ours"]["premium_pct"] >= 0
    assert figures["ours"]["served_pct"] >= figures["cheapest_single"]["served_pct"]
    assert measured == offers.run(args)  # the same seed, the same answer
