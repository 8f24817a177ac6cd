"""Conversations through one worker, made by chance and told line by line.

    python -m tests.native_story SEED COUNT

Compiled or not, they must be told in the same words: `tests/integration/test_gateway_native.py` compares.
Everything is real but the clock, the sockets and the keeper: requests of all kinds, whole, streamed and
broken, in pieces that chance cuts, several at a time; replicas that answer, answer late, lie, fail, hang up,
leave and come back; clients that do not read; services, limits and siblings that change meanwhile.
"""

import asyncio
import gc
import hashlib
import json
import random
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.gateway import native

native.use()

from holdfast.core.gateway.routing.endpoints import Replica  # noqa: E402
from holdfast.core.gateway.routing.updates import Load  # noqa: E402
from holdfast.gateway import messages, settings  # noqa: E402
from holdfast.gateway.attempt import Try  # noqa: E402
from holdfast.gateway.connect import Connector  # noqa: E402
from holdfast.gateway.down import Down  # noqa: E402
from holdfast.gateway.up import Up  # noqa: E402
from holdfast.gateway.worker import Worker  # noqa: E402
from holdfast.model.gateway import Key, Limits  # noqa: E402

MANY = Limits(tokens_per_min=10**9, requests_per_min=10**6, concurrent=1_000)
FEW = Limits(tokens_per_min=3_000, requests_per_min=60, concurrent=2, tokens_total=10**8)
START = messages.Start(
    "w", "127.0.0.1", 1, 4_096, 100, 10.0, 300.0, 75.0, False, False, 10.0, siblings=1
)  # fmt: skip
PORTS = (7, 8, 9)
PATHS = ("/deep/listed", "/deep/../x", "/deep/a%20b", "/deep%2fx", "//deep/x", "/deep/..;/listed")


class Wire(asyncio.Transport):
    """One end of a connection, in memory."""

    def __init__(self) -> None:
        self.said = b""
        self.closed = ""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 5) if name == "peername" else default

    def write(self, data: Any) -> None:
        self.said += b"" if self.closed else bytes(data)

    def write_eof(self) -> None:
        self.said += b"<eof>"

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return bool(self.closed)

    def close(self) -> None:
        self.closed = self.closed or "closed"

    def abort(self) -> None:
        self.closed = self.closed or "aborted"

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.said += b"<pause>"

    def resume_reading(self) -> None:
        self.said += b"<resume>"


class Keeper:
    """Lends whatever is asked for, at once, and knows what it was told."""

    def __init__(self) -> None:
        self.worker: Worker | None = None
        self.told: list[object] = []

    def send(self, message: Any) -> None:
        self.told.append(message)


class Connections(Connector):
    """Made, or not, when the story says so."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker, "")
        self.wanted: list[Try] = []

    def start(self, attempt: Try) -> None:
        self.wanted.append(attempt)


class Talking(set[Down]):
    """In the order they came: a set would tell them by where they lie in memory."""

    def __init__(self, story: "Story") -> None:
        super().__init__()
        self.story = story

    def __iter__(self) -> Iterator[Down]:
        return iter([down for down, _ in self.story.talks if down in self])


class Soon:
    """A loop that only remembers what it should do."""

    def __init__(self) -> None:
        self.todo: list[tuple[Any, tuple[Any, ...]]] = []

    def call_soon(self, do: Any, *given: Any) -> None:
        self.todo.append((do, given))

    def create_task(self, work: Any) -> Any:
        work.close()
        return asyncio.Future(loop=self)  # type: ignore[arg-type]

    def get_debug(self) -> bool:
        return False


class Story:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.time = 1_000.0
        self.keeper, self.loop = Keeper(), Soon()
        self.worker = Worker(START, self.keeper, self.loop)  # type: ignore[arg-type]
        self.worker.now = lambda: self.time
        self.worker.draw = self.chance.random
        self.worker._id_start = b"req-"
        self.connections = self.worker.connector = Connections(self.worker)
        self.worker.downs = Talking(self)
        self.ups: list[Up] = []
        self.talks: list[tuple[Down, Wire]] = []
        self.worker.told(messages.ServicesPut((service("toy", PORTS), service("deep", PORTS[:2]))))
        for each in self.worker.book.services.values():
            each.tries.hedges.per_s = 0.2  # more often than it would be
            for _ in range(1_000):
                each.tries.first_token.note(0.2)
        for scope in ("global", "team:red"):
            self.worker.told(messages.LimitsPut(scope, MANY))
        digest = hashlib.sha256(b"sk-toy").digest()
        self.worker.told(messages.KeyPut(Key("toy", digest, team="red", limits=MANY)))

    # what is asked

    def request(self) -> bytes:
        chance = self.chance
        body: dict[str, Any] = {
            "model": chance.choice(("toy", "toy", "toy-7", "deep", "none")),
            "messages": [{"role": "user", "content": chance.choice(("hi", "tell me", "x" * 1_500))}],
        }
        if chance.random() < 0.5:
            body["stream"] = True
        if chance.random() < 0.3:
            body["max_tokens"] = chance.choice((0, 5, 64, -1, 10**9, "many"))
        if chance.random() < 0.2:
            body["stream_options"] = chance.choice(({"include_usage": True}, {}, None))
        if chance.random() < 0.2:
            body["n"] = chance.choice((1, 2, 500))
        encoded = json.dumps(body, separators=chance.choice(((",", ":"), (", ", ": ")))).encode()
        if chance.random() < 0.1:
            encoded = encoded[: chance.randrange(len(encoded))]
        path = chance.choice(
            ("/v1/chat/completions",) * 9 + ("/v1/models", "/v1/embeddings", "/deep/x", "/no", *PATHS)
        )
        method = "GET" if path == "/v1/models" else chance.choice(("POST",) * 9 + ("GET",))
        lines = [f"{method} {path} HTTP/1.1", "host: here"]
        if chance.random() < 0.9:
            lines.append(f"authorization: Bearer {chance.choice(('sk-toy',) * 9 + ('sk-no', 'sk-gone'))}")
        lines += chance.sample(ODD, chance.choice((0, 0, 0, 1)))
        if chance.random() < 0.15:
            half = len(encoded) // 2
            lines.append("transfer-encoding: chunked")
            parts = [part for part in (encoded[:half], encoded[half:]) if part]
            encoded = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        else:
            lines.append(f"content-length: {len(encoded)}")
        return "\r\n".join((*lines, "", "")).encode() + encoded

    # what is answered

    def answer(self) -> bytes:
        chance = self.chance
        usage = {"prompt_tokens": 20, "completion_tokens": chance.randrange(60), "total_tokens": 40}
        kind = chance.random()
        if kind < 0.35:
            message = {"role": "assistant", "content": "tok " * 9}
            body = {"id": "1", "choices": [{"index": 0, "message": message}], "usage": usage}
            encoded = json.dumps(body).encode()
            status = chance.choice((b"200 OK",) * 6 + (b"429 Slow", b"500 No", b"404 None"))
            more = b"retry-after: 1\r\n" if status.startswith(b"429") else b""
            size = len(encoded) + chance.choice((0,) * 9 + (3,))
            return b"HTTP/1.1 %s\r\ncontent-type: application/json\r\n%scontent-length: %d\r\n\r\n%s" % (
                status, more, size, encoded,
            )  # fmt: skip
        if kind < 0.4:
            return chance.choice((b"hello\r\n\r\n", b"HTTP/1.1 200 OK\r\n", b"\x00" * 20))
        events = [b'data: {"choices":[{"delta":{"role":"assistant"}}]}\n\n']
        events += [
            b'data: {"choices":[{"delta":{"content":" %d"},"finish_reason":null}]}\n\n' % number
            for number in range(chance.randrange(8))
        ]
        events.append(b'data: {"choices":[{"delta":{},"finish_reason":"%s"}]}\n\n' % chance.choice(ENDS))
        if chance.random() < 0.8:
            events.append(b'data: {"choices":[],"usage":%s}\n\n' % json.dumps(usage).encode())
        if chance.random() < 0.9:
            events.append(b"data: [DONE]\n\n")
        if chance.random() < 0.2:
            events.insert(chance.randrange(len(events)), chance.choice(STRANGE))
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        end = b"0\r\n\r\n"
        if chance.random() < 0.2:  # nothing more comes: in the middle of it, or after all that it had to say
            end, events = b"", events[: chance.randrange(1, len(events) + 1)]
        return head + b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events) + end

    # how it goes

    def pieces(self, data: bytes) -> list[bytes]:
        chance = self.chance
        cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.choice((0, 0, 1, 3))))
        if chance.random() < 0.5 and b"\r\n\r\n" in data:  # at the ends of chunks, as an engine sends them
            cuts = [at + 2 for at in range(len(data)) if data[at : at + 2] == b"\r\n" and at > 60]
        return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]

    def lend(self) -> None:
        if self.chance.random() < 0.1:
            self.worker.purse.silent()  # nobody can say what is left
        else:
            for pocket in self.worker.purse._pockets.values():
                pocket.have = pocket.left = min(1e9, pocket.capacity)
                pocket.until = 1e18
        self.worker._answered()

    def connected(self, replica: Replica) -> Up:
        up = Up(replica)
        up.connection_made(Wire())
        self.ups.append(up)
        return up

    def connect(self) -> None:
        """Idle connections to most replicas; whoever needs another waits for it, and not always gets it."""
        for each in self.worker.book.services.values():
            for replica in each.pool.replicas.values():
                if self.chance.random() < 0.8:
                    assert isinstance(replica.connection_pool, list)
                    replica.connection_pool.append(self.connected(replica))

    def give(self) -> None:
        wanted, self.connections.wanted = self.connections.wanted, []
        for attempt in wanted:
            how = self.chance.random()
            if how < 0.1:
                self.connections.wanted.append(attempt)
            elif how < 0.3:
                attempt.failed(None, "no connection: refused", self.chance.choice(("", "error")))
            else:
                attempt.exchange.connected(attempt, self.connected(attempt.replica))

    def conversation(self, number: int) -> None:
        chance = self.chance
        self.worker.purse._alone = False
        self.ups = []
        self.connect()
        self.talks = []
        for _ in range(chance.choice((1, 1, 3, 6))):
            down, wire = Down(self.worker), Wire()
            down.connection_made(wire)
            self.talks.append((down, wire))
        for _ in range(chance.choice((1, 1, 2, 4))):
            for down, wire in self.talks:
                self.ask(down, wire)
            self.serve()
        for down, wire in self.talks:
            if chance.random() < 0.5:
                self.hang_up(down, wire)
        self.settle()
        for _, wire in self.talks:
            print(number, wire.closed, wire.said)
        for up in self.ups:
            sent = up.transport
            assert isinstance(sent, Wire)
            print("   ", sent.closed, sent.said)
            sent.close()
            up.connection_lost(None)
        for down, wire in self.talks:
            self.hang_up(down, wire)
        self.settle()

    def ask(self, down: Down, wire: Wire) -> None:
        request = self.request()
        if self.chance.random() < 0.1:
            request += self.request()
        for piece in self.pieces(request):
            if wire.closed:
                break
            down.data_received(piece)
            self.time += 0.001
            if self.worker._short or self.worker._borrowing:
                self.lend()

    def hang_up(self, down: Down, wire: Wire) -> None:
        if down in self.worker.downs:
            wire.close()
            down.connection_lost(None)

    def serve(self) -> None:
        """Whoever was asked answers; then again, for some were asked because another failed."""
        chance = self.chance
        for _ in range(4):
            for up in tuple(self.ups):
                if up.asked is None or up.transport.is_closing() or chance.random() < 0.15:
                    continue
                for piece in self.pieces(self.answer()):
                    self.time += chance.choice((0.001, 0.01))
                    if not up.transport.is_closing():
                        up.data_received(piece)
                    if chance.random() < 0.05:
                        self.meanwhile()
                if chance.random() < 0.15 and not up.transport.is_closing():
                    up.transport.close()
                    up.connection_lost(None)
            self.give()
            self.time += chance.choice((0.4, 0.4, 0.4, 5.0, 70.0))
            self.worker._look(self.time)
            self.settle()

    def meanwhile(self) -> None:
        chance, worker = self.chance, self.worker
        what = chance.randrange(8)
        if what == 0:
            worker.told(messages.ServicesPut((self.changed("toy"), self.changed("deep"))))
        elif what == 1:
            worker.told(messages.LimitsPut("team:red", chance.choice((MANY, FEW))))
        elif what == 2:
            worker.told(messages.Clamped("toy", chance.choice((0.5, 1.0))))
        elif what == 3:
            load = Load(chance.random() * 1_000, 500.0, chance.randrange(4))
            told = messages.Sharing([], {f"http://127.0.0.1:{chance.choice(PORTS)}": load})
            worker.told(messages.Shared("sibling", {"toy": told}))
        elif what == 4:
            worker.told(messages.SiblingGone("sibling"))
        elif what == 5:
            assert worker.siblings is not None
            worker.siblings.tell()
            print(as_heard(self.keeper.told[-1]))
        elif what == 6:
            gone = Key("gone", hashlib.sha256(b"sk-gone").digest(), team="red")
            again = messages.KeyPut(replace(gone, note="again"))
            worker.told(chance.choice((messages.KeyGone("gone"), messages.KeyPut(gone), again)))
            worker._look(self.time)
        else:
            down, wire = chance.choice(self.talks)
            if down in worker.downs and chance.random() < 0.2:
                self.hang_up(down, wire)
            elif down in worker.downs and not wire.closed:
                if down.paused:
                    down.resume_writing()
                else:
                    down.pause_writing()

    def changed(self, name: str) -> settings.Service:
        chance = self.chance
        ports = tuple(port for port in PORTS if chance.random() < 0.7)
        gone = (f"http://127.0.0.1:{port}" for port in PORTS if port not in ports and chance.random() < 0.5)
        return msgspec.structs.replace(
            service(name, ports),
            leaving=chance.choice((None, tuple(gone))),
            hold=chance.choice((None, settings.Hold(), settings.Hold(2, 4_000, 3.0))),
            hedge=chance.random() < 0.7,
            continues=chance.random() < 0.5,
            concurrent=chance.choice((0, 1, 2)),
            tries=chance.choice((1, 3)),
            prefix_aware=chance.random() < 0.5,
            usage_all_the_time=chance.random() < 0.2,
        )

    def settle(self) -> None:
        for _ in range(20):
            todo, self.loop.todo = self.loop.todo, []
            for do, given in todo:
                do(*given)
        if self.worker._short or self.worker._borrowing:
            self.lend()

    def end(self) -> None:
        """What was counted, and that nothing is left in flight."""
        for each in self.worker.book.services.values():
            print("left", each.busy() + each.waiting)
        self.time += 1_000.0
        self.worker._look(self.time)
        self.settle()
        self.worker._tell()
        print(self.keeper.told[-2:])
        for pocket in self.worker.purse._pockets.values():
            print(pocket.name, pocket.busy, round(pocket.spent), round(pocket.debt))


ODD = (
    "transfer-encoding: gzip", "content-length: 3", "connection: close", "expect: 100-continue", "x-a: b",
    "host: there", "x-session-id: s1", "connection: x-a, keep-alive", "user-agent: toy", "x-b : c",
    "connection: upgrade\r\nupgrade: h2c", "upgrade: websocket", "x-forwarded-for: 192.0.2.1",
)  # fmt: skip
ENDS = (b"stop", b"length", b"tool_calls")
STRANGE = (
    b'data: {"error":{"message":"broken"}}\n\n',
    b"data: {\n\n",
    b": comment\n\n",
    b"event: x\r\ndata: {}\r\n\r\n",
    b'data: {"choices":[{"text":"a"}]}\n\r\ndata: [DONE]\n\n',
    b'data: {"usage": {"total_tokens": 9}}\n\n',
    b"\n\n",
)


def as_heard(message: Any) -> object:
    """A whole number may stand for one that is not: on the wire they are the same."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=messages.ToKeeper)


def service(name: str, ports: tuple[int, ...]) -> settings.Service:
    upstreams = tuple(settings.Upstream(f"http://127.0.0.1:{port}") for port in ports)
    if name == "toy":
        return settings.Service(name, models=("toy", "toy-*"), upstreams=upstreams)
    return settings.Service(
        name, models=("deep",), upstreams=upstreams, continues=True, prefixes=("/deep",),
        names_models=True, paths=("/deep/listed",),
    )  # fmt: skip


def main(seed: int, count: int) -> None:
    story = Story(seed)
    for number in range(count):
        story.conversation(number)
    story.end()
    gc.collect()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
