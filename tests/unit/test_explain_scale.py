"""Why a service has its size: signals with their age, the decision, and what else it would cost."""

from msgspec.structs import replace

from holdfast.core.explain import scaling
from holdfast.core.explain.explain import explain_workload
from holdfast.core.scaling.demand import EVERY_MS
from holdfast.model.scale import Scale, ScalePolicy, Signal
from holdfast.model.units import MINUTE, SECOND
from holdfast.model.workload import Service, Workload
from tests.build import needs
from tests.play import Play, offer
from tests.unit.test_demand import PER_REPLICA, Scaled


def told(play: Scaled, *, leads: bool = True) -> list[str]:
    return list(explain_workload(play.world, "web", play.now, play.ears if leads else None).because)


def line(found: list[str], start: str) -> str:
    return next(text for text in found if text.startswith(start))


def test_the_decision_is_told_with_since_when_and_between_which_bounds() -> None:
    play = Scaled()
    play.go_on(30, lambda at: 2.0 + at // EVERY_MS % 3 / 10)
    play.go_on(1, lambda at: 20.0 + at // EVERY_MS % 3)
    wanted = play.world.demands["web"].wanted
    assert "before more could be ready" in line(told(play), f"{wanted} replicas wanted for ")
    assert "(1 to 8)" in line(told(play), f"{wanted} replicas")


def test_a_reason_that_has_passed_is_not_told_as_todays() -> None:
    """It said that there is no reading yet, above fresh signals: so it was when that was decided."""
    play = Scaled()
    play.go_on(1, lambda at: None)
    assert "no reading yet" in line(told(play), "1 replica wanted for ")
    play.go_on(2, lambda at: 1.0 + at // EVERY_MS % 3 / 10)
    assert play.world.demands["web"].wanted == 1, "it was right"
    assert "no reading yet" not in line(told(play), "1 replica wanted for ")
    first = line(told(play), "decided so ")
    assert first.endswith(" ago: no reading yet: nothing is taken away")


def test_signals_that_came_after_the_last_look_are_told_to_count_from_the_next() -> None:
    play = Scaled()
    play.go_on(1, lambda at: None)
    play.now += 3 * SECOND
    play.ears.hear(play.world, "web", "gw", {Signal.IN_FLIGHT: 5.0}, play.now)
    found = line(told(play), "1 replica wanted for ")
    assert found.endswith("; in_flight came after the last look, 3.0 s ago, and counts from the next")


def test_where_only_some_signals_are_missing_these_are_named() -> None:
    play = Scaled(per_replica={Signal.IN_FLIGHT: 4.0, Signal.TOKENS: 100.0})
    play.go_on(2, lambda at: 6.0)
    assert "no reading yet of tokens_per_s: " in line(told(play), "2 replicas wanted for ")


def test_signals_are_told_with_their_age_and_when_they_fall_silent_since_when() -> None:
    play = Scaled(per_replica={Signal.IN_FLIGHT: 4.0, Signal.TOKENS: 100.0})
    play.go_on(2, lambda at: 6.0)
    play.ears.hear(play.world, "web", "another", {Signal.IN_FLIGHT: 3.0}, play.now)
    play.now += 5 * SECOND
    expected = "signals: in_flight 9 at 4 a replica (5.0 s ago, 2 sources), tokens_per_s missing, never heard"
    assert line(told(play), "signals: ") == expected
    play.now += 3 * MINUTE
    assert "in_flight missing, last heard 3.1 min ago" in line(told(play), "signals: ")


def test_missing_signals_are_what_would_help() -> None:
    play = Scaled(per_replica={Signal.IN_FLIGHT: 4.0, Signal.TOKENS: 100.0})
    play.go_on(2, lambda at: 6.0)
    helps = explain_workload(play.world, "web", play.now, play.ears).would_help
    assert helps == ("its signals, told again and again: holdfast signal web tokens_per_s=N",)
    play.hear(tokens_per_s=3)
    assert explain_workload(play.world, "web", play.now, play.ears).would_help == ()


def test_whoever_waits_is_told_though_nobody_scales_by_it() -> None:
    play = Scaled()
    play.hear(in_flight=3, queue=2, oldest_wait_ms=800)
    found = line(told(play), "signals: ")
    assert found.endswith("queue 2 (0.0 s ago), oldest_wait_ms 800 (0.0 s ago)")


def test_what_else_was_possible_is_told_once_each_with_its_cost() -> None:
    play = Scaled()
    play.go_on(60, lambda at: 10.0 + at // EVERY_MS % 5 / 10)
    found = told(play)
    wanted = play.world.demands["web"].wanted
    assert line(found, "as decided: ").startswith(f"as decided: {wanted} ({wanted:.1f} replica-hours, ")
    others = [text for text in found if text.startswith("instead, ")]
    sizes = [int(text.split(": ")[1].split()[0]) for text in others]
    assert others
    assert len({*sizes, wanted}) == len(sizes) + 1
    assert all(1 <= size <= 8 for size in sizes)


def test_the_chosen_rule_is_told_and_what_the_other_would_have_done() -> None:
    play = Scaled(policy=ScalePolicy.TARGET_TRACKING)
    play.go_on(1, lambda at: 9.0 + at // EVERY_MS % 3 / 100)
    found = told(play)
    assert "target tracking: demand 2.3, and 70% of each" in line(found, "4 replicas wanted for ")
    assert line(found, "as decided: ").startswith("as decided: 4 (4.0 replica-hours, ")
    assert "forecast" in line(found, "instead, one more or forecast: 5 ")
    assert not any("target tracking" in text for text in found if text.startswith("instead, "))
    assert line(told(play, leads=False), "instead, forecast: 5 ")


def test_dollars_are_told_where_the_price_of_its_nodes_is_known() -> None:
    play = Scaled()
    play.go_on(30, lambda at: 4.5 + at // EVERY_MS % 3 / 10)
    for name, node in play.world.nodes.items():
        play.world.nodes[name] = replace(node, price_micro_usd=2_000_000)
    web = play.world.workloads["web"]
    assert scaling.replica_micro_usd(play.world, web) == 1_000_000, "half of its node's cpus"
    assert play.seats == 2
    assert len(set(play.running("web").values())) == 1
    assert line(told(play), "its ") == "its 1 node costs $2.00/h; its part of that is $2.00/h"
    assert "2.0 replica-hours, $2.00" in line(told(play), "as decided: ")


def test_without_a_forecast_no_odds_are_given() -> None:
    play = Scaled()
    found = told(play)
    assert line(found, "signals: ") == "signals: in_flight missing, never heard"
    assert not [text for text in found if "sure to be enough" in text]


def test_who_follows_tells_what_was_journalled_and_when() -> None:
    play = Scaled()
    play.go_on(30, lambda at: 2.0 + at // EVERY_MS % 3 / 10)
    play.go_on(1, lambda at: 20.0)
    play.now += MINUTE
    found = told(play, leads=False)
    assert line(found, "signals when that was decided, ").endswith("ago: in_flight 20")
    assert line(found, "expected then: ")
    assert line(found, "instead, target tracking: ")


def test_before_the_first_look_it_is_said_that_nothing_was_decided() -> None:
    play = Play(offers=(offer(),), max=2)
    play.join("a")
    play.apply(Workload("web", Service(1, scale=Scale(max=3, per_replica=PER_REPLICA)), needs(cpu=1)))
    found = explain_workload(play.world, "web", play.now)
    assert found.because[0] == "scales from 1 to 3: nothing was decided yet"


def test_what_does_not_scale_says_nothing_of_signals() -> None:
    play = Play(offers=(offer(),), max=2)
    play.join("a")
    play.apply(Workload("web", Service(1), needs(cpu=1)))
    play.obey()
    assert explain_workload(play.world, "web", play.now).because == ()
