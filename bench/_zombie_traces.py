"""Made-up lives of keys: what each sent, and, apart from it, what it was.

There is no public record of labelled keys, so these are invented, and the healthy ones were invented to be
mistaken. A `Trace` is what a gateway sees: requests in order, the key as its owner wrote it, the hours of
its team. A `Truth` says what it was and since when, and only whoever counts may read it: key names are
drawn, and quotas and sources are drawn alike for both.

Healthy: *interactive* people by day. *autocomplete*, where most streams are cut. *batch* for days around
the clock, half of them always cut at max_tokens. *cron* at a constant interval; half send one fixed prompt.
*backing_off*, a batch in a team without quota: refused for up to 40 h, waits longer each time. *polling*,
the same without waiting: 97 % refused, and now and then closed out for up to 2 h. *launch*: an unused key
that grows fiftyfold in two days. *evals* every night, 20 to 500 prompts again and again. *load_test* of one
prompt at a constant rate, always cut, 2 to 12 h, one in four a soak test from Friday to Monday. *canary*:
one prompt a minute, always. *warmer*: fills prefix caches and never reads its one token. *bad_deploy*: up
to 6 h in which nobody reads anything, each prompt three times. *quarterly*: asleep for 20 to 80 days, then
3 to 20 h with new machine, client and model. *sampler*: one prompt sampled around the clock for days, half
of the answers cut. *monitor*: a fixed classifier prompt polled at a constant interval around the clock, and
one day ten times as often. *classifier*: new prompts around the clock, 2 to 12 labels of 1 to 100 tokens for
answers; *verdicts*: the same with up to 3 forms of 256 to 600 tokens, and now and then words of its own; half
of both on a key that people had before. *health_check*: one prompt, one answer, every 5 to 60 s beside the
people of the key. *agent*: tasks of 3 to 15 steps, each of which asks for a tool, the next brings its result;
in half of them the last question is the result, and nobody answers it. *extractor*: new prompts, every answer
a question to a tool that nobody answers, because its form is all that is wanted; half of them take the place
of an agent. Half of all keys ask without chance: the same prompt has the same answer.

Zombies: *dead_reader*, a loop over 1 to 20 prompts whose reader is gone. *dead_sink*, a live feed of new
prompts whose answers nobody takes. *hammer*: refused and at once again, every 0.7 to 8 s; in half of them
one in 50 gets through. *owner_gone* and *replaced*: an ordinary cron job, and a fact. *woken*: asleep for
20 to 90 days, then a loop at 30 to 100 % of its quota. *always_max*: a loop over 1 to 5 prompts, always
cut, at 5 to 90 % of its quota, after a healthy week in four of five. *stuck*: new prompts (each has the time
in it), one or two answers, half of them always cut, after a healthy week. *unanswered*: an agent whose tools
died: 1 to 10 prompts again and again, a question to a tool each time, and never a result. *leaked* is
neither: its owner works on, and a stranger works beside it.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Final

import msgspec
import numpy as np

from bench._zombie_life import ALL_NEW, Life, Times, Trace, Truth
from holdfast.model.units import HOUR


def _people(life: Life, start: float, end: float) -> None:
    life.ask(life.by_chance(start, end, life.log_between(20, 120)))


def interactive(life: Life) -> Trace:
    _people(life, 0, 240)
    return life.end(240)


def autocomplete(life: Life) -> Trace:
    left = life.between(0.5, 0.85)
    at = life.by_chance(0, 192, life.log_between(150, 400))
    life.ask(at, into=900, out=40, limit=128, unread=(left, 0.3, 1.0))
    return life.end(192)


def batch(life: Life) -> Trace:
    for _ in range(int(life.between(1, 4))):
        start = life.between(0, 150)
        at = life.loop(
            start, start + life.log_between(3, 90), life.log_between(4, 25), life.between(0.1, 0.8)
        )
        life.ask(
            at, into=1500, out=700, limit=1024, cut=1.0 if life.chance(0.5) else 0.2, unread=(0.005, 0, 1)
        )
    return life.end(240)


def cron(life: Life) -> Trace:
    times = life.clock(0, 336, life.log_between(60, 3600))
    few = int(life.log_between(1, 12)) if life.chance(0.5) else 0
    cut = 1.0 if life.chance(0.3) else 0.05
    life.ask(times, few=few, into=life.log_between(200, 6000), limit=1024, cut=cut, unread=(0, 0, 0))
    return life.end(336)


def backing_off(life: Life) -> Trace:
    start = life.between(24, 72)
    end = start + life.log_between(2, 40)
    life.ask(life.loop(0, start, 20, 0.5), into=1500)
    life.ask(life.loop(end, 168, 20, 0.5), into=1500)
    tries, prompts, at, wait = [], [], start, 1.0
    prompt = int(life.draw.integers(ALL_NEW))
    while at < end:
        tries.append(at)
        prompts.append(prompt)
        if life.chance(0.03):
            wait, prompt = 1.0, int(life.draw.integers(ALL_NEW))
        at += wait * life.between(0.5, 1.0) / 3600
        wait = min(60.0, wait * 2)
    life.refused(np.array(tries), np.array(prompts))
    life.ask(life.by_chance(start, end, 3, office=False), into=1500)
    return life.end(168)


def polling(life: Life) -> Trace:
    """Every answer is waited for by asking all the time."""
    every = life.log_between(1, 4)
    end = 24 + life.between(4, 14)
    through = life.loop(24, end, every * life.between(25, 60), 0.3)
    closed = life.between(24, end - 3)
    if life.chance(0.6):
        through = through[(through < closed) | (through > closed + life.between(0.5, 2.0))]
    part = life.ask(through, into=2500, unread=(0.01, 0, 1))
    at = life.clock(24, end, every)
    waiting = np.minimum(np.searchsorted(through, at), max(0, len(through) - 1))
    life.refused(at, part.prompts[waiting])
    _people(life, 0, 96)
    return life.end(96)


def launch(life: Life) -> Trace:
    first = life.log_between(2, 8)
    life.ask(life.by_chance(0, 120, 0.2), into=800)
    for day in range(5, 12):
        rate = first * min(50.0, 50 ** ((day - 4) / 2))
        office = life.chance(0.5)
        life.ask(life.by_chance(24 * day, 24 * day + 24, rate, office), into=800, few=2000, out=400)
    return life.end(288)


def evals(life: Life) -> Trace:
    few = int(life.log_between(20, 500))
    cut = 1.0 if life.chance(0.5) else 0.1
    starts, lasts, takes = life.between(0, 18), life.between(2, 6), life.log_between(2, 10)
    pool = life.draw.integers(0, ALL_NEW, few)
    for day in range(10):
        at = life.loop(24 * day + starts, 24 * day + starts + lasts, takes, life.between(0.1, 0.5))
        part = life.ask(at, into=1200, out=500, limit=1024, cut=cut, unread=(0, 0, 0))
        life.parts[-1] = msgspec.structs.replace(part, prompts=pool[np.arange(len(at)) % few])
    return life.end(264)


def load_test(life: Life) -> Trace:
    start = life.between(100, 130)
    hours = life.between(50, 63) if life.chance(0.25) else life.between(2, 12)
    few = 1 if life.chance(0.6) else int(life.log_between(2, 1000))
    at = life.clock(start, start + hours, life.log_between(5, 15))
    life.ask(at, few=few, into=1000, out=512, limit=512, cut=1.0, unread=(0.01, 0, 1))
    if life.chance(0.6):
        _people(life, 0, 240)
    return life.end(240, use=life.between(0.3, 1.0))


def canary(life: Life) -> Trace:
    limit = int(life.log_between(1, 512))
    at = life.clock(0, 336, life.between(30, 120))
    life.ask(at, few=1, into=life.log_between(10, 400), out=limit, limit=limit, cut=1.0, unread=(0, 0, 0))
    return life.end(336)


def warmer(life: Life) -> Trace:
    at = life.clock(0, 240, life.log_between(20, 120))
    few = int(life.log_between(1, 30))
    life.ask(at, few=few, into=life.log_between(1000, 8000), out=1, limit=int(life.between(1, 8)), cut=1.0,
             unread=(1.0, 1.0, 1.0))  # fmt: skip
    return life.end(240)


def bad_deploy(life: Life) -> Trace:
    start = life.between(60, 100)
    end = start + life.log_between(0.5, 6)
    way, rate = int(life.draw.integers(4)), life.log_between(30, 200)
    few = int(life.log_between(1, 30)) if way == 3 else 0

    def asks(begins: float, ends: float) -> Times:
        return (
            life.clock(begins, ends, 3600 / rate)
            if way >= 2
            else life.by_chance(begins, ends, rate, way == 0)
        )

    life.ask(asks(0, start), few=few)
    life.ask(asks(end, 168), few=few)
    at = np.sort(np.concatenate([asks(start, end) + n / 120 for n in range(1 if way == 2 else 3)]))
    part = life.ask(at, few=few, unread=(0.98, 0.9, 1.0))
    if way < 2:
        life.parts[-1] = msgspec.structs.replace(part, prompts=np.repeat(part.prompts, 3)[: len(at)])
    return life.end(168)


def quarterly(life: Life) -> Trace:
    sleep = life.between(20, 80) * 24
    life.ask(life.loop(0, life.between(3, 20), 15, 0.3), into=1500)
    start = 20 + sleep
    who = (
        int(life.draw.integers(1 << 30)),
        int(life.draw.integers(1 << 30)),
        int(life.draw.integers(1 << 30)),
    )
    at = life.loop(start, start + life.between(3, 20), life.log_between(3, 12), life.between(0.05, 0.5))
    few = int(life.log_between(10, 300)) if life.chance(0.4) else 0
    life.ask(at, few=few, into=1500, out=700, limit=1024, cut=1.0 if life.chance(0.5) else 0.2,
             unread=(0, 0, 0), who=who if life.chance(0.7) else None)  # fmt: skip
    return life.end(start + 96, use=life.between(0.3, 1.0))


def sampler(life: Life) -> Trace:
    start = life.between(10, 60)
    at = life.loop(start, start + life.between(48, 200), life.log_between(5, 15), life.between(0.3, 1.0))
    life.ask(at, few=int(life.log_between(1, 40)), into=900, out=600, limit=1024, cut=life.between(0.2, 0.85),
             unread=(0.005, 0, 1))  # fmt: skip
    return life.end(288)


def monitor(life: Life) -> Trace:
    every = life.between(60, 120)
    few, into = int(life.log_between(1, 10)), life.log_between(300, 2000)
    limit = int(life.log_between(1, 64))
    for at in (life.clock(0, 160, every), life.clock(160, 264, every / 10)):
        life.ask(at, few=few, into=into, out=limit, limit=limit, cut=1.0, unread=(0, 0, 0))
    return life.end(264)


def _before(life: Life) -> float:
    """Half of them had people on their key."""
    start = life.between(100, 168) if life.chance(0.5) else 0.0
    if start:
        _people(life, 0, start)
    return start


def _around_the_clock(life: Life, start: float, end: float, takes_s: float) -> Times:
    return life.clock(start, end, takes_s) if life.chance(0.5) else life.loop(start, end, takes_s, 0.4)


def classifier(life: Life) -> Trace:
    start = _before(life)
    at = _around_the_clock(life, start, start + 168, life.log_between(3, 30))
    limit = int(life.log_between(1, 100))
    life.ask(at, into=life.log_between(500, 4000), out=limit, limit=limit, cut=1.0, unread=(0, 0, 0),
             answers=int(life.log_between(2, 12)))  # fmt: skip
    return life.end(start + 168)


def verdicts(life: Life) -> Trace:
    start = _before(life)
    at = _around_the_clock(life, start, start + 168, life.log_between(5, 30))
    odd = life.draw.random(len(at)) < life.log_between(0.01, 0.1)
    into, out = life.log_between(500, 4000), life.between(256, 600)
    life.ask(at[~odd], into=into, out=out, unread=(0, 0, 0), answers=int(life.log_between(1, 4)))
    life.ask(at[odd], into=into, out=out, unread=(0, 0, 0))
    return life.end(start + 168)


def health_check(life: Life) -> Trace:
    _people(life, 0, 264)
    at = life.clock(life.between(0, 120), 264, life.log_between(5, 60))
    life.ask(at, few=1, into=life.log_between(20, 2000), out=life.log_between(5, 400), unread=(0, 0, 0),
             answers=1)  # fmt: skip
    return life.end(264)


def _agent(life: Life, start: float, end: float) -> None:
    """Steps come one after the other; of a task all but the last ask for a tool, and all but the first bring
    a result. What it sends grows, so every prompt is new."""
    steps = life.between(3, 15)
    asked = 1.0 if life.chance(0.5) else 1 - 1 / steps
    takes = life.log_between(4, 30)
    at = (
        life.loop(start, end, takes, 0.6)
        if life.chance(0.5)
        else life.by_chance(start, end, 3600 / takes, office=True)
    )
    life.ask(at, into=life.log_between(1500, 6000), out=200, tools=(asked, 1 - 1 / steps))


def agent(life: Life) -> Trace:
    _agent(life, 0, 240)
    return life.end(240)


def extractor(life: Life) -> Trace:
    start = life.between(100, 168) if life.chance(0.5) else 0.0
    if start:
        _agent(life, 0, start)
    at = _around_the_clock(life, start, start + 168, life.log_between(4, 30))
    life.ask(
        at, into=life.log_between(800, 5000), out=300, unread=(0, 0, 0), tools=(life.between(0.9, 1.0), 0.0)
    )
    return life.end(start + 168)


def dead_reader(life: Life) -> tuple[Trace, float]:
    onset = life.between(50, 120)
    if life.chance(0.8):
        _people(life, 0, onset)
    takes = life.log_between(8, 40)
    at = life.clock(onset, 240, takes) if life.chance(0.5) else life.loop(onset, 240, takes, 0.4)
    least = life.between(0.85, 0.99)
    life.ask(at, few=int(life.log_between(1, 20)), into=1200, out=600, unread=(least, 0.95, 1.0))
    return life.end(240), onset


def dead_sink(life: Life) -> tuple[Trace, float]:
    onset = life.between(50, 120)
    office = life.chance(0.3)
    rate = life.log_between(40, 200)
    life.ask(life.by_chance(0, onset, rate, office), into=1200)
    life.ask(life.by_chance(onset, 240, rate, office), into=1200, unread=(life.between(0.92, 1.0), 0.95, 1.0))
    return life.end(240), onset


def hammer(life: Life) -> tuple[Trace, float]:
    onset = life.between(24, 60)
    _people(life, 0, onset)
    every = life.log_between(0.7, 8)
    end = onset + max(9.0, min(30.0, 9.0 * every))
    at = life.clock(onset, end, every) if life.chance(0.5) else life.loop(onset, end, every, 0.3)
    prompt = life.draw.integers(0, ALL_NEW, 1)
    life.refused(at, np.repeat(prompt, len(at)))
    if life.chance(0.5):
        part = life.ask(at[25::50] + 0.3 * every / 3600, into=1500)
        life.parts[-1] = msgspec.structs.replace(part, prompts=np.repeat(prompt, len(part.at)))
    return life.end(end), onset


def owner_gone(life: Life) -> tuple[Trace, float]:
    life.ask(
        life.clock(0, 336, life.log_between(300, 3600)), few=int(life.log_between(1, 12)), unread=(0, 0, 0)
    )
    onset = life.between(100, 200)
    return life.end(336, onset=onset, gone="owner"), onset


def replaced(life: Life) -> tuple[Trace, float]:
    life.ask(life.clock(0, 336, life.log_between(300, 3600)), unread=(0, 0, 0))
    onset = life.between(100, 200)
    return life.end(336, onset=onset, gone="replaced"), onset


def woken(life: Life) -> tuple[Trace, float]:
    life.ask(life.by_chance(0, 72, 20))
    onset = 72 + life.between(20, 90) * 24
    takes = life.log_between(3, 12)
    at = (
        life.clock(onset, onset + 120, takes)
        if life.chance(0.5)
        else life.loop(onset, onset + 120, takes, 0.4)
    )
    life.ask(at, few=int(life.log_between(1, 10)), into=1500, out=500, limit=1024,
             cut=1.0 if life.chance(0.5) else 0.1, unread=(0.01, 0, 1))  # fmt: skip
    return life.end(onset + 120, use=life.between(0.3, 1.0)), onset


def always_max(life: Life) -> tuple[Trace, float]:
    onset = life.between(100, 168)
    if life.chance(0.8):
        _people(life, 0, onset)
    limit = int(life.log_between(512, 4096))
    takes = limit / life.between(40, 90)
    at = (
        life.clock(onset, onset + 144, takes)
        if life.chance(0.4)
        else life.loop(onset, onset + 144, takes, 0.3)
    )
    life.ask(
        at, few=int(life.log_between(1, 5)), into=1500, out=limit, limit=limit, cut=1.0, unread=(0.01, 0, 1)
    )
    return life.end(onset + 144, use=life.log_between(0.05, 0.9)), onset


def stuck(life: Life) -> tuple[Trace, float]:
    onset = life.between(100, 168)
    _people(life, 0, onset)
    limit = int(life.log_between(512, 4096))
    cut = 1.0 if life.chance(0.5) else 0.02
    at = _around_the_clock(life, onset, onset + 144, limit / life.between(40, 90))
    life.ask(at, into=1500, out=0.9 * limit, limit=limit, cut=cut, unread=(0.01, 0, 1),
             answers=1 + life.chance(0.3))  # fmt: skip
    return life.end(onset + 144, use=life.log_between(0.1, 0.9)), onset


def unanswered(life: Life) -> tuple[Trace, float]:
    onset = life.between(100, 168)
    _agent(life, 0, onset)
    at = _around_the_clock(life, onset, onset + 144, life.log_between(5, 25))
    life.ask(at, few=int(life.log_between(1, 10)), into=life.log_between(1500, 6000), out=200,
             unread=(0.01, 0, 1), tools=(life.between(0.8, 1.0), 0.0))  # fmt: skip
    return life.end(onset + 144, use=life.log_between(0.1, 0.9)), onset


def leaked(life: Life) -> tuple[Trace, float]:
    onset = life.between(200, 260)
    life.ask(life.by_chance(0, 320, life.log_between(10, 60)))
    new = [int(n) for n in life.draw.integers(1 << 30, size=3)]
    who = (new[0], new[1] if life.chance(0.9) else life.client, new[2] if life.chance(0.6) else life.model)
    life.ask(life.loop(onset, 320, life.log_between(3, 30), 1.0), who=who, into=1500, out=600)
    return life.end(320), onset


HEALTHY: Final[tuple[Callable[[Life], Trace], ...]] = (
    interactive, autocomplete, batch, cron, backing_off, polling, launch, evals, load_test, canary, warmer,
    bad_deploy, quarterly, sampler, monitor, classifier, verdicts, health_check, agent, extractor,
)  # fmt: skip
ZOMBIES: Final[tuple[Callable[[Life], tuple[Trace, float]], ...]] = (
    dead_reader, dead_sink, hammer, owner_gone, replaced, woken, always_max, stuck, unanswered,
)  # fmt: skip


def lives(seed: int, kinds: Collection[str] = ()) -> Iterator[tuple[Trace, Truth]]:
    """One of each kind, or of these: each is the same, whoever is beside it."""
    for number, healthy in enumerate(HEALTHY):
        if kinds and healthy.__name__ not in kinds:
            continue
        yield healthy(Life(np.random.default_rng([seed, number]))), Truth(healthy.__name__, zombie=False)
    for number, zombie in enumerate((*ZOMBIES[:7], leaked, *ZOMBIES[7:])):
        if kinds and zombie.__name__ not in kinds:
            continue
        trace, onset = zombie(Life(np.random.default_rng([seed, 100 + number])))
        at = trace.keys[0][0] + int(onset * HOUR)
        yield trace, Truth(zombie.__name__, zombie is not leaked, at)
