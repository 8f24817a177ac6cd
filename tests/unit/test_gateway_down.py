"""A client's connection, byte by byte: which requests come out of it, and what ends it."""

from unittest import mock

import pytest

from holdfast.gateway import down as downs
from holdfast.gateway.down import LINGER_MAX, Down
from tests.gateway_twins import Notes, Wire, heard

GET = b"GET /%b HTTP/1.1\r\nhost: h\r\n\r\n"
POST = b"POST /%b HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n%b"


def targets(*pieces: bytes) -> list[bytes]:
    worker, _ = heard(list(pieces))
    return [target for _, target, _, _ in worker.requests]


def test_requests_that_come_together_come_out_one_by_one() -> None:
    together = POST % (b"a", 3, b"xyz") + GET % b"b" + POST % (b"c", 0, b"")
    assert targets(together) == [b"/a", b"/b", b"/c"]


def test_empty_lines_before_a_request_do_not_make_it_two() -> None:
    """The end of its head was looked for from the first byte on: it was read twice."""
    assert targets(b"\r\n\r\n" + GET % b"a" + GET % b"b") == [b"/a", b"/b"]
    inner = GET % b"inside"
    worker, _ = heard([b"\r\n\r\n" + POST % (b"a", len(inner), inner) + GET % b"b"])
    assert [(target, body) for _, target, _, body in worker.requests] == [(b"/a", inner), (b"/b", b"")]


def test_a_body_as_long_as_its_head_is_not_taken_for_a_head() -> None:
    """Head and body came in two pieces of one length, with another request in the second."""
    rest = GET % b"b"
    head = b"POST /a HTTP/1.1\r\nhost: h\r\nx-fill: %b\r\ncontent-length: 100\r\n\r\n"
    head %= b"." * (100 + len(rest) - len(head % b""))
    assert len(head) == 100 + len(rest)
    inner = b"\r\n\r\n" + GET % b"inside"
    for body in (b"x" * 100, inner + b"x" * (100 - len(inner))):
        worker, wire = heard([head, body + rest])
        assert [target for _, target, _, _ in worker.requests] == [b"/a"]
        assert wire.closed, "whoever sent the second must send it again"
    worker, wire = heard([head, b"x" * 100 + b"\x00" * len(rest)])
    assert [target for _, target, _, _ in worker.requests] == [b"/a"]


def test_a_request_is_answered_whatever_comes_after_it() -> None:
    upgrade = b"GET /b HTTP/1.1\r\nhost: h\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
    for after in (upgrade, b"\x00\x01", b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n"):
        worker, wire = heard([GET % b"a" + after])
        assert [target for _, target, _, _ in worker.requests] == [b"/a"]
        assert wire.written.startswith(b"HTTP/1.1 200 OK")
        assert wire.closed or wire.ended


def test_another_protocol_is_refused_once() -> None:
    worker, wire = heard([b"GET / HTTP/1.1\r\nhost: h\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"])
    assert worker.requests == []
    assert wire.written.startswith(b"HTTP/1.1 501 ")
    assert worker.counts.by_status == {501: 1}


OFFER = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\nhost: h\r\n"
GET_OFFER = b"GET /a HTTP/1.1\r\n%b\r\n" % OFFER
POST_OFFER = b"POST /b HTTP/1.1\r\n%bcontent-length: 5\r\n\r\nhello" % OFFER
CHUNKED_OFFER = b"POST /c HTTP/1.1\r\n%btransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n" % OFFER


@pytest.mark.parametrize("cut", [None, 1, 40, 160])
def test_who_offers_http_2_is_answered_in_http_1(cut: int | None) -> None:
    """Java's HttpClient does so with each first request of a connection, and was told 501."""
    offers = (GET_OFFER, POST_OFFER, GET % b"d", CHUNKED_OFFER, POST_OFFER, GET_OFFER)
    pieces = [offer if cut is None else offer[:cut] for offer in offers]
    rests = [b"" if cut is None else offer[cut:] for offer in offers]
    both = [piece for pair in zip(pieces, rests, strict=True) for piece in pair if piece]
    for sent in (both, [GET_OFFER + POST_OFFER + GET % b"d" + CHUNKED_OFFER]):
        worker, wire = heard(sent)
        found = [(target, body) for _, target, _, body in worker.requests]
        assert found[:4] == [(b"/a", b""), (b"/b", b"hello"), (b"/d", b""), (b"/c", b"hi")]
        assert all(headers == [] for _, _, headers, _ in worker.requests)
        assert wire.written.count(b"HTTP/1.1 200 OK") == len(worker.requests)
        assert not wire.ended


@pytest.mark.parametrize(
    ("lines", "status"), [(b"content-encoding: gzip\r\n", 415), (b"content-length: 9999999\r\n", 413)]
)
def test_who_offers_http_2_is_refused_as_everybody_is(lines: bytes, status: int) -> None:
    worker, wire = heard([b"POST /a HTTP/1.1\r\n%b%b\r\n" % (OFFER, lines)])
    assert worker.requests == []
    assert wire.written.startswith(b"HTTP/1.1 %d " % status)


def test_what_comes_behind_an_offer_of_http_2_is_read_as_http_1() -> None:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    worker, wire = heard([GET_OFFER + preface])
    assert [target for _, target, _, _ in worker.requests] == [b"/a"]
    assert wire.written.count(b"HTTP/1.1 ") == 2
    assert b"HTTP/1.1 400 " in wire.written


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (b"host: h\r\ncontent-length: 3\r\ntransfer-encoding: chunked", 400),
        (b"host: h\r\ntransfer-encoding: chunked\r\ncontent-length: 3", 400),
        (b"host: h\r\ncontent-length: 3\r\ncontent-length: 3", 400),
        (b"host: h\r\ncontent-length: 3, 3", 400),
        (b"host: h\r\ntransfer-encoding: gzip", 501),
        (b"host: h\r\ntransfer-encoding: gzip, chunked", 501),
        (b"host: h\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked", 400),
        (b"host: h\nx-a: b", 400),
        (b"host: h\r\nhost: h", 400),
        (b"x-a: b", 400),
        (b"host: h\r\nx-a : b", 400),
        (b"host: h\r\ncontent-encoding: gzip", 415),
        (b"host: h\r\nx-a: \x00", 400),
        (b"host: h\r\ncontent-length: 9999999", 413),
        (b"host: h\r\n" + b"\r\n".join(b"x-%d: y" % n for n in range(101)), 431),
    ],
)
def test_what_could_be_read_twice_is_refused_and_ends_the_connection(lines: bytes, status: int) -> None:
    worker, wire = heard([b"POST / HTTP/1.1\r\n" + lines + b"\r\n\r\n"])
    assert worker.requests == []
    assert wire.written.startswith(b"HTTP/1.1 %d " % status), wire.written
    assert b"connection: close" in wire.written
    assert wire.ended
    assert worker.counts.by_status == {status: 1}


@pytest.mark.parametrize(
    "first", [b"GET / RTSP/1.1", b"POST / RTSP/1.0", b"OPTIONS / RTSP/1.1", b"SOURCE / ICE/1.1"]
)
def test_the_first_line_of_another_protocol_is_refused(first: bytes) -> None:
    """The parser knows some that look alike, and says 1.1 of them too."""
    request = b"\r\n" + first + b"\r\nhost: h\r\nx-a: a HTTP/1.1\r\n\r\n"
    for pieces in ([request], [bytes([byte]) for byte in request]):
        worker, wire = heard(pieces)
        assert worker.requests == []
        assert wire.written.startswith(b"HTTP/1.1 400 ")


def test_a_head_without_end_is_refused() -> None:
    worker, wire = heard([b"GET / HTTP/1.1\r\nhost: h\r\nx-a: "] + [b"y" * 1_000] * 40)
    assert worker.requests == []
    assert wire.written.startswith(b"HTTP/1.1 431 ")


def test_whoever_asks_to_continue_is_told_to_unless_there_is_nothing_to_send() -> None:
    def written(*pieces: bytes) -> bytes:
        wire: Wire = heard(list(pieces))[1]
        return wire.written

    head = b"POST / HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\ncontent-length: %d\r\n\r\n"
    assert written(head % 3).startswith(b"HTTP/1.1 100 ")
    assert written(head % 3, b"abc").count(b"HTTP/1.1 200 ") == 1
    assert not written(head % 0).startswith(b"HTTP/1.1 100 ")
    old = head.replace(b"HTTP/1.1", b"HTTP/1.0")
    assert written(old % 3) == b"", "it would be taken for the answer"
    assert written(old % 3, b"abc").startswith(b"HTTP/1.1 200 ")


def test_chunks_are_one_body_and_trailers_are_nothing() -> None:
    head = b"POST /a HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n"
    chunks = b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nauthorization: Bearer other\r\nx-t: 1\r\n\r\n"
    for pieces in ([head + chunks], [head, chunks], [bytes([byte]) for byte in head + chunks]):
        worker, wire = heard(pieces)
        assert worker.requests == [(b"POST", b"/a", [], b"abcde")]
        assert not wire.closed


def test_headers_that_are_for_one_connection_are_not_passed_on() -> None:
    """Those that `connection` names, however it names them, and no others."""
    lines = b"host: h\r\nx-a: 1\r\nConnection: X-A , close\r\nx-b: 2\r\nconnection: x-c\r\nX-C: 3"
    worker, _ = heard([b"GET / HTTP/1.1\r\n" + lines + b"\r\n\r\n"])
    [(_, _, headers, _)] = worker.requests
    assert headers == [(b"x-b", b"2")]


def test_a_head_that_comes_again_has_its_own_length_and_body() -> None:
    worker, _ = heard([POST % (b"a", 3, b"xyz"), POST % (b"a", 5, b"12345"), POST % (b"b", 1, b"q")])
    assert [(target, body) for _, target, _, body in worker.requests] == [
        (b"/a", b"xyz"),
        (b"/a", b"12345"),
        (b"/b", b"q"),
    ]


def test_a_body_that_is_too_long_is_refused_also_under_a_head_that_was_taken_before() -> None:
    worker, wire = heard([POST % (b"a", 3, b"xyz"), POST % (b"a", 1_000_001, b"x" * 1_000_001)])
    assert len(worker.requests) == 1
    assert b"HTTP/1.1 413 " in wire.written


@pytest.mark.parametrize("tls", [False, True])
def test_whoever_is_refused_while_it_sends_can_read_why(tls: bool) -> None:
    """It was closed at once: what came afterwards was answered with a reset, and the answer lost."""
    worker, wire = Notes(), Wire(tls)
    down = Down(worker)  # type: ignore[arg-type]
    down.connection_made(wire)
    down.data_received(b"POST /a HTTP/1.1\r\nhost: h\r\ncontent-length: 9999999\r\n\r\n")
    assert wire.written.startswith(b"HTTP/1.1 413 ")
    assert wire.ended is not tls
    answered = wire.written
    for _ in range(100):
        down.data_received(b"x" * 65_536)
    assert not wire.closed, "what it still sends is thrown away"
    down.late()
    assert wire.is_closing(), "but not for ever"
    if tls:
        assert not wire.aborted, "it was not told yet that this is the end"
        assert down.deadline < 10.0
        down.late()
    assert wire.aborted
    assert wire.written == answered
    assert worker.requests == []
    assert worker.counts.by_status == {413: 1}


@pytest.mark.parametrize("tls", [False, True])
def test_whoever_goes_on_sending_after_it_was_refused_is_cut_off(tls: bool) -> None:
    worker, wire = Notes(), Wire(tls)
    down = Down(worker)  # type: ignore[arg-type]
    down.connection_made(wire)
    down.data_received(b"nonsense\r\n\r\n")
    for _ in range(LINGER_MAX // 1_000_000 + 1):
        assert not wire.closed
        down.data_received(b"x" * 1_000_000)
    assert wire.is_closing()
    if tls:
        assert not wire.aborted, "it was not told yet that this is the end"
        down.data_received(b"x")
    assert wire.aborted


def test_trailers_without_end_are_refused_and_chunks_with_their_sizes_apart_are_not() -> None:
    """Each piece of one long line was put behind all of it that had come before: a few MiB held up a worker
    for seconds, and nobody had to have a key for that."""
    head = b"POST /a HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n"
    for trailer in (b"y" * 1_000, b"x: y\r\n" * 200):
        worker, wire = heard([head, b"3\r\nabc\r\n0\r\nx: "] + [trailer] * 40)
        assert wire.written.startswith(b"HTTP/1.1 431 ")
        assert worker.requests == []
    worker, _ = heard([head] + [b"1\r\n", b"a", b"\r\n"] * 10_000 + [b"0\r\n", b"\r\n"])
    assert [len(body) for _, _, _, body in worker.requests] == [10_000]


def test_what_comes_between_an_answer_and_the_next_request_waits_behind_what_came_before_it() -> None:
    """It overtook what had come while the answer was made: the end of a request was read before its start."""
    worker, wire = Notes(), Wire()
    down = Down(worker)  # type: ignore[arg-type]
    second = POST % (b"b", 3, b"xyz")
    with mock.patch.object(downs, "admit", worker.admit):
        down.connection_made(wire)
        down.data_received(GET % b"a")
        down.data_received(second[:20])
        worker.waiting.pop().reply(200, b"{}")
        down.data_received(second[20:])
        worker.turn()
    assert [(target, body) for _, target, _, body in worker.requests] == [(b"/a", b""), (b"/b", b"xyz")]
    assert wire.written.count(b"HTTP/1.1 200 ") == 2


def test_a_body_of_which_nothing_comes_has_no_more_time_than_one_that_comes() -> None:
    """A shorter time for bodies than for a piece of one counted only from its first piece on."""
    worker, wire = Notes(), Wire()
    worker.wanted.body_within_s = 0.5
    down = Down(worker)  # type: ignore[arg-type]
    down.connection_made(wire)
    down.data_received(b"POST /a HTTP/1.1\r\nhost: h\r\ncontent-length: 3\r\n\r\n")
    assert down.deadline == worker.now() + 0.5
    down.late()
    assert wire.written.startswith(b"HTTP/1.1 408 ")


def test_whoever_does_not_read_is_not_asked_for_more_and_let_go_in_time() -> None:
    """Its next request was sent on, and nobody read what came of it, nor looked how long it took."""
    worker, wire = Notes(), Wire()
    down = Down(worker)  # type: ignore[arg-type]
    with mock.patch.object(downs, "admit", worker.admit):
        down.connection_made(wire)
        down.data_received(GET % b"a")
        down.pause_writing()
        worker.turn()
        down.data_received(GET % b"b")
        worker.turn()
        assert len(worker.requests) == 1
        assert down.deadline < 100.0
        down.resume_writing()
        worker.turn()
        assert [target for _, target, _, _ in worker.requests] == [b"/a", b"/b"]
        down.pause_writing()
        down.data_received(GET % b"c")
        down.late()
        assert wire.aborted


def test_an_answer_that_is_not_read_does_not_keep_its_connection_for_ever() -> None:
    """What was left of it fitted into the buffer, so that nobody was waiting for it to be read."""
    worker, wire = Notes(), Wire()
    down = Down(worker)  # type: ignore[arg-type]
    with mock.patch.object(downs, "admit", worker.admit):
        down.connection_made(wire)
        down.data_received(b"GET / HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n")
        worker.turn()
    assert wire.closed
    assert not wire.aborted
    assert down.deadline < 100.0
    down.late()
    assert wire.aborted


def test_the_time_in_which_a_client_does_not_read_is_not_its_replicas() -> None:
    """It was counted as a pause of the stream, and as standing still when nothing had come since."""
    worker = Notes()
    down = Down(worker)  # type: ignore[arg-type]
    with mock.patch.object(downs, "admit", worker.admit):
        down.connection_made(Wire())
        down.data_received(GET % b"a")
    down.pause_writing()
    worker.time = 50.0
    down.resume_writing()
    assert worker.waiting[0].last_at == 50.0
