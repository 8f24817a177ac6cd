"""A Prometheus on loopback that answers each query as it is told, byte by byte."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from urllib.parse import parse_qs, urlsplit

SILENT = b"silent"  # never answers
DRIPPING = b"dripping"  # a byte now and then, for ever
ENDLESS = b"endless"  # as much as anybody takes


def answer(kind: str, result: object) -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": kind, "result": result}}).encode()


def vector(*values: str) -> bytes:
    return answer("vector", [{"metric": {"n": str(n)}, "value": [1.5, v]} for n, v in enumerate(values)])


class PrometheusTwin:
    def __init__(self) -> None:
        self.answers: dict[str, bytes] = {}  # by query
        self.asked: list[str] = []
        self.hosts: list[str] = []  # as each request named us
        self.redirects: dict[str, str] = {}  # query -> where it is sent on to
        self.connections = 0
        self.sent = 0  # bytes of what goes on for ever
        self.url = ""

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator["PrometheusTwin"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                await self._answer(reader, writer)
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        target = urlsplit(head.split(b" ", 2)[1].decode())
        query = parse_qs(target.query)["query"][0]
        self.asked.append(query)
        self.hosts += [
            line[5:].strip().decode() for line in head.splitlines() if line[:5].lower() == b"host:"
        ]
        assert target.path == "/api/v1/query"
        body = self.answers.get(query, b'{"status": "error", "error": "parse error"}')
        if query in self.redirects:
            location = self.redirects[query].encode()
            writer.write(b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: %b\r\n\r\n" % location)
            await writer.drain()
        elif body is SILENT:
            await reader.read()  # until whoever asks gives up
        elif body in (DRIPPING, ENDLESS):
            await self._go_on(writer, body)
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n")
            writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
            await writer.drain()

    async def _go_on(self, writer: asyncio.StreamWriter, how: bytes) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        while not writer.is_closing():
            writer.write(b" " if how is DRIPPING else b" " * 65536)
            await writer.drain()
            self.sent += 1 if how is DRIPPING else 65536
            await asyncio.sleep(0.05 if how is DRIPPING else 0)
