"""A closer look at one answer in some: the same text has the same hash, whatever is around it."""

import json

from holdfast.gateway.glance import brings_result, whole
from holdfast.gateway.sse import Events


def answer(text: str, id: str, finish: str = "stop", spaced: bool = False) -> bytes:
    said = {
        "id": id,
        "created": len(id),
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}],
        "usage": {"completion_tokens": 5},
    }
    return json.dumps(said, separators=None if spaced else (",", ":")).encode()


def chunks(text: str, id: str, finish: str = "stop") -> bytes:
    out = b""
    for letter in text:
        said = {"id": id, "choices": [{"index": 0, "delta": {"content": letter}, "finish_reason": None}]}
        out += b"data: " + json.dumps(said).encode() + b"\n\n"
    said = {"id": id, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}
    return out + b"data: " + json.dumps(said).encode() + b"\n\ndata: [DONE]\n\n"


def test_the_same_answer_under_another_id_is_the_same() -> None:
    assert whole(answer("one", "a")) == whole(answer("one", "bcd"))
    assert whole(answer("one", "a")) != whole(answer("two", "a"))
    assert whole(answer("one" + "." * 5_000, "a")) != whole(answer("three" + "." * 5_000, "a"))


def test_the_end_of_a_long_answer_is_enough() -> None:
    long = answer("x" * 10_000, "a")
    assert whole(long[-4_096:]) == whole(answer("x" * 10_000, "other")[-4_096:])


def test_a_question_to_a_tool_is_seen_and_has_no_hash() -> None:
    for spaced in (True, False):
        assert whole(answer("", "a", "tool_calls", spaced)) == (0, True)
    assert not whole(answer('"finish_reason":"tool_calls"', "a"))[1]


def test_a_stream_has_the_same_hash_however_it_is_cut() -> None:
    found = set()
    for size in (1, 7, 100, 10_000):
        data = chunks("hello there", str(size))
        events = Events(strip=True, reads=True)
        for at in range(0, len(data), size):
            events.feed(data[at : at + size])
        found.add((events.said, events.asks_tool))
    assert len(found) == 1
    events = Events(strip=True, reads=True)
    events.feed(chunks("hello", "x", "tool_calls"))
    assert events.asks_tool
    assert (events.said, True) not in found


def test_a_text_that_is_never_closed_does_not_run_on_into_the_next_event() -> None:
    data = b'data: {"content":"a\n\ndata: {"b":1}\n\n' + chunks("c", "x")
    together, apart = Events(strip=True, reads=True), Events(strip=True, reads=True)
    together.feed(data)
    for byte in data:
        apart.feed(bytes([byte]))
    assert together.said == apart.said


def test_a_stream_that_is_not_read_costs_and_says_nothing() -> None:
    events = Events(strip=True)
    events.feed(chunks("hello", "x"))
    assert events.said == 0


def test_a_result_is_found_in_the_newest_messages() -> None:
    assert brings_result(b'{"messages":[{"role": "tool", "tool_call_id": "c1", "content": "4"}]}')
    assert brings_result(b'{"input":[{"type":"function_call_output","call_id":"c1","output":"4"}]}')
    assert not brings_result(b'{"messages":[{"role":"user","content":"a tool_call_id"}],"tools":[]}')
