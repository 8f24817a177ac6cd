"""What does the first hour of a service cost, against target tracking that serves as much?

Records of an hour, each the whole past that a policy has: cut from the recorded loads at offsets that
differ by seed, and drawn from families (noise, bursts, on and off, ramps, ...). Target tracking runs
with many targets; what it costs to serve as much as ours did is read between the two targets whose
unserved shares enclose ours, over all records of a family. Below 1 ours is cheaper.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np

from bench._scaling_world import MEAN_REPLICAS, STEP_S, Floats, Lane, Load, Maker, follow

STEPS: Final = 3600 // STEP_S
TARGETS: Final = (0.98, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1, 0.05)
Draw = np.random.Generator


class Young(NamedTuple):
    replica_hours_x: float
    unserved_pct: float
    hpa_hours_x: float  # with the target that workload files have by default
    hpa_unserved_pct: float
    cost_ratio: float  # to target tracking with a target that leaves as much unserved


def _noise(draw: Draw) -> Floats:
    return np.maximum(0.0, 1 + draw.normal(0, draw.uniform(0.02, 0.3), STEPS))


def _wander(draw: Draw) -> Floats:
    steps = draw.normal(0, draw.uniform(0.01, 0.06), STEPS)
    return np.exp(np.cumsum(steps) - 0.02 * np.cumsum(np.cumsum(steps)) / np.arange(1, STEPS + 1))


def _requests(draw: Draw) -> Floats:
    """Arrivals that are independent but for a slow wave: a chat service of some size."""
    wave = 1 + draw.uniform(0, 0.3) * np.sin(np.linspace(0, draw.uniform(1, 6), STEPS) + draw.uniform(0, 6))
    found: Floats = draw.poisson(wave * draw.uniform(10, 100)).astype(np.float64)
    return found


def _bursts(draw: Draw) -> Floats:
    there = draw.random(STEPS) < draw.uniform(0.05, 0.5)
    return draw.uniform(0.0, 0.5) + draw.pareto(draw.uniform(2.2, 4), STEPS) * there


def _on_off(draw: Draw) -> Floats:
    found, at, on = np.zeros(STEPS), 0, bool(draw.random() < 0.5)
    while at < STEPS:
        length = max(1, round(draw.exponential(draw.uniform(4, 60))))
        found[at : at + length] = 1.0 if on else draw.uniform(0, 0.2)
        at, on = at + length, not on
    return found * (1 + 0.05 * draw.normal(0, 1, STEPS).clip(-3, 3)) + 0.02


def _day(draw: Draw) -> Floats:
    """An hour of a day, with noise."""
    at = draw.uniform(0, 2 * np.pi) + np.linspace(0, 2 * np.pi / 24, STEPS)
    return np.maximum(0.0, (1 + 0.7 * np.sin(at)) * (1 + draw.normal(0, draw.uniform(0.01, 0.1), STEPS)))


def _ramp(draw: Draw) -> Floats:
    rise = np.linspace(0, draw.uniform(-1.5, 1.5), STEPS)
    return np.maximum(0.0, np.exp(rise) * (1 + draw.normal(0, draw.uniform(0.01, 0.1), STEPS)))


def _steps(draw: Draw) -> Floats:
    """A level that changes now and then."""
    levels = np.exp(draw.normal(0, 0.5, STEPS))
    change = draw.random(STEPS) < draw.uniform(0.005, 0.03)
    found: Floats = levels[np.maximum.accumulate(np.where(change, np.arange(STEPS), 0))]
    return found * (1 + 0.03 * draw.normal(0, 1, STEPS).clip(-3, 3))


FAMILIES: Final[dict[str, Callable[[Draw], Floats]]] = {
    "noise": _noise,
    "requests": _requests,
    "wander": _wander,
    "part of a day": _day,
    "ramps": _ramp,
    "steps": _steps,
    "on and off": _on_off,
    "bursts": _bursts,
}


def drawn(family: str, seeds: range) -> list[Load]:
    number = list(FAMILIES).index(family)
    return [_load(family, FAMILIES[family](np.random.default_rng([number, seed]))) for seed in seeds]


def cut(load: Load, seeds: range) -> list[Load]:
    """Hours of a record, each from an offset of its own; half an hour is left of each at least."""
    size = len(load.demand)
    found = []
    for seed in seeds:
        at = int(np.random.default_rng([99, seed]).integers(0, max(1, size - STEPS // 2)))
        found.append(_load(load.name, load.demand[at : at + STEPS]))
    return found


def _load(name: str, rates: Floats) -> Load:
    return Load(name, rates / max(1e-9, float(rates.mean())) * MEAN_REPLICAS)


def compare(
    records: list[Load],
    cold_start_s: int,
    ours: Maker,
    hpa: Callable[[float], Maker],
    targets: tuple[float, ...] = TARGETS,
) -> Young:
    totals: dict[float, Floats] = {target: np.zeros(3) for target in (0.0, *targets)}
    for load in records:
        lanes = {
            target: Lane(
                (hpa(target) if target else ours)(load, cold_start_s), cold_start_s, float(load.demand[0])
            )
            for target in totals
        }
        follow(load, list(lanes.values()))
        for target, lane in lanes.items():
            totals[target] += lane.totals()
    share = {
        target: (paid / demand, 100 * short / demand) for target, (paid, demand, short) in totals.items()
    }
    cost, short = share[0.0]
    rival = _cost_of(short, [share[target] for target in targets])
    figures = (cost, short, *share[0.7], cost / rival)
    return Young(*(round(float(each), 3) for each in figures))


def _cost_of(short: float, frontier: list[tuple[float, float]]) -> float:
    """What target tracking costs where it leaves so much unserved."""
    for (cheap, more), (dear, less) in itertools.pairwise(frontier):
        if less <= short <= more:
            part = (more - short) / max(1e-9, more - less)
            return float(cheap * (dear / cheap) ** part)
    return frontier[0][0] if short > frontier[0][1] else frontier[-1][0]


def records(seeds: range, recorded: list[Load]) -> Iterator[tuple[str, list[Load]]]:
    for family in FAMILIES:
        yield family, drawn(family, seeds)
    for load in recorded:
        yield load.name, cut(load, seeds)
