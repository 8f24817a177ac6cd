"""What comes to a worker from those who have no key, or want more than their part: bytes, and what is kept of
them."""

import gc
import sys
import weakref
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from holdfast.core.gateway.quota.limits import scopes_of
from holdfast.gateway import messages
from holdfast.gateway.addresses import Addresses
from holdfast.gateway.buffers import SMALL, Buffers
from holdfast.gateway.down import HEADERS_MAX, Down
from holdfast.gateway.settings import MIB
from holdfast.gateway.worker import Worker
from holdfast.model.gateway import Key, Limits
from holdfast.wire.identity import hashed
from tests.gateway_twins import Wire, heard
from tests.unit.test_gateway_exchange import Served

CHAT = b"/v1/chat/completions"
LONG = b"content-length: 1000000"
GOOD = b"authorization: Bearer sk"
BAD = b"authorization: Bearer nobody"


def head(path: bytes, *lines: bytes, method: bytes = b"POST") -> bytes:
    return b"%s %s HTTP/1.1\r\nhost: a\r\n%s\r\n\r\n" % (method, path, b"\r\n".join(lines))


class From(Wire):
    """A connection from an address."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return (self.address, 5)
        return self if name == "socket" else default

    family = 0

    def setsockopt(self, *_: int) -> None:
        pass


class Gate(Served):
    """A worker that knows one key, with what it was started with changed."""

    def __init__(self, key: Key | None = None, start: dict[str, Any] | None = None, **wanted: Any) -> None:
        super().__init__(**wanted)
        worker = self.worker
        fields = {"open": False, "body_max": 4 * MIB, "connections": 10_000, **(start or {})}
        started = messages.Start(
            **{**{name: getattr(worker.wanted, name) for name in worker.wanted.__struct_fields__}, **fields}
        )
        self.worker = Worker(started, worker.link, worker.loop)
        self.change(**wanted)
        self.worker.told(messages.KeyPut(key or Key("good", hashed("sk"))))

    def comes(self, *pieces: bytes, address: str = "198.51.100.7") -> tuple[Down, Any]:
        down, wire = Down(self.worker), From(address)
        down.connection_made(wire)
        for piece in pieces:
            down.data_received(piece)
        return down, wire

    def code(self, *pieces: bytes) -> str:
        written = self.comes(*pieces)[1].written
        return str(written.partition(b'"code":"')[2].partition(b'"')[0].decode())


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (head(CHAT, LONG), 401),
        (head(CHAT, LONG, BAD), 401),
        (head(CHAT, b"transfer-encoding: chunked", BAD), 401),
        (head(CHAT, LONG, b"expect: 100-continue", BAD), 401),
        (head(CHAT, LONG, GOOD, method=b"PUT"), 405),
        (head(b"/nowhere", LONG, GOOD), 404),
        (head(b"/toy/orders", LONG), 401),
        (head(b"/toy/../x", LONG), 400),
    ],
)
def test_who_is_refused_by_its_head_is_refused_before_its_body_and_nothing_of_it_is_kept(
    request_head: bytes, status: int
) -> None:
    gate = Gate(prefixes=("/toy",))
    down, wire = gate.comes(request_head)
    assert wire.written.startswith(b"HTTP/1.1 %d " % status), wire.written
    assert b"100 Continue" not in wire.written
    assert b"x-request-id: " in wire.written
    assert wire.ended
    for _ in range(5):
        down.data_received(bytes(100_000))
    assert down.body == b""
    assert down.pieces is None
    assert gate.worker.buffers.held == 0
    assert gate.worker.counts.by_status == {status: 1}


def test_a_suspended_key_is_refused_before_the_body() -> None:
    gate = Gate(Key("good", hashed("sk"), suspended="it leaked"))
    assert gate.code(head(CHAT, LONG, GOOD)) == "key_suspended"


def test_a_key_that_is_deleted_while_a_body_comes_is_not_good_when_it_is_there() -> None:
    gate = Gate()
    down, wire = gate.comes(head(CHAT, b"content-length: 20", GOOD), b"x" * 10)
    assert wire.written == b""
    gate.worker.told(messages.KeyGone("good"))
    down.data_received(b"x" * 10)
    assert b'"code":"invalid_api_key"' in wire.written


def test_a_client_that_asks_to_continue_is_told_to_when_its_key_is_good() -> None:
    _, wire = Gate().comes(head(CHAT, LONG, GOOD, b"expect: 100-continue"))
    assert wire.written.startswith(b"HTTP/1.1 100 ")


@pytest.mark.parametrize(
    "request_head",
    [head(CHAT, LONG, BAD), head(CHAT, LONG), head(b"/x", LONG), head(CHAT, b"content-length: 9999999")],
)
def test_a_refusal_leaves_nothing_for_the_garbage_collector(request_head: bytes) -> None:
    """In a worker it seldom runs: the first piece of each body stayed, a quarter of a megabyte."""
    gate = Gate()
    gate.comes(request_head + bytes(100_000))[0].connection_lost(None)
    gc.collect()
    gc.disable()
    try:
        down, wire = gate.comes(request_head + bytes(100_000))
        assert wire.written.startswith(b"HTTP/1.1 4")
        down.connection_lost(None)
        last = weakref.ref(wire)
        down.transport = None  # type: ignore[assignment]
        del down, wire
        assert last() is None
    finally:
        gc.enable()


# what is kept of bodies


def test_bodies_have_a_budget_and_who_is_over_it_is_told_to_come_back() -> None:
    gate = Gate(start={"buffers": MIB, "buffers_per_key": MIB, "buffers_per_address": MIB})
    first, _ = gate.comes(head(CHAT, b"content-length: 2000000", GOOD), bytes(MIB - 1_000))
    assert gate.worker.buffers.held == MIB - 1_000
    second, wire = gate.comes(head(CHAT, b"content-length: 2000000", GOOD), bytes(SMALL))
    assert wire.written == b"", "so much has everybody"
    second.data_received(bytes(2_000))
    assert wire.written.startswith(b"HTTP/1.1 503 ")
    assert b'"code":"buffers_full"' in wire.written
    assert b"retry-after: 1\r\n" in wire.written
    assert (second.body, second.pieces) == (b"", None)
    first.connection_lost(None)
    assert gate.worker.buffers.held == 0
    third, wire = gate.comes(head(CHAT, b"content-length: 2000000", GOOD), bytes(500_000))
    assert wire.written == b""
    third.late()
    assert wire.written.startswith(b"HTTP/1.1 408 ")
    assert gate.worker.buffers.held == 0


def test_an_announced_body_of_which_nothing_comes_takes_nothing() -> None:
    gate = Gate(start={"buffers": MIB, "buffers_per_key": MIB, "buffers_per_address": MIB})
    for _ in range(40):
        gate.comes(head(CHAT, b"content-length: 4000000", GOOD))
    assert gate.worker.buffers.held == 0
    assert gate.comes(head(CHAT, b"content-length: 900000", GOOD), bytes(800_000))[1].written == b""


def test_a_body_is_counted_until_it_is_answered() -> None:
    gate = Gate()
    body = b'{"model":"none","messages":"%s"}' % (b"x" * 100_000)
    down, wire = gate.comes(head(CHAT, b"content-length: %d" % len(body), GOOD) + body)
    assert b'"code":"model_not_found"' in wire.written
    assert gate.worker.buffers.held == 0
    assert down.again is None or down.again.body(b"") is None
    down.data_received(head(CHAT, b"content-length: %d" % len(body), GOOD) + body[:50_000])
    assert gate.worker.buffers.held == 50_000


@pytest.mark.parametrize(
    ("key", "address", "whose"),
    [("b", "y", ""), ("a", "y", "key a"), ("", "x", "your address"), ("b", "", "")],
)
def test_no_key_and_no_address_takes_the_budget_of_all(key: str, address: str, whose: str) -> None:
    buffers = Buffers(100, 60, 60)
    assert buffers.take(50, "a", "x") is None
    refused = buffers.take(20, key, address)
    assert whose in (refused.message if refused is not None else "")
    assert (refused is None) is (not whose)
    full = buffers.take(60, "c", "z")
    assert full is not None
    assert "this gateway" in full.message or whose
    buffers.give_back(50, "a", "x")
    assert "a" not in buffers.keys
    assert "x" not in buffers.addresses


def test_requests_without_a_key_have_together_what_one_key_has() -> None:
    buffers = Buffers(100, 60, 60)
    assert buffers.take(40, "", "x") is None
    refused = buffers.take(40, "", "y")
    assert refused is not None
    assert "without a key" in refused.message


# connections


def test_one_address_does_not_take_all_connections() -> None:
    gate = Gate(start={"connections_per_address": 3})
    first = gate.comes()[0]
    assert [gate.comes()[1].written for _ in range(2)] == [b"", b""]
    told = gate.comes()[1]
    assert b'"code":"too_many_connections"' in told.written
    assert b"from your address" in told.written
    cut = [gate.comes()[1] for _ in range(40)]
    assert cut[-1].aborted, "of very many not even that"
    assert gate.comes(address="198.51.100.8")[1].written == b""
    for down in tuple(gate.worker.downs):
        down.connection_lost(None)
    assert gate.worker.addresses.connections == {}
    assert first.group == "198.51.100.7"
    assert gate.comes()[1].written == b""


def test_connections_of_a_trusted_proxy_are_not_counted_by_address() -> None:
    gate = Gate(start={"connections_per_address": 3, "trusted_proxies": ("198.51.100.0/24",)})
    assert [gate.comes()[1].written for _ in range(20)] == [b""] * 20
    assert b"too_many" in [gate.comes(address="192.0.2.1")[1].written for _ in range(4)][-1]


@pytest.mark.parametrize(
    ("peer", "forwarded", "source"),
    [
        ("10.0.0.1", b"192.0.2.1", "192.0.2.1"),
        ("10.0.0.1", b"192.0.2.9, 192.0.2.1, 10.0.0.7", "192.0.2.1"),
        ("10.0.0.1", b"192.0.2.1:4711", "192.0.2.1"),
        ("10.0.0.1", b"2001:db8::5", "2001:db8::/64"),
        ("10.0.0.1", b"", ""),
        ("10.0.0.1", b"10.0.0.3", ""),
        ("192.0.2.7", b"192.0.2.1", "192.0.2.7"),
        ("::ffff:192.0.2.7", b"", "192.0.2.7"),
        ("2001:db8:1:2:3::4", b"", "2001:db8:1:2::/64"),
    ],
)
def test_a_request_comes_from_where_only_a_trusted_proxy_may_say(
    peer: str, forwarded: bytes, source: str
) -> None:
    gate = Gate(start={"trusted_proxies": ("10.0.0.0/8",)})
    lines = (b"x-forwarded-for: " + forwarded,) if forwarded else ()
    down, _ = gate.comes(head(CHAT, LONG, GOOD, *lines), address=peer)
    assert down.source() == source


def test_wrong_keys_are_counted_by_the_client_behind_a_trusted_proxy() -> None:
    gate = Gate(start={"trusted_proxies": ("198.51.100.0/24",)})

    def tries(client: bytes) -> bytes:
        written: bytes = gate.comes(head(CHAT, LONG, BAD, b"x-forwarded-for: " + client))[1].written
        return written[9:12]

    assert {tries(b"192.0.2.1") for _ in range(30)} == {b"401", b"429"}
    assert tries(b"192.0.2.2") == b"401"


def test_addresses_that_are_known_do_not_grow_without_end() -> None:
    addresses = Addresses(1)
    for number in range(10_000):
        addresses.group(f"10.0.{number >> 8}.{number & 255}")
    assert len(addresses._known) <= 4_096


# paths of a service that names models


TOY: dict[str, Any] = {
    "models": ("toy",),
    "names_models": True,
    "prefixes": ("/toy",),
    "hosts": ("other.example",),
}


@pytest.mark.parametrize(
    "path", [b"/toy/invocations", b"/toy/generate", b"/toy/v1/messages", b"/toy/v1/chat"]
)
@pytest.mark.parametrize("method", [b"POST", b"PUT", b"PATCH", b"DELETE"])
def test_a_path_that_is_not_listed_does_not_reach_an_engine_past_the_limits(
    path: bytes, method: bytes
) -> None:
    gate = Gate(**TOY)
    assert gate.code(head(path, b"content-length: 2", GOOD, method=method) + b"{}") == "path_not_listed"
    by_host = head(path[4:], b"content-length: 2", GOOD, method=method).replace(
        b"host: a", b"host: other.example"
    )
    if path[4:] != b"/v1/chat":
        assert gate.code(by_host + b"{}") == "path_not_listed"


def test_what_only_reads_reaches_a_service_with_models() -> None:
    gate = Gate(**TOY)
    asked: list[Any] = []
    gate.worker.connector = SimpleNamespace(start=asked.append)  # type: ignore[assignment]
    gate.comes(head(b"/toy/version", GOOD, method=b"GET"))
    assert len(asked) == 1


@pytest.mark.parametrize("models", [("llama",), ("toy-7b",)])
def test_a_key_for_other_models_does_not_reach_a_service_by_its_host_or_prefix(
    models: tuple[str, ...],
) -> None:
    gate = Gate(Key("good", hashed("sk"), models=models), **{**TOY, "models": ("toy", "toy-7b")})
    request_head = head(b"/toy/version", GOOD, method=b"GET")
    assert gate.code(request_head) == "not_found"
    assert gate.code(request_head.replace(b"host: a", b"host: other.example:80")) == "not_found"


def test_a_listed_path_is_counted_as_a_request_for_a_model() -> None:
    served = Served(**{**TOY, "paths": ("/toy/v1/messages",)})
    body = b'{"model":"toy","max_tokens":50,"messages":[{"role":"user","content":"hi"}]}'
    served.ask(head(b"/toy/v1/messages", b"content-length: %d" % len(body)) + body)
    up = served.asked()
    answer = b'{"usage":{"input_tokens":11,"output_tokens":7}}'
    up.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(answer), answer))
    assert served.wire.written.endswith(answer)
    assert served.charged() == 18


@pytest.mark.parametrize(
    "more",
    [
        b'"n":1000,"model":"toy"',
        b'"n":1000',
        b'"n":"1000","model":"toy"',
        b'"max_tokens":"9000"',
        b'"prompt":[%s"a"]' % (b'"a",' * 500),
        b'"text":[%s"a"]' % (b'"a",' * 500),
        b'"text":"a","sampling_params":{"n":1000}',
        b'"text":"a","sampling_params":{"max_new_tokens":"9000"}',
        b'"text":["a","b"],"sampling_params":[{"n":1000},{}]',
        b'"inputs":"a","parameters":{"max_new_tokens":-1}',
    ],
)
def test_what_says_how_much_may_come_is_read_on_a_listed_path_too(more: bytes) -> None:
    """A body that was no request for a model by our reading was let in as if it said nothing."""
    gate = Gate(**{**TOY, "paths": ("/toy/gen*",)})
    body = b"{%s}" % more
    assert (
        gate.code(head(b"/toy/generate", b"content-length: %d" % len(body), GOOD) + body) == "invalid_request"
    )


def reserved(path: bytes, said: dict[str, Any], **wanted: Any) -> int:
    """What a request for that is taken to cost, before anybody has answered."""
    served = Served(**wanted)
    body = msgspec.json.encode({"model": "toy", **said})
    served.ask(head(path, b"content-length: %d" % len(body)) + body)
    exchange = served.down.exchange
    assert exchange is not None
    return exchange.tokens


def test_a_request_reserves_for_every_prompt_in_it() -> None:
    many = {"prompt": ["a"] * 100, "max_tokens": 400}
    assert reserved(b"/v1/completions", many) >= 100 * 400
    assert reserved(b"/v1/completions", many, context=500) >= 100 * 400
    assert reserved(b"/v1/completions", {"prompt": "a", "max_tokens": 0}) > 1_000, "as if it named no length"
    tokens = {"input": [[1] * 100] * 18}
    assert reserved(b"/v1/embeddings", tokens, context=128) >= 1_800
    assert reserved(b"/v1/embeddings", {"input": ["a b c d " * 25] * 18}, context=64) >= 18 * 50


@pytest.mark.parametrize("path", [CHAT, b"/toy/v1/messages"])
def test_a_limit_of_models_with_a_star_is_one_of_all_of_them_together(path: bytes) -> None:
    """It held for the model of that name, which nobody asks for."""
    served = Served(**{**TOY, "models": ("toy", "toy-*"), "paths": ("/toy/v1/messages",)})
    worker, of_all, of_one = served.worker, "model:toy-*", "model:toy-b"
    worker.connector = SimpleNamespace(start=lambda attempt: None)  # type: ignore[assignment]
    for scope, most in ((of_all, 2), (of_one, 1)):
        limits = Limits(requests_per_min=most)
        worker.told(messages.LimitsPut(scope, limits))
        served.broker.set_limits(scope, limits, worker.now())
    said = []
    for model in (b"toy-a", b"toy-b", b"toy-b", b"toy-c", b"toy"):
        served.wire, served.down = Wire(), Down(worker)
        served.down.connection_made(served.wire)
        body = b'{"model":"%s","max_tokens":1}' % model
        served.ask(head(path, b"content-length: %d" % len(body)) + body)
        said.append(served.wire.written[9:12].decode())
    assert said == ["", "", "429", "429", ""]
    key = Key("k", b"", team="t")
    both = {"key:k/model:toy-*", "key:k/model:toy-a", "team:t/model:toy-*", "team:t/model:toy-a"}
    assert both < set(scopes_of(key, "toy-a", "toy-*"))
    assert len(scopes_of(key, "toy", "toy")) == len(scopes_of(key, "toy")) == 6


def test_a_listed_path_that_says_nothing_of_its_use_costs_what_was_reserved() -> None:
    served = Served(**{**TOY, "paths": ("/toy/gen*",)})
    served.ask(head(b"/toy/generate", b"content-length: 12") + b'{"text":"a"}')
    served.asked().data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
    assert served.charged() > 0


def test_a_stream_whose_end_tells_only_what_was_said_is_charged_its_prompt_too() -> None:
    served = Served(**{**TOY, "paths": ("/toy/v1/messages",)})
    body = b'{"model":"toy","stream":true,"max_tokens":50,"messages":"%s"}' % (b"word " * 400)
    served.ask(head(b"/toy/v1/messages", b"content-length: %d" % len(body)) + body)
    events = b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":7}}\n\n'
    served.asked().data_received(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        + b"%x\r\n%s\r\n0\r\n\r\n" % (len(events), events)
    )
    assert served.charged() > 200


def test_many_small_pieces_of_a_body_take_no_more_memory_than_is_counted() -> None:
    """Each piece of two bytes was kept as an object of 35, and the list of them took eight more."""
    gate = Gate()
    sent = head(CHAT, b"transfer-encoding: chunked", GOOD)
    for length in (SMALL - 2, 200_000):
        down, _ = gate.comes(sent)
        for at in range(0, length, 2_000):
            down.data_received(b"2\r\nab\r\n" * (min(2_000, length - at) // 2))
        assert down.pieces is not None
        assert down.body_size == length
        assert len(down.pieces) <= 1 + length // 65_536
        assert sum(map(sys.getsizeof, down.pieces)) < 1.25 * length
        down.data_received(b"0\r\n\r\n")


@pytest.mark.parametrize(
    "sizes", [(1, 5_000, 1, 1), (70_000, 1, 1, 70_000), (2, 2, 2_000, 2, 2), (1_500,) * 4]
)
def test_a_body_that_came_in_pieces_of_any_size_is_whole(sizes: tuple[int, ...]) -> None:
    pieces = [b"%d" % (at % 10) * size for at, size in enumerate(sizes)]
    worker, _ = heard(
        [
            b"POST /a HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n",
            *(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces),
            b"0\r\n\r\n",
        ]
    )
    assert [body for _, _, _, body in worker.requests] == [b"".join(pieces)]


def test_a_head_of_many_tiny_headers_is_refused_while_it_comes() -> None:
    """They were counted when all had come: half a head of 32 KiB took half a megabyte."""
    gate = Gate()
    for end in (b"", b"\r\n"):
        down, wire = gate.comes(b"POST %s HTTP/1.1\r\nhost: a\r\n" % CHAT, b"a:\r\n" * 5_000 + end)
        assert wire.written.startswith(b"HTTP/1.1 431 ")
        assert down.headers <= HEADERS_MAX + 1
        assert (down.forward, down.line) == ([], b"")
    down, wire = gate.comes(b"POST %s HTTP/1.1\r\nhost: a\r\n" % CHAT, b"a: %s\r\n" % (b"x" * 30_000) * 8)
    assert wire.written.startswith(b"HTTP/1.1 431 ")
    assert (down.forward, down.line) == ([], b"")


def test_requests_that_come_together_without_a_key_have_one_answer() -> None:
    gate = Gate()
    for path in (b"/v1/models", b"/nothing", CHAT):
        before = sum(gate.worker.counts.by_status.values())
        down, wire = gate.comes(head(path, b"accept: a", method=b"GET") * 3_000)
        assert wire.written.count(b"HTTP/1.1 4") == 1
        assert wire.ended
        assert (down.backlog, down.exchange) == (b"", None)
        assert sum(gate.worker.counts.by_status.values()) == before + 1
