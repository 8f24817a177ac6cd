"""What a worker knows of keys and services, and what the gateway answers by itself."""

import math

import msgspec
import pytest

from holdfast.core.gateway.quota.limits import Refusal, Standing
from holdfast.gateway import settings
from holdfast.gateway.book import SECRET_MAX, Book, hashed
from holdfast.gateway.heads import standing
from holdfast.gateway.replies import Answer, refused, scope_words, whole
from holdfast.gateway.service import Service
from holdfast.model.gateway import Key, may_use
from tests.gateway_twins import Notes
from tests.gateways import key

NOW = 1_750_000_000_000


def book(*wanted: settings.Service) -> Book:
    made = Book()
    made.set_services(Service(each, Notes()) for each in wanted)  # type: ignore[arg-type]
    return made


def name(found: Service | None) -> str:
    return found.name if found is not None else ""


def test_a_model_is_answered_by_the_service_that_names_it_most_closely() -> None:
    ours = book(
        settings.Service("all", models=("*",)),
        settings.Service("llamas", models=("llama-*",)),
        settings.Service("large", models=("llama-70b-*", "llama-small")),
    )
    found = {
        model: name(ours.service_for(model)) for model in ("x", "llama-8b", "llama-70b-it", "llama-small", "")
    }
    assert found == {
        "x": "all",
        "llama-8b": "llamas",
        "llama-70b-it": "large",
        "llama-small": "large",
        "": "all",
    }
    assert name(book(settings.Service("one", models=("one",))).service_for("One")) == ""
    assert ours.models(None) == ["llama-small"], "a list cannot name what a star stands for"
    assert ours.models(key(models=("gpt-*",))) == []


def test_a_path_leads_to_a_service_by_host_first_and_by_its_longest_prefix() -> None:
    ours = book(
        settings.Service("tools", prefixes=("/tools",)),
        settings.Service("deep", prefixes=("/tools/deep/",)),
        settings.Service("shop", hosts=("Shop.example",)),
    )
    for host, path, found in (
        (b"x", b"/tools", "tools"),
        (b"x", b"/tools/a", "tools"),
        (b"x", b"/toolshed", ""),
        (b"x", b"/tools/deep/a", "deep"),
        (b"x", b"/tools/deep", "tools"),
        (b"shop.example", b"/tools", "shop"),
        (b"SHOP.example:8080", b"/any", "shop"),
        (b"shop.example.evil", b"/any", ""),
        (b"", b"/", ""),
    ):
        assert name(ours.service_at(host, path)) == found, (host, path)


def test_services_that_are_gone_are_found_no_more() -> None:
    ours = book(settings.Service("a", models=("m", "m-*"), hosts=("h",), prefixes=("/p",)))
    ours.set_services([])
    assert ours.service_for("m") is ours.service_for("m-1") is ours.service_at(b"h", b"/p") is None


@pytest.mark.parametrize(
    ("allowed", "model", "may"),
    [
        ((), "x", True),
        (("a", "b-*"), "b-1", True),
        (("a",), "a-1", False),
        (("*",), "x", True),
        (("b-*",), "b", False),
    ],
)
def test_a_key_may_use_what_it_names(allowed: tuple[str, ...], model: str, may: bool) -> None:
    assert may_use(key(models=allowed), model) is may


def test_a_key_is_known_by_its_secret_and_by_nothing_else() -> None:
    ours = Book()
    ours.put_key(key("sk-a", "a"))
    assert isinstance(ours.key_of(b"sk-a", NOW), Key)
    for secret in (b"", b"sk-", b"sk-a ", b"sk-aa", b"SK-A", hashed(b"sk-a"), b"x" * (SECRET_MAX + 1)):
        found = ours.key_of(secret, NOW)
        assert isinstance(found, Answer)
        assert (found.status, found.code) == (401, "invalid_api_key")
    ours.put_key(key("sk-b", "a"))
    assert isinstance(ours.key_of(b"sk-a", NOW), Answer), "its secret was changed"
    ours.drop_key("a")
    ours.drop_key("a")
    assert isinstance(ours.key_of(b"sk-b", NOW), Answer)
    assert (len(ours.keys), len(ours.key_hashes)) == (0, 0)


def test_suspended_and_expired_keys_are_told_so() -> None:
    ours = Book()
    ours.put_key(key("sk-s", "s", suspended="it was leaked"))
    ours.put_key(key("sk-e", "e", expires_at=NOW))
    ours.put_key(key("sk-l", "l", expires_at=NOW + 1))
    suspended, expired = ours.key_of(b"sk-s", NOW), ours.key_of(b"sk-e", NOW)
    assert isinstance(suspended, Answer)
    assert isinstance(expired, Answer)
    assert (suspended.status, suspended.code) == (403, "key_suspended")
    assert "it was leaked" in suspended.message
    assert (expired.status, "expired" in expired.message) == (401, True)
    assert isinstance(ours.key_of(b"sk-l", NOW), Key)


@pytest.mark.parametrize(
    ("kind", "status", "code", "type", "retry"),
    [
        ("tokens", 429, "rate_limit_exceeded", "tokens", b"retry-after: 3\r\nretry-after-ms: 2500\r\n"),
        ("requests", 429, "rate_limit_exceeded", "requests", b"retry-after: 3\r\nretry-after-ms: 2500\r\n"),
        ("concurrent", 429, "rate_limit_exceeded", "requests", b"retry-after: 3\r\nretry-after-ms: 2500\r\n"),
        ("total", 429, "insufficient_quota", "insufficient_quota", b""),
        ("never", 400, "request_exceeds_limit", "invalid_request_error", b""),
        (
            "unavailable",
            503,
            "quota_unavailable",
            "server_error",
            b"retry-after: 1\r\nretry-after-ms: 1000\r\n",
        ),
        (
            "recovering",
            503,
            "quota_recovering",
            "server_error",
            b"retry-after: 3\r\nretry-after-ms: 2500\r\n",
        ),
    ],
)
def test_a_refusal_says_what_to_do(kind: str, status: int, code: str, type: str, retry: bytes) -> None:
    answer = refused(Refusal(kind, "team:red/model:toy", 100.0, 120.0, 2.5), "toy")
    assert (answer.status, answer.code, answer.type, answer.more()) == (status, code, type, retry)
    assert "team red for toy" in answer.message
    assert msgspec.json.decode(answer.body())["error"]["code"] == code
    assert answer.event().startswith(b"data: {")
    assert answer.event().endswith(b"}\n\n")


def test_a_wait_is_never_said_shorter_than_it_is() -> None:
    for wait_s, seconds, ms in (
        (0.0, 1, 1),
        (0.0001, 1, 1),
        (1.0, 1, 1_000),
        (1.0001, 2, 1_001),
        (59.5, 60, 59_500),
    ):
        said = Answer(429, "x", "y", wait_s=wait_s).more()
        assert said == b"retry-after: %d\r\nretry-after-ms: %d\r\n" % (seconds, ms)
    assert Answer(429, "x", "y", wait_s=math.inf).more() == b""


def test_scopes_are_said_in_words() -> None:
    said = {"global": "all keys together", "key:ci": "key ci", "model:org/llama": "model org/llama"}
    said |= {"team:red/model:org/llama": "team red for org/llama", "": "this key"}
    assert {scope: scope_words(scope) for scope in said} == said


def test_headers_say_what_is_left_where_something_is_limited() -> None:
    left = Standing()
    left.limit_tokens = left.limit_requests = -1
    assert standing(left) == b""
    left.limit_tokens, left.remaining_tokens, left.reset_tokens_s = 100, -5, 1.5
    left.limit_requests, left.remaining_requests, left.reset_requests_s = 10, 3, 0.25
    lines = standing(left).decode().splitlines()
    assert lines == [
        "x-ratelimit-limit-requests: 10",
        "x-ratelimit-remaining-requests: 3",
        "x-ratelimit-reset-requests: 0.250s",
        "x-ratelimit-limit-tokens: 100",
        "x-ratelimit-remaining-tokens: 0",
        "x-ratelimit-reset-tokens: 1.500s",
    ]


def test_a_whole_answer_says_its_length_and_whether_it_is_the_last() -> None:
    assert whole(200, b"{}", close=False).endswith(b"content-length: 2\r\n\r\n{}")
    assert b"connection: close\r\n" in whole(499, b"", close=True)
