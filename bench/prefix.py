"""How many prompts find their beginning where it was worked out before, and at what price in balance?

The trace: an hour of conversations with the names of their 512-token blocks (--data), or one that is made
up. Eight replicas, each with a cache of blocks: one that is never full, and one of 2,500 blocks, which is
what a 70B model leaves of eight accelerators of 80 GB (160 MiB a block). The bound of the hit rate is one
cache for all.

Compared: round robin, two random choices, hashing the first two blocks on a ring, the same with a bound of
1.25 x the mean (the request itself left out), ours, ours in four processes that tell one another what they
do ten times a second, as workers of a gateway do, and in four that know nothing of one another.

For each: blocks that hit; their share of the bound; the largest load over the mean (load_max: tokens sent
in all; in_flight_max: tokens in flight over time); dispatches that left a replica above 1.25 x the mean by
more than its largest request; and the median and 99th percentile of the time until a prompt was worked out.
"""

import argparse
import random
import zlib
from bisect import bisect
from collections.abc import Iterator
from time import process_time

from bench._prefix_world import Policy, Prompt, hit_bound, made_up, recorded, serve
from bench._records import source
from bench._say import say
from holdfast.core.gateway.routing.balancer import (
    BOUND,
    NOBODY,
    Pool,
    summed,
)
from holdfast.core.gateway.routing.endpoints import Replica
from holdfast.core.gateway.routing.updates import ReplicaSpec, Went

SEED = 7
POINTS = 100
MADE_UP = 4_000
TELL_S = 0.1
GOLDEN, WIDE = 0x9E3779B97F4A7C15, (1 << 64) - 1


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--cache", type=int, default=2_500, help="blocks of the realistic cache of a replica")
    parser.add_argument("--requests", type=int, default=0, help="only so many of the trace; 0: all")
    parser.add_argument("--repeats", type=int, default=5, help="of the timing of a pick")


def run(args: argparse.Namespace) -> dict[str, object]:
    folder = args.data / "load"
    found = list(recorded(folder))
    if not found:
        say(f"no trace in {folder} whose prompts name their blocks: made-up conversations instead")
    traces = found or [("made up", made_up(SEED, args.requests or MADE_UP))]
    measured = [_measure(name, prompts[: args.requests or None], args) for name, prompts in traces]
    more: dict[str, object] = {"more_traces": measured[1:]} if measured[1:] else {}
    return source(recorded=bool(found)) | measured[0] | more | pick_us(args.repeats)


def _measure(trace: str, prompts: list[Prompt], args: argparse.Namespace) -> dict[str, object]:
    measured: dict[str, object] = {"trace": trace, "requests": len(prompts), "replicas": args.replicas}
    for name, cache in (("infinite", 0), (f"cache_{args.cache}", args.cache)):
        bound = hit_bound(prompts, cache * args.replicas)
        measured[f"{name}_bound_pct"] = round(100 * bound, 2)
        for who, policy in policies(args.replicas):
            served = serve(prompts, policy, args.replicas, cache, BOUND)
            measured[f"{name}_{who}"] = served.row(bound)
            if who == "ours":
                measured[f"{name}_in_flight"] = round(served.flying / len(prompts), 1)
    return measured


def policies(replicas: int) -> Iterator[tuple[str, Policy]]:
    yield "round_robin", RoundRobin(replicas)
    yield "two_choices", TwoChoices(replicas)
    yield "hashing", Hashing(replicas, bound=0)
    yield "hashing_bounded", Hashing(replicas, bound=BOUND)
    yield "ours", Ours(replicas, processes=1)
    yield "ours_4_processes", Siblings(replicas, processes=4)
    yield "ours_4_strangers", Ours(replicas, processes=4)


class RoundRobin:
    def __init__(self, replicas: int) -> None:
        self.load = [0] * replicas
        self.next = -1

    def pick(self, prompt: Prompt) -> int:
        self.next = (self.next + 1) % len(self.load)
        return self.next

    def sent(self, prompt: Prompt, to: int) -> None:
        self.load[to] += prompt.cost

    def ended(self, prompt: Prompt, at: int) -> None:
        self.load[at] -= prompt.cost


class TwoChoices(RoundRobin):
    def __init__(self, replicas: int) -> None:
        super().__init__(replicas)
        self.dice = random.Random(SEED)

    def pick(self, prompt: Prompt) -> int:
        return min(self.dice.sample(range(len(self.load)), 2), key=self.load.__getitem__)


class Hashing(RoundRobin):
    """The first block is everybody's in the trace, so hashing it alone would send all to one replica."""

    def __init__(self, replicas: int, bound: float) -> None:
        super().__init__(replicas)
        self.bound = bound
        self.ring = sorted((_point(b"%d/%d" % (r, p)), r) for r in range(replicas) for p in range(POINTS))

    def pick(self, prompt: Prompt) -> int:
        key = b"%d" % prompt.blocks[min(1, len(prompt.blocks) - 1)]
        start = bisect(self.ring, (_point(key), 0))
        limit = self.bound * (sum(self.load) + prompt.cost) / len(self.load)
        for step in range(len(self.ring)):
            to = self.ring[(start + step) % len(self.ring)][1]
            if not self.bound or self.load[to] <= limit:
                return to
        raise AssertionError("somebody is always at or below the mean")


def _point(name: bytes) -> int:
    return zlib.crc32(name) * GOLDEN & WIDE


class Ours:
    def __init__(self, replicas: int, processes: int) -> None:
        self.dice = random.Random(SEED)
        self.pools = [_pool(replicas) for _ in range(processes)]
        self.now = 0.0
        self.picked: tuple[Pool, Replica] | None = None
        self.owners: dict[int, tuple[Pool, Replica]] = {}

    def pick(self, prompt: Prompt) -> int:
        pool = self.dice.choice(self.pools)
        replica = pool.pick(prompt.cost, prompt.blocks, "", prompt.at, self.dice.random, NOBODY)
        assert replica is not None
        self.picked = (pool, replica)
        return int(replica.id)

    def sent(self, prompt: Prompt, to: int) -> None:
        assert self.picked is not None
        pool, replica = self.owners[id(prompt)] = self.picked
        pool.dispatch(replica, prompt.cost)

    def ended(self, prompt: Prompt, at: int) -> None:
        pool, replica = self.owners.pop(id(prompt))
        pool.release(replica, prompt.cost)


class Siblings(Ours):
    """They tell one another where prompts went, and what they have in flight, ten times a second."""

    def __init__(self, replicas: int, processes: int) -> None:
        super().__init__(replicas, processes)
        self.said: list[tuple[Pool, Went]] = []
        self.next = 0.0

    def pick(self, prompt: Prompt) -> int:
        if prompt.at >= self.next:
            self.next = prompt.at + TELL_S
            self._tell()
        return super().pick(prompt)

    def sent(self, prompt: Prompt, to: int) -> None:
        super().sent(prompt, to)
        assert self.picked is not None
        pool, replica = self.picked
        went = pool.went(prompt.blocks, "", replica)
        if went is not None:
            self.said.append((pool, went))

    def _tell(self) -> None:
        flying = [(pool, pool.in_flight()) for pool in self.pools]
        for pool in self.pools:
            for other, went in self.said:
                if other is not pool:
                    pool.told(went)
            pool.told_load(summed([loads for other, loads in flying if other is not pool]))
        self.said.clear()


def _pool(replicas: int) -> Pool:
    pool = Pool("bench")
    pool.set_replicas([ReplicaSpec(id=str(number), address=str(number)) for number in range(replicas)], 0.0)
    return pool


def pick_us(repeats: int) -> dict[str, object]:
    """Microseconds of a pick, a dispatch and a release: the best, as the machine may be shared."""
    found: dict[str, object] = {}
    for replicas in (8, 100):
        for kind in ("plain", "prefix", "new_prefix", "session"):
            found[f"pick_{kind}_{replicas}_us"] = round(
                min(_pick_us(replicas, kind) for _ in range(repeats)), 2
            )
    return found


def _pick_us(replicas: int, kind: str, rounds: int = 4_000) -> float:
    dice = random.Random(SEED)
    pool = _pool(replicas)
    prefixes: list[tuple[int, ...] | None] = [None]
    if kind.endswith("prefix"):
        talks = rounds if kind == "new_prefix" else 50 * replicas
        prefixes = [(0, *range(10 * talk + 1, 10 * talk + 5)) for talk in range(talks)]
    sessions = [f"session-{number}" for number in range(50 * replicas)] if kind == "session" else [""]
    costs = [dice.choice((100, 1_000, 5_000, 20_000)) for _ in range(997)]
    flying: list[tuple[Replica, int]] = []

    def send(number: int) -> None:
        cost, prefix = costs[number % 997], prefixes[number % len(prefixes)]
        replica = pool.pick(cost, prefix, sessions[number % len(sessions)], 1.0, dice.random, NOBODY)
        assert replica is not None
        pool.dispatch(replica, cost)
        flying.append((replica, cost))

    warm = 6 * replicas if kind == "new_prefix" else 50 * replicas
    for number in range(warm):
        send(number)
        if len(flying) > 6 * replicas:
            pool.release(*flying.pop(dice.randrange(len(flying))))
    start = process_time()
    for number in range(warm, warm + rounds):
        send(number)
        pool.release(*flying.pop(0))
    return 1e6 * (process_time() - start) / rounds
