"""How far may we go with a key, for these reasons, after so long?

The question: reasons speak against a key; is it watched, tagged, clamped or suspended? The rule: the
reasons are joined as if each were right by chance and apart from the others (noisy or: 1 minus the product
of what each leaves open). Drain counts for `observe` only. The score alone grants `observe`. A `tag` takes
nothing from anybody, but somebody must read it: it needs waste, a fact, or a change, for an hour. From
`clamp` on the case must also be *corroborated*, and must *last*:

| the case rests on | needs besides | before a clamp | before a suspension |
|---|---|---|---|
| a certain fact | nothing | 1 h | 7 days |
| waste | that it lasts, or does not back off, or woke, or became a loop | 1 h | 7 days |
| waking after a sleep | two signs of sameness | 24 h | never |
| sameness | as busy by night as by day, two more such signs, and it was otherwise before | 48 h | never |
| anything else | | never | never |

Sleep and sameness count only against a key that takes at least a tenth of its quota: below that a clamp to
a tenth would not be felt, and a mistake would be for nothing.

What a key always did bears nothing out: a feed that is regular as a clock, or one that always samples the
same prompt, may have a reader that fails for an afternoon. Only what is new beside the waste does.

An hour of waste comes after the three hours that make it waste. 48 h of sameness come after the 24 h that
show that it knows no night: together longer than a soak test from Friday evening to Monday morning. A
sleeper's second life lasts a day before it counts: a quarterly report is over by then.

Down again: when the score stays a fifth below what the grade needs for 6 h, one step; a key on the edge
does not flap. A suspended key comes back by `restore` only (it cannot show that it is mended, since it is
let do nothing). `restore` is one call, and for a day after it nothing climbs: a person has looked.

What we do to a key is no evidence against it: refusals of a clamped key keep it where it is, and never
raise it.

Refused: a trained classifier. There are no labelled keys of the world to train it on, and nobody could tell
an owner why. Refused too: to act at once on sleep and burst, which catches a thief some hours sooner and a
quarterly report every time.
"""

import enum
from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.core.gateway.key_audit.indicators import Family, Reason
from holdfast.model.gateway import Grade
from holdfast.model.units import DAY, HOUR, NEVER, Instant, Millis

RANK: Final = tuple(Grade)
NEEDS: Final = {Grade.FINE: 0.0, Grade.OBSERVE: 0.3, Grade.TAG: 0.66, Grade.CLAMP: 0.8, Grade.SUSPEND: 0.9}
TAG_MS: Final = HOUR
CALM_MS: Final = 6 * HOUR
CALM_BELOW: Final = 0.2
RESTORED_MS: Final = DAY


class Case(enum.StrEnum):
    """What a clamp would rest on."""

    CERTAIN = "certain"
    WASTE = "waste"
    WOKEN = "woken"
    SAMENESS = "sameness"
    NONE = "none"


CLAMP_AFTER_MS: Final = {
    Case.CERTAIN: HOUR,
    Case.WASTE: HOUR,
    Case.WOKEN: 24 * HOUR,
    Case.SAMENESS: 48 * HOUR,
    Case.NONE: NEVER,
}
SUSPEND_AFTER_MS: Final = {Case.CERTAIN: 7 * DAY, Case.WASTE: 7 * DAY}


BEARS_OUT_WASTE: Final = {"unread_long", "no_back_off", "woken"}
CHANGED: Final = {"changed", "answers_changed"}


class Course(msgspec.Struct):
    """How a key came to its grade."""

    grade: Grade = Grade.FINE
    since: Instant = 0
    tag_from: Instant = NEVER  # since when the score has been enough for a tag
    clamp_from: Instant = NEVER  # since when score and case have been enough for a clamp
    calm_from: Instant = NEVER
    quiet_until: Instant = 0


def score(reasons: Sequence[Reason]) -> float:
    """Noisy or."""
    left = 1.0
    for reason in reasons:
        left *= 1.0 - reason.weight
    return 1.0 - left


def worse(one: Grade, other: Grade) -> bool:
    return RANK.index(one) > RANK.index(other)


def _firm(reasons: Sequence[Reason]) -> float:
    return score([reason for reason in reasons if reason.family is not Family.DRAIN])


def case(reasons: Sequence[Reason]) -> Case:
    families = [reason.family for reason in reasons]
    names = {reason.name for reason in reasons}
    same = families.count(Family.SAMENESS)
    if Family.CERTAIN in families:
        return Case.CERTAIN
    if Family.WASTE in families and (names & BEARS_OUT_WASTE or {"repeats", "changed"} <= names):
        return Case.WASTE
    if "woken" in names and same >= 2:
        return Case.WOKEN
    if "flat" in names and names & CHANGED and same >= 3:
        return Case.SAMENESS
    return Case.NONE


def _is_news(reasons: Sequence[Reason]) -> bool:
    """Something happened, or is being wasted: not only what the key has done all its life."""
    return any(r.family in (Family.CERTAIN, Family.WASTE, Family.CONTEXT) for r in reasons)


def step(course: Course, reasons: Sequence[Reason], felt: bool, wall: Instant) -> Grade:
    """Moves the course to `wall` and says the grade; asked twice at the same time, the same. `felt`: the
    key takes so much of its quota that it would feel a clamp."""
    ours = course.grade in (Grade.CLAMP, Grade.SUSPEND)
    apart = [reason for reason in reasons if not (ours and reason.name in ("refused", "no_back_off"))]
    rests_on = case(apart)
    if rests_on in (Case.WOKEN, Case.SAMENESS) and not felt:
        rests_on = Case.NONE
    height, firm = score(reasons), _firm(apart)
    tags = firm >= NEEDS[Grade.TAG] and _is_news(apart)
    course.tag_from = _since(course.tag_from, tags, wall)
    enough = firm >= NEEDS[Grade.CLAMP] and rests_on is not Case.NONE
    course.clamp_from = _since(course.clamp_from, enough, wall)
    if wall >= course.quiet_until:
        reached = _reached(course, height, firm, rests_on, wall)
        if worse(reached, course.grade):
            course.grade, course.since, course.calm_from = reached, wall, NEVER
    _calm(course, _firm(reasons), wall)
    return course.grade


def restore(course: Course, wall: Instant) -> None:
    """A person says that it is fine."""
    course.grade, course.since = Grade.FINE, wall
    course.tag_from = course.clamp_from = course.calm_from = NEVER
    course.quiet_until = wall + RESTORED_MS


def _reached(course: Course, height: float, firm: float, rests_on: Case, wall: Instant) -> Grade:
    if course.grade is Grade.CLAMP and firm >= NEEDS[Grade.SUSPEND]:
        if _lasted(course.since, wall) >= SUSPEND_AFTER_MS.get(rests_on, NEVER):
            return Grade.SUSPEND
    if _lasted(course.clamp_from, wall) >= CLAMP_AFTER_MS[rests_on]:
        return Grade.CLAMP
    if rests_on is Case.CERTAIN or _lasted(course.tag_from, wall) >= TAG_MS:
        return Grade.TAG
    return Grade.OBSERVE if height >= NEEDS[Grade.OBSERVE] else Grade.FINE


def _calm(course: Course, firm: float, wall: Instant) -> None:
    if course.grade in (Grade.FINE, Grade.SUSPEND):
        return
    course.calm_from = _since(course.calm_from, firm < NEEDS[course.grade] - CALM_BELOW, wall)
    if _lasted(course.calm_from, wall) >= CALM_MS:
        course.grade, course.since = RANK[RANK.index(course.grade) - 1], wall
        course.calm_from = wall


def _since(before: Instant, holds: bool, wall: Instant) -> Instant:
    return min(before, wall) if holds else NEVER


def _lasted(since: Instant, wall: Instant) -> Millis:
    return wall - since if since <= wall else -1
