"""Many who ask a gateway at once, as bare as can be: what is measured is the gateway and not its client.

    python -m bench._gateway_client URL KEY MODEL --mode whole|stream --clients 32 --seconds 10

Each client asks again when it has its answer. The last line is one JSON object.
"""

import argparse
import asyncio
import json
import socket
import time
from urllib.parse import urlsplit

import uvloop

END = b"\r\n0\r\n\r\n"
CONTENT = b'"content":" tok'


class Run:
    def __init__(self, args: argparse.Namespace) -> None:
        parts = urlsplit(args.url)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80
        body = {
            "model": args.model,
            "max_tokens": args.max_tokens,
            "messages": [{"role": "user", "content": "Write one sentence about a river. " * args.repeat}],
        }
        if args.mode == "stream":
            body["stream"] = True
        encoded = json.dumps(body, separators=(",", ":")).encode()
        head = (
            f"POST {parts.path} HTTP/1.1\r\nhost: {parts.netloc}\r\nauthorization: Bearer {args.key}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(encoded)}\r\n\r\n"
        )
        self.request = head.encode() + encoded
        self.is_stream = args.mode == "stream"
        self.left = args.requests or 1 << 60
        self.done = self.refused = self.failed = self.chunks = self.tokens = 0
        self.first_s: list[float] = []
        self.took_s: list[float] = []
        self.open = 0
        self.ends_at = 0.0


class Client(asyncio.Protocol):
    def __init__(self, run: Run) -> None:
        self.run = run

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.run.open += 1
        self.ask()

    def ask(self) -> None:
        run = self.run
        if run.left <= 0 or time.perf_counter() >= run.ends_at:
            self.transport.close()
            return
        run.left -= 1
        self.data, self.need, self.first = b"", -1, 0.0
        self.began = time.perf_counter()
        self.transport.write(run.request)

    def data_received(self, data: bytes) -> None:
        run = self.run
        if run.is_stream and self.data[:12] in (b"", b"HTTP/1.1 200") and self._streamed(data):
            return
        self.data += data
        if self.need < 0:
            end = self.data.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self.data[:end].lower()
            length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
            self.need = end + 4 + int(length or 0)
        if len(self.data) >= self.need:
            self._answered()

    def _streamed(self, data: bytes) -> bool:
        if not self.data and not data.startswith(b"HTTP/1.1 200"):
            return False
        count = data.count(CONTENT)
        if count and not self.first:
            self.first = time.perf_counter()
            self.run.first_s.append(self.first - self.began)
        self.run.chunks += count
        self.data = (self.data or b"HTTP/1.1 200") + data[-16:]
        if self.data.endswith(END):
            self.run.done += 1
            self.run.took_s.append(time.perf_counter() - self.began)
            self.ask()
        else:
            self.data = self.data[:12] + self.data[-16:]
        return True

    def _answered(self) -> None:
        run = self.run
        run.took_s.append(time.perf_counter() - self.began)
        status = self.data[9:12]
        if status == b"200":
            run.done += 1
            run.tokens += int(self.data.partition(b'"total_tokens":')[2].partition(b"}")[0] or 0)
        elif status == b"429":
            run.refused += 1
        else:
            run.failed += 1
        self.ask()

    def connection_lost(self, exc: Exception | None) -> None:
        self.run.open -= 1
        if exc is not None:
            self.run.failed += 1


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1_000 if ordered else 0.0


async def main(args: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    run = Run(args)
    began = time.perf_counter()
    run.ends_at = began + args.seconds
    for _ in range(args.clients):
        await loop.create_connection(lambda: Client(run), run.host, run.port)
    while run.open and time.perf_counter() < run.ends_at + 30:
        await asyncio.sleep(0.02)
    seconds = time.perf_counter() - began
    said = {
        "seconds": seconds,
        "done": run.done,
        "refused": run.refused,
        "failed": run.failed,
        "chunks": run.chunks,
        "tokens": run.tokens,
        "per_s": run.done / seconds,
        "first_ms_p50": quantile(run.first_s, 0.5),
        "first_ms_p99": quantile(run.first_s, 0.99),
        "took_ms_p50": quantile(run.took_s, 0.5),
        "took_ms_p99": quantile(run.took_s, 0.99),
    }
    print(json.dumps(said))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("key")
    parser.add_argument("model")
    parser.add_argument("--mode", choices=("whole", "stream"), default="whole")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--requests", type=int, default=0)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=2)
    given = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(given))
