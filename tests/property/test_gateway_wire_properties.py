"""What may come over a connection: no bytes, however they arrive, are read in two ways."""

import re

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.gateway_twins import heard, read_by_another

MANY = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))

LINES = st.sampled_from(
    [
        b"Host: a",
        b"host: b:1",
        b"Content-Length: 3",
        b"Content-Length: 0",
        b"content-length: 5",
        b"Content-Length: 3, 3",
        b"Content-Length: +3",
        b"Content-Length: 0x3",
        b"Content-Length: -1",
        b"Content-Length: 99999999999999999999",
        b"Content-Length : 3",
        b"Content-Length: 3\t",
        b"Content-Length:\x0b3",
        b"Transfer-Encoding: chunked",
        b"transfer-encoding: CHUNKED",
        b"Transfer-Encoding: chunked, identity",
        b"Transfer-Encoding: identity",
        b"Transfer-Encoding: xchunked",
        b"Transfer-Encoding:\x0bchunked",
        b"Transfer-Encoding: gzip, chunked",
        b"Transfer-Encoding : chunked",
        b" Transfer-Encoding: chunked",
        b"X-A: 1",
        b"X-A: 1\r\n folded",
        b"X-A: 1\nContent-Length: 4",
        b"X-A: 1\rContent-Length: 4",
        b"X-A: \x00",
        b"X-B: \xff\xfe",
        b"X-Empty:",
        b":",
        b"no colon",
        b"Connection: close",
        b"Connection: keep-alive",
        b"Connection: Upgrade\r\nUpgrade: websocket",
        b"Upgrade: h2c",
        b"Expect: 100-continue",
        b"Authorization: Bearer x",
        b"Content-Encoding: gzip",
        b"Trailer: X-T",
    ]
)
STARTS = st.sampled_from(
    [
        b"GET / HTTP/1.1",
        b"POST /v1/chat/completions HTTP/1.1",
        b"POST /a?b=c HTTP/1.1",
        b"HEAD / HTTP/1.1",
        b"PUT /x HTTP/1.0",
        b"OPTIONS * HTTP/1.1",
        b"GET http://x/y HTTP/1.1",
        b"CONNECT x:1 HTTP/1.1",
        b"GET  / HTTP/1.1",
        b"GET / HTTP/1.1 ",
        b"GET / HTTP/2.0",
        b"GET / HTTP/0.9",
        b"GET /",
        b"get / HTTP/1.1",
        b"PRI * HTTP/2.0",
        b"GET /\xff HTTP/1.1",
        b"M-SEARCH / HTTP/1.1",
        b"QUERY / HTTP/1.1",
    ]
)
BODIES = st.sampled_from(
    [
        b"",
        b"abc",
        b"abcde",
        b"3\r\nabc\r\n0\r\n\r\n",
        b"3;x=y\r\nabc\r\n0\r\nX-T: 1\r\n\r\n",
        b"0\r\n\r\n",
        b"03\r\nabc\r\n0\r\n\r\n",
        b"3 \r\nabc\r\n0\r\n\r\n",
        b"3\nabc\n0\n\n",
        b"3\r\nabcd\r\n0\r\n\r\n",
        b"ffffffffffffffff0\r\nabc",
        b"-1\r\nabc\r\n",
        b"0\r\nContent-Length: 5\r\n\r\n",
        b"0\r\nHost: z\r\n\r\n",
        b"\r\n\r\n",
        b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n",
    ]
)
ENDS = st.sampled_from([b"\r\n"] * 8 + [b"\n", b"\r", b"\r\r\n"])


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    end = draw(ENDS)
    lines = [draw(STARTS), *draw(st.lists(LINES, max_size=5))]
    if draw(st.integers(0, 3)):
        lines.insert(1, b"Host: h")
    return (
        draw(st.sampled_from([b"", b"", b"", b"\r\n", b"\r\n\r\n"]))
        + end.join(lines)
        + end
        + end
        + draw(BODIES)
    )


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Requests one after the other, with some bytes changed."""
    data = bytearray(b"".join(draw(st.lists(requests(), min_size=1, max_size=3))))
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        at = draw(st.integers(0, len(data) - 1))
        odd = draw(
            st.sampled_from([b"", b"\r", b"\n", b"\r\n", b" ", b"\t", b"\x00", b":", b"0", b"\x85", b","])
        )
        data[at : at + draw(st.integers(0, 1))] = odd
    return bytes(data)


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({cut % (len(data) + 1) for cut in cuts})
    pieces = [data[start:end] for start, end in zip([0, *at], [*at, len(data)], strict=True)]
    return [piece for piece in pieces if piece]


CUTS = st.lists(st.integers(0, 10_000), max_size=6)


@MANY
@given(streams(), CUTS, st.booleans())
def test_what_comes_out_is_what_another_reader_reads(data: bytes, cuts: list[int], late: bool) -> None:
    worker, _ = heard(split(data, cuts), answered_late=late)
    others = read_by_another(data)
    assert worker.requests == others[: len(worker.requests)]


@MANY
@given(streams(), CUTS)
def test_every_request_and_every_refusal_has_one_whole_answer(data: bytes, cuts: list[int]) -> None:
    worker, wire = heard(split(data, cuts))
    written = wire.written.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
    statuses = [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", written)]
    refused = [status for status in statuses if status != 200]
    assert statuses[: len(worker.requests)] == [200] * len(worker.requests)
    assert len(refused) <= 1
    if refused:
        assert wire.ended


@MANY
@given(requests(), CUTS)
def test_no_request_says_its_length_twice(data: bytes, cuts: list[int]) -> None:
    """Whatever the parser thinks: two lengths in a head are never let in, nor a coding other than chunked."""
    worker, _ = heard(split(data, cuts))
    head = re.split(rb"\r\n\r\n", data.lstrip(b"\r\n"), maxsplit=1)[0].lower()
    lengths = re.findall(rb"^content-length", head, re.M)
    codings = re.findall(rb"^transfer-encoding:[ \t]*(.*?)[ \t]*\r?$", head, re.M)
    if len(lengths) > 1 or (lengths and codings) or len(codings) > 1 or codings not in ([], [b"chunked"]):
        assert worker.requests[:1] == []


@MANY
@given(st.binary(max_size=300), CUTS)
def test_noise_is_no_request_and_no_exception(data: bytes, cuts: list[int]) -> None:
    worker, _ = heard(split(data, cuts))
    assert worker.requests == []
