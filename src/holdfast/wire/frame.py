"""Messages as frames: four bytes of length, then msgpack. A peer that sends garbage is told apart at once."""

import struct
from collections.abc import Iterator

import msgspec

LENGTH = struct.Struct(">I")
FROM_AGENT_MAX = 1 << 20
TO_AGENT_MAX = 16 << 20


class BadFrame(Exception):
    """The other side does not speak our language."""


_encoder = msgspec.msgpack.Encoder()


def pack(message: msgspec.Struct) -> bytes:
    body = _encoder.encode(message)
    return LENGTH.pack(len(body)) + body


class Reader:
    """Bytes as they come in; messages as they are complete. What comes in drops is put together once, when
    there is enough of it."""

    def __init__(self, kinds: object, largest: int) -> None:
        self._decode = msgspec.msgpack.Decoder(kinds).decode
        self.largest = largest  # bytes of a message; it may be changed between two
        self._parts: list[bytes] = []
        self._have, self._need = 0, LENGTH.size
        self.size = 0  # bytes of the last message

    @property
    def held(self) -> int:
        """Bytes of a message that is not complete yet."""
        return self._have

    def feed(self, data: bytes) -> Iterator[msgspec.Struct]:
        """The messages that are complete now. BadFrame: close the connection."""
        self._parts.append(data)
        self._have += len(data)
        if self._have < self._need:
            return
        data = b"".join(self._parts) if len(self._parts) > 1 else data
        at, end, self._need = 0, self._have, LENGTH.size
        while end - at >= LENGTH.size:
            (size,) = LENGTH.unpack_from(data, at)
            if not 0 < size <= self.largest:
                raise BadFrame(f"a message of {size:,} bytes, at most {self.largest:,} are taken")
            if end - at - LENGTH.size < size:
                self._need += size
                break
            at += LENGTH.size
            try:
                message = self._decode(memoryview(data)[at : at + size])
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise BadFrame(f"not a message: {error}") from None
            at += size
            self.size = size
            yield message
        self._parts = [data[at:]] if at < end else []
        self._have = end - at
