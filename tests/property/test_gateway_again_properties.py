"""What the parsers are spared is read as they would read it: heads that come again, and whole chunks."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.gateway_twins import Answered, answer_by_another, answered, heard, read_by_another
from tests.property.test_gateway_answer_properties import LINES as ANSWER_LINES
from tests.property.test_gateway_wire_properties import LINES

MANY = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
ODD = st.sampled_from(
    [b"", b"\r", b"\n", b"\r\n", b" ", b"\t", b"\x00", b":", b"0", b"7", b"+", b"\xb2", b"X"]
)
BODIES = st.sampled_from(
    [b"", b"abc", b"abcde", b"abc" * 40, b"\r\n\r\n", b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"]
)
LENGTHS = st.sampled_from([b"content-length: %d", b"Content-Length: %d", b"CONTENT-LENGTH: %d"])


@st.composite
def same_heads(draw: st.DrawFn, start: bytes, lines: st.SearchStrategy[bytes]) -> list[bytes]:
    """Messages with one head but for its length, some of them with a byte changed, or a wrong length."""
    before, after = draw(st.lists(lines, max_size=2)), draw(st.lists(lines, max_size=2))
    said = draw(LENGTHS)
    found = []
    for _ in range(draw(st.integers(2, 4))):
        body = draw(BODIES)
        length = len(body) + draw(st.sampled_from([0] * 8 + [-1, 1, 100_000_000]))
        message = b"\r\n".join([start, *before, said % max(0, length), *after, b"", body])
        if draw(st.integers(0, 3)) == 0:
            at = draw(st.integers(0, len(message) - 1))
            message = message[:at] + draw(ODD) + message[at + draw(st.integers(0, 1)) :]
        found.append(message)
    return found


@MANY
@given(same_heads(b"POST /a HTTP/1.1\r\nHost: h", LINES), st.booleans())
def test_a_head_that_comes_again_is_read_as_by_another(pieces: list[bytes], late: bool) -> None:
    worker, _ = heard([piece for piece in pieces if piece], answered_late=late)
    others = read_by_another(b"".join(pieces))
    assert worker.requests == others[: len(worker.requests)]


@MANY
@given(same_heads(b"HTTP/1.1 200 OK", ANSWER_LINES))
def test_an_answer_with_the_head_of_the_last_is_the_answer_it_would_be_alone(pieces: list[bytes]) -> None:
    asked = Answered()
    up = asked.up
    up.connection_made(asked.wire)
    for piece in pieces:
        asked.body, asked.complete, asked.failure = b"", False, ""
        up.ask(asked, b"GET / HTTP/1.1\r\n\r\n")
        up.data_received(piece)
        alone = answered([piece])
        if not asked.complete:
            up.eof_received()
        assert asked.complete == alone.complete, piece
        if not asked.complete or not up.keeps():
            assert not alone.kept
            break
        assert alone.kept
        assert (up.status, up.lines, up.length, asked.body) == (
            alone.up.status,
            alone.up.lines,
            alone.up.length,
            alone.body,
        )
        assert (up.status, asked.body) == answer_by_another(piece)
        up.let_go()


@st.composite
def chunks(draw: st.DrawFn) -> list[bytes]:
    found = [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"]
    for _ in range(draw(st.integers(1, 6))):
        data = draw(
            st.sampled_from([b"a", b"abc", b"x" * 15, b"x" * 16, b"\r\n", b"3\r\nabc\r\n", b"y" * 5000])
        )
        size = draw(st.sampled_from([b"%x"] * 6 + [b"%X", b"0%x", b"%x;a=b", b"0x%x", b"+%x"])) % len(data)
        chunk = size + b"\r\n" + data + b"\r\n"
        if draw(st.integers(0, 5)) == 0:
            at = draw(st.integers(0, len(chunk) - 1))
            chunk = chunk[:at] + draw(ODD) + chunk[at + draw(st.integers(0, 1)) :]
        found += draw(st.sampled_from([[chunk], [chunk], [chunk[:1], chunk[1:]], [chunk[:-1], chunk[-1:]]]))
    found.append(b"0\r\n\r\n")
    if draw(st.booleans()):  # what comes together, comes together
        at = draw(st.integers(0, len(found) - 2))
        found[at : at + 2] = [found[at] + found[at + 1]]
    return [piece for piece in found if piece]


@MANY
@given(chunks())
def test_chunks_that_come_whole_are_read_as_those_that_come_in_bytes(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    whole, bytewise = answered(pieces), answered([bytes([byte]) for byte in data])
    assert whole.complete == bytewise.complete
    if whole.complete:
        assert whole.body == bytewise.body
        assert (200, whole.body) == answer_by_another(data)
