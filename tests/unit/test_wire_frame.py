"""Whatever bytes come over a link: a message, or a peer that does not speak our language."""

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.place import Place
from holdfast.wire.frame import FROM_AGENT_MAX, LENGTH, BadFrame, Reader, pack
from holdfast.wire.messages import Confirmed, FromAgent, Hello, Message

HELLO = Hello(1, "n1", b"k" * 32, b"s" * 64, "i", "t", ("web/0.1",), "pool", place=Place("p", "r", "z", "k"))


def heard(body: bytes) -> list[msgspec.Struct]:
    return list(Reader(FromAgent, FROM_AGENT_MAX).feed(LENGTH.pack(len(body)) + body))


def body_of(message: Message) -> bytes:
    return pack(message)[LENGTH.size :]


@given(st.data())
def test_a_damaged_message_is_a_message_or_a_bad_frame(data: st.DataObject) -> None:
    body = bytearray(body_of(HELLO))
    for at in data.draw(st.lists(st.integers(0, len(body) - 1), min_size=1, max_size=4)):
        body[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(BadFrame):
        heard(bytes(body))


def test_text_that_is_none_is_a_bad_frame() -> None:
    with pytest.raises(BadFrame, match="not a message"):
        heard(body_of(HELLO).replace(b"\xa2n1", b"\xa2\xff\xfe"))


def test_a_message_nested_without_end_is_a_bad_frame() -> None:
    body = body_of(Confirmed(3))
    longer = bytes([body[0] + 1]) + body[1:]  # with another field, as a newer peer would send it
    assert heard(longer + b"\x00") == [Confirmed(3)]
    with pytest.raises(BadFrame, match="not a message"):
        heard(longer + b"\x91" * 500_000)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.data())
def test_messages_come_whole_however_they_are_cut(numbers: list[int], data: st.DataObject) -> None:
    stream = b"".join(pack(Confirmed(number)) for number in numbers)
    reader, at = Reader(FromAgent, FROM_AGENT_MAX), 0
    got: list[msgspec.Struct] = []
    while at < len(stream):
        step = data.draw(st.integers(1, 20))
        got += reader.feed(stream[at : at + step])
        at += step
    assert got == [Confirmed(number) for number in numbers]
