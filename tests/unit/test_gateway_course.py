"""In which order a request is reserved, asked, tried again, continued and settled, whoever carries it out."""

from typing import Any

import msgspec
import pytest

from holdfast.core.gateway.quota.limits import Refusal
from holdfast.core.gateway.quota.local_quota import Purse, PurseTaken, Short
from holdfast.core.gateway.request.lifecycle import (
    BREATH_S,
    FREED_MAX,
    QUOTA_PATIENCE_S,
    Course,
)
from holdfast.core.gateway.request.service import Served
from holdfast.core.gateway.routing.balancer import NOBODY, Pool
from holdfast.core.gateway.routing.endpoints import Replica
from holdfast.core.gateway.routing.fair_queue import Hold
from holdfast.core.gateway.routing.retry_budget import Tries
from holdfast.core.gateway.routing.updates import ReplicaSpec
from holdfast.model.gateway import Key

KEY = Key("app", b"")


class Settings(msgspec.Struct, frozen=True):
    tries: int = 3
    first_byte_s: float = 10.0
    stall_s: float = 5.0
    total_s: float = 100.0
    hedge: bool = False
    continues: bool = False


class Line(Served[Any]):
    def __init__(self, replicas: str, held: int = 10, **settings: Any) -> None:
        self.name, self.settings = "chat", Settings(**settings)
        self.pool, self.tries = Pool("chat"), Tries(0.0)
        self.queue = Hold(held, 1_000.0, 30.0)
        self.pumped = 0
        self.set_replicas([ReplicaSpec(name, name) for name in replicas], None, 0.0)

    def pick(self, course: Any, now: float, *, patient: bool = False) -> Replica | None:
        return self.pool.pick(10, None, "", now, lambda: 0.5, course.excluded or NOBODY, patient=patient)

    def wanted(self) -> None: ...
    def woke(self, waited_s: float) -> None: ...
    def pump_soon(self) -> None:
        self.pumped += 1


class Books(Purse):
    """A purse that remembers how it was asked to end."""

    def settle(self, taken: PurseTaken, actual: int | None, now: float) -> bool:
        self.ended = f"settled {actual}"
        return super().settle(taken, actual, now)

    def refund(self, taken: PurseTaken, now: float) -> bool:
        self.ended = "given back"
        return super().refund(taken, now)


class At(msgspec.Struct, eq=False):
    replica: Replica
    started: float
    let_go: int = 0


class Request(Course[At, Line]):
    """It notes what is done, and ends as it is told to."""

    service: Line

    def __init__(self, line: Line, *, said: bool = True) -> None:
        self.service, self.purse, self.said = line, Books("w", {}, 0.0), said
        self.key, self.model = KEY, "chat"
        self.tokens = self.cost = 10
        self.started, self.tries, self.streams = 0.0, [], True
        self.winner = None
        self.all: list[At] = []
        self.ends: list[str] = []
        self.now = self.silent = 0.0

    def go(self, now: float = 0.0) -> "Request":
        self.take(self.purse, now)
        return self

    def end(self, how: str, actual: int | None = 0) -> None:
        self.ends.append(how)
        self.close(self.purse, actual, self.now)

    def borrow(self, short: Short) -> None:
        self.ends.append("borrows")

    def postpone(self) -> bool:
        self.ends.append("postponed")
        return True

    def attempt(self, replica: Replica, now: float) -> At:
        self.all.append(At(replica, now))
        return self.all[-1]

    def connect(self, attempt: At) -> None:
        self.asked = True

    def let_go(self, attempt: At) -> None:
        attempt.let_go += 1

    def refused(self, refusal: Refusal) -> None:
        self.end(refusal.kind)

    def no_capacity(self) -> None:
        self.end("no capacity")

    def answer_as_turned_down(self, attempt: At) -> None:
        self.end("turned down")

    def answer_as_failed(self, attempt: At, why: str) -> None:
        self.end("failed")

    def answer_as_late(self, attempt: At) -> None:
        self.end("late")

    def cut(self, attempt: At, why: str) -> None:
        self.end("cut", None)

    def goes_on(self, attempt: At) -> bool:
        return self.said

    def silent_s(self, now: float) -> float:
        return self.silent

    @property
    def names(self) -> list[str]:
        return [each.replica.id for each in self.all]


def request(replicas: str = "abc", said: bool = True, **settings: Any) -> Request:
    return Request(Line(replicas, **settings), said=said).go()


def clean(course: Request) -> bool:
    """Nothing of it is left anywhere, and what was reserved was settled once."""
    line = course.service
    assert isinstance(line, Line)
    streams = sum(replica.streams for replica in line.pool.replicas.values())
    return (course.over, course.settled, streams, line.waiting, course.tries) == (True, 1, 0, 0, [])


# the way of one that goes well


def test_one_that_is_let_in_is_asked_of_a_replica_and_settled_once() -> None:
    course = request()
    course.chosen(course.all[0])
    course.end("answered", 7)
    assert (len(course.all), course.all[0].let_go, clean(course)) == (1, 1, True)


@pytest.mark.parametrize(
    ("asked", "actual", "ended"),
    [(True, 7, "settled 7"), (True, None, "settled None"), (False, None, "given back")],
)
def test_what_no_replica_has_seen_is_given_back_and_the_rest_is_booked(
    asked: bool, actual: int | None, ended: str
) -> None:
    course = request()
    course.asked = asked
    course.end("over", actual)
    assert (course.purse.ended, clean(course)) == (ended, True)


def test_nobody_is_overtaken_by_whoever_comes_later() -> None:
    line = Line("")
    first = Request(line).go()
    line.set_replicas([ReplicaSpec("a", "a")], None, 1.0)
    second = Request(line).go(1.0)
    assert (first.names, second.names, line.waiting) == ([], [], 2)
    line.pump(1.0)
    assert (first.names, second.names, line.waiting) == (["a"], ["a"], 0)


def test_one_that_cannot_wait_is_told_so_and_one_that_waits_too_long_too() -> None:
    full = request("", held=0)
    patient = request("")
    assert (full.ends, patient.ends) == (["no capacity"], [])
    patient.service.pump(31.0)
    assert (patient.ends, clean(patient), clean(full)) == (["no capacity"], True, True)


# what fails before its content


@pytest.mark.parametrize("kind", ["connect", "lost", "timeout"])
def test_what_failed_is_asked_of_each_other_replica_once_and_then_waits(kind: str) -> None:
    course = request()
    for _ in range(3):
        course.tried = 1
        course.failed(course.all[-1], "why", kind, 1.0)
    assert sorted(course.names) == ["a", "b", "c"]
    assert (course.ends, course.service.waiting, course.held_since) == ([], 1, 1.0)


def test_whoever_has_just_failed_it_is_not_asked_again_at_once() -> None:
    course = request("a")
    course.failed(course.all[0], "why", "lost", 1.0)
    assert not course.wake(1.0 + BREATH_S / 2)
    assert course.wake(1.0 + BREATH_S)
    assert course.names == ["a", "a"]


def test_an_error_that_waiting_does_not_mend_is_told_at_once() -> None:
    course = request("a")
    course.failed(course.all[0], "why", "error", 1.0)
    assert (course.ends, clean(course)) == (["failed"], True)


def test_no_connection_is_no_try_and_what_ends_replicas_is_not_asked_for_ever() -> None:
    course = request("abcdefgh", tries=9)
    for _ in range(4):
        course.failed(course.all[-1], "why", "connect", 1.0)
    assert (course.tried, course.freed) == (1, 0)
    for _ in range(FREED_MAX + 1):
        course.failed(course.all[-1], "why", "lost", 1.0)
    assert course.freed == FREED_MAX


def test_one_whose_replica_is_gone_since_it_was_asked_has_been_tried() -> None:
    course = request("abcdefgh", tries=9)
    for freed in range(1, FREED_MAX + 1):
        course.failed(course.all[-1], "why", "gone", 1.0)
        assert (course.freed, course.tried) == (freed, freed + 1)
        assert course.all[freed - 1].replica.health.ejected
    assert course.names[-1] not in course.names[:-1]


def test_more_than_its_tries_it_is_not_asked() -> None:
    course = request("abcde", tries=2)
    course.failed(course.all[-1], "why", "lost", 1.0)
    course.failed(course.all[-1], "why", "lost", 1.0)
    assert (len(course.all), course.ends, clean(course)) == (2, ["failed"], True)


def test_one_that_was_turned_down_is_asked_of_another_and_waits_if_there_is_none() -> None:
    course = request("ab")
    course.passed_over(course.all[-1], 0.0, 1.0)
    course.passed_over(course.all[-1], 0.0, 1.0)
    assert (sorted(course.names), course.ends, course.service.waiting) == (["a", "b"], [], 1)
    broken = request("a")
    broken.passed_over(broken.all[-1], None, 1.0)
    assert (broken.ends, clean(broken)) == (["turned down"], True), "an error is no reason to wait"


# what must not be carried out twice


def once(replicas: str = "abc", **settings: Any) -> Request:
    course = Request(Line(replicas, **settings))
    course.once = True
    return course.go()


@pytest.mark.parametrize("kind", ["lost", "gone", "timeout", "error"])
def test_one_that_must_not_be_carried_out_twice_is_not_retried_after_it_was_sent(kind: str) -> None:
    course = once()
    course.failed(course.all[0], "why", kind, 1.0)
    assert (len(course.all), course.ends, course.service.retries) == (1, ["failed"], 0)
    assert clean(course)


def test_one_that_must_not_be_carried_out_twice_is_retried_while_nothing_was_sent() -> None:
    course = once()
    course.asked = False
    course.failed(course.all[0], "why", "connect", 1.0)
    assert (len(set(course.names)), course.ends) == (2, [])


def test_one_that_must_not_be_carried_out_twice_is_not_hedged_and_keeps_the_answer_that_turned_it_down() -> (
    None
):
    course = once("ab", hedge=True)
    for _ in range(200):
        course.service.tries.request(0.0)
        course.service.tries.first_token.note(0.1)
    course.look(5.0)
    course.all[0].replica.lost = True
    course.look(5.1)
    assert (len(course.all), course.service.hedged) == (1, 0)
    course.passed_over(course.all[0], 0.0, 6.0)
    assert (course.ends, clean(course)) == (["turned down"], True)


# late


def test_a_late_one_is_asked_of_a_second_and_whoever_answers_first_is_the_answer() -> None:
    course = request("ab", hedge=True)
    for _ in range(200):
        course.service.tries.request(0.0)
        course.service.tries.first_token.note(0.1)
    course.look(5.0)
    course.look(5.1)
    assert (sorted(course.names), course.service.hedged) == (["a", "b"], 1)
    course.chosen(course.all[1])
    assert (course.tries, course.all[0].let_go) == ([course.all[1]], 1)
    course.end("answered")
    assert clean(course)


def test_of_two_that_are_asked_one_may_fail() -> None:
    course = request("ab")
    course.all[0].replica.lost = True
    course.look(1.0)
    course.failed(course.all[0], "why", "lost", 2.0)
    assert (sorted(course.names), course.tries, course.ends) == (["a", "b"], [course.all[1]], [])


def test_one_at_a_replica_that_is_said_to_be_lost_is_asked_of_another_too() -> None:
    course = request("ab")
    course.look(1.0)
    assert len(course.all) == 1
    course.all[0].replica.lost = True
    course.look(1.0)
    course.look(1.5)
    assert (len(course.all), course.service.retries) == (2, 1)


def test_what_takes_longer_than_it_may_ends_whether_it_has_begun_or_not() -> None:
    before, after = request(), request(continues=True)
    after.chosen(after.all[0])
    for course in (before, after):
        course.look(101.0)
    assert (before.ends, after.ends) == (["late"], ["cut"])
    assert clean(before)
    assert clean(after)


# after its content


def test_a_cut_answer_ends_once_with_all_that_was_reserved() -> None:
    course = request()
    course.chosen(course.all[0])
    course.failed(course.all[0], "why", "lost", 1.0)
    assert (len(course.all), course.ends, course.purse.ended) == (1, ["cut"], "settled None")
    assert clean(course)


def test_a_cut_answer_goes_on_elsewhere_and_the_next_one_may_fail_like_any_other() -> None:
    course = request(continues=True)
    course.chosen(course.all[0])
    course.failed(course.all[0], "why", "lost", 1.0)
    assert (len(course.all), course.winner, course.service.continued) == (2, None, 1)
    course.failed(course.all[1], "why", "connect", 2.0)
    course.chosen(course.all[2])
    course.end("answered", 9)
    assert (course.ends, clean(course)) == (["answered"], True)


def test_what_cannot_be_continued_costs_no_try() -> None:
    course = request(continues=True, said=False)
    course.chosen(course.all[0])
    course.failed(course.all[0], "why", "lost", 1.0)
    assert (course.ends, course.service.retries, clean(course)) == (["cut"], 0, True)


def test_an_answer_that_stalls_is_let_go_and_cut() -> None:
    course = request(stall_s=5.0)
    course.chosen(course.all[0])
    course.silent = 4.9
    course.look(50.0)
    assert course.ends == []
    course.silent = 5.1
    course.look(50.2)
    assert (course.ends, clean(course)) == (["cut"], True)


# a broker that changes


@pytest.mark.parametrize(
    ("kind", "after_s", "wait_s", "ends"),
    [
        ("unavailable", 0.0, 1.0, "postponed"),
        ("recovering", 0.0, 2.5, "postponed"),
        ("unavailable", QUOTA_PATIENCE_S, 1.0, "unavailable"),
        ("recovering", 0.0, QUOTA_PATIENCE_S + 1.0, "recovering"),
        ("tokens", 0.0, 0.1, "tokens"),
    ],
)
def test_what_is_refused_because_a_leader_changes_is_taken_again_for_a_while(
    kind: str, after_s: float, wait_s: float, ends: str
) -> None:
    course = Request(Line("a"))
    course.purse.take = lambda *_: Refusal(kind, "global", 1.0, 1.0, wait_s)  # type: ignore[method-assign]
    course.go(after_s)
    assert course.ends == [ends]


def test_nobody_waits_where_the_service_lets_nobody_wait() -> None:
    course = Request(Line("a"))
    course.service.queue = None
    course.purse.take = lambda *_: Refusal("unavailable", "", 1.0, 1.0, 1.0)  # type: ignore[method-assign]
    assert course.go().ends == ["unavailable"]


def test_nobody_waits_for_a_broker_that_has_been_silent_for_long() -> None:
    course = Request(Line("a"))
    course.purse.silent()
    course.started = QUOTA_PATIENCE_S
    course.purse.take = lambda *_: Refusal("unavailable", "", 1.0, 1.0, 1.0)  # type: ignore[method-assign]
    assert course.go(QUOTA_PATIENCE_S).ends == ["unavailable"]
