"""The same head once more: it was read before, so it is not read again.

On a connection that is kept, the next head is usually the last one with another length. Equal bytes mean
equal things, so what was read of the first still stands; only the number is read anew, and the body is what
comes after. Anything else (another header, more or less than one whole message, no length) goes to the
parser, which stays where it was: between two messages.

Kept for one connection and not for all: there is no table that strangers could fill, and nobody's secret
outlives its connection.
"""

import re

LENGTH = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ([0-9]{1,8})\r\n")
DIGITS_MAX = 8
HEAD_MAX = 8_192


class Again:
    __slots__ = ("_at", "_rest", "_size", "_start")

    def __init__(self, start: bytes, rest: bytes) -> None:
        self._start, self._rest = start, rest
        self._at, self._size = len(start), len(rest)

    def body(self, data: bytes) -> bytes | None:
        """What comes after the same head, if that is exactly the message."""
        if not data.startswith(self._start):
            return None
        end = data.find(b"\r", self._at, self._at + DIGITS_MAX + 1)
        if end < 0 or not data.startswith(self._rest, end):
            return None
        digits = data[self._at : end]
        body = end + self._size
        if not digits.isdigit() or body + int(digits) != len(data):
            return None
        return data[body:]


def again(data: bytes) -> Again | None:
    """For a whole message that the parser has taken: how the next one may begin."""
    end = data.find(b"\r\n\r\n", 0, HEAD_MAX)
    found = LENGTH.search(data, 0, end + 2) if end > 0 else None
    if found is None:
        return None
    learned = Again(data[: found.start(1)], data[found.end(1) : end + 4])
    return learned if learned.body(data) is not None else None
