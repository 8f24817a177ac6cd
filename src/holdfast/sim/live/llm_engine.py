"""A twin of an engine that serves a model: it speaks OpenAI's API, counts tokens, answers nonsense in time.

    python -m holdfast.sim.live.llm_engine --port 8000 --first-ms 200 --gap-ms 20 --tokens 64

Nobody needs a GPU to try a gateway. What a request gets can be said in the name of its model:
`toy-t50-i10-n32` waits 50 ms for its first token, then 10 ms for each of 32. Faults are options: a share
of requests that is refused, a share of streams that dies in the middle, no usage told, a number of requests
at a time after which it answers 429. `/stats` says what it did, and how many streams nobody read to the end.
"""

import argparse
import asyncio
import contextlib
import math
import random
import re
import socket
import time
from typing import Any

import httptools
import msgspec

TUNED = re.compile(r"-t(\d+)-i(\d+)-n(\d+)$")
BYTES_A_TOKEN = 4
NOT_SERVED = (
    b'{"error":{"message":"the twin of an engine does not serve %s","type":"invalid_request_error",'
    b'"param":null,"code":"unknown_url"}}'
)


class Stats(msgspec.Struct):
    requests: int = 0
    streams: int = 0
    tokens: int = 0
    cut: int = 0  # streams that ended before their end
    in_flight: int = 0
    in_flight_most: int = 0
    usage_asked: int = 0
    continued: int = 0
    connections: int = 0


class Engine:
    def __init__(self, wanted: argparse.Namespace) -> None:
        self.wanted = wanted
        self.stats = Stats()
        self.loop = asyncio.get_running_loop()


class Asked(asyncio.Protocol):
    """One connection."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.parser = httptools.HttpRequestParser(self)
        self.url, self.body = b"", b""
        self.running: asyncio.Task[None] | None = None
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.engine.stats.connections += 1
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self.running is not None:
            self.running.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.close()

    def on_message_begin(self) -> None:
        self.url, self.body = b"", b""

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        path = self.url.partition(b"?")[0]
        if path == b"/stats":
            self.say(200, msgspec.json.encode(self.engine.stats))
        elif path == b"/health":
            self.say(200, b'{"status":"ok"}')
        elif path.endswith((b"/completions", b"/embeddings", b"/responses")):
            self.asked_for_tokens(path)
        elif path.endswith(b"/models"):
            self.say(200, b'{"object":"list","data":[{"id":"toy","object":"model"}]}')
        elif path.startswith(b"/v1/"):
            self.say(404, NOT_SERVED % path)
        else:
            self.say(200, msgspec.json.encode({"path": self.url.decode(), "bytes": len(self.body)}))

    def say(self, status: int, body: bytes, more: bytes = b"") -> None:
        head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%s\r\n"
        self.transport.write(head % (status, len(body), more) + body)

    def asked_for_tokens(self, path: bytes) -> None:
        engine, wanted = self.engine, self.engine.wanted
        stats = engine.stats
        stats.requests += 1
        if wanted.fail_share and random.random() < wanted.fail_share:
            self.say(503, b'{"error":{"message":"out of luck","type":"server_error","code":503}}')
            return
        if wanted.at_a_time and stats.in_flight >= wanted.at_a_time:
            self.say(429, b'{"error":{"message":"busy","type":"server_error"}}', b"retry-after: 1\r\n")
            return
        try:
            body: dict[str, Any] = msgspec.json.decode(self.body)
        except msgspec.DecodeError:
            self.say(400, b'{"error":{"message":"no JSON","type":"invalid_request_error"}}')
            return
        stats.in_flight += 1
        stats.in_flight_most = max(stats.in_flight_most, stats.in_flight)
        kind = Response if path.endswith(b"responses") else Plan
        plan = kind(body, wanted, is_chat=b"chat" in path, is_embedding=path.endswith(b"embeddings"))
        if plan.usage_asked:
            stats.usage_asked += 1
        if body.get("continue_final_message"):
            stats.continued += 1
        if body.get("stream"):
            stats.streams += 1
            self.running = engine.loop.create_task(self.stream(plan))
        elif plan.takes_s:
            self.running = engine.loop.create_task(self.later(plan))
        else:
            self.whole(plan)

    async def later(self, plan: "Plan") -> None:
        try:
            await asyncio.sleep(plan.takes_s)
        except asyncio.CancelledError:
            self.engine.stats.in_flight -= 1
            self.engine.stats.cut += 1
            return
        self.whole(plan)

    def whole(self, plan: "Plan") -> None:
        self.engine.stats.in_flight -= 1
        self.engine.stats.tokens += plan.tokens
        self.say(200, plan.answer())

    async def stream(self, plan: "Plan") -> None:
        stats, wanted = self.engine.stats, self.engine.wanted
        ended = False
        dies = bool(wanted.die_share) and random.random() < wanted.die_share
        try:
            await asyncio.sleep(plan.first_s)
            self.transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            if plan.opens:
                self.event(plan.framed(plan.opening()))
            for number in range(plan.tokens):
                self.event(plan.framed(plan.piece(number)))
                stats.tokens += 1
                if dies and number >= plan.tokens // 2:
                    self.transport.abort()
                    return
                if plan.gap_s:
                    await asyncio.sleep(plan.gap_s)
                elif number % 8 == 7:
                    await asyncio.sleep(0)
            self.event(plan.framed(plan.closing()))
            if plan.usage_asked and not wanted.no_usage:
                self.event(plan.framed(plan.usage_event()))
            if plan.says_done:
                self.event(plan.framed(b"[DONE]"))
            self.transport.write(b"0\r\n\r\n")
            ended = True
        finally:
            stats.in_flight -= 1
            stats.cut += not ended

    def event(self, event: bytes) -> None:
        self.transport.write(b"%x\r\n%s\r\n" % (len(event), event))


class Plan:
    """What one request gets."""

    says_done = True

    def __init__(
        self, body: dict[str, Any], wanted: argparse.Namespace, *, is_chat: bool, is_embedding: bool
    ) -> None:
        self.model = str(body.get("model", "toy"))
        self.is_chat, self.is_embedding = is_chat, is_embedding
        self.opens = is_chat
        first, gap, tokens = wanted.first_ms, wanted.gap_ms, wanted.tokens
        tuned = TUNED.search(self.model)
        if tuned is not None:
            first, gap, tokens = (int(part) for part in tuned.groups())
        most = body.get("max_completion_tokens") or body.get("max_tokens") or body.get("max_output_tokens")
        self.start = 0
        messages = body.get("messages")
        if body.get("continue_final_message") and isinstance(messages, list):
            self.start = len(str(messages[-1].get("content", "")).split())
        tokens = max(0, tokens - self.start)
        self.tokens = 0 if is_embedding else min(tokens, most) if most else tokens  # of what is new
        self.too_long = bool(most) and tokens > most
        self.first_s, self.gap_s = first / 1000, gap / 1000
        self.takes_s = self.first_s + self.gap_s * self.tokens
        prompt = body.get("messages") or body.get("prompt") or body.get("input") or ""
        self.prompt = math.ceil(len(msgspec.json.encode([prompt, body.get("tools")])) / BYTES_A_TOKEN)
        options = body.get("stream_options") or {}
        self.usage_asked = bool(options.get("include_usage"))
        self.all_the_time = bool(options.get("continuous_usage_stats"))
        self.no_usage = wanted.no_usage
        self.id = f"chatcmpl-{random.getrandbits(40):x}"
        self.created = int(time.time())

    def usage(self, made: int) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": made,
            "total_tokens": self.prompt + made,
        }

    def answer(self) -> bytes:
        if self.is_embedding:
            said: dict[str, Any] = {
                "object": "list",
                "model": self.model,
                "data": [{"object": "embedding", "index": 0, "embedding": [0.25, -0.5, 0.125]}],
            }
        else:
            text = "".join(f" tok{number}" for number in range(self.tokens))
            ended = "length" if self.too_long else "stop"
            choice: dict[str, Any] = {"index": 0, "finish_reason": ended}
            if self.is_chat:
                choice["message"] = {"role": "assistant", "content": text}
            else:
                choice["text"] = text
            said = {
                "id": self.id,
                "object": "chat.completion" if self.is_chat else "text_completion",
                "created": self.created,
                "model": self.model,
                "choices": [choice],
            }
        if not self.no_usage:
            said["usage"] = self.usage(self.tokens)
        return msgspec.json.encode(said)

    def _chunk(self, delta: dict[str, Any], ended: str | None, made: int) -> bytes:
        choice: dict[str, Any] = {"index": 0, "finish_reason": ended}
        choice["delta" if self.is_chat else "text"] = delta if self.is_chat else delta.get("content", "")
        said: dict[str, Any] = {
            "id": self.id,
            "object": "chat.completion.chunk" if self.is_chat else "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": [choice],
        }
        if self.all_the_time and not self.no_usage:
            said["usage"] = self.usage(made)
        return msgspec.json.encode(said)

    def framed(self, data: bytes) -> bytes:
        return b"data: " + data + b"\n\n"

    def opening(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""}, None, 0)

    def piece(self, number: int) -> bytes:
        return self._chunk({"content": f" tok{self.start + number}"}, None, number + 1)

    def closing(self) -> bytes:
        return self._chunk({}, "length" if self.too_long else "stop", self.tokens)

    def usage_event(self) -> bytes:
        return msgspec.json.encode(
            {
                "id": self.id,
                "object": "chat.completion.chunk",
                "created": self.created,
                "model": self.model,
                "choices": [],
                "usage": self.usage(self.tokens),
            }
        )


class Response(Plan):
    """The same in the words of `/v1/responses`: its events have types, and none says [DONE]."""

    says_done = False

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.opens, self.usage_asked = True, False  # its usage comes with its last event, asked for or not
        self.id = f"resp_{random.getrandbits(40):x}"

    def usage(self, made: int) -> dict[str, int]:
        return {"input_tokens": self.prompt, "output_tokens": made, "total_tokens": self.prompt + made}

    def _said(self, text: str | None) -> dict[str, Any]:
        """None: it has only begun."""
        status = "in_progress" if text is None else "incomplete" if self.too_long else "completed"
        said: dict[str, Any] = {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "model": self.model,
            "output": [],
            "usage": None,
        }
        if text is not None:
            content = [{"type": "output_text", "text": text, "annotations": []}]
            message = {"type": "message", "id": f"msg_{self.id}", "role": "assistant", "content": content}
            said["output"] = [message]
            said["usage"] = None if self.no_usage else self.usage(self.tokens)
        if self.too_long and text is not None:
            said["incomplete_details"] = {"reason": "max_output_tokens"}
        return said

    def framed(self, data: bytes) -> bytes:
        kind = data.removeprefix(b'{"type":"').partition(b'"')[0]
        return b"event: " + kind + b"\ndata: " + data + b"\n\n"

    def _text(self) -> str:
        return "".join(f" tok{number}" for number in range(self.tokens))

    def answer(self) -> bytes:
        return msgspec.json.encode(self._said(self._text()))

    def opening(self) -> bytes:
        return msgspec.json.encode({"type": "response.created", "response": self._said(None)})

    def piece(self, number: int) -> bytes:
        said = {"type": "response.output_text.delta", "item_id": f"msg_{self.id}", "output_index": 0}
        return msgspec.json.encode({**said, "content_index": 0, "delta": f" tok{number}"})

    def closing(self) -> bytes:
        said = self._said(self._text())
        return msgspec.json.encode({"type": f"response.{said['status']}", "response": said})


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m holdfast.sim.live.llm_engine",
        description="A twin of an engine that serves a model: it speaks OpenAI's API and answers nonsense in"
        " time. A model called NAME-t50-i10-n32 gets its first token after 50 ms, then one every 10 ms, 32"
        " in all. GET /stats says what it did.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="where to listen")
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="0: any that is free")
    parser.add_argument("--unix", default="", metavar="PATH", help="listen on this socket instead")
    parser.add_argument("--first-ms", type=int, default=0, metavar="MS", help="until the first token")
    parser.add_argument("--gap-ms", type=int, default=0, metavar="MS", help="from each token to the next")
    parser.add_argument(
        "--tokens", type=int, default=16, metavar="N", help="of an answer, if it is not asked for fewer"
    )
    parser.add_argument(
        "--fail-share", type=float, default=0.0, metavar="SHARE", help="so many requests are answered 503"
    )
    parser.add_argument(
        "--die-share", type=float, default=0.0, metavar="SHARE", help="so many streams are cut half way"
    )
    parser.add_argument(
        "--at-a-time", type=int, default=0, metavar="N", help="more requests are answered 429; 0: no limit"
    )
    parser.add_argument("--no-usage", action="store_true", help="do not tell how many tokens were used")
    return parser


async def serve(wanted: argparse.Namespace) -> None:
    engine = Engine(wanted)
    loop = asyncio.get_running_loop()
    if wanted.unix:
        server = await loop.create_unix_server(lambda: Asked(engine), wanted.unix)
        print(f"serving on {wanted.unix}:0", flush=True)
    else:
        server = await loop.create_server(lambda: Asked(engine), wanted.host, wanted.port, backlog=4_096)
        print(f"serving on {wanted.host}:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    given = options().parse_args()
    try:
        with runner, contextlib.suppress(KeyboardInterrupt):
            runner.run(serve(given))
    except OSError as error:
        raise SystemExit(f"error: cannot listen at {given.unix or given.port}: {error.strerror}") from None
