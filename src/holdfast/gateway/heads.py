"""Heads, said anew: what a replica is asked, and how an answer begins. Nothing that belongs to one connection
is passed on to another."""

from typing import TYPE_CHECKING

from holdfast.core.gateway.quota.limits import Standing
from holdfast.gateway import replies

if TYPE_CHECKING:
    from holdfast.gateway.attempt import Try
    from holdfast.gateway.down import Down
    from holdfast.gateway.exchange import Exchange
    from holdfast.gateway.target import Target
    from holdfast.gateway.up import Up

STATUS_LINES = {status: b"HTTP/1.1 %d %s\r\n" % (status, why) for status, why in replies.REASONS.items()}


def request(exchange: "Exchange", target: "Target") -> bytes:
    down, body = exchange.down, exchange.body
    begins = down.begins
    if begins is None or begins[0] is not target:
        begins = down.begins = (target, _begin(down, target))
    if body or down.length >= 0 or down.chunked:
        return b"%s%s\r\ncontent-length: %d\r\n\r\n%s" % (
            begins[1],
            exchange.request_id(),
            len(body),
            body,
        )
    return b"%s%s\r\n\r\n" % (begins[1], exchange.request_id())


def _begin(down: "Down", target: "Target") -> bytes:
    """All that is the same for every request with this head."""
    return b"%s %s%s HTTP/1.1\r\nhost: %s\r\n%s%sx-request-id: " % (
        down.method,
        target.path,
        down.target,
        target.host,
        b"".join(down.forward),
        target.authorization,
    )


def answer(exchange: "Exchange", attempt: "Try", up: "Up", length: int) -> bytes:
    """`length`: of the body, if all of it is there; -1: more will come."""
    worker, down = exchange.worker, exchange.down
    status = up.status
    if up.is_head or (length < 0 and attempt.events is None):
        length = up.length
    frame = b""
    if length >= 0:
        if status not in (204, 304):
            frame = b"content-length: %d\r\n" % length
    elif up.is_head or status in (204, 304):
        pass  # no body, and no frame of one: its end would be read as the next answer
    elif down.version == "1.1":
        frame = b"transfer-encoding: chunked\r\n"
        exchange.to_chunk = True
    else:
        down.keep_alive = False
    left = b""
    if exchange.chain is not None:
        left = standing(worker.purse.standing(exchange.chain, exchange.first_at))
    return b"%s%s%s%sx-request-id: %s\r\n%s\r\n" % (
        STATUS_LINES.get(status) or b"HTTP/1.1 %d -\r\n" % status,
        b"".join(up.lines),
        frame,
        left,
        exchange.request_id(),
        b"" if down.keep_alive else b"connection: close\r\n",
    )


def standing(now: Standing) -> bytes:
    """The headers that say how much is left. Nothing where nothing is limited."""
    out = b""
    if now.limit_requests >= 0:
        out = (
            b"x-ratelimit-limit-requests: %d\r\nx-ratelimit-remaining-requests: %d\r\n"
            b"x-ratelimit-reset-requests: %.3fs\r\n"
            % (now.limit_requests, max(0, now.remaining_requests), now.reset_requests_s)
        )
    if now.limit_tokens >= 0:
        out += (
            b"x-ratelimit-limit-tokens: %d\r\nx-ratelimit-remaining-tokens: %d\r\n"
            b"x-ratelimit-reset-tokens: %.3fs\r\n"
            % (now.limit_tokens, max(0, now.remaining_tokens), now.reset_tokens_s)
        )
    return out
