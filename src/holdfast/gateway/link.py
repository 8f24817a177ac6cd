"""The socket between a keeper and a worker: frames of msgpack, both ways."""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.gateway import messages
from holdfast.wire.frame import BadFrame, Reader, pack

LARGEST = 64 << 20


class Link(asyncio.Protocol):
    """One end of it. Messages that come are handed on in their order."""

    def __init__(self, kinds: object) -> None:
        self._reader = Reader(kinds, LARGEST)
        self._transport: asyncio.Transport | None = None
        self._waiting: list[Any] = []
        self._on_message: Callable[[Any], None] | None = None
        self.on_lost: Callable[[], None] = lambda: None
        self.lost = asyncio.get_running_loop().create_future()
        self.first: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    @property
    def on_message(self) -> Callable[[Any], None] | None:
        return self._on_message

    @on_message.setter
    def on_message(self, take: Callable[[Any], None]) -> None:
        self._on_message = take
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            take(message)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def send(self, message: msgspec.Struct) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(pack(message))

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._reader.feed(data):
                if not self.first.done():
                    self.first.set_result(message)
                elif self._on_message is None:
                    self._waiting.append(message)
                else:
                    self._on_message(message)
        except BadFrame:
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)
        if not self.first.done():
            self.first.cancel()
        self.on_lost()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            await self.lost


async def connect(path: str) -> tuple[Link, messages.Start]:
    """The worker's end; what the keeper says first is how to start."""
    loop = asyncio.get_running_loop()
    _, link = await loop.create_unix_connection(lambda: Link(messages.ToWorker), path)
    link.send(messages.Hello(os.getpid()))
    start = await link.first
    return link, start
