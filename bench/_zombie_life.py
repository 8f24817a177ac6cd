"""What a life of `_zombie_traces` is made of: requests of one kind, drawn, and put together into what a
gateway sees. What the key was is told apart from it."""

import math
from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.core.gateway.key_audit.audit import Seen, Team
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


def monotonic(wall: Instant) -> float:
    return (wall - BEGIN) / SECOND
