"""One answer by several replicas: each was cut in the middle of it, but the last, and the client reads one.

A replica that goes on is given the beginning as part of its prompt. It opens as any answer does, has an id of
its own, and counts that beginning as prompt and not as said. The client gets the rest of what was begun:
- no second opening: what comes before the first content is not sent;
- the id and the time of the first replica, as OpenAI's API says of the chunks of one stream;
- one usage. Its completion is all that was said; its prompt is what a replica told before there was any
  beginning, or else what the last one told, less what it was given. Of the tokens that were said, the last
  usage of each replica speaks, or else its events, for an engine usually sends one for each.
Details of a usage (what was cached, what was thought) are one replica's, and left out.

Not every answer can be continued. One that is finished, or as long as it may be, lacks at most its last
events, and we write those: another would say more than was asked for. One that has said anything but text
(what it thought, above all) cannot be given back as the beginning of an answer, and ends as lost.

What is charged is no less than the whole, nor than what any of them told to have used. Not their sum: that
the beginning was read a second time is our trouble and not the client's.
"""

import msgspec

from holdfast.gateway.ask import NOT_JSON
from holdfast.gateway.shapes import Usage
from holdfast.gateway.sse import data_of, events_of, has_content

SAME = ("id", "created")

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_usage = msgspec.json.Decoder(Usage | None)
_anything = msgspec.json.Decoder()


class Before:
    """What is known of the replicas that were cut."""

    __slots__ = ("made", "prompt", "used")

    def __init__(self, made: int = 0, prompt: int = -1, used: int = 0) -> None:
        self.made = made  # tokens that the client has of them
        self.prompt = prompt  # of the request as it came; -1: none has told
        self.used = used  # the most that one of them has told

    def and_then(self, usage: Usage | None, parts: int) -> "Before":
        """Another was cut after so many parts of text."""
        if usage is None:
            return Before(self.made + parts, self.prompt, self.used)
        whole = self.whole(usage)
        prompt = whole.prompt if usage.prompt else self.prompt
        return Before(self.made + max(parts, usage.completion), prompt, max(self.used, usage.total))

    def whole(self, usage: Usage) -> Usage:
        """Of the answer, if this is what the last one tells."""
        prompt = self.prompt if self.prompt >= 0 else max(0, usage.prompt - self.made)
        made = self.made + usage.completion
        return Usage(prompt_tokens=prompt, completion_tokens=made, total_tokens=prompt + made)


class Rest:
    """What one replica says that goes on, as the rest of what was begun."""

    __slots__ = ("before", "opened", "same")

    def __init__(self, before: Before, same: dict[str, msgspec.Raw]) -> None:
        self.before, self.same = before, same
        self.opened = False

    def mended(self, block: bytes) -> bytes:
        return b"".join([self._event(event) for event in events_of(block)])

    def _event(self, event: bytes) -> bytes:
        said = data_of(event)
        if not said.startswith(b"{"):
            return event
        try:
            fields = _fields.decode(said)
            if not self.opened and _opens(said):
                return b""
            self.opened = True
            for name in fields.keys() & self.same.keys():
                fields[name] = self.same[name]
            usage = _usage.decode(fields["usage"]) if "usage" in fields else None
        except NOT_JSON:  # not what we know: as it came
            return event
        if usage is not None:
            whole = self.before.whole(usage)
            told = {"prompt_tokens": whole.prompt, "completion_tokens": whole.completion}
            fields["usage"] = msgspec.Raw(msgspec.json.encode({**told, "total_tokens": whole.total}))
        return _beside(event) + b"data: " + msgspec.json.encode(fields) + b"\n\n"


def _beside(event: bytes) -> bytes:
    """Its lines that are no data: usually none."""
    if event.startswith(b"data: ") and event.find(b"\n") >= len(event) - 2:
        return b""
    lines = event.replace(b"\r\n", b"\n").split(b"\n")
    return b"".join([line + b"\n" for line in lines if line and not line.startswith(b"data:")])


def _opens(said: bytes) -> bool:
    decoded = _anything.decode(said)
    return bool(decoded.get("choices")) and not has_content(decoded)


def same_in_all(block: bytes) -> dict[str, msgspec.Raw]:
    """What its first event has in common with all that follow."""
    fields = _first(block)
    return {name: fields[name] for name in SAME if name in fields}


def too_long(block: bytes) -> bytes:
    """The event that says of an answer that began so: it is as long as it may be."""
    fields = {name: value for name, value in _first(block).items() if name != "usage"}
    fields["choices"] = msgspec.Raw(b'[{"index":0,"delta":{},"finish_reason":"length"}]')
    return b"data: " + msgspec.json.encode(fields) + b"\n\n"


def _first(block: bytes) -> dict[str, msgspec.Raw]:
    for event in events_of(block):
        try:
            return _fields.decode(data_of(event))
        except NOT_JSON:
            continue
    return {}
