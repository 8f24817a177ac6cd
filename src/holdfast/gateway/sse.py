"""A stream of events on its way through: whole events go on at once, and usage is read.

Upstream was asked to tell its usage at the end. If the client did not ask for that, the event that tells
nothing else is taken out. Events are not decoded to be passed on: a search in the bytes says whether there is
anything to look at. Only what comes before the first content is decoded, because until then the answer may
still be had from another replica.
"""

import re
import zlib
from typing import Any

import msgspec

from holdfast.gateway.ask import NOT_JSON
from holdfast.gateway.glance import TOOLS
from holdfast.gateway.shapes import Usage, WithUsage

TAIL_MAX = 1_048_576  # an event longer than this is passed on unread
DONE = (b"data: [DONE]", b"data:[DONE]")
SAYS_USAGE = (b'"usage":{', b'"usage": {')
EVENT = re.compile(rb"\r?\n|.+?\n\r?\n|.+", re.DOTALL)  # up to an empty line
TEXT = re.compile(rb'"(?:content|text)": ?"([^"\\\n]*(?:\\.[^"\\\n]*)*)"')
FINISHED = (b'"finish_reason":"', b'"finish_reason": "')
WHY = re.compile(rb'"finish_reason": ?"[^"]')  # some write an empty one in every event
TOO_LONG = (b'"finish_reason":"length"', b'"finish_reason": "length"')

_usage = msgspec.json.Decoder(WithUsage)
_anything = msgspec.json.Decoder()


class Events:
    """One stream. `feed` gives what goes on to the client."""

    __slots__ = (
        "asks_tool", "content", "count", "ended", "failed", "finished", "length", "reads", "said", "strip",
        "tail", "usage",
    )  # fmt: skip

    def __init__(self, *, strip: bool, reads: bool = False) -> None:
        self.strip = strip
        self.reads = reads
        self.said = 0  # a hash of its text, if it is read
        self.asks_tool = False
        self.tail = b""
        self.usage: Usage | None = None
        self.content = False  # something that a person would see has come
        self.failed = ""  # upstream said so in the stream, before any content; or as its content, see below
        self.count = 0  # events with data
        self.length = False  # ended because it was as long as it may be
        self.finished = False  # a choice has said why it ends: of a chat with one, nothing more comes of it
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

    def plain(self, data: bytes) -> bool:
        """Is it one whole event, with nothing in it that we read? Nearly all are, and go on as they came."""
        if (
            self.tail
            or self.reads
            or not data.startswith(b"data: {")
            or not data.endswith(b"\n\n")
            or data.find(b"\n") != len(data) - 2
            or _says(data, SAYS_USAGE)
            or _says(data, FINISHED)
        ):
            return False
        self.count += 1
        return True

    def rest(self) -> bytes:
        """What came after the last whole event, when there will be no more."""
        tail, self.tail = self.tail, b""
        return tail

    def _whole(self, block: bytes) -> bytes:
        self.count += _lines(block, b"data: {") or _lines(block, b"data:")
        if not self.content:
            self._look_for_content(block)
        if _says(block, SAYS_USAGE):
            block = self._read_usage(block)
        if _says(block, FINISHED):
            self.finished = self.finished or WHY.search(block) is not None
            self.length = self.length or _says(block, TOO_LONG)
            self.asks_tool = self.asks_tool or _says(block, TOOLS)
        if self.reads:
            for text in TEXT.findall(block):  # as it is written: to decode it would cost some times as much
                self.said = zlib.crc32(text, self.said)
        if _lines(block, DONE[0]) or _lines(block, DONE[1]):
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
                self.content = asks_wrongly(decoded["error"])
                return
            if has_content(decoded):
                self.content = True
                return

    def _read_usage(self, block: bytes) -> bytes:
        kept = []
        for event in events_of(block):
            if _says(event, SAYS_USAGE):
                try:
                    read = _usage.decode(data_of(event))
                except NOT_JSON:
                    kept.append(event)
                    continue
                if read.usage is None and read.response is not None:
                    read.usage = read.response.usage
                if read.usage is not None:
                    self.usage = read.usage
                    if self.strip and read.choices is not None and not read.choices:
                        continue
            kept.append(event)
        return b"".join(kept)


def events_of(block: bytes) -> list[bytes]:
    """Whole events, each with its end. Where no line ends otherwise, a split does in a tenth of the time."""
    if block.find(b"\r") >= 0 or not block.endswith(b"\n\n"):
        return EVENT.findall(block)
    return [event + b"\n\n" for event in block[:-2].split(b"\n\n")]


def _says(data: bytes, either: tuple[bytes, bytes]) -> bool:
    """`in` would first take the bytes for a number and make an error of it: dearer than the search."""
    return data.find(either[0]) >= 0 or data.find(either[1]) >= 0


def _lines(block: bytes, start: bytes) -> int:
    """How many lines begin so: a text that a model writes may hold the same words."""
    return block.count(b"\n" + start) + block.startswith(start)


def data_of(event: bytes) -> bytes:
    """The data of one event: usually one line of it."""
    event = event.rstrip(b"\r\n")
    if event.startswith(b"data: ") and event.find(b"\n") < 0:
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


def asks_wrongly(error: Any) -> bool:
    """Does it speak of the request and not of the replica? Another would say the same, so it is the answer.
    Engines that have begun a stream can say so in it alone."""
    if not isinstance(error, dict):
        return False
    code = error.get("code")
    if isinstance(code, int):
        return 400 <= code < 500 and code not in (408, 429)
    return error.get("type") == "invalid_request_error"


def said_in(block: bytes) -> tuple[str, int, bool]:
    """What whole events say, as far as they are a chat with one choice: its text; in how many of them
    anything is said; and is there more than text (what was thought, a tool that is asked for, what cannot be
    read here)?"""
    parts, count, more = [], 0, False
    for event in block.replace(b"\r\n", b"\n").split(b"\n\n"):
        said = data_of(event)
        if not said.startswith(b"{"):
            continue
        try:
            decoded = _anything.decode(said)
        except msgspec.DecodeError:
            more = more or said.endswith(b"}")  # half of a character, say: whoever asked may have read it
            continue
        except NOT_JSON:
            continue
        try:
            said_of = {name: value for name, value in decoded["choices"][0]["delta"].items() if value}
        except (KeyError, IndexError, TypeError, AttributeError):
            continue
        said_of.pop("role", None)
        count += bool(said_of)
        text = said_of.pop("content", "")
        if isinstance(text, str):
            parts.append(text)
        more = more or bool(said_of) or not isinstance(text, str)
    return "".join(parts), count, more


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
