"""A key that is not good any more: what runs by it ends, and no clock brings it back."""

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.gateway import messages
from holdfast.gateway.book import Book
from holdfast.gateway.replies import Answer
from holdfast.model.gateway import Key
from holdfast.model.units import DAY, HOUR, MINUTE, SECOND, Instant
from holdfast.ports.clock import HeldWall
from holdfast.wire.identity import hashed
from tests.gateways import events, text_of
from tests.unit.test_gateway_exchange import ASK, HEAD, Served, chunk

KEY = Key("mine", hashed("s"))
OTHER = Key("other", hashed("o"))
NOW = 1_800_000_000_000


def by(secret: bytes) -> bytes:
    return ASK.replace(b"host: a\r\n", b"host: a\r\nauthorization: Bearer %s\r\n" % secret)


def serving(secret: bytes = b"s", key: Key = KEY) -> Served:
    served = Served()
    served.worker.wall = HeldWall(Twin())
    for each in (key, OTHER):
        served.worker.told(messages.KeyPut(each))
    served.ask(by(secret))
    return served


class Twin:
    """The clocks of a machine, set by hand."""

    def __init__(self) -> None:
        self.elapsed, self.shown = 5_000, NOW

    def wall(self) -> Instant:
        return self.shown

    def monotonic(self) -> Instant:
        return self.elapsed

    def era(self) -> str:
        return "boot"

    def pass_by(self, ms: int) -> None:
        self.elapsed += ms
        self.shown += ms


def look(served: Served) -> None:
    served.worker._look(served.worker.now())


def ends(change: str) -> Any:
    return {
        "deleted": messages.KeyGone("mine"),
        "suspended": messages.KeyPut(replace(KEY, suspended="it leaked")),
        "replaced": messages.KeyPut(replace(KEY, replaced_at=NOW, expires_at=NOW)),
        "another": messages.KeyPut(replace(KEY, hash=hashed("new"))),
    }[change]


@pytest.mark.parametrize("change", ["deleted", "suspended", "replaced", "another"])
def test_a_stream_ends_with_an_error_when_its_key_is_not_good_any_more(change: str) -> None:
    served = serving()
    up = served.asked()
    up.data_received(HEAD + chunk("one", "two"))
    served.worker.told(ends(change))
    look(served)
    *_, last = events(served.wire.written.partition(b"\r\n\r\n")[2].decode())
    assert last["error"]["code"] == "key_revoked"
    assert b"[DONE]" not in served.wire.written
    assert served.wire.written.endswith(b"0\r\n\r\n"), "the stream is whole"
    assert served.wire.closed
    assert up.transport.is_closing(), "the engine shall stop"
    assert served.charged() > 0, "what was said is charged"


def test_an_answer_that_has_not_begun_is_an_error_when_its_key_is_deleted() -> None:
    served = serving()
    served.worker.told(messages.KeyGone("mine"))
    look(served)
    assert served.wire.written.startswith(b"HTTP/1.1 401 ")
    assert b'"code":"key_revoked"' in served.wire.written
    assert b"mine was deleted" in served.wire.written


def test_a_request_that_waits_for_a_replica_ends_when_its_key_is_deleted() -> None:
    served = Served(upstreams=())
    served.worker.told(messages.KeyPut(KEY))
    served.ask(by(b"s"))
    service = served.worker.book.services["toy"]
    assert service.queue is not None
    assert service.queue.length == 1
    served.worker.told(messages.KeyGone("mine"))
    look(served)
    assert b'"code":"key_revoked"' in served.wire.written
    assert service.queue.length == 0


def test_half_of_an_answer_is_cut_off_when_its_key_is_deleted() -> None:
    served = serving()
    served.asked().data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n" + bytes(400_000))
    served.worker.told(messages.KeyGone("mine"))
    look(served)
    assert served.wire.aborted


@pytest.mark.parametrize(
    "message", [messages.KeyGone("other"), messages.KeyPut(replace(KEY, note="other words")), None]
)
def test_what_runs_by_a_good_key_goes_on(message: Any) -> None:
    served = serving()
    up = served.asked()
    up.data_received(HEAD + chunk("one"))
    if message is not None:
        served.worker.told(message)
    look(served)
    up.data_received(chunk("two") + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
    said = events(served.wire.written.partition(b"\r\n\r\n")[2].decode())
    assert text_of(said) == "onetwo"
    assert said[-1] == "[DONE]"


def test_a_stream_ends_when_its_key_expires() -> None:
    served = serving(key=replace(KEY, created_at=NOW, expires_at=NOW + MINUTE))
    clock: Any = served.worker.wall._clock
    served.asked().data_received(HEAD + chunk("one"))
    clock.pass_by(MINUTE - 1)
    look(served)
    assert b"key_revoked" not in served.wire.written
    clock.pass_by(1)
    look(served)
    assert b"key_revoked" in served.wire.written


# the clock


def test_a_wall_clock_that_jumps_is_held_until_it_is_back() -> None:
    clock = Twin()
    wall = HeldWall(clock)
    for jump in (400 * DAY, -400 * DAY, 2 * HOUR, -2 * HOUR):
        clock.shown += jump
        clock.pass_by(SECOND)
        before = wall()
        assert wall.jump_ms == jump
        clock.pass_by(10 * MINUTE)
        assert wall() - before == 10 * MINUTE, "time goes on by the other clock"
        clock.shown -= jump
        assert wall() == clock.shown
        assert wall.jump_ms == 0


def test_small_corrections_are_followed_and_it_never_goes_back() -> None:
    clock = Twin()
    wall = HeldWall(clock)
    clock.shown += 50 * MINUTE
    assert wall() == clock.shown
    high = wall()
    clock.shown -= 30 * MINUTE
    assert wall() == high
    clock.pass_by(40 * MINUTE)
    assert wall() == clock.shown
    assert wall.jump_ms == 0


def test_a_worker_that_starts_while_the_clock_is_wrong_goes_by_its_keeper() -> None:
    clock = Twin()
    clock.shown += 400 * DAY
    wall = HeldWall(clock, start=NOW)
    assert wall() == NOW
    assert wall.jump_ms == 400 * DAY


@pytest.mark.parametrize("jump", [-400 * DAY, -3 * DAY, 400 * DAY])
def test_an_expired_key_does_not_come_to_life_and_a_good_one_does_not_die_by_a_clock_that_jumps(
    jump: int,
) -> None:
    clock, book = Twin(), Book()
    wall = HeldWall(clock)
    book.put_key(Key("short", hashed("s"), created_at=NOW, expires_at=NOW + HOUR))
    book.put_key(Key("long", hashed("l"), created_at=NOW, expires_at=NOW + 3 * HOUR))
    clock.pass_by(2 * HOUR)
    assert isinstance(book.key_of(b"s", wall()), Answer)
    clock.shown += jump
    assert isinstance(book.key_of(b"s", wall()), Answer)
    assert isinstance(book.key_of(b"l", wall()), Key)
    clock.pass_by(2 * HOUR)
    assert isinstance(book.key_of(b"l", wall()), Answer), "it ends by the time that passed"


def test_a_key_that_was_made_by_a_clock_far_ahead_is_not_good_until_then() -> None:
    """For an hour, said whoever made it; it was good for 400 days and an hour."""
    book, ahead = Book(), NOW + 400 * DAY
    book.put_key(Key("k", hashed("s"), created_at=ahead, expires_at=ahead + HOUR))
    found = book.key_of(b"s", NOW)
    assert isinstance(found, Answer)
    assert "ahead of the clock" in found.message
    assert isinstance(book.key_of(b"s", ahead), Key)
    book.put_key(Key("for ever", hashed("e"), created_at=ahead))
    assert isinstance(book.key_of(b"e", NOW), Key), "it has no end that a clock could move"
