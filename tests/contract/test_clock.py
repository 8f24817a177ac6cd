"""What every clock must do, and that a steady clock goes on whatever the wall clock does. To hold a new
adapter to it, add a rig for it to `CLOCKS`."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from holdfast.model.units import HOUR, SECOND, Millis
from holdfast.ports.clock import Clock, SteadyClock
from holdfast.sim.run import Simulation
from holdfast.sim.scenario.scenario import Scenario
from holdfast.sim.twins.control_plane import SimClock


@dataclass
class Rig:
    clock: Clock
    wait: Callable[[Millis], None]
    set_wall: Callable[[Millis], None]  # somebody sets the wall clock, forward or back


def simulated() -> Rig:
    sim = Simulation(Scenario("nothing"))
    clock = SimClock(sim, "cp-1")

    def wait(ms: Millis) -> None:
        sim.kernel.now += ms

    def set_wall(ms: Millis) -> None:
        clock.jump += ms

    return Rig(clock, wait, set_wall)


CLOCKS: dict[str, Callable[[], Rig]] = {"simulated": simulated}


@pytest.fixture(params=CLOCKS)
def rig(request: pytest.FixtureRequest) -> Rig:
    return CLOCKS[request.param]()


def test_both_clocks_are_whole_milliseconds(rig: Rig) -> None:
    assert isinstance(rig.clock.wall(), int)
    assert isinstance(rig.clock.monotonic(), int)


def test_both_clocks_go_on(rig: Rig) -> None:
    wall, monotonic = rig.clock.wall(), rig.clock.monotonic()
    rig.wait(SECOND)
    assert rig.clock.wall() >= wall + SECOND
    assert rig.clock.monotonic() >= monotonic + SECOND


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
def test_setting_the_wall_clock_does_not_move_the_monotonic_one(rig: Rig, jump: Millis) -> None:
    wall, monotonic = rig.clock.wall(), rig.clock.monotonic()
    rig.set_wall(jump)
    assert abs(rig.clock.wall() - wall - jump) < SECOND
    assert 0 <= rig.clock.monotonic() - monotonic < SECOND


def test_a_steady_clock_begins_at_the_wall_clock(rig: Rig) -> None:
    rig.set_wall(HOUR)
    assert abs(SteadyClock(rig.clock).now() - rig.clock.wall()) < SECOND


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
def test_a_steady_clock_does_not_notice_that_the_wall_clock_was_set(rig: Rig, jump: Millis) -> None:
    steady = SteadyClock(rig.clock)
    before = steady.now()
    rig.set_wall(jump)
    rig.wait(10 * SECOND)
    assert 10 * SECOND <= steady.now() - before < 11 * SECOND


def test_a_steady_clock_never_begins_before_the_journal_ends(rig: Rig) -> None:
    """The wall clock was set back between two leaders: what is written must still come after."""
    last = rig.clock.wall() + HOUR
    steady = SteadyClock(rig.clock, not_before=last)
    assert steady.now() >= last
    rig.wait(SECOND)
    assert steady.now() >= last + SECOND


def test_a_journal_in_the_past_does_not_hold_the_clock_back(rig: Rig) -> None:
    rig.set_wall(HOUR)
    assert SteadyClock(rig.clock, not_before=rig.clock.wall() - HOUR).now() >= rig.clock.wall()
