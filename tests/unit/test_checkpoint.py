import pytest

from holdfast.model.units import HOUR, MINUTE, NEVER, SECOND
from holdfast.reliability.checkpoint import (
    best_useful_share,
    gang_mtbf_ms,
    interval_ms,
    lost_per_failure_ms,
    useful_share,
    useful_share_small_loss,
    young_ms,
)

PER_DAY = 1 / 24


def test_a_gang_fails_as_often_as_all_its_nodes_together() -> None:
    assert gang_mtbf_ms(2_000, 6.5e-3 * PER_DAY) == pytest.approx(1.846 * HOUR, rel=0.001)
    assert gang_mtbf_ms(8, 0.0) == NEVER


@pytest.mark.parametrize(
    ("write_s", "young_s", "daly_s"), [(20, 666, 653), (60, 1154, 1114), (300, 2580, 2384)]
)
def test_the_interval_for_a_gang_that_fails_every_three_hours(
    write_s: int, young_s: int, daly_s: int
) -> None:
    mtbf_ms = round(3.08 * HOUR)
    assert young_ms(write_s * SECOND, mtbf_ms) == pytest.approx(young_s * SECOND, rel=0.001)
    assert interval_ms(write_s * SECOND, mtbf_ms) == pytest.approx(daly_s * SECOND, rel=0.001)


def test_a_write_longer_than_the_gang_lives_is_tried_once_in_its_life() -> None:
    assert interval_ms(3 * HOUR, 1 * HOUR) == 1 * HOUR


def test_writes_that_cost_nothing_are_made_all_the_time() -> None:
    assert interval_ms(0, 1 * HOUR) == 1


@pytest.mark.parametrize(
    ("write_ms", "mtbf_ms"), [(20 * SECOND, 3 * HOUR), (5 * MINUTE, 3 * HOUR), (MINUTE, 100 * HOUR)]
)
def test_no_other_interval_is_noticeably_better(write_ms: int, mtbf_ms: int) -> None:
    chosen = interval_ms(write_ms, mtbf_ms)
    best = max(
        useful_share(chosen * percent // 100, write_ms, 2 * MINUTE, mtbf_ms) for percent in range(20, 300, 5)
    )
    assert useful_share(chosen, write_ms, 2 * MINUTE, mtbf_ms) >= best - 1e-4


def test_the_published_share_of_a_two_thousand_node_gang_is_reproduced() -> None:
    mtbf_ms = gang_mtbf_ms(2_000, 6.5e-3 * PER_DAY)
    assert useful_share_small_loss(60 * MINUTE, 0, 5 * MINUTE, mtbf_ms) == pytest.approx(0.7, abs=0.03)
    assert useful_share_small_loss(5 * MINUTE, 0, 5 * MINUTE, mtbf_ms) == pytest.approx(0.93, abs=0.01)


def test_both_formulas_agree_while_little_is_lost() -> None:
    arguments = (34 * MINUTE, MINUTE, 2 * MINUTE, 10 * HOUR)
    assert useful_share(*arguments) == pytest.approx(useful_share_small_loss(*arguments), rel=0.01)


def test_a_run_that_crawls_still_has_a_share_where_the_small_loss_formula_turns_negative() -> None:
    arguments = (60 * MINUTE, 5 * MINUTE, 10 * MINUTE, 30 * MINUTE)
    assert useful_share_small_loss(*arguments) < 0.0 < useful_share(*arguments) < 0.2


def test_a_run_that_never_finishes_an_interval_is_of_no_use() -> None:
    assert useful_share(1_000 * HOUR, MINUTE, MINUTE, 1 * HOUR) == 0.0


def test_a_failure_costs_half_an_interval_and_a_restart() -> None:
    assert lost_per_failure_ms(20 * MINUTE, 3 * MINUTE) == 13 * MINUTE


def test_a_larger_gang_is_useful_for_less_of_its_time() -> None:
    shares = [
        best_useful_share(nodes, 0.0002, 30 * SECOND, 5 * MINUTE) for nodes in (1, 10, 100, 1_000, 10_000)
    ]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.99


def test_a_gang_that_never_fails_is_useful_all_the_time() -> None:
    assert best_useful_share(8, 0.0, 30 * SECOND, 5 * MINUTE) == pytest.approx(1.0)
