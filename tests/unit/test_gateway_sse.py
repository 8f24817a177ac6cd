"""Streams on their way through: the same comes out however they are cut, and usage is read and taken out."""

from typing import Any

import msgspec
import pytest

from holdfast.gateway.sse import TAIL_MAX, Events, has_content, said_in, usage_at_end, usage_in

CHAT = {"object": "chat.completion.chunk", "usage": None}
ROLE: dict[str, Any] = {**CHAT, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
HI: dict[str, Any] = {**CHAT, "choices": [{"index": 0, "delta": {"content": 'h\u00ef "usage":{'}}]}
END: dict[str, Any] = {**CHAT, "choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
USAGE: dict[str, Any] = {
    **CHAT,
    "choices": [],
    "usage": {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
        "prompt_tokens_details": {"x": 1},
    },
}


def stream(*events: object, end: bytes = b"\n") -> bytes:
    said = (b"[DONE]" if event == "DONE" else msgspec.json.encode(event) for event in events)
    return b"".join(b"data: " + data + end + end for data in said)


def through(*pieces: bytes, strip: bool) -> tuple[bytes, Events]:
    events = Events(strip=strip)
    out = b"".join(events.feed(piece) for piece in pieces)
    return out + events.rest(), events


@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("strip", [True, False])
def test_wherever_a_stream_is_cut_the_same_comes_out(strip: bool, end: bytes) -> None:
    data = b": hello" + end + end + stream(ROLE, HI, END, USAGE, "DONE", end=end)
    wanted = b": hello" + end + end + stream(ROLE, HI, END, *([] if strip else [USAGE]), "DONE", end=end)
    cuts: list[tuple[bytes, ...]] = [(data[:at], data[at:]) for at in range(len(data) + 1)]
    cuts += [tuple(data[at : at + size] for at in range(0, len(data), size)) for size in (1, 2, 3, 7, 100)]
    for pieces in cuts:
        out, events = through(*pieces, strip=strip)
        assert out == wanted, pieces
        assert events.usage is not None
        assert (events.usage.prompt, events.usage.completion, events.usage.total) == (3, 2, 5)
        assert events.content
        assert events.ended
        assert events.length
        assert not events.failed
        assert 4 <= events.count <= 5


@pytest.mark.parametrize("ends", [(b"\r\n\r\n", b"\n\n"), (b"\n\n", b"\r\n\r\n"), (b"\n\r\n", b"\r\n\n")])
def test_lines_may_end_now_so_and_now_so(ends: tuple[bytes, bytes]) -> None:
    """With both kinds of ends in one piece the usage was not found, and passed on unasked."""
    said = [b"data: " + msgspec.json.encode(event) for event in (HI, USAGE, END)]
    first, second = ends
    data = said[0] + first + said[1] + second + b"\n" + said[2] + first
    for pieces in ((data,), (data[:100], data[100:]), tuple(bytes([byte]) for byte in data)):
        out, events = through(*pieces, strip=True)
        assert out == said[0] + first + b"\n" + said[2] + first
        assert events.usage is not None


def test_usage_beside_content_is_read_and_stays() -> None:
    all_the_time = {**HI, "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}}
    for data in (stream(all_the_time), stream(all_the_time, END), stream(all_the_time, end=b"\r\n")):
        out, events = through(data, strip=True)
        assert out == data
        assert events.usage is not None
        assert events.usage.total == 4


def test_the_usage_of_a_response_is_read_from_its_last_event() -> None:
    """It stands one level deeper there, and was not found: such streams were booked by a guess."""
    usage = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
    said = b"event: response.completed\n" + stream({"type": "x", "response": {"id": "r", "usage": usage}})
    out, events = through(stream({"type": "y", "response": {"usage": None}}) + said, strip=False)
    assert out.endswith(said)
    assert events.usage is not None
    assert (events.usage.prompt, events.usage.completion, events.usage.total) == (3, 2, 5)


def test_a_whole_event_goes_on_at_once_and_half_of_one_waits() -> None:
    events = Events(strip=True)
    one = stream(HI)
    assert events.feed(one + one[:10]) == one
    assert events.feed(one[10:-1]) == b""
    assert events.feed(one[-1:]) == one
    for short in (b"\n\n", b":\n\n", b": ping\n\n", b":\r\n\r\n"):
        assert events.feed(short + b"data: ") + events.feed(b"x\n\n") == short + b"data: x\n\n"


def test_a_role_alone_is_no_content_and_an_error_before_content_is_a_failure() -> None:
    _, events = through(stream(ROLE), strip=False)
    assert (events.content, events.failed) == (False, "")
    _, events = through(stream(ROLE, {"error": {"message": "out of memory"}}), strip=False)
    assert not events.content
    assert "out of memory" in events.failed
    _, events = through(stream(HI, {"error": {"message": "late"}}), strip=False)
    assert (events.content, events.failed) == (True, "")
    _, events = through(b"data: {nonsense\n\n", strip=False)
    assert events.content


@pytest.mark.parametrize(
    ("error", "is_answer"),
    [
        ({"code": 400}, True),
        ({"code": 422}, True),
        ({"code": "context_length_exceeded", "type": "invalid_request_error"}, True),
        ({"code": 429}, False),
        ({"code": 408}, False),
        ({"code": 500, "type": "invalid_request_error"}, False),
        ({"code": None, "type": "server_error"}, False),
        ("no", False),
    ],
)
def test_an_error_of_the_request_is_its_answer(error: Any, is_answer: bool) -> None:
    _, events = through(stream(ROLE, {"error": error}), strip=False)
    assert events.failed
    assert events.content is is_answer


def test_a_stream_without_done_or_without_its_last_blank_line_is_not_ended() -> None:
    out, events = through(stream(HI, END), strip=False)
    assert not events.ended
    assert out == stream(HI, END)
    cut = stream(HI, "DONE")[:-1]
    out, events = through(cut, strip=False)
    assert out == cut
    assert not events.ended


def test_a_huge_event_goes_on_unread() -> None:
    data = b'data: {"choices":[{"delta":{"content":"' + b"x" * (TAIL_MAX + 100) + b'"}}]}\n\n' + stream(USAGE)
    pieces = [data[at : at + 65_536] for at in range(0, len(data), 65_536)]
    events = Events(strip=True)
    out, most = b"", 0
    for piece in pieces:
        out += events.feed(piece)
        most = max(most, len(events.tail))
    assert out + events.rest() == data.removesuffix(stream(USAGE))
    assert most <= TAIL_MAX
    assert events.content
    assert events.usage is not None


def test_usage_that_is_none_is_not_taken_for_one() -> None:
    for odd in (
        '{"total_tokens":-5}',
        '{"total_tokens":9,"prompt_tokens":-5}',
        '{"total_tokens":"many"}',
        "5",
        "[]",
        '{"total_tokens":1.5}',
    ):
        data = b'data: {"choices":[],"usage":' + odd.encode() + b"}\n\n"
        out, events = through(data, strip=True)
        assert (out, events.usage) == (data, None)
    assert usage_in(b'{"usage":{"input_tokens":2,"output_tokens":3}}').total == 5  # type: ignore[union-attr]
    assert usage_in(b'{"usage":null}') is None
    assert usage_in(b'{"usage":{"total_tokens":-5}}') is None
    assert usage_in(b"[1]") is None
    assert usage_in(b"") is None


def test_the_usage_of_a_long_answer_is_found_at_its_end() -> None:
    long = (
        b'{"choices":[{"text":"\\"usage\\":{\\"total_tokens\\":1}"}],"usage":{"total_tokens":9,"d":{"x":1}}}'
    )
    for start in range(long.rindex(b'"usage"') + 1):
        found = usage_at_end(long[start:])
        assert found is not None
        assert found.total == 9
    assert usage_at_end(long[:-2]) is None
    assert usage_at_end(b'"usage"') is None
    assert usage_at_end(b'{"text":"\\"usage\\":{\\"total_tokens\\":1}"}') is None


def test_the_text_of_a_chat_is_put_together() -> None:
    said = HI["choices"][0]["delta"]["content"]
    assert said_in(stream(ROLE, HI, "DONE") + b"data: {\n\ndata: {}\n\n: x\n\n") == (said, 1, False)
    assert said_in(stream(HI, HI, END, end=b"\r\n")) == (said + said, 2, False)


@pytest.mark.parametrize(
    "delta", [{"reasoning_content": "hm"}, {"tool_calls": [{"index": 0}]}, {"content": ["no text"]}]
)
def test_what_is_said_beside_the_text_is_counted_and_told(delta: dict[str, Any]) -> None:
    said = HI["choices"][0]["delta"]["content"]
    assert said_in(stream(ROLE, {"choices": [{"delta": delta}]}, HI)) == (said, 2, True)


def test_what_cannot_be_read_may_be_text_and_is_not_left_out_of_it() -> None:
    """An answer was continued without the characters that stood in two events."""
    half = b'data: {"choices":[{"delta":{"content":"\\ud83d"}}]}\n\n'
    assert said_in(stream(HI) + half + stream(HI))[2]


@pytest.mark.parametrize(
    ("why", "finished"), [("stop", True), ("tool_calls", True), ("", False), (None, False)]
)
def test_a_reason_to_end_is_seen(why: str | None, finished: bool) -> None:
    last = {"choices": [{"index": 0, "delta": {"content": '"finish_reason":"stop"'}, "finish_reason": why}]}
    for data in (stream(HI, last), stream(HI, last).replace(b'_reason":', b'_reason": ')):
        assert through(data, strip=True)[1].finished is finished


@pytest.mark.parametrize(
    ("said", "is_content"),
    [
        ({"choices": [{"delta": {"role": "assistant"}}]}, False),
        ({"choices": []}, False),
        ({"choices": [{"delta": {"tool_calls": [1]}}]}, True),
        ({"choices": [{"delta": {}, "finish_reason": "stop"}]}, True),
        ({"choices": [{"text": "a"}]}, True),
        ({"choices": [7]}, True),
        ({"type": "response.created"}, True),
        ([1], True),
        ({"choices": "x"}, True),
    ],
)
def test_what_counts_as_content(said: Any, is_content: bool) -> None:
    assert has_content(said) is is_content


def test_what_is_no_text_goes_on_and_is_no_exception() -> None:
    """A replica whose answer was no UTF-8 broke the connection of whoever read it."""
    odd = b'data: {"choices":[{"delta":{"content":"\xff"}}],"\xff":1,"usage":{"total_tokens":3}}\n\n'
    for strip in (True, False):
        out, events = through(odd, odd, strip=strip)
        assert out == odd + odd
        assert events.content
    assert said_in(odd) == ("", 0, False)
    found = usage_in(odd.removeprefix(b"data: "))
    assert found is not None
    assert found.total == 3


def test_a_stream_has_ended_with_or_without_a_space_before_the_word() -> None:
    for end in (b"data: [DONE]\n\n", b"data:[DONE]\n\n"):
        events = Events(strip=True)
        assert events.feed(b'data: {"choices":[{"text":"data:[DONE]"}]}\n\n')
        assert not events.ended
        assert events.feed(end) == end
        assert events.ended
