"""What does one turn of the control loop cost?

A world of 10,000 nodes and 50,000 replicas, and one of 100,000 nodes and 100,000 replicas. Measured: a quiet
turn (everybody beats, nothing to do); the turn that hears of 100 dead nodes, and where its time goes; the
turn in which 100 nodes fall late and others are asked about them; the turn that forgives everyone because we
did not listen; the turn a minute after everything was placed, when the place time-outs of every replica are
due at once though all have long been started; and one round of heartbeats of the whole fleet.

Median of the repeats, with the range: the machine may be shared.
"""

import argparse
import statistics
from collections.abc import Callable
from time import perf_counter

from bench._world import Bench
from holdfast.core import check
from holdfast.core.decide import decide
from holdfast.core.health import detect
from holdfast.core.state import fold
from holdfast.core.turn import turn
from holdfast.model.event import NodeJudged
from holdfast.model.units import SECOND
from holdfast.model.verdict import Evidence, Level, Peers, Silence, Verdict

QUIET_STEP_MS = 100
ROUNDS = 10
TURNS_A_ROUND = SECOND // QUIET_STEP_MS
PHASES = ("fold", "judge", "decide", "check", "accept")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--replicas", type=int, default=50_000)
    parser.add_argument("--large-nodes", type=int, default=100_000, help="0: leave the large world out")
    parser.add_argument("--large-replicas", type=int, default=100_000)
    parser.add_argument("--lose", type=int, default=100, help="nodes lost at once")
    parser.add_argument("--repeats", type=int, default=5)


def run(args: argparse.Namespace) -> dict[str, object]:
    measured = _world(args, args.nodes, args.replicas, "")
    if args.large_nodes:
        measured |= _world(args, args.large_nodes, args.large_replicas, "_100k")
    return measured


def _world(args: argparse.Namespace, nodes: int, replicas: int, suffix: str) -> dict[str, object]:
    start = perf_counter()
    bench = Bench(nodes, replicas)
    made = perf_counter() - start
    placed = len(bench.world.replicas)
    _listen_through_grace(bench)
    rounds, quiets = _quiet(bench)
    late = [_late(bench, args.lose) for _ in range(args.repeats)]
    forgiven = [_forgiving(bench) for _ in range(args.repeats)]
    lost = [_lose(bench, args.lose) for _ in range(args.repeats)]
    stale = _stale(bench)
    measured = (
        _spread(f"quiet{suffix}_ms", quiets)
        | _spread(f"lose_{args.lose}{suffix}_ms", [sum(phases.values()) for phases in lost])
        | {f"lose_{args.lose}{suffix}_phases_ms": _phases(lost)}
        | _spread(f"late_{args.lose}{suffix}_ms", late)
        | _spread(f"forgive{suffix}_ms", forgiven)
        | {f"stale_time_outs{suffix}_ms": round(stale, 2)}
        | _spread(f"beat{suffix}_us", [1000 * ms / nodes for ms in rounds])
    )
    return measured | {
        f"world{suffix}": f"{nodes:,} nodes, {placed:,} replicas, made in {made:.0f} s",
        f"refused{suffix}": len(bench.mind.refused),
    }


def _listen_through_grace(bench: Bench) -> None:
    """What a new leader puts off is done before anything is measured."""
    rows = bench.rows()
    for _ in range(bench.world.policy.detection.grace_ms // SECOND + 1):
        bench.now += SECOND
        bench.beat(rows)
    bench.settle()


def _quiet(bench: Bench) -> tuple[list[float], list[float]]:
    """Milliseconds of a round of beats, and of the turns after it, in which nothing is to be done."""
    rounds, turns = [], []
    rows = bench.rows()
    for _ in range(ROUNDS):
        rounds.append(_ms(lambda: bench.beat(rows)))
        for _ in range(TURNS_A_ROUND):
            bench.now += QUIET_STEP_MS
            turns.append(_ms(lambda: _turn(bench)))
    return rounds, turns


def _late(bench: Bench, count: int) -> float:
    """So many nodes are not heard for two beats and more; then they are."""
    rows = bench.rows()
    heard = bench.dice.sample(range(len(rows)), len(rows) - count)  # others each time: a gap is remembered
    for _ in range(3):
        bench.beat(rows[heard])
        bench.now += SECOND
    bench.beat(rows[heard])
    took = _ms(lambda: _turn(bench))
    bench.now += 1
    bench.beat(rows)
    bench.settle()
    return took


def _forgiving(bench: Bench) -> float:
    """We ran two seconds late."""
    bench.now += 2 * SECOND
    bench.mind.senses.last_turn = bench.now
    expected = bench.now - 2 * SECOND

    def late_turn() -> None:
        bench.mind.senses.listened(bench.now, expected)
        _turn(bench)

    took = _ms(late_turn)
    bench.now += 1
    bench.beat(bench.rows())
    bench.settle()
    return took


def _stale(bench: Bench) -> float:
    """The first turn after the place time-outs of the whole world have run out."""
    bench.now += bench.world.policy.replicas.place_timeout_ms
    bench.beat(bench.rows())
    return _ms(lambda: _turn(bench))


def _lose(bench: Bench, count: int) -> dict[str, float]:
    """The steps of `core.turn`, one by one, for as many dead nodes at once; then the world comes to rest."""
    rows = bench.rows()
    bench.beat(rows)
    world, senses = bench.world, bench.mind.senses
    alive = [name for name in bench.names if world.nodes[name].verdict.level is Level.ALIVE]
    events = [_dead(bench, name) for name in bench.dice.sample(alive, count)]
    marks = [perf_counter()]
    for event in events:
        fold.observe(world, event)
        senses.beats.remove(event.node)
    marks.append(perf_counter())
    detect.judge(world, senses, bench.now)
    marks.append(perf_counter())
    plan = decide(world, bench.now)
    marks.append(perf_counter())
    plan, refused = check.examine(world, plan)
    bench.mind.refused.extend(refused)
    marks.append(perf_counter())
    fold.accept(world, plan)
    marks.append(perf_counter())
    bench.now += 1
    bench.settle()
    return {phase: 1000 * (b - a) for phase, a, b in zip(PHASES, marks[:-1], marks[1:], strict=True)}


def _dead(bench: Bench, node: str) -> NodeJudged:
    evidence = Evidence(silence=Silence.SILENT, peers=Peers.NOT_REACHED, silent_ms=3_000, usual_ms=2_200)
    verdict = Verdict(Level.DEAD, "silent, and no peer reached it", evidence, bench.now)
    return NodeJudged(at=bench.now, node=node, verdict=verdict, heard_at=bench.now - 3_000)


def _turn(bench: Bench) -> None:
    for _ in turn(bench.mind, (), bench.now):
        pass


def _ms(work: Callable[[], None]) -> float:
    start = perf_counter()
    work()
    return 1000 * (perf_counter() - start)


def _spread(name: str, values: list[float]) -> dict[str, object]:
    return {
        name: round(statistics.median(values), 4),
        f"{name}_range": [round(min(values), 4), round(max(values), 4)],
    }


def _phases(lost: list[dict[str, float]]) -> dict[str, float]:
    return {phase: round(statistics.median(phases[phase] for phases in lost), 2) for phase in PHASES}
