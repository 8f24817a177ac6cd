"""A closer look at one request in some: was its answer one that came before, and what of tools?

Whoever looks for keys that work for nobody wants to know (`core.gateway.key_audit.indicators`). A share says
as much as all of them, so most requests pay nothing for it. The text of a stream is hashed as it goes by; of
a whole answer its length and its end, which tell two of them apart well enough.
"""

import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.gateway.attempt import Try
    from holdfast.gateway.exchange import Exchange

LOOK_EVERY = 7  # a prime: whoever asks in turns is not always met at the same turn
END = 512
LAST = 16_384  # bytes of a request: the newest messages are there
TOOLS = (b'"finish_reason":"tool_calls"', b'"finish_reason": "tool_calls"')
RESULTS = (b'"tool_call_id"', b'"function_call_output"')
NOTHING = (0, False, False)


def look(exchange: "Exchange", attempt: "Try | None") -> tuple[int, bool, bool]:
    """The answer's hash (0: not looked at, or no text); does it ask for a tool; did the request bring a
    result?"""
    if attempt is None or exchange.left_early or exchange.status >= 300:
        return NOTHING
    events = attempt.events
    if events is not None:
        if not events.reads:
            return NOTHING
        said, asks_tool = events.said, events.asks_tool
    elif exchange.worker.looks():
        said, asks_tool = whole(attempt.tail)
    else:
        return NOTHING
    return said, asks_tool, brings_result(exchange.down.body)


def whole(answer: bytes) -> tuple[int, bool]:
    """Of what comes after `choices` and before `usage`: around them are its id and its time. A question to a
    tool has an id of its own, and no hash."""
    end = answer.rfind(b'"usage"')
    said = answer[max(0, answer.find(b'"choices"')) : end if end > 0 else len(answer)]
    if TOOLS[0] in said or TOOLS[1] in said:
        return 0, True
    return zlib.crc32(said[-END:], len(said)), False


def brings_result(body: bytes) -> bool:
    last = body[-LAST:]
    return RESULTS[0] in last or RESULTS[1] in last
