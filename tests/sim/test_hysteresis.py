"""A service does not flap, over seeds of noisy, daily and stepwise load, through ears, journal and seats.

A turn is a change from growing to shrinking or back. The load itself turns where it has a peak and where it
steps back; the bound beyond that is one turn every two hours, twelve a day. A load that rises steeply under
noise of 20 % is corrected more often: its bound is two an hour, 48 a day. The first two hours do not count:
nothing is known of the load then.
"""

import math
import random
from collections.abc import Callable

import pytest

from holdfast.core.scaling.demand import EVERY_MS, Ears
from holdfast.model.scale import Scale, Signal
from holdfast.model.units import DAY, HOUR
from holdfast.model.workload import Service, Workload
from tests.build import needs
from tests.play import Play, offer

LEARNING_MS = 2 * HOUR
HOURS = 8
CALM, RESTLESS = 0.5, 2.0  # turns an hour beyond those of the load
PER_REPLICA = 4.0
Shape = Callable[[int, random.Random], float]


def stationary(level: float, noise: float) -> Shape:
    return lambda now, dice: level * dice.gauss(1, noise)


def wave(low: float, high: float, noise: float) -> Shape:
    """A day from its fourth hour on: the steep part, and the peak."""
    return lambda now, dice: (
        (low + (high - low) * (1 - math.cos(2 * math.pi * (now + 4 * HOUR) / DAY)) / 2) * dice.gauss(1, noise)
    )


def steps(noise: float, every_ms: int) -> Shape:
    levels = (8.0, 30.0)
    return lambda now, dice: levels[now // every_ms % 2] * dice.gauss(1, noise)


# The load, its own turns within the hours that count, and how many more there may be in an hour.
SHAPES: dict[str, tuple[Shape, int, float]] = {
    "constant": (stationary(16, 0.0), 0, CALM),
    "noise of 5 %": (stationary(15.9, 0.05), 0, CALM),
    "noise of 10 %": (stationary(16.4, 0.1), 0, CALM),
    "noise of 30 %": (stationary(20, 0.3), 0, CALM),
    "a day": (wave(4, 40, 0.05), 1, CALM),
    "a restless day": (wave(4, 40, 0.2), 1, RESTLESS),
    "steps": (steps(0.1, 3 * HOUR), 2, CALM),
}


def turns(shape: Shape, seed: int) -> int:
    """Of the size that is journalled, under a load that is told as often as it is looked at."""
    dice, ears, play = random.Random(f"hysteresis/{seed}"), Ears(), Play(offers=(offer(),), max=30)
    play.join(*(f"n{number}" for number in range(30)))
    scale = Scale(max=30, per_replica={Signal.IN_FLIGHT: PER_REPLICA})
    play.apply(Workload("web", Service(4, scale=scale), needs(cpu=4)))
    play.obey()
    begin, found, way, wanted = play.now, 0, 0, 4
    for number in range(HOURS * HOUR // EVERY_MS):
        play.now = begin + (number + 1) * EVERY_MS
        load = max(0.0, shape(number * EVERY_MS, dice))
        ears.hear(play.world, "web", "gateway", {Signal.IN_FLIGHT: load}, play.now)
        for judged in ears.judge(play.world, play.now):
            play.tell(judged)
            play.obey()
            now_way = (judged.wanted > wanted) - (judged.wanted < wanted)
            if number * EVERY_MS >= LEARNING_MS and now_way and now_way == -way:
                found += 1
            way, wanted = now_way or way, judged.wanted
    return found


@pytest.mark.parametrize(
    ("name", "seed"),
    [("constant", 0), *((name, seed) for name in SHAPES if name != "constant" for seed in range(3))],
)
def test_it_turns_no_more_often_than_the_load_and_a_few_corrections(name: str, seed: int) -> None:
    shape, own, more = SHAPES[name]
    assert turns(shape, seed) <= own + more * (HOURS - LEARNING_MS // HOUR)
