"""What strangers write, in any bytes and cut anywhere: how it must be read.

Each target takes what a fuzzer made: the bytes that arrive, and at their end a few that say how they are cut
and under which settings they are read. It fails by an exception; whoever drives it decides what to try.
"""

import contextlib
import itertools
import json
from collections.abc import Callable
from typing import Any
from unittest import mock

from holdfast.gateway import ask as asks
from holdfast.gateway import down as downs
from holdfast.gateway import sse
from holdfast.gateway import up as ups
from holdfast.gateway.down import Down
from holdfast.gateway.sse import Events
from tests.gateway_twins import answer_by_another, answered, heard, read_by_another

CUTS = 4
TRAILER = 1 + 2 * CUTS
# small, so that short inputs reach them
HEAD_MAX = 300
BACKLOG_MAX = 400
BODY_MAX = 300
TAIL_MAX = 64
LOOK_EVERY = 32


def cut(data: bytes) -> tuple[list[bytes], int]:
    """The pieces that arrive, and eight bits that say how they are read. One bit of them: byte by byte."""
    if len(data) < TRAILER:
        return ([data] if data else []), 0
    payload, trailer = data[:-TRAILER], data[-TRAILER:]
    flags = trailer[0]
    if flags & 0x80:
        return [bytes([byte]) for byte in payload], flags
    wanted = [int.from_bytes(trailer[at : at + 2]) for at in range(1, TRAILER, 2)]
    at = sorted({each % (len(payload) + 1) for each in wanted if each})
    pieces = [payload[start:end] for start, end in zip([0, *at], [*at, len(payload)], strict=True)]
    return [piece for piece in pieces if piece], flags


def held(thing: Any) -> int:
    """Bytes that a connection keeps of what came."""
    kept = [getattr(thing, name, None) for name in type(thing).__slots__]
    return sum(_size(each) for each in kept)


def _size(kept: object) -> int:
    if isinstance(kept, bytes | bytearray):
        return len(kept)
    if isinstance(kept, list | tuple):
        return sum(_size(each) for each in kept)
    return 0


def down(data: bytes) -> None:
    """Requests are those that another reader reads, with the cuts as without; little is kept."""
    pieces, flags = cut(data)
    whole = b"".join(pieces)
    body_max = BODY_MAX if flags & 1 else 1_000_000
    most = max(map(len, pieces), default=0)
    seen = itertools.count(1)

    def look(connection: Down) -> None:
        if next(seen) % LOOK_EVERY == 0 or len(pieces) <= LOOK_EVERY:
            # what is kept of a head is said twice: as it came, and as it goes on
            assert held(connection) <= 2 * (HEAD_MAX + most) + body_max + BACKLOG_MAX + most

    with contextlib.ExitStack() as small:
        if flags & 1:
            small.enter_context(mock.patch.multiple(downs, HEAD_MAX=HEAD_MAX, BACKLOG_MAX=BACKLOG_MAX))
        worker, wire = heard(pieces, answered_late=bool(flags & 2), body_max=body_max, look=look)
    others = read_by_another(whole)
    assert worker.requests == others[: len(worker.requests)], (worker.requests, others)
    statuses = [status for status in worker.counts.by_status if status != 200]
    assert len(statuses) <= 1
    if statuses:
        assert wire.ended


def up(data: bytes) -> None:
    """An answer is whole only if another reader takes it for whole, and the cuts make no difference."""
    pieces, flags = cut(data)
    whole = b"".join(pieces)
    is_head = bool(flags & 2)
    got, alike = answered(pieces, is_head=is_head), answered([whole] if whole else [], is_head=is_head)
    assert got.complete is not bool(got.failure), "it ends in one of two ways"
    if not is_head:  # what comes after its head should not be there, and may be seen or not
        assert (got.complete, got.kept and alike.kept) == (alike.complete, alike.kept)
    assert held(got.up) <= ups.HEAD_MAX + len(whole)
    if got.complete and alike.complete:
        assert (got.up.status, got.up.lines, got.body) == (alike.up.status, alike.up.lines, alike.body)
        assert (got.up.status, got.body) == answer_by_another(whole, is_head=is_head)


def stream(data: bytes) -> None:
    """What comes out is what went in, less the events that say usage and nothing else, whatever the cuts."""
    pieces, flags = cut(data)
    whole = b"".join(pieces)
    strip = bool(flags & 1)
    if flags & 2:  # events that are too long to be looked at
        with mock.patch.object(sse, "TAIL_MAX", TAIL_MAX):
            out, events = _through(pieces, strip, TAIL_MAX)
        assert out == whole or strip
        return
    out, events = _through(pieces, strip, sse.TAIL_MAX)
    alike, others = _through([whole], strip, sse.TAIL_MAX)
    assert out == alike
    said = ("usage", "ended", "length", "failed", "said", "asks_tool")
    assert [getattr(events, name) for name in said] == [getattr(others, name) for name in said]
    if not events.failed:
        assert events.content == others.content
    assert out == (without_usage(whole) if strip else whole)


def _through(pieces: list[bytes], strip: bool, most: int) -> tuple[bytes, Events]:
    events = Events(strip=strip, reads=True)
    out = b""
    for piece in pieces:
        out += events.feed(piece)
        assert len(events.tail) <= most + len(piece)
    return out + events.rest(), events


def without_usage(whole: bytes) -> bytes:
    """The same by somebody who sees all of it: lines, and events that end with an empty one."""
    out = event = b""
    data: list[bytes] = []
    *lines, rest = whole.split(b"\n")
    for line in lines:
        event += line + b"\n"
        if line.startswith(b"data:"):
            data.append(line[5:].strip())
        elif line in (b"", b"\r"):
            out += b"" if _only_usage(b"\n".join(data)) else event
            event, data = b"", []
    return out + event + rest


def _only_usage(said: bytes) -> bool:
    try:
        read = sse._usage.decode(said)
    except (ValueError, RecursionError):
        return False
    says = any(words in said for words in sse.SAYS_USAGE)
    return says and read.usage is not None and read.choices is not None and not read.choices


def body(data: bytes) -> None:
    """A body is read or refused; what goes on asks for the same, and for its usage."""
    pieces, flags = cut(data)
    sent = b"".join(pieces)
    try:
        ask = asks.read(sent)
    except asks.NotReadable:
        return
    text, media = asks.prompt_size(sent)
    assert 0 <= text <= len(sent)
    assert media >= 0
    told, _ = asks.with_usage(sent, ask, all_the_time=bool(flags & 1))
    again = asks.read(told)
    assert again.stream_options is not None
    assert again.stream_options.include_usage
    asks.continued(sent, "so far", 2)
    before, after = _by_another(sent), _by_another(told)
    if before is None:
        return
    assert after is not None
    before.pop("stream_options", None)
    after.pop("stream_options", None)
    assert before == after
    for name in (
        "model",
        "stream",
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "n",
        "best_of",
    ):
        assert before.get(name) == getattr(ask, name), "upstream reads another than we count"


def _by_another(sent: bytes) -> dict[str, Any] | None:
    try:
        read = json.loads(sent)
    except (ValueError, RecursionError):
        return None
    return read if isinstance(read, dict) else None


TARGETS: dict[str, Callable[[bytes], None]] = {"down": down, "up": up, "stream": stream, "body": body}
