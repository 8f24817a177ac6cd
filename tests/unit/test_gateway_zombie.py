"""Which keys drain quota for nobody: what is remembered, what it means, and what a person reads of it."""

from hashlib import blake2b
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.core.gateway.key_audit.audit import (
    Family,
    Judgement,
    Row,
    Seen,
    Team,
    Watch,
    found_out,
)
from holdfast.core.gateway.key_audit.enforcement import Course
from holdfast.core.gateway.key_audit.indicators import amount, days
from holdfast.core.gateway.key_audit.usage_profile import PROMPT_BITS, Habits, distinct
from holdfast.model.gateway import Grade, Key, Limits
from holdfast.model.units import DAY, HOUR, MINUTE, SECOND, Instant
from holdfast.wire.keys import restored

BEGIN: Instant = 20_458 * DAY
OFFICE = Team(tuple(1.0 if 8 <= hour < 18 else 0.05 for hour in range(24)))
KEY = Key("k", b"", owner="ada", team="search", limits=Limits(tokens_per_min=20_000))


def seen(prompt: int = 1, **other: int | bool) -> Seen:
    fields: dict[str, int | bool] = {
        "prompt_hash": prompt,
        "status": 200,
        "reserved": 1500,
        "prompt_tokens": 1000,
        "completion_tokens": 500,
        "undelivered_tokens": 0,
        "hit_max_tokens": False,
        "finish_length": False,
        "source_hash": 7,
        "agent_hash": 8,
        "model_hash": 9,
    }
    return msgspec.convert(fields | other, Seen)


REFUSED: dict[str, Any] = {"status": 429, "prompt_tokens": 0, "completion_tokens": 0}
CUT: dict[str, Any] = {"hit_max_tokens": True, "finish_length": True}


class Played:
    """One key's life: requests at a constant interval, judged after every hour."""

    def __init__(self, key: Key = KEY, team: Team | None = None) -> None:
        self.watch, self.key, self.team = Watch(), key, team
        self.wall = BEGIN
        self.said: Judgement = self.ask()
        self.fresh = 1_000

    def ask(self) -> Judgement:
        self.said = self.watch.judge(self.key, self.team, self.wall / SECOND, self.wall)
        return self.said

    def send(self, hours: float, every_s: float, new: bool = False, **what: int | bool) -> Judgement:
        ends = self.wall + int(hours * HOUR)
        asked = self.wall
        while self.wall < ends:
            self.fresh += 1
            prompt = self.fresh if new else int(what.get("prompt", 1))
            other = {name: value for name, value in what.items() if name != "prompt"}
            self.watch.note(self.key.id, seen(prompt, **other), self.wall / SECOND, self.wall)
            self.wall += int(every_s * SECOND)
            if self.wall - asked >= 20 * MINUTE:
                asked = self.wall
                self.ask()
        return self.ask()

    def rest(self, hours: float) -> Judgement:
        ends = self.wall + int(hours * HOUR)
        while self.wall < ends:
            self.wall += HOUR
            self.ask()
        return self.said

    def grade(self) -> Grade:
        return self.said.grade

    def names(self) -> set[str]:
        return {reason.name for reason in self.said.reasons}


def test_a_loop_whose_reader_died_is_clamped_and_told_why_in_words() -> None:
    life = Played()
    life.send(24, 60, new=True)
    life.rest(6)
    said = life.send(5.5, 20, undelivered_tokens=465)
    assert said.grade is Grade.CLAMP
    assert said.reasons[0].text == "nobody read 93 % of what it generated in the last 6 h (460 k tokens)"
    assert "it sent the same prompt again and again" in said.why
    assert "it sent many different prompts until" in said.why


@pytest.mark.parametrize("new", [True, False], ids=["new_prompts", "one_prompt"])
def test_an_afternoon_in_which_nobody_reads_a_regular_feed_is_a_tag_and_no_clamp(new: bool) -> None:
    life = Played()
    life.send(24, 60, new=new)
    life.send(8, 60, new=new, undelivered_tokens=500)
    assert "unread" in life.names()
    assert life.grade() is Grade.TAG
    life.send(8, 60, new=new)
    assert "unread" not in life.names()


def test_a_feed_that_nobody_has_read_for_half_a_day_is_clamped() -> None:
    life = Played()
    said = life.send(14, 60, new=True, undelivered_tokens=500)
    assert said.grade is Grade.CLAMP
    assert {"unread", "unread_long"} <= life.names()


def test_an_editor_that_throws_most_of_its_answers_away_is_fine() -> None:
    life = Played()
    life.send(30, 40, new=True, prompt_tokens=900, completion_tokens=40, undelivered_tokens=32)
    assert life.grade() is Grade.FINE


def test_a_cache_warmer_that_never_reads_its_one_token_wastes_nothing() -> None:
    life = Played()
    life.send(30, 60, completion_tokens=1, undelivered_tokens=1)
    assert "unread" not in life.names()


def test_a_refused_loop_without_back_off_is_clamped() -> None:
    life = Played()
    said = life.send(5.5, 3, **REFUSED)
    assert said.grade is Grade.CLAMP
    assert said.reasons[0].text == (
        "100 % of its 6,600 requests in the last 6 h were refused, and nothing new got through"
    )
    assert "it asks again within 10 s of a refusal (100 % of the time)" in said.why


def test_a_worker_that_polls_a_full_quota_is_fine_while_something_new_gets_through() -> None:
    life = Played()
    for _ in range(60 * 12):
        life.fresh += 1
        for _ in range(30):
            life.watch.note("k", seen(life.fresh, **REFUSED), life.wall / SECOND, life.wall)
            life.wall += 2 * SECOND
        life.watch.note("k", seen(life.fresh), life.wall / SECOND, life.wall)
        assert life.ask().grade is Grade.FINE


def test_a_refused_loop_whose_one_prompt_gets_through_now_and_then_is_clamped_too() -> None:
    life = Played()
    for n in range(7 * 450):
        what = {} if n % 50 == 25 else REFUSED
        life.watch.note("k", seen(5, **what), life.wall / SECOND, life.wall)
        life.wall += 8 * SECOND
        if n % 50 == 0:
            life.ask()
    assert life.ask().grade is Grade.CLAMP


def test_a_few_people_whose_prompts_are_each_tried_three_times_are_no_loop() -> None:
    life = Played()
    life.send(24, 60, new=True)
    life.rest(12)
    for _ in range(6 * 6):
        life.fresh += 1
        for _ in range(3):
            what = {"undelivered_tokens": 500, "completion_tokens": 500}
            life.watch.note("k", seen(life.fresh, **what), life.wall / SECOND, life.wall)
            life.wall += 200 * SECOND
        life.ask()
    assert "unread" in life.names()
    assert "repeats" not in life.names()
    assert life.grade() is Grade.TAG


def test_a_client_that_backs_off_is_fine_however_long_it_is_refused() -> None:
    life = Played()
    assert life.send(48, 45, **REFUSED).grade is Grade.FINE


@pytest.mark.parametrize("status", [500, 502, 503, 504, 499, 408])
def test_what_is_our_own_fault_is_no_refusal(status: int) -> None:
    life = Played()
    assert life.send(8, 3, status=status, prompt_tokens=0, completion_tokens=0).grade is Grade.FINE


def test_the_key_of_somebody_who_left_is_tagged_at_once_clamped_in_an_hour_and_suspended_in_a_week() -> None:
    life = Played(msgspec.structs.replace(KEY, owner_gone_at=BEGIN))
    life.send(0.1, 60, new=True)
    assert life.grade() is Grade.TAG
    life.send(1.4, 60, new=True)
    assert life.grade() is Grade.CLAMP
    life.send(7 * 24 + 1, 600, new=True)
    assert life.grade() is Grade.SUSPEND
    assert "its owner has been gone for 7 days" in life.said.why


def test_an_owner_who_left_matters_only_if_the_key_is_used() -> None:
    life = Played()
    life.send(1, 60, new=True)
    life.rest(3)
    life.key = msgspec.structs.replace(KEY, owner_gone_at=life.wall)
    assert life.rest(24).grade is Grade.FINE


@pytest.mark.parametrize(("used_after_h", "grade"), [(30, Grade.FINE), (60, Grade.CLAMP)])
def test_a_replaced_key_may_be_used_until_its_time_is_over(used_after_h: int, grade: Grade) -> None:
    key = msgspec.structs.replace(KEY, replaced_at=BEGIN, expires_at=BEGIN + 48 * HOUR)
    assert Played(key).send(used_after_h, 300, new=True).grade is grade


def test_a_canary_that_takes_little_is_left_alone_for_ever() -> None:
    life = Played(team=OFFICE)
    said = life.send(10 * 24, 60, prompt_tokens=200, completion_tokens=512, **CUT)
    assert said.grade is Grade.FINE


def test_a_loop_that_is_always_cut_is_tagged_within_hours_and_clamped_after_three_days() -> None:
    life = Played(team=OFFICE)
    life.send(48, 60, new=True)
    life.send(24, 7, completion_tokens=1024, **CUT)
    assert life.grade() is Grade.TAG
    life.send(44, 7, completion_tokens=1024, **CUT)
    assert life.grade() is Grade.TAG, "a soak test from Friday to Monday lasts as long"
    life.send(10, 7, completion_tokens=1024, **CUT)
    assert life.grade() is Grade.CLAMP
    assert {"repeats", "always_cut", "flat", "changed"} <= life.names()
    life.send(8 * 24, 30, completion_tokens=1024, **CUT)
    assert life.grade() is not Grade.SUSPEND, "sameness is never enough for that"


def test_a_key_that_was_never_otherwise_was_made_so() -> None:
    life = Played(team=OFFICE)
    assert life.send(120, 10, completion_tokens=1024, **CUT).grade is Grade.OBSERVE


def test_a_loop_that_would_not_feel_a_clamp_is_only_tagged() -> None:
    life = Played(msgspec.structs.replace(KEY, limits=Limits(tokens_per_min=10**6)), OFFICE)
    life.send(48, 60, new=True)
    assert life.send(100, 10, completion_tokens=1024, **CUT).grade is Grade.TAG


def test_a_sleeper_that_wakes_into_a_loop_is_clamped_after_a_day() -> None:
    life = Played()
    life.send(5, 60, new=True)
    life.rest(20 * 24)
    life.send(20, 5)
    assert life.grade() is Grade.TAG
    assert "unused for 20 days, then" in life.said.why
    life.send(8, 5)
    assert life.grade() is Grade.CLAMP


def test_a_quarterly_report_is_over_before_anything_happens_to_it() -> None:
    life = Played()
    life.send(5, 60, new=True)
    life.rest(60 * 24)
    life.send(20, 5, completion_tokens=1024, **CUT)
    assert life.grade() is Grade.TAG
    assert life.rest(48).grade is Grade.FINE


def test_drain_alone_does_no_more_than_observe() -> None:
    life = Played()
    for _ in range(6):
        life.send(24, 120, new=True)
    for _ in range(40):
        said = life.send(0.5, 1, new=True)
        assert said.grade in (Grade.FINE, Grade.OBSERVE)
        if "drain" in life.names():
            break
    else:
        pytest.fail("120 times the usual was not noticed")


def test_an_exempt_key_is_never_judged() -> None:
    life = Played(msgspec.structs.replace(KEY, exempt=True, owner_gone_at=BEGIN))
    assert life.send(30, 20, undelivered_tokens=500) == Judgement(0.0, (), Grade.FINE)


def test_a_key_never_used_has_nothing_against_it() -> None:
    assert Watch(shadow=False).judge(KEY, None, 0.0, BEGIN) == Judgement(0.0, (), Grade.FINE, shadow=False)


def test_a_stranger_is_a_finding_and_no_part_of_the_score() -> None:
    life = Played()
    life.send(10 * 24, 600, new=True)
    assert life.said.leak is None
    said = life.send(2, 60, new=True, source_hash=77, agent_hash=78)
    assert said.leak is not None
    assert said.leak.family is Family.LEAK
    assert "a source never seen before" in said.leak.text
    assert Family.LEAK not in {reason.family for reason in said.reasons}
    assert said.grade is Grade.FINE


def test_another_machine_with_the_same_client_and_model_is_no_stranger() -> None:
    life = Played()
    life.send(10 * 24, 600, new=True)
    assert life.send(2, 60, new=True, source_hash=77).leak is None


def test_a_model_that_the_key_moved_to_long_ago_is_not_new_with_a_new_machine() -> None:
    life = Played()
    life.send(24, 600, new=True)
    life.send(9 * 24, 600, new=True, model_hash=55)
    assert life.send(2, 60, new=True, model_hash=55, source_hash=77).leak is None


def test_a_key_of_many_sources_has_no_strangers() -> None:
    life = Played()
    for source in range(40):
        life.send(0.2, 120, new=True, source_hash=source)
    life.send(9 * 24, 900, new=True, source_hash=1)
    assert life.send(2, 60, new=True, source_hash=177, agent_hash=78, model_hash=79).leak is None


def test_a_person_restores_a_key_with_one_call_and_nothing_climbs_for_a_day() -> None:
    life = Played()
    assert life.send(14, 20, undelivered_tokens=500).grade is Grade.CLAMP
    life.watch.restore("k", life.wall)
    assert life.send(23, 20, undelivered_tokens=500).grade is Grade.FINE
    assert life.send(2, 20, undelivered_tokens=500).grade is Grade.CLAMP


def test_a_key_that_was_mended_comes_down_by_itself() -> None:
    life = Played()
    assert life.send(14, 20, undelivered_tokens=500).grade is Grade.CLAMP
    assert life.send(48, 120, new=True).grade is Grade.FINE


def test_habits_and_grades_survive_a_restart() -> None:
    life = Played()
    life.send(14, 20, undelivered_tokens=500)
    again = Watch.load(life.watch.save())
    assert again.judge(KEY, None, 0.0, life.wall) == life.said
    assert again.save() == life.watch.save()
    life.watch = again
    assert life.send(1, 20, undelivered_tokens=500).grade is Grade.CLAMP


def test_a_key_that_slept_through_a_restart_has_slept() -> None:
    life = Played()
    life.send(5, 60, new=True)
    life.watch = Watch.load(life.watch.save())
    life.rest(20 * 24)
    life.send(3, 5)
    assert "woken" in life.names()


def test_what_is_forgotten_starts_anew() -> None:
    life = Played()
    life.send(8, 20, undelivered_tokens=500)
    life.watch.forget("k")
    assert life.ask().grade is Grade.FINE
    assert life.watch.habits == {}


def test_the_report_names_the_worst_first_and_then_the_idle() -> None:
    life = Played()
    life.watch.note("idle", seen(), life.wall / SECOND, life.wall)
    life.send(14, 20, undelivered_tokens=500)
    keys = [Key("never", b""), Key("idle", b"", owner="bob"), KEY]
    rows = life.watch.report(keys, {"search": OFFICE}, life.wall / SECOND, life.wall)
    assert [row.key for row in rows] == ["k", "idle", "never"]
    worst, idle, never = rows
    assert worst.grade is Grade.CLAMP
    assert worst.owner == "ada"
    assert worst.unread_24h == 500 * 14 * 180
    assert worst.tokens_24h == 1500 * 14 * 180
    assert "nobody read 100 %" in worst.why
    assert idle.idle_ms >= 14 * HOUR - MINUTE
    assert never.idle_ms == -1


@pytest.mark.parametrize("count", [0, 1, 2, 20, 32, 100, 400])
def test_few_prompts_are_counted_well(count: int) -> None:
    bits = 0
    for n in range(count):
        bits |= 1 << (int.from_bytes(blake2b(b"%d" % n).digest()) % PROMPT_BITS)
    assert abs(distinct(bits) - count) <= max(1, 0.15 * count)


def test_more_prompts_than_can_be_counted_are_many() -> None:
    assert distinct((1 << PROMPT_BITS) - 1) > 1_000


def test_a_clock_of_the_wall_that_steps_back_loses_nothing() -> None:
    habits = Habits(BEGIN)
    habits.note(seen(), 0.0, BEGIN)
    habits.note(seen(), 1.0, BEGIN - 5 * HOUR)
    habits.turn(BEGIN - 5 * HOUR)
    assert habits.last(24).requests == 2


def test_an_hour_is_remembered_for_a_day_and_no_longer() -> None:
    habits = Habits(BEGIN)
    habits.note(seen(), 0.0, BEGIN)
    habits.turn(BEGIN + 23 * HOUR)
    assert habits.last(24).requests == 1
    assert habits.last(6).requests == 0
    habits.turn(BEGIN + 24 * HOUR)
    assert habits.last(24).requests == 0


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0"), (950, "950"), (12_345, "12 k"), (411_800, "412 k"), (3_140_000, "3.1 M")]
)
def test_amounts_read_well(count: float, text: str) -> None:
    assert amount(count) == text


def test_stretches_of_days_read_well() -> None:
    assert days(23 * DAY) == "23 days"
    assert days(3 * HOUR) == "3.0 h"


def test_new_prompts_that_always_get_the_same_long_answer_are_clamped_when_it_was_otherwise_before() -> None:
    life = Played(team=OFFICE)
    for _ in range(4 * 48):
        life.send(0.25, 60, new=True, answer_hash=life.fresh)
    life.send(72, 7, new=True, completion_tokens=1024, answer_hash=5, **CUT)
    assert life.grade() is Grade.TAG
    life.send(24, 7, new=True, completion_tokens=1024, answer_hash=5, **CUT)
    assert life.grade() is Grade.CLAMP
    assert {"same_answers", "always_cut", "flat", "answers_changed"} <= life.names()
    assert "it got the same answer again and again: all" in life.said.why
    assert "it got many different answers until 5 days ago" in life.said.why


def test_few_labels_are_no_same_answers() -> None:
    life = Played(team=OFFICE)
    life.send(48, 60, new=True)
    life.send(100, 7, new=True, completion_tokens=100, answer_hash=5)
    assert "same_answers" not in life.names()
    assert life.grade() in (Grade.FINE, Grade.OBSERVE)


def test_one_answer_of_its_own_a_day_is_enough_to_be_left_alone() -> None:
    life = Played(team=OFFICE)
    for day in range(5):
        for other in range(4):
            life.send(0.01, 7, new=True, answer_hash=100 + 10 * day + other)
        life.send(24, 7, new=True, answer_hash=5)
        assert "same_answers" not in life.names()


TOOLS: dict[str, Any] = {"asks_tool": True}
USED: dict[str, Any] = {"asks_tool": True, "brings_result": True}


def test_an_agent_whose_tools_died_is_found_when_it_goes_in_circles() -> None:
    life = Played(team=OFFICE)
    life.send(48, 20, new=True, **USED)
    assert "no_results" not in life.names()
    life.send(30, 7, **TOOLS)
    assert "no_results" in life.names()
    assert "and 0 results came; they came until" in life.said.why
    life.send(50, 7, **TOOLS)
    assert life.grade() is Grade.CLAMP


def test_whoever_only_wants_the_form_of_a_tool_call_is_fine() -> None:
    life = Played(team=OFFICE)
    assert life.send(100, 7, new=True, **TOOLS).grade in (Grade.FINE, Grade.OBSERVE)
    assert "no_results" not in life.names()


def test_an_agent_that_makes_room_for_one_that_wants_forms_is_not_clamped() -> None:
    life = Played(team=OFFICE)
    life.send(48, 20, new=True, **USED)
    life.send(120, 7, new=True, **TOOLS)
    assert "no_results" in life.names()
    assert life.grade() not in (Grade.CLAMP, Grade.SUSPEND)


def test_habits_that_an_older_gateway_kept_are_read() -> None:
    life = Played()
    life.send(14, 20, undelivered_tokens=500)
    saved = msgspec.msgpack.decode(life.watch.save())
    for name in ("looked", "said", "said_day", "tools", "results", "results_day"):
        del saved["k"]["numbers"][name]
    saved["k"]["rows"] = saved["k"]["rows"][: 4 * 9 * 24]
    again = Watch.load(msgspec.msgpack.encode(saved))
    assert again.judge(KEY, None, 0.0, life.wall) == life.said


# what whoever decides for all gateways says


def clamped() -> Watch:
    watch = Watch(shadow=False)
    watch.courses["k"] = Course(grade=Grade.CLAMP)
    return watch


GOOD, HELD = Key("k", b"", created_at=2), Key("k", b"", created_at=2, grade=Grade.CLAMP)


@pytest.mark.parametrize(
    ("before", "now", "looked"),
    [
        (HELD, GOOD, True),  # somebody has looked
        (None, GOOD, True),  # while we were away
        (GOOD, GOOD, False),  # our own word is on its way
        (GOOD, restored(GOOD, 5), True),  # and somebody has looked before it came
        (restored(GOOD, 5), restored(GOOD, 5), False),
        (None, HELD, False),
        (GOOD, HELD, False),
    ],
)
def test_a_key_that_is_called_fine_again_was_restored(before: Key | None, now: Key, looked: bool) -> None:
    watch = clamped()
    assert watch.heard(before, now, 5 * DAY) is looked
    assert watch.courses["k"].grade is (Grade.FINE if looked else Grade.CLAMP)


def test_one_that_nobody_holds_back_is_not_restored_when_we_first_hear_of_it() -> None:
    watch = Watch(shadow=False)
    assert not watch.heard(None, GOOD, 5 * DAY)
    assert watch.courses == {}


def row(grade: Grade, of: Key = GOOD) -> Row:
    return Row("k", "", "", grade, 0.9, 0, 0, 0, False, "why", "", of.judged_since)


def test_what_one_gateway_found_out_all_hold_back_and_never_less_than_before() -> None:
    assert list(found_out({"k": GOOD}, [row(Grade.CLAMP)])) == [HELD]
    (suspended,) = found_out({"k": HELD}, [row(Grade.SUSPEND)])
    assert (suspended.grade, suspended.suspended) == (Grade.SUSPEND, "why")
    assert list(found_out({"k": suspended}, [row(Grade.CLAMP)])) == []
    assert list(found_out({"k": GOOD}, [row(Grade.TAG)])) == []
    assert list(found_out({"k": replace(GOOD, exempt=True), "other": GOOD}, [row(Grade.CLAMP)])) == []


def test_what_was_found_out_before_a_key_was_restored_or_made_holds_nothing_back() -> None:
    looked, again = restored(HELD, 5), replace(GOOD, created_at=7)
    assert list(found_out({"k": looked}, [row(Grade.CLAMP, GOOD)])) == []
    assert list(found_out({"k": again}, [row(Grade.SUSPEND, looked)])) == [], "another key under its name"
    assert list(found_out({"k": looked}, [row(Grade.CLAMP, looked)])) == [replace(looked, grade=Grade.CLAMP)]


def test_a_report_says_of_which_life_of_a_key_it_speaks() -> None:
    life = Played()
    life.send(1, 20)
    (said,) = life.watch.report([restored(KEY, BEGIN)], {}, 0.0, life.wall)
    assert said.since == BEGIN


def test_each_restoring_is_later_than_the_last_whatever_the_clock_says() -> None:
    once = restored(GOOD, 9)
    assert (once.judged_since, restored(once, 3).judged_since) == (9, 10)
