"""What the gateway answers by itself, in the shape that clients of OpenAI's API know.

A limit that was reached is 429 with the true time after which the same request would pass. One that could
never pass is 400: nobody should try again. A budget that is used up is 429 `insufficient_quota`, which
clients do not try again either. Where the caller has used up nothing and whoever counts has only started
anew, it is 503: it is not the caller's fault.
"""

import math
from typing import Any

import msgspec

from holdfast.core.gateway.quota.limits import Refusal

REASONS: dict[int, bytes] = {
    200: b"OK",
    400: b"Bad Request",
    401: b"Unauthorized",
    403: b"Forbidden",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    413: b"Content Too Large",
    415: b"Unsupported Media Type",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    502: b"Bad Gateway",
    503: b"Service Unavailable",
    504: b"Gateway Timeout",
}
PER_MINUTE = {"tokens": "tokens per minute", "requests": "requests per minute"}


class Answer(msgspec.Struct):
    """An error for whoever asked."""

    status: int
    code: str
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    wait_s: float | None = None  # after which it may be tried again
    close: bool = False

    def body(self) -> bytes:
        error: dict[str, Any] = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        return msgspec.json.encode({"error": error})

    def event(self) -> bytes:
        """The same in a stream that has begun. No [DONE] comes after it."""
        return b"data: " + self.body() + b"\n\n"

    def more(self) -> bytes:
        if self.wait_s is None or not math.isfinite(self.wait_s):
            return b""
        ms = max(1, math.ceil(self.wait_s * 1_000))
        return b"retry-after: %d\r\nretry-after-ms: %d\r\n" % (math.ceil(ms / 1_000), ms)


def whole(
    status: int, body: bytes, more: bytes = b"", *, close: bool, content: bytes = b"application/json"
) -> bytes:
    return b"HTTP/1.1 %d %s\r\ncontent-type: %s\r\ncontent-length: %d\r\n%s%s\r\n%s" % (
        status,
        REASONS.get(status, b"Unknown"),
        content,
        len(body),
        more,
        b"connection: close\r\n" if close else b"",
        body,
    )


def refused(refusal: Refusal, model: str) -> Answer:
    where = scope_words(refusal.scope)
    if refusal.kind == "never":
        return Answer(
            400,
            "request_exceeds_limit",
            f"this request needs {refusal.needed:.0f} tokens, more than the {refusal.limit:.0f} that {where}"
            " may ever take at once: ask for fewer tokens (max_tokens), or have the limit raised",
            param="max_tokens",
        )
    if refusal.kind == "total":
        return Answer(
            429,
            "insufficient_quota",
            f"the budget of {where} ({refusal.limit:.0f} tokens) is used up, or has too little left for the"
            f" {refusal.needed:.0f} that this request needs",
            "insufficient_quota",
        )
    if refusal.kind == "held":
        return Answer(
            429,
            "rate_limit_exceeded",
            f"what is left of the budget of {where} ({refusal.limit:.0f} tokens) is lent out, or held by"
            f" requests that run: this one needs {refusal.needed:.0f}",
            "tokens",
            wait_s=refusal.wait_s,
        )
    if refusal.kind == "unavailable":
        return Answer(
            503,
            "quota_unavailable",
            f"nobody can say at the moment how much of the quota of {where} is left",
            "server_error",
            wait_s=1.0,
        )
    if refusal.kind == "recovering":
        return Answer(
            503,
            "quota_recovering",
            f"the quota of {where} is being recovered after a restart of whoever counts it, not used up:"
            f" try again in {refusal.wait_s:.1f} s",
            "server_error",
            wait_s=refusal.wait_s,
        )
    if refusal.kind == "concurrent":
        what = f"{refusal.limit:.0f} requests at a time"
    else:
        what = f"{refusal.limit:.0f} {PER_MINUTE[refusal.kind]}"
    return Answer(
        429,
        "rate_limit_exceeded",
        f"limit of {where} reached for {model}: {what}, this request needs {refusal.needed:.0f}",
        "tokens" if refusal.kind == "tokens" else "requests",
        wait_s=refusal.wait_s if math.isfinite(refusal.wait_s) else 1.0,
    )


def scope_words(scope: str) -> str:
    """`team:red/model:llama` as a person says it. Empty: nobody can tell which one it is."""
    if not scope:
        return "this key"
    if scope == "global":
        return "all keys together"
    first, _, model = scope.partition("/model:")
    kind, _, name = first.partition(":")
    return f"{kind} {name}" + (f" for {model}" if model else "")
