"""A connection to a replica: an answer is whole only if its framing was."""

import pytest

from holdfast.gateway.up import UNKNOWN, whole_chunks
from tests.gateway_twins import answered

OK = b"HTTP/1.1 200 OK\r\n"


def test_an_answer_with_a_length_and_one_in_chunks_are_whole() -> None:
    for data, body in (
        (OK + b"content-length: 3\r\n\r\nabc", b"abc"),
        (OK + b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", b"abc"),
        (b"HTTP/1.1 204 No\r\n\r\n", b""),
        (b"HTTP/1.1 304 No\r\ncontent-length: 3\r\n\r\n", b""),
    ):
        for pieces in ([data], [bytes([byte]) for byte in data]):
            got = answered(pieces)
            assert (got.complete, got.body, got.failure) == (True, body, ""), data
            assert got.kept


@pytest.mark.parametrize(
    "data",
    [
        b"",
        OK,
        OK + b"content-length: 3\r\n\r\nab",
        OK + b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",
        OK + b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n",
        OK + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        OK + b"content-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
        OK + b"transfer-encoding: gzip\r\n\r\nabc",
        OK + b"transfer-encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 101 Switch\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"SSH-2.0-x\r\n",
        b"HTTP/1.1 200 OK\nx: y\n\n",
    ],
)
def test_an_answer_that_was_cut_or_said_its_length_twice_is_not_whole(data: bytes) -> None:
    got = answered([data] if data else [])
    assert not got.complete
    assert got.failure
    assert got.wire.closed


def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    got = answered([OK + b"\r\nabc", b"def"])
    assert (got.complete, got.body) == (True, b"abcdef")
    assert not got.kept


def test_more_than_was_promised_ends_the_connection() -> None:
    got = answered([OK + b"content-length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx"])
    assert (got.complete, got.body) == (True, b"abc")
    assert not got.kept


def test_what_goes_before_an_answer_says_nothing_about_it() -> None:
    """The length of an early hint was taken for that of the answer."""
    hint = (
        b"HTTP/1.1 103 Early Hints\r\ncontent-length: 2\r\ncontent-type: text/event-stream\r\nx-a: 1\r\n\r\n"
    )
    got = answered([hint + OK + b"\r\nabcdef"])
    assert (got.up.status, got.up.length, got.up.content_type, got.up.lines) == (200, -1, b"", [])
    assert (got.complete, got.body) == (True, b"abcdef")
    hint = b"HTTP/1.1 103 Early Hints\r\ntransfer-encoding: chunked\r\n\r\n"
    got = answered([hint + OK + b"\r\nabc"])
    assert (got.complete, got.body) == (True, b"abc")


def test_a_status_that_is_none_is_no_answer() -> None:
    """The body of a 099 stood before that of the answer."""
    got = answered([b"HTTP/1.1 099 X\r\ncontent-length: 3\r\n\r\nabc" + OK + b"content-length: 3\r\n\r\ndef"])
    assert got.failure == "it does not speak HTTP: its status is 99"
    assert (got.complete, got.body) == (False, b"")


def test_the_answer_to_a_head_has_no_body_whatever_comes_after_it() -> None:
    for length in (b"content-length: 3\r\n", b""):
        got = answered([OK + length + b"content-type: text/event-stream\r\n\r\nabc"], is_head=True)
        assert (got.complete, got.body, got.kept) == (True, b"", False)


def test_headers_that_are_for_one_connection_are_not_passed_on() -> None:
    got = answered([OK + b"x-a: 1\r\nconnection: X-A\r\nx-b: 2\r\ncontent-length: 0\r\n\r\n"])
    assert got.up.lines == [b"x-b: 2\r\n"]


@pytest.mark.parametrize(
    ("data", "found", "missing"),
    [
        (b"", [], 0),
        (b"1\r\na\r\n", [b"a"], 0),
        (b"1\r\na\r\n2\r\nbc\r\n", [b"a", b"bc"], 0),
        (b"1\r\na\r\n2\r\nb", [b"a"], 3),
        (b"1\r\na\r\n2\r\nbc\r", [b"a"], 1),
        (b"1\r\na\r\n2\r", [b"a"], UNKNOWN),
        (b"1\r\nab\r\n", [], UNKNOWN),
        (b"0\r\n\r\n", [], UNKNOWN),
        (b"0x1\r\na\r\n", [], UNKNOWN),
        (b"1;a=b\r\na\r\n", [], UNKNOWN),
    ],
)
def test_whole_chunks_are_found_and_nothing_else(data: bytes, found: list[bytes], missing: int) -> None:
    assert whole_chunks(data) == (found, missing)
