"""From signals to seats: the ears, the event, and what the world makes of it."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.core.provisioning.boot_times import boot_ms
from holdfast.core.scaling.demand import (
    EVERY_MS,
    MEMORY_EVERY_MS,
    Ears,
    lead_ms,
)
from holdfast.core.scaling.load_signals import SOURCES_MAX
from holdfast.core.state.snapshot import dump, load
from holdfast.model import event as ev
from holdfast.model.replica import Phase
from holdfast.model.scale import Scale, ScalePolicy, Signal, Window
from holdfast.model.units import HOUR, MINUTE, SECOND
from holdfast.model.workload import Service, Workload
from tests.build import needs
from tests.play import Play, offer

PER_REPLICA = {Signal.IN_FLIGHT: 4.0}


class Scaled(Play):
    """A fleet with room for many, a service that scales, and its ears."""

    def __init__(self, nodes: int = 12, **rules: Any) -> None:
        super().__init__(offers=(offer(),), max=nodes)
        self.ears = Ears()
        self.join(*(f"n{number}" for number in range(nodes)))
        shape = Service(1, scale=Scale(**{"max": 8, "per_replica": PER_REPLICA, **rules}))
        self.apply(Workload("web", shape, needs(cpu=4)))
        self.look()
        self.obey()

    def look(self) -> list[ev.DemandJudged]:
        judged = list(self.ears.judge(self.world, self.now))
        self.tell(*judged)
        if judged:
            self.obey()
        return judged

    def hear(self, **said: float) -> list[Signal]:
        words = {Signal(name): value for name, value in said.items()}
        return self.ears.hear(self.world, "web", "gateway", words, self.now)

    def go_on(self, minutes: float, load: Callable[[int], float | None]) -> None:
        """Time passes under a load (None: nothing is told), looked at as often as the loop does."""
        for _ in range(int(minutes * MINUTE // EVERY_MS)):
            self.now += EVERY_MS
            in_flight = load(self.now)
            if in_flight is not None:
                self.hear(in_flight=in_flight)
            self.look()

    @property
    def seats(self) -> int:
        slots = (self.world.slots[name] for name in self.world.of_workload["web"])
        return sum(slot.phase is Phase.OPEN for slot in slots)


def test_before_anything_is_heard_it_has_as_many_as_were_written() -> None:
    assert Scaled().seats == 1


def test_it_keeps_what_was_written_though_its_first_look_comes_before_its_seats() -> None:
    play = Play(offers=(offer(),), max=4)
    play.apply(Workload("web", Service(3, scale=Scale(max=8, per_replica=PER_REPLICA)), needs(cpu=4)))
    (judged,) = Ears().judge(play.world, play.now)
    assert judged.wanted == 3


def test_it_grows_with_its_load_at_once() -> None:
    play = Scaled()
    play.go_on(60, lambda at: 2.0 + at // EVERY_MS % 3 / 10)
    assert play.seats <= 2
    play.go_on(1, lambda at: 20.0 + at // EVERY_MS % 3)
    assert play.seats >= 5


def test_it_shrinks_when_the_load_has_gone_for_good() -> None:
    play = Scaled()
    play.go_on(20, lambda at: 20.0 + at // EVERY_MS % 5 / 10)
    assert play.seats >= 5
    play.go_on(180, lambda at: 2.0 + at // EVERY_MS % 5 / 10)
    assert play.seats <= 2


def test_what_was_heard_last_takes_nothing_away_once_it_is_too_old() -> None:
    """A look at a word that was nearly too old counted as a fresh one: replicas were taken away when it was
    twice as old as may be believed."""
    play = Scaled(stale_ms=2 * MINUTE)
    play.go_on(60, lambda at: 20.0 + at // EVERY_MS % 3)
    play.go_on(2, lambda at: 0.0)
    before = play.seats
    play.go_on(60, lambda at: None)  # with fresh words it would shrink after 5 minutes
    assert play.seats == before >= 5


def test_missing_signals_never_take_anything_away() -> None:
    play = Scaled()
    play.go_on(20, lambda at: 20.0 + at // EVERY_MS % 5 / 10)
    before = play.seats
    play.go_on(3 * 60, lambda at: None)
    assert play.seats == before
    ear = play.ears.of("web")
    assert ear is not None
    assert ear.size is not None
    assert ear.size.why.endswith("nothing is taken away")


def test_without_signals_it_rises_to_the_declared_fallback() -> None:
    play = Scaled(fallback=3)
    play.go_on(5, lambda at: None)
    assert play.seats == 3


def test_half_of_the_signals_may_ask_for_more_and_not_for_less() -> None:
    play = Scaled(per_replica={Signal.IN_FLIGHT: 4.0, Signal.TOKENS: 100.0})
    play.hear(in_flight=4, tokens_per_s=400)
    play.go_on(10, lambda at: 4.0 + at // EVERY_MS % 5 / 10)
    before = play.seats
    assert before >= 4, "the tokens are missing by now"
    play.go_on(5, lambda at: 28.0)
    assert play.seats >= 7


def test_whoever_waits_at_zero_is_heard_at_once() -> None:
    play = Scaled(min=0, idle_ms=5 * MINUTE)
    play.go_on(30, lambda at: 0.0)
    assert play.seats == 0
    play.now += SECOND
    play.hear(queue=1)
    assert play.ears.next_look() <= play.now
    play.look()
    assert play.seats == 1


def test_it_goes_to_zero_at_the_very_instant_at_which_it_was_idle_for_long_enough() -> None:
    play = Scaled(min=0, idle_ms=20 * SECOND)
    play.go_on(5, lambda at: 3.0)
    last = play.now
    for _ in range(60):
        if play.seats == 0:
            break
        play.now += SECOND
        play.hear(in_flight=0)
        play.look()
    assert play.now - last == 20 * SECOND


def test_what_comes_and_goes_between_two_looks_keeps_it_up() -> None:
    play = Scaled(min=0, idle_ms=20 * SECOND)
    play.go_on(5, lambda at: 3.0)
    for number in range(5 * 60):
        play.now += SECOND
        play.hear(in_flight=float(number % 15 == 7))  # it is looked at when nothing is asked
        play.look()
        assert play.seats > 0


def test_a_request_that_was_over_before_it_was_told_counts_too() -> None:
    play = Scaled(min=0, idle_ms=20 * SECOND)
    play.go_on(5, lambda at: 3.0)
    for number in range(5 * 60):
        play.now += SECOND
        play.hear(in_flight=0, requests_per_s=float(number % 15 == 7))
        play.look()
        assert play.seats > 0


def test_who_is_idle_and_may_not_go_to_zero_is_looked_at_no_more_often() -> None:
    night = Window(1, days=(0, 1, 2, 3, 4, 5, 6))
    play = Scaled(min=0, idle_ms=20 * SECOND, schedule=(night,))
    play.go_on(5, lambda at: 3.0)
    looks = 0
    for _ in range(5 * 60):
        play.now += SECOND
        play.hear(in_flight=0)
        looks += play.ears.next_look() <= play.now
        play.look()
    assert looks <= 5 * MINUTE // EVERY_MS + 1


def test_a_schedule_holds_whatever_the_load_is() -> None:
    office = Window(4, days=(0, 1, 2, 3, 4, 5, 6), start_minute=60, end_minute=120)
    play = Scaled(schedule=(office,))
    play.now = 10 * 24 * HOUR + 30 * MINUTE
    play.go_on(29, lambda at: 1.0 + at // EVERY_MS % 3 / 10)
    assert play.seats < 4
    play.go_on(2, lambda at: 1.0)
    assert play.seats == 4


def test_a_service_that_chose_target_tracking_is_sized_by_it() -> None:
    play = Scaled(policy=ScalePolicy.TARGET_TRACKING)
    play.go_on(1, lambda at: 9.0 + at // EVERY_MS % 3 / 100)
    assert play.seats == 4, "2.25 replicas' worth at 70 %, rounded up"
    forecast = Scaled()
    forecast.go_on(1, lambda at: 9.0 + at // EVERY_MS % 3 / 100)
    assert forecast.seats == 4, "its past says nothing else yet"
    for each, by_target in ((play, True), (forecast, False)):
        ear = each.ears.of("web")
        assert ear is not None
        assert ear.size is not None
        assert ear.size.why.startswith("target tracking") is by_target


def test_it_never_leaves_its_bounds() -> None:
    play = Scaled(min=2, max=3)
    play.go_on(5, lambda at: 1e3)
    assert play.seats == 3
    play.go_on(300, lambda at: 0.1 + at // EVERY_MS % 7 / 100)
    assert play.seats == 2


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -3.0, 1e13])
def test_absurd_signals_change_nothing(value: float) -> None:
    play = Scaled()
    play.go_on(10, lambda at: 8.0 + at // EVERY_MS % 5 / 10)
    before = play.seats
    assert play.hear(in_flight=value) == [Signal.IN_FLIGHT]
    play.look()
    assert play.seats == before


def test_a_new_leader_keeps_the_size_and_remembers_the_load() -> None:
    play = Scaled()
    play.go_on(MEMORY_EVERY_MS // MINUTE + 5, lambda at: 20.0 + at // EVERY_MS % 5 / 10)
    before = play.seats
    assert play.world.demands["web"].memory
    play.world = load(dump(play.world))
    play.ears = Ears()
    play.look()
    assert play.seats == before
    ear = play.ears.of("web")
    assert ear is not None
    assert ear.tracker.demand > 4


def test_damaged_memory_is_forgotten() -> None:
    play = Scaled()
    play.tell(ev.DemandJudged(at=play.now, workload="web", wanted=2, why="", memory=b"nonsense"))
    play.ears = Ears()
    play.look()
    play.obey()
    assert play.seats == 2


def test_a_paused_or_deleted_service_is_not_judged() -> None:
    play = Scaled()
    play.reapply("web", paused=True)
    play.obey()
    play.now += EVERY_MS
    assert play.look() == []
    play.tell(ev.WorkloadDeleted(at=play.now, workload="web"))
    play.now += EVERY_MS
    assert play.look() == []
    assert play.ears.of("web") is None
    assert play.world.demands == {}


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("signal", [Signal.IN_FLIGHT, Signal.TOKENS])
def test_sources_that_fell_silent_make_room_for_others(signal: Signal, *, paused: bool) -> None:
    play = Scaled()
    play.reapply("web", paused=paused)
    for number in range(SOURCES_MAX):
        assert play.ears.hear(play.world, "web", f"old {number}", {signal: 1.0}, play.now) == []
    assert play.ears.hear(play.world, "web", "new", {signal: 1.0}, play.now) == [signal]
    play.go_on(5, lambda _: None)
    assert play.ears.hear(play.world, "web", "new", {signal: 1.0}, play.now) == []


def test_the_lead_time_is_what_starts_take_and_boots_if_there_is_no_room() -> None:
    play = Scaled(nodes=12)
    play.world.starts.clear()
    web = play.world.workloads["web"]
    assert lead_ms(play.world, web) < MINUTE
    crowded = Scaled(nodes=1)
    assert lead_ms(crowded.world, crowded.world.workloads["web"]) >= boot_ms(crowded.world, web.needs)


def test_a_judgement_says_what_was_heard_expected_and_refused() -> None:
    play = Scaled()
    play.go_on(10, lambda at: 2.0 + at // EVERY_MS % 5 / 10)
    play.go_on(1, lambda at: 20.0)
    demand = play.world.demands["web"]
    assert demand.said == "in_flight 20"
    assert "before more could be ready" in demand.expected
    assert any(line.startswith("target tracking: ") for line in demand.instead)
