"""What is asked of a service that answers with tokens: single requests, drawn from the seeded chance.

How many come a second is the service's `load`; here is what each of them is like. They come as people do,
each by itself (a Poisson process), and long prompts and answers are rarer than short ones.
"""

import random
import zlib

import msgspec

from holdfast.model.gateway import Key
from holdfast.model.units import SECOND, Instant
from holdfast.sim.scenario.load_profile import Load

BYTES_A_TOKEN = 4
LONGEST = 8  # times the mean: no prompt or answer is longer


class Requests(msgspec.Struct, frozen=True):
    prompt: int = 500  # tokens, on average
    answer: int = 100  # tokens, on average
    answer_max: int = 0  # what callers allow their answers; 0: they say nothing of it
    keys: tuple[str, ...] = ("app",)  # who asks, in turns
    team: str = ""  # that all of these keys belong to
    beginnings: int = 0  # so many beginnings do prompts share, half of each; 0: each is new
    prompts: int = 0  # so many different prompts are asked, again and again; 0: each is new


class Want:
    """One request, as its caller means it."""

    __slots__ = ("answer", "beginning", "hash", "key", "most", "prefix", "prompt")

    def __init__(
        self, key: Key, prompt: int, answer: int, most: int | None, prefix: tuple[int, ...], beginning: int
    ) -> None:
        self.key = key
        self.prompt, self.answer = prompt, answer  # in tokens
        self.most = most
        self.prefix = prefix
        self.hash = prefix[-1]  # of all of it
        self.beginning = beginning  # the name of what it shares with others; 0: nothing

    def after(self, said: int) -> "Want":
        """What is left of it when so much of the answer was said: that is read, too."""
        left = self.most - said if self.most is not None else None
        return Want(self.key, self.prompt + said, self.answer - said, left, self.prefix, self.beginning)

    @property
    def prompt_bytes(self) -> int:
        return self.prompt * BYTES_A_TOKEN


class Callers:
    """Those who ask one service."""

    def __init__(self, name: str, load: Load, wanted: Requests, keys: dict[str, Key], seed: int) -> None:
        self.load, self.wanted = load, wanted
        self.random = random.Random(f"requests/{name}/{seed}")
        self._keys = [keys[id] for id in wanted.keys]
        self._name = zlib.crc32(name.encode())
        self._number = 0

    def next_at(self, now: Instant) -> tuple[Instant, bool]:
        """When to come back, and whether somebody asks then. A second at most, for the load may change; when
        nothing is asked, as soon as something may be."""
        level = self.load.level(now)
        if level <= 0 and not self.load.smooth:
            return self.load.next_jump(now), False
        wait = int(self.random.expovariate(level) * SECOND) if level > 0 else SECOND
        return now + min(wait, SECOND), wait < SECOND

    def draw(self) -> Want:
        wanted = self.wanted
        self._number += 1
        prompt, answer = self._long(wanted.prompt), self._long(wanted.answer)
        beginning = 0
        if wanted.beginnings:
            beginning = self._name + 1 + int(self.random.random() * wanted.beginnings)
        own = zlib.crc32(b"%d/%d" % (self._name, self._number % (wanted.prompts or self._number + 1)))
        return Want(
            self._keys[self._number % len(self._keys)],
            prompt,
            min(answer, wanted.answer_max) if wanted.answer_max else answer,
            wanted.answer_max or None,
            (beginning, own) if beginning else (own,),
            beginning,
        )

    def _long(self, mean: int) -> int:
        return 1 + min(int(self.random.expovariate(1 / max(1, mean))), LONGEST * mean)
