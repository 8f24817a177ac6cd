"""One request in bytes, through a worker without sockets: what its client is sent, and what replicas are."""

import asyncio
import re
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from holdfast.core.gateway.quota.broker import Broker
from holdfast.gateway import messages, settings
from holdfast.gateway.down import Down
from holdfast.gateway.up import Up
from holdfast.gateway.worker import Worker
from holdfast.model.gateway import GLOBAL, Key, Limits
from holdfast.wire.identity import hashed
from tests.gateway_twins import Wire
from tests.gateways import events, text_of

START = messages.Start("w", "127.0.0.1", 1, 4_096, 100, 10.0, 300.0, 75.0, True, False, 10.0)
THREE = tuple(settings.Upstream(f"http://127.0.0.1:{port}") for port in (7, 8, 9))
UPSTREAMS = THREE[:2]
BODY = b'{"model":"toy","stream":true,"messages":[{"role":"user","content":"count"}]}'
ASK = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%s" % (len(BODY), BODY)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(*words: str) -> bytes:
    events = b"".join(b'data: {"choices":[{"delta":{"content":"%s"}}]}\n\n' % word.encode() for word in words)
    return b"%x\r\n%s\r\n" % (len(events), events)


class Served:
    """A worker with one service, and a connection to each of its replicas."""

    def __init__(self, **wanted: Any) -> None:
        loop: Any = SimpleNamespace(call_soon=lambda *_: None)
        link: Any = SimpleNamespace(send=self.lend)
        limits = Limits(tokens_total=1_000_000)
        self.worker = Worker(START, link, loop)
        self.broker = Broker({GLOBAL: limits}, self.worker.now(), "b")
        self.worker.told(messages.LimitsPut(GLOBAL, limits))
        self.change(**wanted)
        self.ups: list[Up] = []
        for replica in self.worker.book.services["toy"].pool.replicas.values():
            up = Up(replica)
            up.connection_made(Wire())
            replica.connection_pool = [up]
            self.ups.append(up)
        self.wire = Wire()
        self.down = Down(self.worker)
        self.down.connection_made(self.wire)

    def change(self, **wanted: Any) -> None:
        service = settings.Service("toy", **{"models": ("toy",), "upstreams": UPSTREAMS, **wanted})
        self.worker.told(messages.ServicesPut((service,)))

    def lend(self, message: Any) -> None:
        if isinstance(message, messages.Asked):
            grants = self.broker.ask(message.ask, self.worker.now())
            self.granted = messages.Granted(grants)

    def ask(self, whole: bytes = ASK) -> None:
        """What must be borrowed for it is lent."""
        self.down.data_received(whole)
        self.worker.told(self.granted)

    def charged(self) -> float:
        pocket = self.worker.purse._pockets[f"total|{GLOBAL}"]
        assert pocket.busy == 0
        return pocket.spent + pocket.debt

    def asked(self) -> Up:
        (up,) = [up for up in self.ups if up.asked is not None]
        return up


def lose(up: Up) -> None:
    up.transport.abort()
    up.connection_lost(None)


def test_a_cut_answer_goes_on_elsewhere_with_all_that_was_said() -> None:
    served = Served(continues=True)
    served.ask()
    first = served.asked()
    first.data_received(HEAD + chunk("one"))
    served.change(continues=False)
    first.data_received(chunk(" two", " three"))
    served.change(continues=True)
    lose(first)
    again = served.asked().transport
    assert isinstance(again, Wire)
    assert b'"content":"one two three"' in again.written


def test_an_answer_whose_beginning_was_not_kept_is_not_continued_from_its_middle() -> None:
    served = Served(continues=False)
    served.ask()
    first = served.asked()
    first.data_received(HEAD + chunk("one"))
    served.change(continues=True)
    first.data_received(chunk(" two", " three"))
    lose(first)
    assert [up for up in served.ups if up.asked is not None] == []
    assert b'"code":"upstream_lost"' in served.wire.written


BEGAN: dict[str, Any] = {"id": "chatcmpl-1", "created": 11}
WENT_ON: dict[str, Any] = {"id": "chatcmpl-2", "created": 22}
WITH_USAGE = BODY[:-1] + b',"stream_options":{"include_usage":true},"max_tokens":40}'
ASK_FOR_USAGE = ASK.partition(b"content-length")[0] + b"content-length: %d\r\n\r\n%s" % (
    len(WITH_USAGE),
    WITH_USAGE,
)


def event(of: dict[str, Any], delta: dict[str, str] | None, usage: tuple[int, int] | None = None) -> bytes:
    said = {**of, "choices": [] if delta is None else [{"index": 0, "delta": delta}]}
    if usage is not None:
        details = {"prompt_tokens_details": {"cached_tokens": usage[0]}}
        said["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1], **details}
    return b"data: " + msgspec.json.encode(said) + b"\n\n"


def framed(*pieces: bytes) -> bytes:
    data = b"".join(pieces)
    return b"%x\r\n%s\r\n" % (len(data), data)


def said_to(served: Served) -> list[Any]:
    lines = served.wire.written.partition(b"\r\n\r\n")[2].split(b"\r\n")
    return events(b"".join(lines[1::2]).decode())


ROLE = {"role": "assistant", "content": ""}
DONE = framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def numbers(prompt: int, completion: int) -> dict[str, int]:
    total = prompt + completion
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}


def test_an_answer_of_two_replicas_reads_as_one() -> None:
    served = Served(continues=True)
    served.ask(ASK_FOR_USAGE)
    first = served.asked()
    first.data_received(HEAD + framed(event(BEGAN, ROLE)) + framed(event(BEGAN, {"content": "one"})))
    first.data_received(framed(event(BEGAN, {"content": " two"})))
    lose(first)
    second = served.asked()
    second.data_received(HEAD + framed(event(WENT_ON, ROLE)) + framed(event(WENT_ON, {"content": " three"})))
    second.data_received(framed(event(WENT_ON, {"role": "assistant", "content": " four"})))
    second.data_received(framed(event(WENT_ON, None, (12, 2))) + DONE)
    *found, usage, done = said_to(served)
    assert text_of(found) == "one two three four"
    assert done == "[DONE]"
    assert [each["choices"][0]["delta"] for each in found].count(ROLE) == 1
    assert {(each["id"], each["created"]) for each in (*found, usage)} == {("chatcmpl-1", 11)}
    assert usage["usage"] == numbers(10, 4), (
        "what the second was given of the answer is no part of the prompt"
    )
    assert served.charged() == 14


@pytest.mark.parametrize(
    ("first", "second", "read", "charged"),
    [
        ((10, 5), (16, 2), (10, 7), 18),  # tokens that no text came of yet; and a template of its own
        ((10, 2), (12, 2), (10, 4), 14),
        ((30, 9), (12, 2), (30, 11), 41),
        ((200, 2), (4, 0), (200, 2), 202),  # what one has told is never forgotten
        (None, (1, 2), (0, 4), 4),  # it cannot be
    ],
)
def test_what_is_read_is_the_whole_and_what_is_charged_no_less_than_any_replica_used(
    first: tuple[int, int] | None, second: tuple[int, int], read: tuple[int, int], charged: int
) -> None:
    served = Served(continues=True, usage_all_the_time=True)
    served.ask(ASK_FOR_USAGE)
    one = served.asked()
    one.data_received(HEAD + framed(event(BEGAN, {"content": "one"}), event(BEGAN, {"content": "!"}, first)))
    lose(one)
    two = served.asked()
    two.data_received(HEAD + framed(event(WENT_ON, {"content": " two"}, second)))
    two.data_received(framed(event(WENT_ON, None, second)) + DONE)
    *_, usage, _ = said_to(served)
    assert usage["usage"] == numbers(*read)
    assert served.charged() == charged


def test_an_answer_of_three_replicas_reads_as_one() -> None:
    served = Served(continues=True, upstreams=THREE)
    served.ask(ASK_FOR_USAGE)
    for words in ("one", " two"):
        up = served.asked()
        up.data_received(HEAD + framed(event(WENT_ON, ROLE), event(BEGAN, {"content": words})))
        lose(up)
    last = served.asked()
    last.data_received(HEAD + framed(event(WENT_ON, ROLE), event(BEGAN, {"content": " three"})))
    last.data_received(framed(event(WENT_ON, None, (12, 1))) + DONE)
    found = said_to(served)
    assert text_of(found[:-2]) == "one two three"
    assert found[-2]["usage"] == numbers(10, 3)


def test_what_was_told_of_the_use_is_charged_though_nobody_goes_on() -> None:
    served = Served(continues=True, usage_all_the_time=True, tries=2)
    served.ask(ASK_FOR_USAGE)
    for up in (served.asked(), None):
        (up or served.asked()).data_received(
            HEAD + framed(event(BEGAN, {"content": "one"}, (5_000, 2) if up else None))
        )
        lose(up or served.asked())
    assert b'"code":"upstream_lost"' in served.wire.written
    assert served.charged() == 5_002


def finish(why: str) -> bytes:
    choice = {"index": 0, "delta": {}, "finish_reason": why}
    return b"data: " + msgspec.json.encode({**BEGAN, "choices": [choice]}) + b"\n\n"


LAST = b"data: [DONE]\n\n"


def asked_of_another(served: Served) -> bool:
    return any(up.asked is not None for up in served.ups)


@pytest.mark.parametrize("continues", [True, False])
@pytest.mark.parametrize("whole", [(), (event(BEGAN, None, (10, 1)),), (event(BEGAN, None, (10, 1)), LAST)])
def test_an_answer_that_is_finished_ends_as_it_would_have_though_its_replica_is_lost(
    whole: tuple[bytes, ...], continues: bool
) -> None:
    """Another was asked to go on with it: more text, a second reason to end, usage and [DONE]."""
    served = Served(continues=continues)
    served.ask(ASK_FOR_USAGE)
    first = served.asked()
    first.data_received(HEAD + framed(event(BEGAN, {"content": "one"})) + framed(finish("stop")))
    for each in whole:
        first.data_received(framed(each))
    first.data_received(b"40\r\ndata: {")
    lose(first)
    assert not asked_of_another(served)
    said = said_to(served)
    assert (text_of(said[:-1]), said[-1], said.count("[DONE]")) == ("one", "[DONE]", 1)
    assert served.wire.written.endswith(b"\r\n0\r\n\r\n")
    assert not served.wire.closed
    assert served.down.exchange is None
    assert not whole or served.charged() == 11


def test_an_answer_of_which_one_choice_is_finished_is_not_whole() -> None:
    served = Served()
    body = BODY[:-1] + b',"n":2}'
    served.ask(ASK.partition(b"content-length")[0] + b"content-length: %d\r\n\r\n%s" % (len(body), body))
    first = served.asked()
    first.data_received(HEAD + framed(event(BEGAN, {"content": "one"})) + framed(finish("stop")))
    lose(first)
    assert b'"code":"upstream_lost"' in served.wire.written
    assert LAST not in served.wire.written


def test_what_ends_with_nothing_has_not_finished() -> None:
    """Some engines write an empty reason in every event."""
    served = Served(continues=True)
    served.ask(ASK_FOR_USAGE)
    served.asked().data_received(HEAD + framed(event(BEGAN, {"content": "one"}), finish("")))
    lose(served.asked())
    assert asked_of_another(served)


@pytest.mark.parametrize("reasons", [0, 1])
def test_an_answer_that_is_as_long_as_it_may_be_ends_with_that(reasons: int) -> None:
    """The next replica was asked for one token more, for none cannot be asked for."""
    served = Served(continues=True)
    body = BODY[:-1] + b',"max_tokens":2}'
    served.ask(ASK.partition(b"content-length")[0] + b"content-length: %d\r\n\r\n%s" % (len(body), body))
    first = served.asked()
    opening = {**BEGAN, "object": "chat.completion.chunk", "model": "toy"}
    deltas = [{"reasoning_content": "hm"}] * reasons + [{"content": "one"}, {"content": " two"}][reasons:]
    first.data_received(HEAD + framed(event(opening, ROLE), *(event(BEGAN, each) for each in deltas)))
    lose(first)
    assert not asked_of_another(served)
    *_, last, done = said_to(served)
    assert last == {**opening, "choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
    assert done == "[DONE]"
    assert served.wire.written.endswith(b"\r\n0\r\n\r\n")
    assert not served.wire.closed


def test_an_answer_that_is_as_long_as_it_may_be_by_several_replicas_ends_with_that() -> None:
    served = Served(continues=True, upstreams=THREE)
    body = BODY[:-1] + b',"max_tokens":2}'
    served.ask(ASK.partition(b"content-length")[0] + b"content-length: %d\r\n\r\n%s" % (len(body), body))
    for of, words in ((BEGAN, "one"), (WENT_ON, " two")):
        up = served.asked()
        up.data_received(HEAD + framed(event(of, {"content": words})))
        lose(up)
    assert not asked_of_another(served)
    *found, done = said_to(served)
    assert (text_of(found), done) == ("one two", "[DONE]")
    assert {each["id"] for each in found} == {"chatcmpl-1"}
    assert found[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("other", ["reasoning_content", "reasoning", "refusal"])
def test_an_answer_that_is_not_text_alone_is_not_continued(other: str) -> None:
    """What was thought cannot be given back: the next would think again, or not know what it had thought."""
    served = Served(continues=True)
    served.ask(ASK_FOR_USAGE)
    first = served.asked()
    first.data_received(HEAD + framed(*[event(BEGAN, {other: "hm"}) for _ in range(30)]))
    first.data_received(framed(event(BEGAN, {"content": "one"})))
    lose(first)
    assert not asked_of_another(served)
    assert b'"code":"upstream_lost"' in served.wire.written
    assert LAST not in served.wire.written


def model(served: Served, name: str, secret: str = "") -> bytes:
    """What is said of it."""
    served.wire.written = b""
    key = f"authorization: Bearer {secret}\r\n" if secret else ""
    served.down.data_received(f"GET /v1/models/{name} HTTP/1.1\r\nhost: a\r\n{key}\r\n".encode())
    return served.wire.written


def test_a_model_that_cannot_be_listed_is_shown_to_whoever_may_use_it() -> None:
    served = Served(models=("toy-*", "labs/toy"))
    served.worker.told(messages.KeyPut(Key("small", hashed("s"), models=("toy-7b*",))))
    for name, secret in (("toy-70b", ""), ("labs/toy", ""), ("labs%2Ftoy", ""), ("toy-7b-it", "s")):
        assert model(served, name, secret).startswith(b"HTTP/1.1 200"), name
    assert b'"id":"toy-7b-it"' in model(served, "toy-7b-it", "s")
    assert b'"owned_by":"toy"' in model(served, "toy-7b-it", "s")
    for name, secret in (("other", ""), ("toy", ""), ("toy-70b", "s"), ("labs/toy", "s")):
        assert b'"code":"model_not_found"' in model(served, name, secret), name


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_that_has_no_body_has_no_frame_of_one(status: int) -> None:
    """As a stream it was sent in chunks: the last of them stood before the next answer."""
    served = Served()
    served.ask()
    head = b"HTTP/1.1 %d -\r\ncontent-type: text/event-stream\r\n\r\n" % status
    served.asked().data_received(head)
    assert served.wire.written.startswith(b"HTTP/1.1 %d " % status)
    assert served.wire.written.partition(b"\r\n\r\n")[2] == b""
    assert b"transfer-encoding" not in served.wire.written
    assert not served.wire.closed


def test_a_request_that_ends_replicas_is_not_asked_of_all_of_them() -> None:
    """A connection that was kept, and ended with its replica, was taken for one that was closed while idle:
    the next replica was asked, and so on, and all of that was no try."""
    upstreams = tuple(settings.Upstream(f"http://127.0.0.1:{port}") for port in range(7, 15))
    served = Served(upstreams=upstreams)
    refused: list[Any] = []
    served.worker.connector = SimpleNamespace(start=refused.append)  # type: ignore[assignment]
    for up in served.ups:
        up.used = True
    served.ask()
    ended = 0
    while [up for up in served.ups if up.asked is not None]:
        lose(served.asked())
        ended += 1
        refused.pop().failed(None, "no connection: refused")
    assert ended == 3
    assert b'"code":"upstream_failed"' in served.wire.written


def test_a_connection_that_was_closed_while_idle_costs_one_new_connection_and_no_try() -> None:
    served = Served(upstreams=UPSTREAMS[:1], tries=1)
    (stale,) = served.ups
    stale.used = True
    other = Up(stale.replica)
    other.connection_made(Wire())
    other.used = True
    assert isinstance(stale.replica.connection_pool, list)
    stale.replica.connection_pool.insert(0, other)  # as old as the one that was closed
    asked: list[Any] = []
    served.worker.connector = SimpleNamespace(start=asked.append)  # type: ignore[assignment]
    served.ask()
    lose(stale)
    assert other.asked is None
    fresh = Up(stale.replica)
    fresh.connection_made(Wire())
    (attempt,) = asked
    attempt.exchange.connected(attempt, fresh)
    fresh.data_received(HEAD + chunk("one") + DONE)
    assert text_of(said_to(served)) == "one"


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completion%73",
        "/v1/chat%2Fcompletions",
        "/v1/chat/completions/",
        "//v1/chat/completions",
        "/v1/chat//completions",
        "/v1/x/../chat/./completions",
        "/v1/%2e/chat/completions",
        "/v1/chat/completions#x",
        "/v1/embeddings%2F?x",
    ],
)
def test_no_other_way_to_write_a_path_that_counts_as_tokens_leads_to_an_engine(path: str) -> None:
    """It led to the service that has the prefix, needed no model, and counted as no tokens."""
    served = Served(prefixes=("/",))
    ask = ASK.replace(b"/v1/chat/completions", path.encode())
    served.down.data_received(ask)
    assert [up for up in served.ups if up.asked is not None] == []
    assert re.search(rb'"code":"(not_found|invalid_request)"', served.wire.written)
    served = Served(prefixes=("/",))
    served.down.data_received(ask.replace(path.encode(), b"/v1/chat/completions%20of/x"))
    assert len([up for up in served.ups if up.asked is not None]) == 1


async def test_a_replica_whose_name_is_none_cannot_be_reached() -> None:
    """Who asked was left without an answer."""
    served = Served(upstreams=(settings.Upstream("http://a..b:1"),), hold=None)
    served.ups[0].replica.connection_pool = []
    served.worker.loop = asyncio.get_running_loop()
    served.ask()
    await asyncio.gather(*served.worker.connector._tasks)
    assert b'"code":"upstream_failed"' in served.wire.written


@pytest.mark.parametrize("beside", [b"event: message\n", b": alive\n", b"id: 7\n"])
def test_an_answer_of_two_replicas_reads_as_one_whatever_stands_beside_its_data(beside: bytes) -> None:
    """What did not begin with its data was passed on with another id, opening and usage."""
    served = Served(continues=True)
    served.ask(ASK_FOR_USAGE)
    first = served.asked()
    first.data_received(HEAD + framed(beside, event(BEGAN, ROLE), beside, event(BEGAN, {"content": "one"})))
    lose(first)
    more = [event(WENT_ON, ROLE), event(WENT_ON, {"content": " two"}), event(WENT_ON, None, (9, 1))]
    served.asked().data_received(HEAD + framed(*(beside + each for each in more)) + DONE)
    *found, usage, done = said_to(served)
    assert (text_of(found), done) == ("one two", "[DONE]")
    assert {each["id"] for each in (*found, usage)} == {"chatcmpl-1"}
    assert len(found) == 3, "one opening"
    assert usage["usage"] == numbers(8, 2)
    assert served.wire.written.count(beside.rstrip()) == 4


WRONG = b'data: {"error":{"message":"no such grammar","type":"BadRequestError","code":400}}\n\n'


def test_a_request_that_is_wrong_is_no_fault_of_the_replicas_that_say_so_in_a_stream() -> None:
    """It was asked of the next one, each of them counted it as a failure, and three of those eject."""
    served = Served()
    for _ in range(4):
        served.wire.written = b""
        served.ask()
        served.asked().data_received(HEAD + framed(WRONG) + DONE)
        assert WRONG in served.wire.written
    replicas = served.worker.book.services["toy"].pool.replicas.values()
    assert [replica.health.in_a_row for replica in replicas] == [0, 0]
    assert served.worker.book.services["toy"].retries == 0


def test_an_answer_that_is_not_gone_on_with_ends_as_lost_whatever_the_next_says_of_it() -> None:
    served = Served(continues=True)
    served.ask()
    first = served.asked()
    first.data_received(HEAD + chunk("one"))
    lose(first)
    served.asked().data_received(HEAD + framed(WRONG) + DONE)
    assert said_to(served)[-1]["error"]["code"] == "upstream_lost"
    assert WRONG not in served.wire.written


ORDER = b"POST /orders HTTP/1.1\r\nhost: a\r\n%scontent-length: 2\r\n\r\n{}"


class Orders(Served):
    """A service without models, whose connections have all been used before."""

    def __init__(self) -> None:
        super().__init__(models=("orders",), prefixes=("/orders",))
        self.started: list[Any] = []
        self.worker.connector = SimpleNamespace(start=self.started.append)  # type: ignore[assignment]
        for up in self.ups:
            up.used = True

    @property
    def seen_by(self) -> int:
        return sum(b"/orders" in up.transport.written for up in self.ups)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("ask", "repeats"),
    [
        (ORDER % b"", False),
        (ORDER % b"Idempotency-Key: \r\n", False),
        (ORDER % b"Idempotency-Key: 7\r\nconnection: idempotency-key\r\n", False),
        (ORDER.replace(b"POST", b"PATCH") % b"", False),
        (ORDER % b"Idempotency-Key: 7\r\n", True),
        (ORDER.replace(b"POST", b"PUT") % b"", True),
        (ORDER.replace(b"POST", b"DELETE") % b"", True),
        (ORDER.replace(b"POST", b"GET") % b"", True),
    ],
)
def test_what_was_sent_is_retried_only_if_to_carry_it_out_twice_is_as_good_as_once(
    ask: bytes, repeats: bool
) -> None:
    served = Orders()
    served.down.data_received(ask)
    lose(served.asked())
    assert bool(served.started or served.seen_by > 1) is repeats
    assert (b'"code":"outcome_unknown"' in served.wire.written) is not repeats


def test_a_service_that_names_its_models_retries_all_that_is_sent_to_it() -> None:
    served = Orders()
    served.change(models=("toy",), names_models=True, prefixes=("/orders",), paths=("/orders",))
    served.ask(ORDER % b"")
    lose(served.asked())
    assert served.started or served.seen_by > 1


def test_what_was_never_sent_is_said_not_to_have_been_carried_out() -> None:
    served = Orders()
    for up in served.ups:
        lose(up)
    served.down.data_received(ORDER % b"")
    served.change(models=("orders",), prefixes=("/orders",), hold=None)
    while served.started:
        served.started.pop().failed(None, "no connection: refused")
    assert b'"code":"upstream_failed"' in served.wire.written
    assert b"not carried out" in served.wire.written


def test_an_error_of_a_replica_answers_what_must_not_be_carried_out_twice() -> None:
    served = Orders()
    served.down.data_received(ORDER % b"")
    served.asked().data_received(b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy")
    assert (served.seen_by, served.wire.written[:12], served.wire.written[-4:]) == (
        1,
        b"HTTP/1.1 503",
        b"busy",
    )


@pytest.mark.parametrize(("path", "refused"), [("/v1/models", {}), ("/v1/models/none", {404: 1})])
def test_what_the_gateway_answers_itself_is_not_counted_as_refused(
    path: str, refused: dict[int, int]
) -> None:
    served = Served()
    served.down.data_received(f"GET {path} HTTP/1.1\r\nhost: a\r\n\r\n".encode())
    assert served.worker.counts.by_status == refused


def test_who_leaves_before_anything_was_decided_is_not_counted_as_refused() -> None:
    served = Served()
    served.down.data_received(ASK)
    served.down.connection_lost(None)
    assert served.worker.counts.by_status == {}
