import pytest

from holdfast.model.units import DAY, HOUR, MINUTE
from holdfast.reliability.standby import coverage, poisson_at_most, poisson_quantile, standbys


@pytest.mark.parametrize(("machines", "published"), [(128, 2), (256, 2), (512, 3), (1_024, 4)])
def test_the_published_table_of_a_large_fleet_is_reproduced(machines: int, published: int) -> None:
    assert standbys(machines, 0.0012 / 24, 1 * DAY) == published


@pytest.mark.parametrize(
    ("mean", "probability", "count"),
    [
        (0.0, 0.99, 0),
        (1.0, 0.5, 1),
        (1.0, 0.99, 4),
        (10.0, 0.95, 15),
        (100.0, 0.99, 124),
        (10_000.0, 0.99, 10_233),
    ],
)
def test_the_poisson_quantile_is_the_one_from_the_tables(mean: float, probability: float, count: int) -> None:
    assert poisson_quantile(mean, probability) == pytest.approx(count, abs=0 if mean <= 100 else 2)


def test_a_fleet_that_never_fails_needs_no_standby() -> None:
    assert standbys(1_000, 0.0, 1 * HOUR) == 0


def test_a_quicker_boot_needs_fewer_standbys() -> None:
    counts = [standbys(5_000, 0.0002, boot_ms) for boot_ms in (1 * MINUTE, 10 * MINUTE, 1 * HOUR, 8 * HOUR)]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def test_a_fleet_sixteen_times_as_large_needs_far_fewer_than_sixteen_times_the_spares() -> None:
    small, large = (standbys(nodes, 0.0002, 1 * HOUR) for nodes in (1_000, 16_000))
    assert large < 8 * small


def test_the_count_is_the_smallest_that_covers() -> None:
    count = standbys(5_000, 0.0002, 1 * HOUR, 0.999)
    assert coverage(count, 5_000, 0.0002, 1 * HOUR) >= 0.999
    assert coverage(count - 1, 5_000, 0.0002, 1 * HOUR) < 0.999


def test_the_sum_and_its_normal_stand_in_meet() -> None:
    assert poisson_at_most(720, 700.0) == pytest.approx(poisson_at_most(720, 700.0001), abs=0.005)


def test_nothing_covers_everything() -> None:
    with pytest.raises(ValueError, match="no count covers all"):
        poisson_quantile(1.0, 1.0)
