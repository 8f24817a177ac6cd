"""An engine as bare as can be, for measuring what stands before it: it shares a processor with those who ask.

    python -m bench._gateway_engine PORT

A model `NAME-t20-i10-n50` is 50 events, the first after 20 ms, then one every 10 ms; any other is answered at
once. What a request says is looked for in its bytes and not read: the twin (`holdfast.sim.live.llm_engine`)
reads it, and takes ten times as long.
"""

import asyncio
import json
import re
import socket
import sys

import uvloop

LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
PACE = re.compile(rb'"model": *"[^"]*-t(\d+)-i(\d+)-n(\d+)"')
USAGE = {"prompt_tokens": 20, "completion_tokens": 20, "total_tokens": 40}
KIND = {"id": "chatcmpl-1", "created": 1, "model": "toy"}


def answer() -> bytes:
    message = {"role": "assistant", "content": "tok " * 20}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    body = json.dumps({**KIND, "object": "chat.completion", "choices": choices, "usage": USAGE}).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
        len(body),
        body,
    )


def event(**said: object) -> bytes:
    data = json.dumps({**KIND, "object": "chat.completion.chunk", **said}, separators=(",", ":")).encode()
    return chunk(b"data: " + data + b"\n\n")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def delta(finish: str | None = None, **said: str) -> list[object]:
    return [{"index": 0, "delta": said, "finish_reason": finish}]


WHOLE = answer()
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
FIRST = HEAD + event(choices=delta(role="assistant", content=""))
NEXT = event(choices=delta(content=" tok"))
LAST = (
    event(choices=delta("stop")) + event(choices=[], usage=USAGE) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
)


class Engine(asyncio.Protocol):
    def __init__(self) -> None:
        self.data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.loop = asyncio.get_running_loop()

    def data_received(self, data: bytes) -> None:
        self.data = data = self.data + data if self.data else data
        end = data.find(b"\r\n\r\n") + 4
        if end < 4:
            return
        length = LENGTH.search(data, 0, end)
        if len(data) < end + (int(length[1]) if length else 0):
            return
        self.data = b""
        pace = PACE.search(data, end) if data.find(b'"stream":true', end) > 0 else None
        if pace is None:
            self.transport.write(WHOLE)
            return
        first, between, count = (int(number) for number in pace.groups())
        self.loop.call_later(first / 1e3, self.go_on, FIRST + NEXT, between / 1e3, count - 1)

    def go_on(self, said: bytes, wait_s: float, left: int) -> None:
        if self.transport.is_closing():
            return
        self.transport.write(said if left else said + LAST)
        if left:
            self.loop.call_later(wait_s, self.go_on, NEXT, wait_s, left - 1)


async def main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", port, backlog=4_096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
