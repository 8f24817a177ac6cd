"""What a replica may answer: an answer is whole only if its framing was, whatever comes and however."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.gateway_twins import answer_by_another, answered
from tests.property.test_gateway_wire_properties import BODIES, CUTS, split

MANY = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))

STARTS = st.sampled_from(
    [
        b"HTTP/1.1 200 OK",
        b"HTTP/1.1 200 OK",
        b"HTTP/1.1 200",
        b"HTTP/1.0 200 OK",
        b"HTTP/1.1 204 No Content",
        b"HTTP/1.1 304 Not Modified",
        b"HTTP/1.1 503 Busy",
        b"HTTP/1.1 429 Later",
        b"HTTP/1.1 099 Odd",
        b"HTTP/1.1 999 Odd",
        b"HTTP/1.1 20 OK",
        b"HTTP/2.0 200 OK",
        b"ICY 200 OK",
    ]
)
LINES = st.sampled_from(
    [
        b"content-length: 3",
        b"content-length: 5",
        b"content-length: 0",
        b"Content-Length: 3, 3",
        b"content-length: -3",
        b"content-length : 3",
        b"transfer-encoding: chunked",
        b"transfer-encoding: gzip, chunked",
        b"transfer-encoding: chunked, gzip",
        b"transfer-encoding: identity",
        b"connection: close",
        b"connection: keep-alive",
        b"content-type: text/event-stream",
        b"retry-after: 5",
        b"x-a: b\r\n folded",
        b"x-a: b\ncontent-length: 4",
        b"x-a: \xff",
        b"x-a: \x00",
        b"no colon",
    ]
)
BEFORE = st.sampled_from(
    [
        b"",
        b"",
        b"",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\ncontent-length: 2\r\nlink: x\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\ntransfer-encoding: chunked\r\n\r\n",
        b"\r\n",
    ]
)


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    end = draw(st.sampled_from([b"\r\n"] * 8 + [b"\n", b"\r"]))
    head = end.join([draw(STARTS), *draw(st.lists(LINES, max_size=4))])
    data = bytearray(draw(BEFORE) + head + end + end + draw(BODIES))
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        at = draw(st.integers(0, len(data) - 1))
        odd = draw(st.sampled_from([b"", b"\r", b"\n", b"\r\n", b" ", b"\x00", b":", b"0", b"1"]))
        data[at : at + draw(st.integers(0, 1))] = odd
    return bytes(data[: draw(st.one_of(st.just(len(data)), st.integers(0, len(data))))])


@MANY
@given(answers(), CUTS)
def test_what_is_taken_for_whole_another_reader_takes_for_whole(data: bytes, cuts: list[int]) -> None:
    got = answered(split(data, cuts))
    assert got.complete is not bool(got.failure), "it ends in one of two ways"
    if got.complete:
        assert (got.up.status, got.body) == answer_by_another(data)


@MANY
@given(answers(), CUTS)
def test_the_pieces_in_which_an_answer_comes_make_no_difference(data: bytes, cuts: list[int]) -> None:
    whole, parts = answered([data]), answered(split(data, cuts))
    assert (whole.complete, whole.kept and parts.kept) == (parts.complete, whole.kept)
    if whole.complete:
        assert (whole.up.status, whole.up.lines, whole.body) == (
            parts.up.status,
            parts.up.lines,
            parts.body,
        )


@MANY
@given(st.binary(max_size=300), CUTS)
def test_noise_is_no_answer(data: bytes, cuts: list[int]) -> None:
    got = answered(split(data, cuts))
    assert not got.complete
    assert got.wire.closed
