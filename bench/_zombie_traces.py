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

import math
from collections.abc import Callable, Iterator
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.core.gateway.zombie import Seen, Team
from holdfast.gateway.glance import LOOK_EVERY
from holdfast.model.gateway import Key, Limits
from holdfast.model.units import DAY, HOUR, SECOND, Instant

Times = NDArray[np.float64]  # hours since the trace began
Draw = np.random.Generator

BEGIN: Final[Instant] = 20_458 * DAY  # a Monday
OFFICE: Final = np.array([0.05] * 7 + [0.3, 0.8, 1, 1, 0.9, 0.8, 1, 1, 1, 0.9, 0.6, 0.3] + [0.15] * 5)
ALL_NEW: Final = 1 << 31


class Truth(msgspec.Struct, frozen=True):
    kind: str
    zombie: bool
    onset: Instant = 0


class Trace(msgspec.Struct, frozen=True):
    """What a gateway sees."""

    keys: tuple[tuple[Instant, Key], ...]  # the key as it is from then on
    team: Team | None
    ends: Instant
    walls: NDArray[np.int64]
    columns: tuple[
        NDArray[np.int64], ...
    ]  # prompt, status, tokens in, out, unread, cut, source, agent, model, answer, asks, brings

    def requests(self) -> Iterator[tuple[int, Seen]]:
        rows = zip(self.walls.tolist(), *(column.tolist() for column in self.columns), strict=True)
        looked = 0
        for wall, prompt, status, into, out, unread, cut, source, agent, model, answer, asks, brings in rows:
            looked += status < 400
            look = status < 400 and looked % LOOK_EVERY == 0 and not unread
            yield (
                wall,
                Seen(
                    prompt, status, into + out, into, out, unread, bool(cut), bool(cut), source, agent, model,
                    answer if look and not asks else 0, bool(look and asks), bool(look and brings),
                ),
            )  # fmt: skip


class Part(msgspec.Struct, frozen=True):
    """Requests of one kind."""

    at: Times
    prompts: NDArray[np.int64]
    status: NDArray[np.int64]
    into: NDArray[np.int64]
    out: NDArray[np.int64]
    unread: NDArray[np.int64]
    cut: NDArray[np.int64]
    source: NDArray[np.int64]
    agent: NDArray[np.int64]
    model: NDArray[np.int64]
    answers: NDArray[np.int64]
    asks: NDArray[np.int64]
    brings: NDArray[np.int64]


class Life:
    """Draws parts of one key's life, and puts them together."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.beside = draw.spawn(1)[0]  # what was added later: the lives before stay as they were
        self.without_chance = bool(self.beside.random() < 0.5)
        self.zone = int(draw.integers(24))  # where its people live
        self.weekday = int(draw.integers(7))
        self.home = int(draw.integers(1 << 30))
        self.client, self.model = int(draw.integers(1 << 30)), int(draw.integers(1 << 30))
        self.parts: list[Part] = []

    def between(self, low: float, high: float) -> float:
        return float(self.draw.uniform(low, high))

    def log_between(self, low: float, high: float) -> float:
        return math.exp(self.between(math.log(low), math.log(high)))

    def chance(self, share: float) -> bool:
        return bool(self.draw.random() < share)

    def by_chance(self, start: float, end: float, an_hour: float, office: bool = True) -> Times:
        hours = np.arange(math.floor(start), math.ceil(end))
        rates = np.full(len(hours), an_hour)
        if office:
            days = (hours // 24 + self.weekday) % 7
            rates = rates * OFFICE[(hours + self.zone).astype(int) % 24] * np.where(days < 5, 1.0, 0.15)
        counts = self.draw.poisson(rates)
        times = np.sort(np.repeat(hours, counts) + self.draw.random(int(counts.sum())))
        return times[(times >= start) & (times < end)]

    def clock(self, start: float, end: float, every_s: float) -> Times:
        times = np.arange(start, end, every_s / 3600)
        return np.sort(times + self.draw.normal(0, 0.01 * every_s / 3600, len(times)))

    def loop(self, start: float, end: float, takes_s: float, cv: float) -> Times:
        """One after the other: each takes about so long."""
        shape = 1 / cv**2
        gaps = self.draw.gamma(shape, takes_s / shape / 3600, int((end - start) * 3600 / takes_s * 1.5) + 10)
        times = start + np.cumsum(gaps)
        return times[times < end]

    def ask(
        self,
        at: Times,
        *,
        few: int = 0,
        into: float = 600,
        out: float = 300,
        limit: int = 0,
        cut: float = 0.02,
        unread: tuple[float, float, float] = (0.03, 0.2, 1.0),
        status: int = 200,
        who: tuple[int, int, int] | None = None,
        answers: int = 0,
        tools: tuple[float, float] = (0.0, 0.0),
    ) -> Part:
        """`few` prompts or all new ones. `cut`: this share of the answers is as long as `limit`. `unread`:
        this share of the streams is left, with a part between these two unread. `answers`: so many, whatever
        the prompt. `tools`: these shares ask for one, and bring a result."""
        count, draw = len(at), self.draw
        pool = draw.integers(0, ALL_NEW, few or count)
        prompts = pool[draw.integers(0, few, count)] if few else pool
        tokens = np.maximum(1, draw.lognormal(math.log(out), 0.5, count)).astype(np.int64)
        is_cut = draw.random(count) < cut
        if limit:
            tokens = np.where(is_cut, limit, np.minimum(tokens, max(1, limit - 1)))
        left = draw.random(count) < unread[0]
        lost = np.where(left, tokens * draw.uniform(unread[1], unread[2], count), 0).astype(np.int64)
        inputs = np.maximum(1, draw.lognormal(math.log(into), 0.05 if few else 0.6, count)).astype(np.int64)
        if status >= 400:
            inputs, tokens, lost = inputs * 0, tokens * 0, lost * 0
        source, agent, model = who or (self.home, self.client, self.model)
        part = Part(
            at, prompts, np.full(count, status), inputs, tokens, lost,
            (is_cut & (tokens > 0)).astype(np.int64),
            np.full(count, source), np.full(count, agent), np.full(count, model),
            self._answers(prompts, answers, bool(few)), *(
                (self.beside.random(count) < share).astype(np.int64) for share in tools
            ),
        )  # fmt: skip
        self.parts.append(part)
        return part

    def _answers(self, prompts: NDArray[np.int64], answers: int, repeated: bool) -> NDArray[np.int64]:
        if answers:
            return self.beside.integers(1, ALL_NEW, answers)[self.beside.integers(0, answers, len(prompts))]
        if repeated and self.without_chance:
            return prompts + 1
        return self.beside.integers(1, ALL_NEW, len(prompts))

    def refused(self, at: Times, prompts: NDArray[np.int64]) -> None:
        part = self.ask(at, status=429)
        self.parts[-1] = msgspec.structs.replace(part, prompts=prompts)

    def busiest(self) -> float:
        """Tokens in its busiest hour."""
        hours = np.concatenate([part.at for part in self.parts]).astype(int)
        tokens = np.concatenate([part.into + part.out for part in self.parts])
        return float(np.bincount(hours, tokens).max()) if len(hours) else 1.0

    def end(self, hours: float, use: float = 0.0, onset: float = 0.0, gone: str = "") -> Trace:
        """`use`: its busiest hour takes this share of its quota."""
        draw = self.draw
        share = use or self.log_between(0.05, 0.95)
        limits = Limits(tokens_per_min=max(100, int(self.busiest() / 60 / share)))
        key = Key(
            f"{int(draw.integers(1 << 62)):x}", b"", limits=limits if use or self.chance(0.8) else Limits()
        )
        start = BEGIN + self.weekday * DAY
        keys = [(start, key)]
        at = start + int(onset * HOUR)
        if gone == "owner":
            keys.append((at, msgspec.structs.replace(key, owner_gone_at=at)))
        elif gone == "replaced":
            keys[0] = (start, msgspec.structs.replace(key, replaced_at=at - 3 * DAY, expires_at=at))
        team = Team(tuple(np.roll(OFFICE, -self.zone).tolist())) if self.chance(0.7) else None
        order = np.argsort(np.concatenate([part.at for part in self.parts]), kind="stable")
        joined = [
            np.concatenate([getattr(part, name) for part in self.parts])[order]
            for name in Part.__struct_fields__
        ]
        walls = (start + joined[0] * HOUR).astype(np.int64)
        return Trace(tuple(keys), team, start + int(hours * HOUR), walls, tuple(joined[1:]))


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


def lives(seed: int) -> Iterator[tuple[Trace, Truth]]:
    """One of each kind."""
    for number, healthy in enumerate(HEALTHY):
        yield healthy(Life(np.random.default_rng([seed, number]))), Truth(healthy.__name__, zombie=False)
    for number, zombie in enumerate((*ZOMBIES[:7], leaked, *ZOMBIES[7:])):
        trace, onset = zombie(Life(np.random.default_rng([seed, 100 + number])))
        at = trace.keys[0][0] + int(onset * HOUR)
        yield trace, Truth(zombie.__name__, zombie is not leaked, at)


def monotonic(wall: Instant) -> float:
    return (wall - BEGIN) / SECOND
