import pytest

from holdfast.model.units import DAY, HOUR, MINUTE
from holdfast.reliability.rates import (
    DOMAIN_REPAIR_MS,
    NODE_PRIOR,
    YEAR_HOURS,
    Gamma,
    Priors,
    Rates,
    Record,
    Records,
    bound_per_hour,
    informed,
    mean_per_hour,
    measured,
    repair_ms,
    settled,
    updated,
    weakened,
)

YEAR_MS = round(YEAR_HOURS) * HOUR


@pytest.mark.parametrize(
    ("shape", "at_80", "at_95"),
    [
        (0.5, 0.8212, 1.9207),
        (1, 1.6094, 2.9957),
        (2, 2.9943, 4.7439),
        (5, 6.7210, 9.1535),
        (10, 12.5188, 15.7052),
    ],
)
def test_the_bound_is_close_to_the_exact_quantile_of_the_gamma(
    shape: float, at_80: float, at_95: float
) -> None:
    assert bound_per_hour(Gamma(shape, 1.0), 0.80) == pytest.approx(at_80, rel=0.03)
    assert bound_per_hour(Gamma(shape, 1.0), 0.95) == pytest.approx(at_95, rel=0.03)


def test_no_deaths_in_ten_minutes_does_not_mean_that_a_node_never_fails() -> None:
    after = updated(NODE_PRIOR, Record(events=0, exposure_ms=10 * MINUTE))
    assert mean_per_hour(after) == pytest.approx(mean_per_hour(NODE_PRIOR), rel=1e-4)


def test_a_long_record_outweighs_the_prior() -> None:
    after = updated(NODE_PRIOR, Record(events=500, exposure_ms=100 * YEAR_MS))
    assert mean_per_hour(after) * YEAR_HOURS == pytest.approx(5.0, rel=0.03)


def test_the_bound_comes_down_to_the_mean_as_the_record_grows() -> None:
    seen = [Record(events=years, exposure_ms=years * YEAR_MS) for years in (0, 1, 10, 1_000)]
    beliefs = [updated(NODE_PRIOR, record) for record in seen]
    ratios = [bound_per_hour(belief) / mean_per_hour(belief) for belief in beliefs]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] > 1.4
    assert ratios[-1] < 1.05


def test_a_more_cautious_bound_is_higher() -> None:
    assert bound_per_hour(NODE_PRIOR, 0.95) > bound_per_hour(NODE_PRIOR, 0.8) > mean_per_hour(NODE_PRIOR)


def test_a_bound_far_below_the_mean_is_never_negative() -> None:
    assert bound_per_hour(Gamma(0.1, 1.0), 0.01) == 0.0


def test_a_weakened_belief_keeps_its_mean_and_loses_its_weight() -> None:
    strong = Gamma(400.0, 1_000.0)
    assert mean_per_hour(weakened(strong)) == pytest.approx(mean_per_hour(strong))
    assert weakened(strong).shape == 4.0
    assert weakened(Gamma(1.0, 9.0)) == Gamma(1.0, 9.0)


def test_a_new_pool_is_judged_by_its_fleet() -> None:
    fleet = Records(nodes=Record(events=1_000, exposure_ms=100 * YEAR_MS))
    alone = measured(Records()).node_failures_per_hour
    in_fleet = measured(Records(), informed(fleet)).node_failures_per_hour
    assert in_fleet > 5 * alone


def test_a_bad_pool_is_not_talked_out_of_its_deaths_by_a_good_fleet() -> None:
    fleet = Records(nodes=Record(events=1_000, exposure_ms=1_000 * YEAR_MS))
    pool = Records(nodes=Record(events=20, exposure_ms=1 * YEAR_MS))
    belief = updated(informed(fleet).nodes, pool.nodes)
    assert mean_per_hour(belief) * YEAR_HOURS > 4.0


def test_a_quiet_week_of_spot_overrules_the_pessimistic_prior() -> None:
    week = Record(events=0, exposure_ms=10 * 7 * DAY)
    before, after = measured(Records()), measured(Records(preemptions=week, droughts=week))
    assert after.preemptions_per_hour < before.preemptions_per_hour / 50
    assert after.droughts_per_hour < before.droughts_per_hour / 50
    assert after.node_failures_per_hour == before.node_failures_per_hour


def test_the_length_of_an_outage_is_the_mean_with_the_prior_as_one_more() -> None:
    assert repair_ms(DOMAIN_REPAIR_MS, Record()) == DOMAIN_REPAIR_MS
    assert repair_ms(3 * HOUR, Record(events=2, exposure_ms=YEAR_MS, down_ms=3 * HOUR)) == 2 * HOUR


def test_priors_can_be_replaced() -> None:
    priors = Priors(nodes=Gamma(1.0, 1.0))
    assert measured(Records(), priors).node_failures_per_hour == bound_per_hour(Gamma(1.0, 1.0))


def test_a_settled_rate_is_no_lower_and_does_not_move_with_every_hour() -> None:
    watched = [Records(nodes=Record(exposure_ms=h * HOUR)) for h in range(100)]
    raw = [measured(records) for records in watched]
    calm = [settled(rates) for rates in raw]
    pairs = zip(raw, calm, strict=True)
    assert all(a.node_failures_per_hour <= b.node_failures_per_hour * (1 + 1e-9) for a, b in pairs)
    assert len({rates.node_failures_per_hour for rates in raw}) == 100
    assert len({rates.node_failures_per_hour for rates in calm}) <= 2
    assert settled(calm[0]) == calm[0]
    assert settled(calm[0]).domain_repair_ms == raw[0].domain_repair_ms


def test_a_rate_of_nothing_settles_at_nothing() -> None:
    nothing = Rates(node_failures_per_hour=0.0, domain_failures_per_hour=0.0, domain_repair_ms=0)
    assert settled(nothing) == nothing
