import math

import pytest

from holdfast.core.scaling.load_signals import SOURCES_MAX, VALUE_MAX, Signals
from holdfast.model.scale import Scale, Signal
from holdfast.model.units import MINUTE

NOW = 100 * MINUTE
BY_REQUESTS = Scale(per_replica={Signal.IN_FLIGHT: 4})


def heard(*words: tuple[str, Signal, float]) -> Signals:
    signals = Signals()
    for source, signal, value in words:
        assert signals.hear(source, signal, value, NOW)
    return signals


def test_what_several_sources_have_in_flight_adds_up() -> None:
    signals = heard(("gateway 1", Signal.IN_FLIGHT, 6), ("gateway 2", Signal.IN_FLIGHT, 10))
    assert signals.read(BY_REQUESTS, 3, NOW).demand == 4


def test_the_worst_latency_counts_and_says_no_more_than_that_twice_as_many_are_needed() -> None:
    signals = heard(("a", Signal.LATENCY, 900), ("b", Signal.LATENCY, 300))
    by_latency = Scale(per_replica={Signal.LATENCY: 300})
    assert signals.read(by_latency, 3, NOW).demand == 6
    signals = heard(("a", Signal.LATENCY, 1e6))
    assert signals.read(by_latency, 3, NOW).demand == 6


def test_shares_of_use_are_those_of_the_replicas_that_are_ready() -> None:
    signals = heard(("web/0.1", Signal.CPU, 0.9), ("web/1.1", Signal.CPU, 0.3))
    assert signals.read(Scale(per_replica={Signal.CPU: 0.5}), 2, NOW).demand == pytest.approx(2.4)


def test_the_signal_that_asks_for_most_counts() -> None:
    scale = Scale(per_replica={Signal.IN_FLIGHT: 4, Signal.TOKENS: 100})
    signals = heard(("g", Signal.IN_FLIGHT, 4), ("g", Signal.TOKENS, 700))
    assert signals.read(scale, 1, NOW).demand == 7


def test_a_source_that_fell_silent_does_not_count_and_its_signal_is_missing() -> None:
    signals = heard(("g", Signal.IN_FLIGHT, 8))
    reading = signals.read(BY_REQUESTS, 1, NOW + BY_REQUESTS.stale_ms + 1)
    assert (reading.demand, reading.missing) == (0, (Signal.IN_FLIGHT,))
    assert str(reading) == "in_flight missing"


def test_what_waits_is_told_though_nobody_scales_by_it() -> None:
    signals = heard(("g", Signal.QUEUE, 5), ("g", Signal.OLDEST_WAIT, 1200))
    reading = signals.read(BY_REQUESTS, 0, NOW)
    assert (reading.waiting, reading.oldest_wait_ms) == (5, 1200)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1, 2 * VALUE_MAX])
def test_what_cannot_be_true_is_not_taken(value: float) -> None:
    signals = heard(("g", Signal.IN_FLIGHT, 8))
    assert not signals.hear("g", Signal.IN_FLIGHT, value, NOW + 1)
    assert signals.read(BY_REQUESTS, 1, NOW).demand == 2


def test_a_word_from_the_past_changes_nothing() -> None:
    signals = heard(("g", Signal.IN_FLIGHT, 8))
    assert not signals.hear("g", Signal.IN_FLIGHT, 400, NOW - 1)
    assert signals.read(BY_REQUESTS, 1, NOW).demand == 2


def test_the_sources_of_a_workload_are_bounded() -> None:
    signals = Signals()
    for number in range(SOURCES_MAX):
        assert signals.hear(f"g{number}", Signal.QUEUE, 1, NOW)
    assert not signals.hear("one more", Signal.QUEUE, 1, NOW)
