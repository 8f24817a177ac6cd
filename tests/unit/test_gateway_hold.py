"""Who waits, for how long, and who goes next."""

import timeit

from holdfast.core.gateway.routing.fair_queue import Hold


def test_an_empty_hold_has_nobody_and_no_wait() -> None:
    hold: Hold[str] = Hold(10, 1_000, 30.0)
    assert (hold.next(0.0), hold.length, hold.tokens, hold.oldest_wait_s(5.0)) == (None, 0, 0, 0)


def test_requests_of_one_key_go_in_the_order_they_came() -> None:
    hold: Hold[int] = Hold(10, 1_000, 30.0)
    assert all(hold.add(number, "a", 50, 0.0) for number in range(5))
    assert [hold.next(1.0) for _ in range(6)] == [0, 1, 2, 3, 4, None]


def test_a_key_with_a_hundred_times_the_requests_does_not_starve_another() -> None:
    hold: Hold[tuple[str, int]] = Hold(1_000, 1_000_000, 30.0)
    for number in range(300):
        assert hold.add(("many", number), "many", 100, 0.0)
    for number in range(3):
        assert hold.add(("few", number), "few", 100, 1.0)
    first = [hold.next(2.0) for _ in range(8)]
    assert sum(item is not None and item[0] == "few" for item in first) == 3


def test_turns_are_counted_in_tokens_and_not_in_requests() -> None:
    hold: Hold[tuple[str, int]] = Hold(10_000, 10_000_000, 30.0)
    for number in range(1_000):
        hold.add(("small", number), "small", 100, 0.0)
    for number in range(100):
        hold.add(("large", number), "large", 10_000, 0.0)
    served = {"small": 0, "large": 0}
    for _ in range(606):
        item = hold.next(1.0)
        assert item is not None
        served[item[0]] += 100 if item[0] == "small" else 10_000
    assert abs(served["small"] - served["large"]) <= 20_000


def test_the_bounds_are_kept_in_requests_and_in_tokens() -> None:
    hold: Hold[int] = Hold(3, 1_000, 30.0)
    assert [hold.add(number, str(number), 10, 0.0) for number in range(5)] == [True] * 3 + [False] * 2
    narrow: Hold[int] = Hold(100, 1_000, 30.0)
    assert [narrow.add(number, str(number), 400, 0.0) for number in range(4)] == [True, True, False, False]
    assert narrow.tokens == 800


def test_one_that_is_alone_may_be_larger_than_the_bound() -> None:
    hold: Hold[int] = Hold(3, 1_000, 30.0)
    assert hold.add(1, "a", 5_000, 0.0), "it could otherwise never be served"
    assert not hold.add(2, "b", 1, 0.0)


def test_a_key_that_fills_the_hold_leaves_room_for_others() -> None:
    hold: Hold[tuple[str, int]] = Hold(100, 1_000_000, 30.0)
    held = sum(hold.add(("greedy", number), "greedy", 100, 0.0) for number in range(1_000))
    assert held == 80
    assert hold.add(("other", 0), "other", 100, 0.0)


def test_the_same_request_does_not_wait_twice() -> None:
    hold: Hold[int] = Hold(10, 1_000, 30.0)
    assert hold.add(1, "a", 10, 0.0)
    assert not hold.add(1, "a", 10, 0.0)
    assert hold.length == 1


def test_one_that_went_away_is_not_served_and_frees_its_room() -> None:
    hold: Hold[int] = Hold(10, 1_000, 30.0)
    for number in range(3):
        hold.add(number, "a", 100, 0.0)
    assert hold.drop(1)
    assert not hold.drop(1)
    assert (hold.length, hold.tokens) == (2, 200)
    assert [hold.next(0.0) for _ in range(3)] == [0, 2, None]
    assert hold.tokens == 0


def test_nobody_waits_longer_than_the_patience_and_each_is_named_once() -> None:
    hold: Hold[str] = Hold(10, 1_000, 30.0)
    hold.add("early", "a", 10, 0.0)
    hold.add("later", "b", 10, 20.0)
    assert hold.oldest_wait_s(25.0) == 25.0
    assert hold.expired(29.9) == []
    assert hold.expired(30.0) == ["early"]
    assert hold.expired(30.0) == []
    assert hold.next(40.0) == "later"


def test_one_whose_patience_is_over_is_not_served_but_named() -> None:
    hold: Hold[str] = Hold(10, 1_000, 30.0)
    hold.add("early", "a", 10, 0.0)
    hold.add("later", "a", 10, 20.0)
    assert hold.next(31.0) == "later"
    assert hold.expired(31.0) == ["early"]
    assert hold.length == 0


def test_one_that_went_away_when_its_patience_was_over_is_not_named() -> None:
    """It was passed by in its turn, and left before anybody told it so."""
    hold: Hold[str] = Hold(10, 1000, 30.0)
    hold.add("early", "a", 10, 0.0)
    assert hold.next(31.0) is None
    assert hold.drop("early")
    assert not hold.drop("early")
    assert hold.expired(31.0) == []


def test_a_large_request_does_not_keep_the_turns_going_for_ever() -> None:
    hold: Hold[str] = Hold(10_000, 1e12, 30.0)
    hold.add("huge", "a", 1e9, 0.0)
    for number in range(5_000):
        hold.add(f"b{number}", f"b{number}", 1, 0.0)
    served = [hold.next(0.0) for _ in range(5_001)]
    assert set(served) == {"huge", *(f"b{number}" for number in range(5_000))}


def test_the_cost_of_a_turn_does_not_grow_with_the_queue() -> None:
    def seconds(keys: int) -> float:
        hold: Hold[int] = Hold(100_000, 1e12, 1e9)
        for number in range(keys * 4):
            hold.add(number, str(number % keys), 1 + number % 7, 0.0)
        return min(timeit.repeat(lambda: hold.next(0.0), number=200, repeat=5))

    assert seconds(10_000) < 20 * seconds(250), "forty times as many"


def test_one_that_is_put_back_keeps_its_place_and_its_time() -> None:
    """Whoever is called, finds no room after all and waits on, is still the first and the oldest."""
    hold: Hold[int] = Hold(10, 1_000, 30.0)
    for number, since in ((0, 0.0), (1, 10.0), (2, 20.0)):
        assert hold.add(number, "a", 50, since)
    for _ in range(2):
        assert hold.next(25.0) == 0
        assert hold.add(0, "a", 50, 0.0)
    assert hold.oldest_wait_s(25.0) == 25.0
    assert hold.expired(31.0) == [0], "its patience is over though younger ones wait"
    assert [hold.next(31.0) for _ in range(3)] == [1, 2, None]


def test_one_of_many_keys_that_is_put_back_is_refused_when_its_patience_is_over() -> None:
    hold: Hold[str] = Hold(10, 1_000, 30.0)
    assert hold.add("young", "a", 50, 20.0)
    assert hold.add("old", "b", 50, 0.0)
    called = hold.next(25.0)
    assert called is not None
    assert hold.add(called, "a" if called == "young" else "b", 50, 20.0 if called == "young" else 0.0)
    assert (hold.oldest_wait_s(29.0), hold.expired(30.0), hold.expired(30.0)) == (29.0, ["old"], [])


def test_one_that_is_put_back_always_finds_room() -> None:
    """It was promised to wait: that others have filled the hold meanwhile is no reason to lose it."""
    hold: Hold[tuple[str, int]] = Hold(100, 1_000_000, 30.0)
    assert sum(hold.add(("greedy", number), "greedy", 100, 0.0) for number in range(100)) == 80
    assert all(hold.add((f"k{number}", 0), f"k{number}", 100, 1.0) for number in range(19))
    called = hold.next(2.0)
    assert called is not None
    assert called[0] == "greedy"
    assert not hold.add(("greedy", 99), "greedy", 100, 2.0)
    assert hold.add(called, "greedy", 100, 0.0)
