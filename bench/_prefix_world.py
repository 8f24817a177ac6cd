"""Replicas that remember the blocks of prompts, as far as their caches reach, and prompts for them.

A replica works out one prompt after the other at a fixed rate, leaving out the blocks that it remembers
from the beginning on, and then writes the answer at a fixed pace beside the others. That is coarse, and the
same for everybody who is compared: what matters is for how long a request counts as load.
"""

import heapq
import random
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from bench._records import objects

BLOCK_TOKENS = 512
PREFILL_TOKENS_PER_S = 8_000  # a 70B model on eight accelerators
DECODE_S_PER_TOKEN = 0.04
TALK_BLOCKS_MAX = 128  # of those that are made up
ANSWER_TOKENS = 343  # what is expected of an answer, whose length nobody knows before: the mean of the trace


@dataclass(frozen=True, slots=True)
class Prompt:
    at: float
    tokens: int
    answer: int
    blocks: tuple[int, ...]

    @property
    def cost(self) -> int:
        return self.tokens + ANSWER_TOKENS


class Policy(Protocol):
    def pick(self, prompt: Prompt) -> int: ...
    def sent(self, prompt: Prompt, to: int) -> None: ...
    def ended(self, prompt: Prompt, at: int) -> None: ...


class Cache:
    """Blocks last used longest ago go first. 0: it is never full."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.blocks: OrderedDict[int, None] = OrderedDict()

    def serve(self, wanted: tuple[int, ...]) -> int:
        """How many blocks, from the first on, were there."""
        hits = 0
        for number, block in enumerate(wanted):
            if block in self.blocks:
                self.blocks.move_to_end(block)
                hits += number == hits
            else:
                self.blocks[block] = None
                if self.size and len(self.blocks) > self.size:
                    self.blocks.popitem(last=False)
        return hits


@dataclass
class Served:
    """What happened to one trace under one policy."""

    replicas: int
    blocks: int = 0
    hits: int = 0
    sent: list[int] = field(default_factory=list)  # token cost by replica, in all
    held: list[float] = field(default_factory=list)  # token cost in flight x seconds
    over: int = 0  # dispatches after which one was above 1.25 x the mean by more than one request
    waits: list[float] = field(default_factory=list)  # until the prompt was worked out
    flying: int = 0

    def row(self, bound: float) -> dict[str, object]:
        waits = sorted(self.waits)
        return {
            "hit_pct": round(100 * self.hits / self.blocks, 2),
            "of_bound_pct": round(100 * self.hits / self.blocks / bound, 1),
            "load_max": round(max(self.sent) * self.replicas / sum(self.sent), 3),
            "in_flight_max": round(max(self.held) * self.replicas / sum(self.held), 3),
            "over_bound_pct": round(100 * self.over / len(waits), 2),
            "first_token_s": [round(waits[len(waits) * share // 100], 2) for share in (50, 99)],
        }


def serve(prompts: list[Prompt], policy: Policy, replicas: int, cache: int, bound: float) -> Served:
    caches = [Cache(cache) for _ in range(replicas)]
    busy_until = [0.0] * replicas
    flying: list[list[int]] = [[] for _ in range(replicas)]  # costs
    load = [0] * replicas
    ends: list[tuple[float, int, int]] = []  # when, where, which
    served = Served(replicas, sent=[0] * replicas, held=[0.0] * replicas)

    def end(at: float, where: int, which: int) -> None:
        prompt = prompts[which]
        flying[where].remove(prompt.cost)
        load[where] -= prompt.cost
        policy.ended(prompt, where)

    for which, prompt in enumerate(prompts):
        while ends and ends[0][0] <= prompt.at:
            end(*heapq.heappop(ends))
        to = policy.pick(prompt)
        hits = caches[to].serve(prompt.blocks)
        work = max(0, prompt.tokens - BLOCK_TOKENS * hits) / PREFILL_TOKENS_PER_S
        busy_until[to] = max(prompt.at, busy_until[to]) + work
        over = busy_until[to] + prompt.answer * DECODE_S_PER_TOKEN
        heapq.heappush(ends, (over, to, which))
        policy.sent(prompt, to)
        flying[to].append(prompt.cost)
        load[to] += prompt.cost
        served.over += load[to] - max(flying[to]) > bound * sum(load) / replicas
        served.blocks += len(prompt.blocks)
        served.hits += hits
        served.sent[to] += prompt.cost
        served.held[to] += prompt.cost * (over - prompt.at)
        served.waits.append(busy_until[to] - prompt.at)
        served.flying += sum(map(len, flying))
    return served


def hit_bound(prompts: list[Prompt], cache: int) -> float:
    """Of one cache as large as all of them together."""
    one = Cache(cache)
    hits = sum(one.serve(prompt.blocks) for prompt in prompts)
    return hits / sum(len(prompt.blocks) for prompt in prompts)


def recorded(folder: Path) -> Iterator[tuple[str, list[Prompt]]]:
    """Every trace in the folder whose prompts name their blocks, whatever its file is called."""
    for name, rows in objects(folder, ".jsonl", ("timestamp", "input_length", "output_length", "hash_ids")):
        yield name, [_prompt(cast(dict[str, Any], row)) for row in rows if row["hash_ids"]]


def _prompt(row: dict[str, Any]) -> Prompt:
    return Prompt(row["timestamp"] / 1000, row["input_length"], row["output_length"], tuple(row["hash_ids"]))


def made_up(seed: int, count: int) -> list[Prompt]:
    """Conversations that share their first block and grow by their turns."""
    dice = random.Random(seed)
    block = 0
    talks: list[tuple[int, ...]] = []
    prompts = []
    at = 0.0
    for _ in range(count):
        at += dice.expovariate(3.4)
        number = len(talks) - 1 - int(dice.expovariate(1 / 100))
        if number < 0 or len(talks[number]) > TALK_BLOCKS_MAX or dice.random() < 0.6:
            number = len(talks)
            talks.append((0,))
        more = 1 + int(dice.lognormvariate(2.0, 1.1))
        talks[number] = (*talks[number], *range(block + 1, block + 1 + more))
        block += more
        answer = 1 + int(dice.expovariate(1 / ANSWER_TOKENS))
        prompts.append(Prompt(at, BLOCK_TOKENS * len(talks[number]) - 200, answer, talks[number]))
    return prompts
