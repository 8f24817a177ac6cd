"""What does a key usually do? All that is remembered of one key, in constant space.

The question: which few numbers tell, months later, whether anybody is behind a key? The rule: count what
happens in the present hour, and file it at the turn of the hour in a ring of 24; so a request costs some
additions, and every share can be said of a stretch that a person understands ("in the last 6 h"). Beside
the ring:

- which prompts were answered, as a bitmap of 512 bits (linear counting: with u of m bits unset there were
  about m ln(m / u) of them, exact enough below 1,000 and "many" above), for the hour, for today and for
  yesterday;
- of one request in some, which it is enough to look at more closely: which long answers it got, as a bitmap
  of 64 bits, and how often the model asked for a tool and a request brought the result of one;
- what the key usually takes at each hour of the day: a centre and a spread of log(1 + tokens), both moved
  by a bounded step, so that they follow the median and the median deviation and one wild night moves them
  little;
- mean and variance of the time between requests (the last 50 or so), for "regular as a clock";
- which sources, clients and models were met, as bitmaps of 256 and 64 bits;
- when it was used last, and how long it slept before it woke.

A new prompt that collides in the bitmap is taken for an old one, a new source for a known one: with the few
that make these signs worth anything (below 33 prompts, 9 sources) that is rare, and it errs towards leaving
a key alone.

Refused: exponentially fading averages for the shares. They are cheaper by some bytes, but "93 % as an
average with a half-life of 4 h" convinces nobody whose key is about to be slowed down. Refused too: 168
hours of the week, which would need a month before they say anything.

Times between requests are true only when all requests of a key are noted in one place. Workers that share a
key send what they saw, with its time, to whoever keeps its habits.
"""

import math
from array import array
from typing import Final

import msgspec

from holdfast.model.units import DAY, HOUR, Instant, Millis

HOURS: Final = 24
REQUESTS, ANSWERED, PROMPT, OUTPUT, UNREAD, CAPPED, DISTINCT, REFUSED, AGAIN = range(9)
LOOKED, TOOLS, RESULTS = range(9, 12)
COLUMNS: Final = 12

LEARN_GAP: Final = 0.02  # weight of the newest gap: about the last 50
PAUSE_S: Final = 3600.0  # a longer gap is a pause and says nothing of the rhythm
AGAIN_S: Final = 10.0  # the same prompt so soon after its refusal is no back-off
LONG_OUTPUT: Final = 256  # a probe or a classifier that may say 16 tokens is always cut, and means nothing
PROMPT_BITS: Final = 512
FEW_PROMPTS: Final = 32
MANY_PROMPTS: Final = 128  # in a day: one that exchanges its few prompts is still one of few
ANSWER_BITS: Final = 64
MANY_ANSWERS: Final = 24  # in a day, of those looked at
RESULTS_MIN: Final = 20  # on a day that shows that it answers its tools
SOURCE_BITS: Final = 256
FEW_SOURCES: Final = 8
KIND_BITS: Final = 64
SLEEP_MS: Final = 14 * DAY
LEARN_USUAL: Final = 0.15  # of a day: about the last week
SPREAD_MIN: Final = 0.2  # in logs: nobody is steadier than a fifth


class Seen(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One finished request, as the gateway saw it. Hashes are integers from 0 that are the same
    after a restart."""

    prompt_hash: int
    status: int
    reserved: int
    prompt_tokens: int
    completion_tokens: int
    undelivered_tokens: int  # generated, and nobody was there to read them
    hit_max_tokens: bool
    finish_length: bool
    source_hash: int
    agent_hash: int
    model_hash: int
    # of one in some only
    answer_hash: int = 0  # 0: not looked at, or no text
    asks_tool: bool = False  # its answer ends with a question to a tool
    brings_result: bool = False  # a tool's, for the model


class Stretch(msgspec.Struct, frozen=True, gc=False):
    """What happened in the last so many hours, the present one included."""

    hours: int
    requests: float
    answered: float
    prompt: float
    output: float
    unread: float
    capped: float
    distinct: float
    refused: float
    again: float
    looked: float  # at answers long enough to tell them apart
    tools: float
    results: float

    @property
    def tokens(self) -> float:
        return self.prompt + self.output


class Habits:
    """Of one key. `note` is the hot path: plain numbers, no object is built."""

    __slots__ = (
        "again", "agents", "answered", "bits", "bits_day", "bits_today", "bits_yesterday", "capped", "days",
        "first_at", "gap_mean", "gap_var", "hour", "hour_ends", "last_at", "last_now", "looked", "met",
        "models", "new_source_at", "off", "output", "prompt", "refused", "refused_at", "refused_hash",
        "requests", "results", "results_day", "rows", "said", "said_day", "said_today", "said_yesterday",
        "slept_ms", "sources", "spread", "stranger", "stranger_at", "stranger_new", "stranger_tokens",
        "tools", "unread", "usual", "varied_day", "woke_at",
    )  # fmt: skip

    def __init__(self, wall: Instant) -> None:
        self.requests = self.answered = self.prompt = self.output = self.unread = 0
        self.capped = self.refused = self.again = self.bits = 0
        self.looked = self.said = self.tools = self.results = 0
        self.hour = wall // HOUR
        self.hour_ends = (self.hour + 1) * HOUR
        self.rows = array("f", bytes(4 * COLUMNS * HOURS))
        self.bits_today = self.bits_yesterday = 0
        self.bits_day = self.hour // HOURS
        self.varied_day = -1  # the last on which it sent many prompts
        self.said_today = self.said_yesterday = 0
        self.said_day = -1  # the last on which it got many answers
        self.results_day = -1  # the last on which it brought the results of its tools
        self.usual = array("f", bytes(4 * HOURS))  # log(1 + tokens)
        self.spread = array("f", bytes(4 * HOURS))
        self.off = 0.0  # by how many spreads the last whole hour was above what is usual
        self.days = 0  # for how many this was learned
        self.last_now = -math.inf
        self.gap_mean = self.gap_var = 0.0
        self.first_at = self.last_at = wall
        self.slept_ms = 0
        self.woke_at = 0
        self.refused_hash = 0
        self.refused_at = -AGAIN_S
        self.met = self.sources = self.agents = self.models = 0
        self.new_source_at = wall
        self.stranger = -1  # no source has this hash
        self.stranger_at = self.stranger_tokens = self.stranger_new = 0

    def note(self, seen: Seen, now: float, wall: Instant) -> None:
        if wall >= self.hour_ends:
            self.turn(wall)
        gap = now - self.last_now
        self.last_now = now
        if 0.0 <= gap < PAUSE_S:
            off = gap - self.gap_mean
            self.gap_mean += LEARN_GAP * off
            self.gap_var = (1.0 - LEARN_GAP) * (self.gap_var + LEARN_GAP * off * off)
        else:
            self._rest(wall)
        self.last_at = wall
        self.requests += 1
        output = seen.completion_tokens
        status = seen.status
        if output or status < 400:
            self.answered += 1
            self.prompt += seen.prompt_tokens
            self.output += output
            self.unread += seen.undelivered_tokens
            if output >= LONG_OUTPUT and (seen.finish_length or seen.hit_max_tokens):
                self.capped += 1
            self.bits |= 1 << (seen.prompt_hash % PROMPT_BITS)
            if seen.source_hash ^ seen.agent_hash ^ seen.model_hash != self.met:
                self._meet(seen, wall)
            if seen.source_hash == self.stranger:
                self.stranger_tokens += output + seen.prompt_tokens
            if seen.answer_hash and output >= LONG_OUTPUT:
                self.looked += 1
                self.said |= 1 << (seen.answer_hash % ANSWER_BITS)
            if seen.asks_tool:
                self.tools += 1
            if seen.brings_result:
                self.results += 1
        elif status < 500 and status != 499 and status != 408:
            self.refused += 1
            if seen.prompt_hash == self.refused_hash and now - self.refused_at < AGAIN_S:
                self.again += 1
            self.refused_hash = seen.prompt_hash
            self.refused_at = now

    def _rest(self, wall: Instant) -> None:
        """The first request, or the first after a pause or a restart of ours."""
        slept = wall - self.last_at
        if slept >= SLEEP_MS:
            self.slept_ms, self.woke_at = slept, wall

    def _meet(self, seen: Seen, wall: Instant) -> None:
        """Not the same source, client and model as the last request. A source never met before, to a key that
        has settled, is a stranger; whether its client and its model are new as well is kept with it."""
        self.met = seen.source_hash ^ seen.agent_hash ^ seen.model_hash
        source = 1 << (seen.source_hash % SOURCE_BITS)
        agent, model = 1 << (seen.agent_hash % KIND_BITS), 1 << (seen.model_hash % KIND_BITS)
        if not self.sources & source:
            settled = wall - max(self.new_source_at, self.first_at) >= 7 * DAY
            if self.sources and settled and self.sources.bit_count() <= FEW_SOURCES:
                self.stranger, self.stranger_at, self.stranger_tokens = seen.source_hash, wall, 0
                self.stranger_new = 1 + (not self.agents & agent) + (not self.models & model)
            self.sources |= source
            self.new_source_at = wall
        self.agents |= agent
        self.models |= model

    def turn(self, wall: Instant) -> None:
        """Time has passed: file the hour that is over, and the empty ones since. A clock that steps back
        changes nothing."""
        hour = wall // HOUR
        if hour <= self.hour:
            return
        self._file()
        for silent in range(self.hour + 1, min(hour, self.hour + 1 + HOURS)):
            self.rows[silent % HOURS :: HOURS] = array("f", bytes(4 * COLUMNS))
            self._learn(silent, 0.0)
        self.hour = hour
        self.hour_ends = (hour + 1) * HOUR
        self.requests = self.answered = self.prompt = self.output = self.unread = 0
        self.capped = self.refused = self.again = self.bits = 0
        self.looked = self.said = self.tools = self.results = 0

    def _file(self) -> None:
        counts = self._present()
        self.rows[self.hour % HOURS :: HOURS] = array("f", counts)
        day = self.hour // HOURS
        if day != self.bits_day:
            next_day = day == self.bits_day + 1
            self.bits_yesterday = self.bits_today if next_day else 0
            self.said_yesterday = self.said_today if next_day else 0
            self.bits_today, self.said_today, self.bits_day = 0, 0, day
        self.bits_today |= self.bits
        self.said_today |= self.said
        if distinct(self.bits_today) > MANY_PROMPTS:
            self.varied_day = day
        if distinct(self.said_today, ANSWER_BITS) > MANY_ANSWERS:
            self.said_day = day
        lately = self.last(HOURS)
        if lately.results >= max(RESULTS_MIN, lately.tools / 2):
            self.results_day = day
        self._learn(self.hour, counts[PROMPT] + counts[OUTPUT])

    def _learn(self, hour: int, tokens: float) -> None:
        at = hour % HOURS
        new = math.log1p(tokens)
        if self.spread[at] == 0.0:  # the first such hour
            self.usual[at], self.spread[at] = new, 1.0
            off = 0.0
        else:
            off = new - self.usual[at]
            wide = max(self.spread[at], SPREAD_MIN)
            self.usual[at] += LEARN_USUAL * min(max(off, -3 * wide), 3 * wide)
            self.spread[at] += LEARN_USUAL * (min(max(abs(off), 0.01), 3 * wide) - self.spread[at])
            off /= wide
        self.off = off
        if at == HOURS - 1:
            self.days += 1

    def _present(self) -> tuple[float, ...]:
        return (
            self.requests,
            self.answered,
            self.prompt,
            self.output,
            self.unread,
            self.capped,
            distinct(self.bits),
            self.refused,
            self.again,
            self.looked,
            self.tools,
            self.results,
        )

    def last(self, hours: int) -> Stretch:
        """The present hour and the `hours` - 1 before it: at most 24."""
        sums = list(self._present())
        rows, filed = self.rows, [hour % HOURS for hour in range(self.hour - hours + 1, self.hour)]
        for column in range(COLUMNS):
            start = column * HOURS
            sums[column] += sum([rows[start + hour] for hour in filed])
        return Stretch(hours, *sums)

    def column(self, column: int, hours: int) -> list[float]:
        """The whole hours of the last so many, oldest first, without the present one."""
        start = column * HOURS
        return [self.rows[start + hour % HOURS] for hour in range(self.hour - hours + 1, self.hour)]

    @property
    def prompts(self) -> int:
        """About how many different prompts were answered since yesterday began."""
        return distinct(self.bits | self.bits_today | self.bits_yesterday)

    @property
    def answers(self) -> int:
        """About how many different long answers it got since yesterday began, of those looked at."""
        return distinct(self.said | self.said_today | self.said_yesterday, ANSWER_BITS)

    @property
    def gap_cv(self) -> float:
        """How irregular the requests come: 0 like a clock, 1 by chance."""
        return math.sqrt(self.gap_var) / self.gap_mean if self.gap_mean > 0 else math.inf


def distinct(bits: int, size: int = PROMPT_BITS) -> int:
    unset = size - bits.bit_count()
    return round(size * math.log(size / max(unset, 0.5)))


def idle_ms(habits: Habits, wall: Instant) -> Millis:
    return max(0, wall - habits.last_at)
