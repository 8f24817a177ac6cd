"""An event that passes unread is one in which there was nothing to read."""

from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.gateway.sse import Events

WORDS = (
    b"data: {",
    b"data:",
    b'"choices":[{"delta":{"content":" a"},"finish_reason":null}]',
    b'"finish_reason":"length"',
    b'"finish_reason": "tool_calls"',
    b'"usage":{"total_tokens":7}',
    b'"usage": {"total_tokens": 7}',
    b'"usage":null',
    b'"choices":[]',
    b",",
    b"}",
    b"\n",
    b"\r\n",
    b"\n\n",
    b"data: [DONE]",
    b": ping",
    b"event: x\n",
)
BLOCKS = st.lists(st.sampled_from(WORDS), max_size=8).map(b"".join)


def after(events: Events) -> tuple[object, ...]:
    return events.tail, events.usage, events.length, events.asks_tool, events.ended, events.count


@given(st.lists(BLOCKS, max_size=4), st.integers(0, 3))
@example([b'data: {"choices":[]}\n\n'], 0)
@example([b'data: {"choices":[{"text":"a"}]}\n\r\ndata: [DONE]\n\n'], 0)
@example([b'data: {"choices":[{"text":"data: [DONE]"}]}\n\n'], 0)
@example([b'data: {"choices":[{"text":"a"}]}\n\n', b'data: {"choices":[],"usage":{"total_tokens":7}}\n\n'], 1)
@example([b'data: {"choices":[{"text":"a"}]}\nd', b"ata: [DONE]\n\n"], 0)
@settings(max_examples=600)
def test_what_passes_is_read_to_no_other_end(pieces: list[bytes], later: int) -> None:
    """`later`: so many bytes of each piece come with the next one."""
    stream = b"".join(pieces) + b"\n\n"
    cuts = [0]
    for piece in pieces:
        cuts.append(cuts[-1] + len(piece))
    cuts = [0, *(max(0, at - later) for at in cuts[1:]), len(stream)]
    passing, reading = Events(strip=True), Events(strip=True)
    passing.content = reading.content = True  # nothing passes before
    passed = read = b""
    for begin, end in pairwise(cuts):
        piece = stream[begin:end]
        passed += piece if passing.plain(piece) else passing.feed(piece)
        read += reading.feed(piece)
        assert passed == read
        assert after(passing) == after(reading)


def test_an_ordinary_event_passes_and_one_that_ends_a_stream_does_not() -> None:
    events = Events(strip=True)
    assert events.plain(
        b'data: {"choices":[{"delta":{"content":" a"},"finish_reason":null}],"usage":null}\n\n'
    )
    assert events.count == 1
    for block in (
        b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n',
        b'data: {"choices":[],"usage":{"total_tokens":7}}\n\n',
        b"data: [DONE]\n\n",
        b'data: {"a":1}\n\ndata: {"b":2}\n\n',
        b'data: {"half":',
        b'data: {"a":1}\nd',
        b'data: {"a":1}\n\r',
    ):
        assert not events.plain(block)
    assert events.count == 1
    events.feed(b'data: {"half":')
    assert not events.plain(b'data: {"choices":[]}\n\n')  # it belongs to what came before
    looked_at = Events(strip=True, reads=True)
    assert not looked_at.plain(b'data: {"choices":[]}\n\n')
