import math

import numpy as np
import pytest

from holdfast.model.units import HOUR, MINUTE
from holdfast.reliability.availability import (
    MONTH,
    at_least,
    binomial,
    downtime_ms,
    from_nines,
    nines,
    parallel,
    percent,
    series,
    short_of,
    spread,
    unavailability,
    up_odds,
    whole_nines,
)


def test_a_thing_that_fails_every_nine_hours_for_one_is_down_a_tenth_of_its_life() -> None:
    assert unavailability(1 / 9, 1 * HOUR) == pytest.approx(0.1)
    assert unavailability(0.0, 1 * HOUR) == 0.0


@pytest.mark.parametrize(
    ("nodes", "domains", "held"),
    [(6, 3, (2, 2, 2)), (7, 3, (3, 2, 2)), (2, 5, (1, 1)), (4, 1, (4,)), (1, 0, (1,)), (0, 3, (0,))],
)
def test_nodes_are_spread_evenly(nodes: int, domains: int, held: tuple[int, ...]) -> None:
    assert spread(nodes, domains) == held


def test_the_binomial_is_the_one_from_the_textbook() -> None:
    odds = binomial(4, 0.25)
    assert odds == pytest.approx([math.comb(4, up) * 0.75**up * 0.25 ** (4 - up) for up in range(5)])


@pytest.mark.parametrize(("q", "certain"), [(0.0, 3), (1.0, 0)])
def test_certainty_is_certain(q: float, certain: int) -> None:
    assert binomial(3, q)[certain] == 1.0
    assert binomial(3, q).sum() == 1.0


def test_two_of_three_in_one_safe_domain_is_the_textbook_formula() -> None:
    a = 0.99
    assert at_least(2, 3, 1, 1 - a, 0.0) == pytest.approx(a**3 + 3 * a**2 * (1 - a))


def test_a_lone_domain_is_the_most_that_its_replicas_can_reach() -> None:
    assert at_least(1, 50, 1, 0.01, 0.001) == pytest.approx(0.999)


def test_replicas_in_three_domains_survive_the_loss_of_one() -> None:
    assert short_of(2, 3, 3, 0.0, 0.001) == pytest.approx(3 * 0.001**2, rel=0.01)


def test_with_nothing_to_spare_spreading_makes_it_worse() -> None:
    assert at_least(3, 3, 3, 0.001, 0.001) < at_least(3, 3, 1, 0.001, 0.001)


def test_twelve_nines_are_still_right_to_many_digits() -> None:
    assert short_of(1, 4, 4, 0.001, 0.0) == pytest.approx(1e-12, rel=1e-9)


def test_needing_none_is_always_met_and_needing_more_than_there_are_never() -> None:
    assert at_least(0, 3, 2, 0.5, 0.5) == 1.0
    assert at_least(4, 3, 2, 0.1, 0.1) == pytest.approx(0.0)


def test_a_thousand_nodes_add_up_to_one() -> None:
    assert up_odds(1_000, 6, 0.01, 0.001).sum() == pytest.approx(1.0)


def test_sampling_agrees_with_the_convolution() -> None:
    rng, draws = np.random.default_rng(7), 200_000
    q_node, q_domain, held = 0.08, 0.05, (3, 2, 2)
    up = np.zeros(draws, np.int64)
    for size in held:
        up += rng.binomial(size, 1 - q_node, draws) * (rng.random(draws) >= q_domain)
    for k in range(8):
        assert at_least(k, 7, 3, q_node, q_domain) == pytest.approx(float((up >= k).mean()), abs=0.004)


def test_a_chain_is_weaker_than_its_links_and_a_choice_stronger() -> None:
    assert series(0.9, 0.9) == pytest.approx(0.81)
    assert parallel(0.9, 0.9) == pytest.approx(0.99)
    assert (series(), parallel()) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("availability", "count"), [(0.9, 1), (0.999, 3), (0.9995, 3.30103), (0.0, 0), (1.0, 15)]
)
def test_nines_are_counted(availability: float, count: float) -> None:
    assert nines(availability) == pytest.approx(count, abs=1e-6)


def test_nines_come_back() -> None:
    assert from_nines(3) == pytest.approx(0.999)
    assert [whole_nines(from_nines(n)) for n in range(1, 10)] == list(range(1, 10))


def test_three_nines_are_about_three_quarters_of_an_hour_down_a_month() -> None:
    assert downtime_ms(0.999) == pytest.approx(43.8 * MINUTE, rel=0.001)
    assert downtime_ms(0.0) == MONTH


@pytest.mark.parametrize(
    ("availability", "text"),
    [
        (0.999, "99.9 %"),
        (0.99978, "99.97 %"),
        (0.95, "95 %"),
        (0.99992, "99.992 %"),
        (0.99, "99 %"),
        (0.5, "50 %"),
    ],
)
def test_a_percentage_is_never_rounded_up(availability: float, text: str) -> None:
    assert percent(availability) == text
