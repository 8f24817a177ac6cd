"""What in a key's habits says that nobody is behind it?

The question: of all keys that look like machines, which work for nobody? Almost every sign of a zombie is
also the sign of something healthy. A canary sends one prompt a minute for years. A nightly eval asks the
same 500 things. A batch job is cut at max_tokens every time. A load test does all of that at once, at a
constant rate. An editor that completes as you type throws most of its answers away. So signs come in
families, and what they may do together is decided in `grades`:

- *certain*: the owner is gone, or another key took this one's place and its time is over. Facts, not
  habits.
- *waste*: it generates what nobody reads; or it is refused, asks again at once, and gets nothing new
  through. Editors throw away about half, so waste begins at 85 %, in each of three hours: a bad deployment
  that is mended before dinner is not yet a zombie. A worker that polls its full quota without back-off is
  refused 97 % of the time and is healthy all the same, because what gets through is always something new.
  Only 4xx count: when *we* have no capacity (5xx), asking again is not its fault.
- *sameness*: few prompts, always cut at their limit (and that limit not small), the same long answer again
  and again, tools whose results never come, regular as a clock, as busy at three in the morning as at noon.
  Each of them is weak, and all of them together fit a soak test over a weekend: they must last longer than
  one. And they must be a change: a key that was never otherwise was made so, to watch or to warm something,
  and no habit tells it from one that was born a zombie. So a loop that is always cut is found if it had
  another life before, not if it was born so.
- *context*: it slept for two weeks or more, and then took a good part of its quota within an hour; or it
  sent many prompts on some day, and sends few now; or got many answers, and gets few now.
- *drain*: it takes far more than is usual for it at this hour. A launch does that, so it never counts
  alone.

A key that takes little is not worth a mistake: sameness and context say nothing below 100,000 tokens an
hour.

A new source is another matter: a key that leaked is used by somebody, and its owner must hear of it, so it
is a finding of its own and no part of the score.

Answers are told apart by a hash of their text, of one request in some. A classifier has few answers and is
healthy, so only those count that are longer than any label. That a tool's result never comes is no sign by
itself either: many ask for a tool call to have their answer in a form, and end there. It is one for a key
that used to bring results, and even then an agent may have been exchanged for such a form: only with few
prompts or few answers beside it does it weigh enough for more than a tag.

Not taken from the list of signs that was asked for: the time until the quota is exhausted (drain with another
unit). The numbers were chosen on seeds 1 to 40 of `python -m bench zombies`, which reports on others.
"""

import enum
from typing import Final

import msgspec

from holdfast.core.gateway.key_audit.usage_profile import (
    DISTINCT,
    FEW_PROMPTS,
    HOURS,
    OUTPUT,
    PROMPT,
    REQUESTS,
    UNREAD,
    Habits,
    Stretch,
    distinct,
    idle_ms,
)
from holdfast.model.gateway import Key
from holdfast.model.units import DAY, HOUR, MINUTE, Instant, many, seconds

REPLACED_GRACE_MS: Final = 7 * DAY  # where a rotated key was given no end
WASTE_H: Final = 6
WASTE_HOURS_MIN: Final = 3
UNREAD_SHARE: Final = 0.85
UNREAD_MIN: Final = 20_000
UNREAD_HOUR_MIN: Final = 1_000
LONG_H: Final = 12  # of 24
IDLE_MS: Final = 90 * MINUTE  # what is over drains nothing
REFUSED_SHARE: Final = 0.95
AGAIN_SHARE: Final = 0.8
REFUSED_HOUR_MIN: Final = 300
REPEATS_MIN: Final = 8  # each, on average
REPEATED_MIN: Final = 50
CAPPED_SHARE: Final = 0.95
CAPPED_MIN: Final = 50
FEW_ANSWERS: Final = 3
LOOKED_MIN: Final = 50
TOOLS_MIN: Final = 50  # of the answers looked at
RESULTS_SHARE: Final = 0.05
REGULAR_CV: Final = 0.15
REGULAR_MIN: Final = 100
FLAT_LEAST: Final = 0.5  # of its average: the quietest of the last 23 hours
TEAM_RESTS: Final = 0.35  # the team's quietest hour over its busiest
WORTH_TOKENS_H: Final = 100_000
NEW_MIN: Final = 8.0  # prompts, counted anew each hour: one that gets through every hour is 6 of them
FELT_SHARE: Final = 0.1
AWAKE_MS: Final = 7 * DAY
BURST_SHARE: Final = 0.3
DRAIN_OFF: Final = 4.0
DRAIN_DAYS: Final = 4
STRANGER_MS: Final = 2 * DAY
STRANGER_TOKENS: Final = 20_000


class Family(enum.StrEnum):
    CERTAIN = "certain"
    WASTE = "waste"
    SAMENESS = "sameness"
    CONTEXT = "context"
    DRAIN = "drain"
    LEAK = "leak"


class Reason(msgspec.Struct, frozen=True):
    name: str
    family: Family
    weight: float  # how likely it is, by this sign alone, that nobody is behind the key
    text: str


class Team(msgspec.Struct, frozen=True):
    """What the team of a key does as a whole, if known: tokens by the hour of the day."""

    hours: tuple[float, ...] = ()

    @property
    def rests(self) -> bool:
        return len(self.hours) == 24 and min(self.hours) < TEAM_RESTS * max(self.hours)


def signs(key: Key, habits: Habits, team: Team | None, wall: Instant) -> tuple[Reason, ...]:
    """What speaks against it, the heaviest first."""
    found = _facts(key, habits, wall)
    if idle_ms(habits, wall) > IDLE_MS:
        return tuple(found)
    short, day = habits.last(WASTE_H), habits.last(24)
    found += _unread(habits, short, day)
    found += _refused(habits, short)
    if found or rate(habits, day) >= WORTH_TOKENS_H:
        found += _sameness(habits, short, day, team)
        found += _woken(key, habits, wall)
        found += _drain(habits, day)
    return tuple(sorted(found, key=lambda reason: -reason.weight))


def rate(habits: Habits, day: Stretch) -> float:
    """Tokens an hour: on average over a day, or half of its busiest hour."""
    since = min(24.0, max(1.0, (habits.last_at - habits.first_at) / HOUR))
    busiest = max([*_tokens(habits), habits.prompt + habits.output])
    return max(day.tokens / since, busiest / 2)


def felt(key: Key, habits: Habits) -> bool:
    """Would it feel a clamp?"""
    return rate(habits, habits.last(24)) >= FELT_SHARE * 60 * (key.limits.tokens_per_min or 0)


def leak(habits: Habits, wall: Instant) -> Reason | None:
    """A source that is new together with its client or its model, and takes something."""
    new = habits.stranger_new
    if new < 2 or wall - habits.stranger_at > STRANGER_MS or habits.stranger_tokens < STRANGER_TOKENS:
        return None
    with_it = {2: "with a client or a model", 3: "with a client and a model"}[new]
    since = seconds(wall - habits.stranger_at)
    text = (
        f"a source never seen before, {with_it} it never used, took {amount(habits.stranger_tokens)} tokens "
        f"in {since}: was it leaked?"
    )
    return Reason("new_source", Family.LEAK, 0.0, text)


def _facts(key: Key, habits: Habits, wall: Instant) -> list[Reason]:
    used = seconds(idle_ms(habits, wall))
    if key.owner_gone_at and key.owner_gone_at <= wall:
        if habits.last_at < key.owner_gone_at:
            return []  # not used since: nothing drains
        gone = days(wall - key.owner_gone_at)
        text = f"its owner has been gone for {gone}, and it was last used {used} ago"
        return [Reason("owner_gone", Family.CERTAIN, 1.0, text)]
    if key.replaced_at:
        over = key.expires_at or key.replaced_at + REPLACED_GRACE_MS
        if over <= wall and habits.last_at >= over:
            gone = days(wall - key.replaced_at)
            text = f"another key replaced it {gone} ago, its time is over, and it was used {used} ago"
            return [Reason("replaced", Family.CERTAIN, 1.0, text)]
    return []


def _unread(habits: Habits, short: Stretch, day: Stretch) -> list[Reason]:
    if short.unread < UNREAD_MIN or short.unread < UNREAD_SHARE * short.output:
        return []
    if _unread_hours(habits, WASTE_H) < WASTE_HOURS_MIN:
        return []
    said = f"nobody read {_percent(short.unread, short.output)} of what it generated in the last {WASTE_H} h"
    found = [Reason("unread", Family.WASTE, 0.7, f"{said} ({amount(short.unread)} tokens)")]
    if day.unread >= UNREAD_SHARE * day.output and _unread_hours(habits, 24) >= LONG_H:
        text = f"it has been so for {LONG_H} of the last 24 h ({amount(day.unread)} tokens)"
        found.append(Reason("unread_long", Family.WASTE, 0.5, text))
    return found


def _unread_hours(habits: Habits, hours: int) -> int:
    pairs = zip(
        [*habits.column(UNREAD, hours), habits.unread],
        [*habits.column(OUTPUT, hours), habits.output],
        strict=True,
    )
    return sum(out >= UNREAD_HOUR_MIN and unread >= UNREAD_SHARE * out for unread, out in pairs)


def _refused(habits: Habits, short: Stretch) -> list[Reason]:
    """Refused, at once again, and what gets through (if anything) is the same few prompts."""
    if short.refused < REFUSED_SHARE * short.requests or short.again < AGAIN_SHARE * short.refused:
        return []
    busy = [count for count in habits.column(REQUESTS, WASTE_H) if count >= REFUSED_HOUR_MIN]
    something_new = short.distinct > max(NEW_MIN, 0.1 * short.answered)
    if len(busy) < WASTE_HOURS_MIN or something_new:
        return []
    text = (
        f"{_percent(short.refused, short.requests)} of its {amount(short.requests)} requests in the last "
        f"{WASTE_H} h were refused, and nothing new got through"
    )
    again = f"it asks again within 10 s of a refusal ({_percent(short.again, short.refused)} of the time)"
    return [
        Reason("refused", Family.WASTE, 0.7, text),
        Reason("no_back_off", Family.SAMENESS, 0.5, again),
    ]


def _sameness(habits: Habits, short: Stretch, day: Stretch, team: Team | None) -> list[Reason]:
    found = _repeats(habits, short, day)
    if day.capped >= CAPPED_MIN and day.capped >= CAPPED_SHARE * day.answered:
        text = f"{_percent(day.capped, day.answered)} of its answers in 24 h ran into their token limit"
        found.append(Reason("always_cut", Family.SAMENESS, 0.45, text))
    found += _same_answers(habits, day)
    found += _no_results(habits, day)
    if habits.gap_cv < REGULAR_CV and day.requests >= REGULAR_MIN:
        text = f"a request every {habits.gap_mean:.3g} s, regular as a clock"
        found.append(Reason("regular", Family.SAMENESS, 0.3, text))
    hours = _tokens(habits)
    if min(hours) >= FLAT_LEAST * sum(hours) / len(hours) > 0:
        rests = team is not None and team.rests
        text = "as busy by night as by day" + (", while its team rests" if rests else "")
        found.append(Reason("flat", Family.SAMENESS, 0.4 if rests else 0.3, text))
    return found


def _repeats(habits: Habits, short: Stretch, day: Stretch) -> list[Reason]:
    """The same few since yesterday, or, when that was another life, in each of the last hours."""
    prompts, each, stretch = habits.prompts, float(habits.prompts), day
    if prompts > FEW_PROMPTS:
        prompts = round(max([*habits.column(DISTINCT, WASTE_H), distinct(habits.bits)]))
        each, stretch = short.distinct, short  # one that comes back in every hour counts in every hour
    if prompts > FEW_PROMPTS or stretch.answered < max(REPEATS_MIN * each, REPEATED_MIN):
        return []
    same = "the same prompt" if prompts == 1 else f"the same {prompts} prompts"
    text = f"it sent {same} again and again: {amount(stretch.answered)} requests in {stretch.hours} h"
    found = [Reason("repeats", Family.SAMENESS, 0.5, text)]
    if habits.varied_day >= 0:
        text = f"it sent many different prompts until {_until(habits, habits.varied_day)}"
        found.append(Reason("changed", Family.CONTEXT, 0.0, text))
    return found


def _same_answers(habits: Habits, day: Stretch) -> list[Reason]:
    """Since yesterday, and not in each hour of a night: people may sleep while a probe goes on."""
    answers = habits.answers
    if not 0 < answers <= FEW_ANSWERS or day.looked < LOOKED_MIN:
        return []
    same = "the same answer" if answers == 1 else f"the same {answers} answers"
    text = f"it got {same} again and again: all {amount(day.looked)} that were looked at in 24 h"
    found = [Reason("same_answers", Family.SAMENESS, 0.5, text)]
    if habits.said_day >= 0:
        text = f"it got many different answers until {_until(habits, habits.said_day)}"
        found.append(Reason("answers_changed", Family.CONTEXT, 0.0, text))
    return found


def _no_results(habits: Habits, day: Stretch) -> list[Reason]:
    if habits.results_day < 0 or day.tools < TOOLS_MIN or day.results > RESULTS_SHARE * day.tools:
        return []
    text = (
        f"the model asked for a tool in {amount(day.tools)} of the answers looked at in 24 h, and "
        f"{amount(day.results)} results came; they came until {_until(habits, habits.results_day)}"
    )
    return [Reason("no_results", Family.SAMENESS, 0.45, text)]


def _until(habits: Habits, day: int) -> str:
    ago = habits.hour // HOURS - day
    return f"{many(ago, 'day')} ago" if ago > 0 else "today"


def _woken(key: Key, habits: Habits, wall: Instant) -> list[Reason]:
    if not habits.woke_at or wall - habits.woke_at > AWAKE_MS:
        return []
    most = max([*_tokens(habits), habits.prompt + habits.output])
    quota = 60 * (key.limits.tokens_per_min or 0)
    if most < max(WORTH_TOKENS_H, BURST_SHARE * quota):
        return []
    share = f" ({_percent(most, quota)} of its quota)" if quota else ""
    text = f"unused for {days(habits.slept_ms)}, then {amount(most)} tokens within an hour{share}"
    return [Reason("woken", Family.CONTEXT, 0.5, text)]


def _drain(habits: Habits, day: Stretch) -> list[Reason]:
    if habits.days < DRAIN_DAYS or habits.off < DRAIN_OFF:
        return []
    text = f"it takes far more than is usual for it at this hour ({amount(day.tokens)} tokens in 24 h)"
    return [Reason("drain", Family.DRAIN, 0.4, text)]


def _tokens(habits: Habits) -> list[float]:
    prompt, output = habits.column(PROMPT, 24), habits.column(OUTPUT, 24)
    return [a + b for a, b in zip(prompt, output, strict=True)]


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "0 %"


def amount(count: float) -> str:
    """`950`, `12 k`, `412 k`, `3.1 M`."""
    if count < 10_000:
        return f"{count:,.0f}"
    if count < 999_500:
        return f"{count / 1_000:.0f} k"
    return f"{count / 1_000_000:.1f} M"


def days(ms: int) -> str:
    """`23 days`; below two, hours and less."""
    return f"{ms // DAY} days" if ms >= 2 * DAY else seconds(ms)
