"""Heads, said anew: what a replica is asked, and how an answer begins. Nothing that belongs to one connection
is passed on to another."""

from typing import TYPE_CHECKING

from holdfast.gateway import replies

if TYPE_CHECKING:
    from holdfast.gateway.attempt import Try
    from holdfast.gateway.exchange import Exchange
    from holdfast.gateway.service import Target
    from holdfast.gateway.up import Up

STATUS_LINES = {status: b"HTTP/1.1 %d %s\r\n" % (status, why) for status, why in replies.REASONS.items()}


def request(exchange: "Exchange", target: "Target") -> bytes:
    down, body = exchange.down, exchange.body
    has_body = body or down.length >= 0 or down.chunked
    return b"%s %s%s HTTP/1.1\r\nhost: %s\r\n%s%sx-request-id: %s\r\n%s\r\n%s" % (
        down.method,
        target.path,
        down.target,
        target.host,
        b"".join(down.forward),
        target.authorization,
        exchange.request_id(),
        b"content-length: %d\r\n" % len(body) if has_body else b"",
        body,
    )


def answer(exchange: "Exchange", attempt: "Try", up: "Up", length: int) -> bytes:
    """`length`: of the body, if all of it is there; -1: more will come."""
    worker, down = exchange.worker, exchange.down
    status = up.status
    lines = [STATUS_LINES.get(status) or b"HTTP/1.1 %d -\r\n" % status]
    lines += [b"%s: %s\r\n" % header for header in up.headers]
    if up.is_head or (length < 0 and attempt.events is None):
        length = up.length
    if length >= 0:
        if status not in (204, 304):
            lines.append(b"content-length: %d\r\n" % length)
    elif up.is_head:
        pass
    elif down.version == "1.1":
        lines.append(b"transfer-encoding: chunked\r\n")
        exchange.to_chunk = True
    else:
        down.keep_alive = False
    if exchange.chain is not None:
        lines.append(replies.standing(worker.purse.standing(exchange.chain, exchange.first_at)))
    end = b"" if down.keep_alive else b"connection: close\r\n"
    lines.append(b"x-request-id: %s\r\n%s\r\n" % (exchange.request_id(), end))
    return b"".join(lines)
