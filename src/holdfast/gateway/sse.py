"""A stream of events on its way through: whole events go on at once, and usage is read.

Upstream was asked to tell its usage at the end. If the client did not ask for that, the event that tells
nothing else is taken out. Events are not decoded to be passed on: a search in the bytes says whether there is
anything to look at. Only what comes before the first content is decoded, because until then the answer may
still be had from another replica.
"""

import re
import zlib
from typing import Annotated, Any

import msgspec

from holdfast.gateway.ask import NOT_JSON
from holdfast.gateway.glance import TOOLS

TAIL_MAX = 1_048_576  # an event longer than this is passed on unread
DONE = b"data: [DONE]"
SAYS_USAGE = (b'"usage":{', b'"usage": {')
EVENT = re.compile(rb"\r?\n|.+?\n\r?\n|.+", re.DOTALL)  # up to an empty line
TEXT = re.compile(rb'"(?:content|text)": ?"([^"\\\n]*(?:\\.[^"\\\n]*)*)"')
FINISHED = (b'"finish_reason":"', b'"finish_reason": "')
TOO_LONG = (b'"finish_reason":"length"', b'"finish_reason": "length"')


Count = Annotated[int, msgspec.Meta(ge=0)]  # one below zero would give quota back that nobody took


class Usage(msgspec.Struct):
    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    total_tokens: Count = 0
    input_tokens: Count = 0  # as /v1/responses calls them
    output_tokens: Count = 0

    @property
    def prompt(self) -> int:
        return self.prompt_tokens or self.input_tokens

    @property
    def completion(self) -> int:
        return self.completion_tokens or self.output_tokens

    @property
    def total(self) -> int:
        both = self.prompt + self.completion
        return both if both > self.total_tokens else self.total_tokens


class WithUsage(msgspec.Struct):
    usage: Usage | None = None
    choices: list[msgspec.Raw] | None = None


_usage = msgspec.json.Decoder(WithUsage)
_anything = msgspec.json.Decoder()


class Events:
    """One stream. `feed` gives what goes on to the client."""

    __slots__ = (
        "asks_tool", "content", "count", "ended", "failed", "length", "reads", "said", "strip", "tail",
        "usage",
    )  # fmt: skip

    def __init__(self, *, strip: bool, reads: bool = False) -> None:
        self.strip = strip
        self.reads = reads
        self.said = 0  # a hash of its text, if it is read
        self.asks_tool = False
        self.tail = b""
        self.usage: Usage | None = None
        self.content = False  # something that a person would see has come
        self.failed = ""  # upstream said so in the stream, before any content
        self.count = 0  # events with data
        self.length = False  # ended because it was as long as it may be
        self.ended = False  # [DONE] has come

    def feed(self, data: bytes) -> bytes:
        if self.tail:
            data = self.tail + data
        if data.endswith(b"\n\n"):
            block, self.tail = data, b""
        else:
            end = max(data.rfind(b"\n\n") + 2, data.rfind(b"\n\r\n") + 3)
            if end < 3 and len(data) <= TAIL_MAX:  # neither was found
                self.tail = data
                return b""
            if end < 3:
                self.content, self.tail = True, b""
                return data
            block, self.tail = data[:end], data[end:]
        return self._whole(block)

    def rest(self) -> bytes:
        """What came after the last whole event, when there will be no more."""
        tail, self.tail = self.tail, b""
        return tail

    def _whole(self, block: bytes) -> bytes:
        self.count += block.count(b"data: {") or block.count(b"data:")
        if not self.content:
            self._look_for_content(block)
        if SAYS_USAGE[0] in block or SAYS_USAGE[1] in block:
            block = self._read_usage(block)
        if FINISHED[0] in block or FINISHED[1] in block:
            self.length = self.length or TOO_LONG[0] in block or TOO_LONG[1] in block
            self.asks_tool = self.asks_tool or TOOLS[0] in block or TOOLS[1] in block
        if self.reads:
            for text in TEXT.findall(block):  # as it is written: to decode it would cost some times as much
                self.said = zlib.crc32(text, self.said)
        if DONE in block:
            self.ended = self.content = True
        return block

    def _look_for_content(self, block: bytes) -> None:
        for event in block.replace(b"\r\n", b"\n").split(b"\n\n"):
            said = data_of(event)
            if not said or said == b"[DONE]":
                continue
            try:
                decoded = _anything.decode(said)
            except NOT_JSON:
                self.content = True  # not what we know: nothing to wait for
                return
            if isinstance(decoded, dict) and decoded.get("error"):
                self.failed = str(decoded["error"])[:300]
                return
            if has_content(decoded):
                self.content = True
                return

    def _read_usage(self, block: bytes) -> bytes:
        kept = []
        for event in EVENT.findall(block):
            if SAYS_USAGE[0] in event or SAYS_USAGE[1] in event:
                try:
                    read = _usage.decode(data_of(event))
                except NOT_JSON:
                    kept.append(event)
                    continue
                if read.usage is not None:
                    self.usage = read.usage
                    if self.strip and read.choices is not None and not read.choices:
                        continue
            kept.append(event)
        return b"".join(kept)


def data_of(event: bytes) -> bytes:
    """The data of one event: usually one line of it."""
    event = event.rstrip(b"\r\n")
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:]
    lines = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines)


def has_content(decoded: Any) -> bool:
    """A role alone is none. What has another shape than chats and completions counts as content."""
    if not isinstance(decoded, dict):
        return True
    choices = decoded.get("choices")
    if not isinstance(choices, list):
        return True
    for choice in choices:
        if not isinstance(choice, dict) or choice.get("finish_reason") or choice.get("text"):
            return True
        delta = choice.get("delta")
        if isinstance(delta, dict) and any(value for name, value in delta.items() if name != "role"):
            return True
    return False


def text_of(block: bytes) -> str:
    """The text in whole events, as far as they are a chat with one choice."""
    parts = []
    for event in block.replace(b"\r\n", b"\n").split(b"\n\n"):
        said = data_of(event)
        if not said.startswith(b"{"):
            continue
        try:
            decoded = _anything.decode(said)
            parts.append(decoded["choices"][0]["delta"].get("content") or "")
        except (*NOT_JSON, KeyError, IndexError, TypeError, AttributeError):
            continue
    return "".join(parts)


def usage_in(body: bytes) -> Usage | None:
    """The usage that a whole answer tells."""
    try:
        return _usage.decode(body).usage
    except NOT_JSON:
        return usage_at_end(body)


def usage_at_end(tail: bytes) -> Usage | None:
    """The usage in the last bytes of an answer of which the beginning was not kept."""
    at = tail.rfind(b'"usage"')
    if at < 0:
        return None
    start = tail.find(b"{", at)
    depth = 0
    for end in range(start, len(tail)) if start >= 0 else ():
        depth += (tail[end] == 0x7B) - (tail[end] == 0x7D)
        if depth == 0:
            try:
                return msgspec.json.decode(tail[start : end + 1], type=Usage)
            except NOT_JSON:
                return None
    return None
