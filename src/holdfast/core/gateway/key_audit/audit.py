"""Which keys drain quota for nobody?

The question: a script whose reader died, a loop against a closed door, the cron job of somebody who left:
each holds a key and takes from the quota of its team for nobody's use. Which are they, and what may be done
without harming one that works? The rule: remember each key's habits in constant space (`habits`), read the
signs that nobody is behind it (`signs`), and go up the grades observe, tag, clamp and suspend only on
corroborated signs that last (`grades`). A false clamp costs somebody a working system, a late one costs
some tokens: every number leans that way, and `python -m bench zombies` counts both.

A person's word stands above all of it, and words travel. So a line of the report says since when the key that
it judges is judged (made, or last restored), and what was found out of an earlier life of it holds nothing
back. Refused: comparing the instant of a judgement with that of the restoring, which are of two clocks.

In shadow, the default, a judgement says what would be done, and whoever asks does nothing. A key that is
exempt is never judged.

`note` is on the path of every request and does additions only. `judge` is asked about a key about once a
minute and reads the clock of the wall, which it must: people sleep by it. State survives a restart by
`save` and `load`.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from holdfast.core.gateway.key_audit import enforcement
from holdfast.core.gateway.key_audit.enforcement import Course
from holdfast.core.gateway.key_audit.indicators import (
    Family,
    Reason,
    Team,
    felt,
    leak,
    signs,
)
from holdfast.core.gateway.key_audit.usage_profile import Habits, Seen, idle_ms
from holdfast.model.gateway import Grade, Key
from holdfast.model.units import Instant, Millis

__all__ = ["Family", "Judgement", "Reason", "Row", "Seen", "Team", "Watch"]


class Judgement(msgspec.Struct, frozen=True):
    score: float
    reasons: tuple[Reason, ...]
    grade: Grade
    leak: Reason | None = None  # somebody else may be using it: no part of the score
    shadow: bool = True  # the grade is what would be, and nothing is to be done

    @property
    def why(self) -> str:
        return "; ".join(reason.text for reason in self.reasons)


HOLDS = (Grade.CLAMP, Grade.SUSPEND)
FINE = Judgement(0.0, (), Grade.FINE)


class Row(msgspec.Struct, frozen=True):
    """A line of the report."""

    key: str
    owner: str
    team: str
    grade: Grade
    score: float
    tokens_24h: int
    unread_24h: int
    idle_ms: Millis  # -1: never used
    exempt: bool
    why: str
    leak: str
    since: Instant = 0  # when the key was made or last restored, as far as whoever judged it knew


class Saved(msgspec.Struct, frozen=True):
    """One key's habits and course, as kept over a restart."""

    numbers: dict[str, int | float | str]
    rows: bytes
    usual: bytes
    spread: bytes
    course: Course


ARRAYS = ("rows", "usual", "spread")
# 64 bits and more: written as hexadecimal
WIDE = ("bits", "bits_today", "bits_yesterday", "said", "said_today", "said_yesterday", "sources")
MONOTONIC = ("last_now", "refused_at")  # another process's clock means nothing
NUMBERS = tuple(name for name in Habits.__slots__ if name not in ARRAYS and name not in MONOTONIC)


class Watch:
    """Over all keys of one gateway."""

    __slots__ = ("courses", "habits", "shadow")

    def __init__(self, shadow: bool = True) -> None:
        self.shadow = shadow
        self.habits: dict[str, Habits] = {}
        self.courses: dict[str, Course] = {}

    def note(self, key_id: str, seen: Seen, now: float, wall: Instant) -> None:
        habits = self.habits.get(key_id)
        if habits is None:
            habits = self.habits[key_id] = Habits(wall)
        habits.note(seen, now, wall)

    def judge(self, key: Key, team: Team | None, now: float, wall: Instant) -> Judgement:
        """Moves the key's course to `wall`; to ask twice changes nothing."""
        habits = self.habits.get(key.id)
        if habits is None or key.exempt:
            return FINE if self.shadow else msgspec.structs.replace(FINE, shadow=False)
        habits.turn(wall)
        reasons = signs(key, habits, team, wall)
        course = self.courses.get(key.id)
        if course is None:
            if not reasons:
                return Judgement(0.0, (), Grade.FINE, leak(habits, wall), self.shadow)
            course = self.courses[key.id] = Course(since=wall)
        grade = enforcement.step(course, reasons, felt(key, habits), wall)
        return Judgement(enforcement.score(reasons), reasons, grade, leak(habits, wall), self.shadow)

    def restore(self, key_id: str, wall: Instant) -> None:
        """One call, and the key is fine again; for a day nothing climbs."""
        enforcement.restore(self.courses.setdefault(key_id, Course()), wall)

    def heard(self, before: Key | None, key: Key, wall: Instant) -> bool:
        """What whoever decides for all gateways says of a key now; `before` is what it said, None: nothing. A
        key that it held back and that is fine was restored, or one of which it says so. So was one that we
        hold back from an earlier life, and that it calls fine as we come back: the word was said while we
        were away. True: restored."""
        if key.grade is not Grade.FINE:
            return False
        if before is None:
            course = self.courses.get(key.id)
            restored = course is not None and course.grade in HOLDS
        else:
            restored = before.grade is not Grade.FINE or before.restored_at < key.restored_at
        if restored:
            self.restore(key.id, wall)
        return restored

    def forget(self, key_id: str) -> None:
        self.habits.pop(key_id, None)
        self.courses.pop(key_id, None)

    def report(
        self, keys: Iterable[Key], teams: Mapping[str, Team], now: float, wall: Instant
    ) -> tuple[Row, ...]:
        """Every key, the most suspect first, then those unused for longest."""
        rows = [self._row(key, teams.get(key.team), now, wall) for key in keys]
        return tuple(sorted(rows, key=lambda row: (-row.score, -row.idle_ms, row.key)))

    def _row(self, key: Key, team: Team | None, now: float, wall: Instant) -> Row:
        found = self.judge(key, team, now, wall)
        habits = self.habits.get(key.id)
        day = habits.last(24) if habits else None
        return Row(
            key=key.id,
            owner=key.owner,
            team=key.team,
            grade=found.grade,
            score=round(found.score, 3),
            tokens_24h=round(day.tokens) if day else 0,
            unread_24h=round(day.unread) if day else 0,
            idle_ms=idle_ms(habits, wall) if habits else -1,
            exempt=key.exempt,
            why=found.why,
            leak=found.leak.text if found.leak else "",
            since=key.judged_since,
        )

    def save(self) -> bytes:
        return msgspec.msgpack.encode(
            {key: _saved(habits, self.courses.get(key)) for key, habits in self.habits.items()}
        )

    @classmethod
    def load(cls, saved: bytes, shadow: bool = True) -> "Watch":
        watch = cls(shadow)
        for key, each in msgspec.msgpack.decode(saved, type=dict[str, Saved]).items():
            watch.habits[key] = _loaded(each)
            if each.course != Course():
                watch.courses[key] = each.course
        return watch


def found_out(known: Mapping[str, Key], rows: Iterable[Row]) -> Iterator[Key]:
    """Keys that a gateway would hold back, as they are from now on: held back by all, until each is restored
    by hand. Not for what was found out before that."""
    for row in rows:
        key = known.get(row.key)
        if key is None or key.exempt or row.since < key.judged_since:
            continue
        if row.grade not in HOLDS or not enforcement.worse(row.grade, key.grade):
            continue
        suspended = row.why if row.grade is Grade.SUSPEND else key.suspended
        yield msgspec.structs.replace(key, grade=row.grade, suspended=suspended)


def _saved(habits: Habits, course: Course | None) -> Saved:
    numbers = {name: getattr(habits, name) for name in NUMBERS}
    numbers |= {name: f"{numbers[name]:x}" for name in WIDE}
    return Saved(
        numbers, habits.rows.tobytes(), habits.usual.tobytes(), habits.spread.tobytes(), course or Course()
    )


def _loaded(saved: Saved) -> Habits:
    habits = Habits(0)
    for name in NUMBERS:
        value = saved.numbers.get(name, getattr(habits, name))  # one before us may not have known it
        setattr(habits, name, int(value, 16) if isinstance(value, str) else value)
    for name in ARRAYS:
        setattr(habits, name, array("f", getattr(saved, name).ljust(4 * len(getattr(habits, name)), b"\0")))
    return habits
