"""Which control plane is tried next, and after how long."""

from holdfast.agent.control_planes import (
    AFTER_LOSS_S,
    MOVES_MAX,
    REFUSED_S,
    SLOWEST_ROUND_S,
    WITHIN_ROUND_S,
    ControlPlanes,
)
from holdfast.agent.settings import Url

A, B, C = (Url("https", name, 7700) for name in "abc")
LONGEST = 1.0  # the largest that chance can draw


def planes(*given: Url, learned: tuple[Url, ...] = ()) -> ControlPlanes:
    return ControlPlanes(given, learned, lambda: LONGEST)


def test_all_are_tried_in_turn_the_given_ones_first() -> None:
    ours = planes(A, B, learned=(B, C))
    tried = []
    for _ in range(4):
        tried.append(ours.next())
        ours.lost(was_welcomed=False)
    assert tried == [A, B, C, A]


def test_a_round_is_quick_and_the_rounds_become_slower_up_to_a_limit() -> None:
    ours, waits = planes(A, B), []
    for _ in range(40):
        ours.lost(was_welcomed=False)
        waits.append(ours.wait_s())
    within, between = waits[::2], waits[1::2]
    assert max(within) <= WITHIN_ROUND_S
    assert between == sorted(between)
    assert between[0] <= 0.5
    assert between[-1] == SLOWEST_ROUND_S


def test_who_was_welcomed_comes_back_to_the_same_at_once_with_some_chance() -> None:
    ours = planes(A, B)
    ours.lost(was_welcomed=False)
    ours.welcomed(B, ())
    ours.lost(was_welcomed=True)
    assert ours.next() == B
    assert 0 < ours.wait_s() <= AFTER_LOSS_S


def test_one_that_fell_silent_is_not_the_next_to_be_tried() -> None:
    ours = planes(A, B)
    ours.welcomed(A, ())
    ours.lost(was_welcomed=True, deaf=True)
    assert ours.next() == B


def test_the_leader_that_somebody_names_is_tried_next() -> None:
    ours = planes(A)
    ours.moved(C, (A, B, C))
    assert ours.next() == C
    assert ours.wait_s() <= WITHIN_ROUND_S
    assert ours.learned == (A, B, C)


def test_two_that_name_each_other_do_not_keep_us_busy() -> None:
    ours, waits = planes(A, B), []
    for number in range(40):
        ours.moved((A, B)[number % 2], ())
        waits.append(ours.wait_s())
    assert all(wait <= WITHIN_ROUND_S for wait in waits[:MOVES_MAX])
    assert sum(waits) > 5 * SLOWEST_ROUND_S / 2


def test_nobody_leads_so_the_next_is_asked() -> None:
    ours = planes(A, B)
    ours.moved(None, ())
    assert ours.next() == B


def test_a_refusal_for_good_is_asked_about_seldom() -> None:
    ours = planes(A)
    ours.refused(final=True)
    assert 0.8 * REFUSED_S <= ours.wait_s() <= REFUSED_S
    ours.refused(final=False)
    assert ours.wait_s() < REFUSED_S / 2


def test_those_that_are_gone_are_forgotten_and_an_empty_list_says_nothing() -> None:
    ours = planes(A, learned=(B,))
    ours.welcomed(A, (C,))
    assert ours.known == (A, C)
    ours.welcomed(A, ())
    assert ours.known == (A, C)


def test_who_joined_over_tls_is_not_led_away_from_it() -> None:
    safe, plain = Url("https", "a", 443), Url("http", "b", 7700)
    ours = planes(safe)
    ours.moved(plain, (plain, safe))
    assert ours.known == (safe,)
    assert ours.next() == safe


def test_only_one_that_was_started_insecure_is_led_to_plain_http_on_another_machine() -> None:
    here, plain = Url("http", "127.0.0.1", 7700), Url("http", "b", 7700)
    ours = planes(here)
    ours.moved(plain, (plain, A))
    assert ours.known == (here, A)
    insecure = ControlPlanes((here,), (), lambda: LONGEST, insecure=True)
    insecure.moved(plain, (plain, A))
    assert insecure.next() == plain
