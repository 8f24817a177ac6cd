"""What puts a replica out of use, and what lets it in again."""

import pytest

from holdfast.core.gateway.routing.outlier import (
    BACK_OFF_MAX_S,
    SLOW_START_S,
    TRIAL_S,
    Health,
)


def ejected(now: float = 0.0) -> Health:
    health = Health()
    health.unreachable(now)
    return health


def test_a_connection_that_cannot_be_made_ejects_at_once() -> None:
    health = Health()
    assert health.unreachable(10.0)
    assert health.ejected
    assert not health.usable(10.0)


def test_one_or_two_bad_answers_do_not_eject_and_three_in_a_row_do() -> None:
    health = Health()
    assert not health.failed(1.0)
    assert not health.failed(2.0)
    assert health.usable(2.0)
    assert health.failed(3.0)
    assert not health.usable(3.0)


def test_a_good_answer_between_them_begins_the_row_anew() -> None:
    health = Health()
    for at in range(3):  # fewer than ten answers: their share says nothing yet
        assert not health.failed(at)
        assert not health.failed(at)
        health.succeeded(at)
    assert health.usable(10.0)


def test_more_than_half_of_ten_answers_bad_ejects_without_three_in_a_row() -> None:
    health = Health()
    went_out = []
    for at in range(4):
        went_out += [health.failed(at), health.failed(at), health.succeeded(at)]
    assert True in went_out
    assert went_out.index(True) == 9, "with the tenth answer: seven of ten were bad"


def test_half_of_many_answers_bad_does_not_eject() -> None:
    health = Health()
    for at in range(50):
        assert not health.succeeded(at)
        assert not health.failed(at)


def test_too_many_requests_never_ejects_however_many_come() -> None:
    health = Health()
    for at in range(200):
        assert not health.pushed_back(at, 0.0)
    assert not health.ejected


def test_a_replica_that_has_enough_is_left_alone_for_as_long_as_it_asks() -> None:
    health = Health()
    health.pushed_back(100.0, 5.0)
    health.pushed_back(101.0, 0.5)
    assert not health.usable(104.9), "a shorter wish does not cut the longer one short"
    assert health.usable(105.0)


def test_a_replica_that_asks_for_an_hour_gets_a_minute() -> None:
    health = Health()
    health.pushed_back(0.0, 3600.0)
    assert health.usable(60.0)


def test_each_failed_trial_doubles_the_time_out_up_to_a_minute() -> None:
    health, now, outs = ejected(0.0), 0.0, []
    for _ in range(8):
        outs.append(health.barred_until - now)
        now = health.barred_until
        health.take_trial(now)
        health.failed(now)
    assert outs == [1, 2, 4, 8, 16, 32, 60, 60]


def test_failures_of_the_same_accident_do_not_double_the_time_out() -> None:
    health = ejected(0.0)
    for _ in range(50):
        health.failed(0.1)
        health.unreachable(0.1)
    assert health.barred_until == 1.0


def test_an_old_stream_that_ends_well_does_not_let_it_in() -> None:
    health = ejected(0.0)
    assert not health.succeeded(0.5)
    assert health.ejected


def test_a_trial_that_goes_well_lets_it_in_slowly() -> None:
    health = ejected(0.0)
    health.take_trial(1.0)
    assert health.succeeded(1.5)
    assert health.usable(1.5)
    assert health.share(1.5) == pytest.approx(0.1)
    assert health.share(1.5 + SLOW_START_S / 2) == pytest.approx(0.5)
    assert health.share(1.5 + SLOW_START_S) == 1


def test_a_trial_answered_with_too_many_requests_lets_it_in_and_leaves_it_alone() -> None:
    health = ejected(0.0)
    health.take_trial(1.0)
    assert health.pushed_back(1.5, 3.0)
    assert not health.ejected
    assert not health.usable(4.4)
    assert health.usable(4.5)


def test_there_is_one_trial_until_it_is_answered_or_forgotten() -> None:
    health = ejected(0.0)
    assert not health.trial_due(0.9)
    assert health.trial_due(1.0)
    health.take_trial(1.0)
    assert not health.trial_due(1.0)
    assert not health.trial_due(TRIAL_S)
    assert health.trial_due(1.0 + TRIAL_S), "nothing was heard of the first"


def test_a_replica_that_relapses_soon_is_out_for_longer_and_one_that_held_is_not() -> None:
    soon, held = ejected(0.0), ejected(0.0)
    for health in (soon, held):
        health.take_trial(1.0)
        health.succeeded(1.0)
    soon.unreachable(2.0)
    held.unreachable(2.0 + BACK_OFF_MAX_S)
    assert soon.barred_until - 2.0 == 2.0
    assert held.barred_until - (2.0 + BACK_OFF_MAX_S) == 1.0


def test_a_good_probe_brings_the_trial_forward_and_does_not_replace_it() -> None:
    health, now = ejected(0.0), 0.0
    for _ in range(6):
        now = health.barred_until
        health.take_trial(now)
        health.failed(now)
    assert not health.trial_due(now + 5)
    assert not health.probed(True, now + 5)
    assert health.ejected
    assert health.trial_due(now + 5)


def test_bad_probes_eject_like_bad_answers() -> None:
    health = Health()
    assert [health.probed(False, at) for at in (0.0, 2.0, 4.0)] == [False, False, True]


def test_a_trial_before_its_time_that_fails_does_not_make_it_longer() -> None:
    health = ejected(0.0)
    for _ in range(20):
        health.take_trial(0.2)
        health.failed(0.2)
    assert health.barred_until == 1.0
    health.take_trial(0.3)
    assert health.succeeded(0.3), "and one that goes well lets it in"
