"""What a request for a model asks for: read once, as little of it as decides anything.

The body is decoded into the few fields that matter here; the rest is skipped, not built. What is added to
it is spliced in at its end, so that a prompt of a megabyte is not encoded again. Where a client wrote a field
that must be another, the fields are taken apart and put together again, each but that one as it came: rare,
and the only way to be sure that upstream reads what we counted. What is skipped need not be text, or a number
that is known here: whoever decodes more than `Ask` must be ready for that.
"""

from typing import Any

import msgspec

from holdfast.gateway.shapes import N_MAX, NONE, Ask, outputs

SHAPES = frozenset({b"/v1/chat/completions", b"/v1/completions", b"/v1/embeddings", b"/v1/responses"})
COUNTED = (
    "n",
    "best_of",
    "prompt",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "sampling_params",
    "parameters",
)  # fields that say how much may come
USAGE = b'"stream_options":{"include_usage":true}'
USAGE_ALL_THE_TIME = b'"stream_options":{"include_usage":true,"continuous_usage_stats":true}'
LENGTHS = ("max_tokens", "max_completion_tokens")
FORMS = (
    "echo",
    "ebnf",
    "functions",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "regex",
    "structural_tag",
    "structured_outputs",
    "tools",
)  # beside response_format
IMAGE = b'"image_url"'
AUDIO = b'"input_audio"'


class NotReadable(Exception):
    """What is wrong with the body, for whoever sent it."""

    def __init__(self, why: str, param: str = "") -> None:
        super().__init__(why)
        self.param = param


NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_decoder = msgspec.json.Decoder(Ask)
_anything = msgspec.json.Decoder()
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw])
_length = msgspec.json.Decoder(int | None)
_text = msgspec.json.Decoder(str)
_content = msgspec.json.Decoder(str | list[msgspec.Raw] | None)
_true, _false, _null = (msgspec.Raw(word) for word in (b"true", b"false", b"null"))


def is_plain(ask: Ask) -> bool:
    """Nothing in it could ask for several outputs: as nearly all are."""
    return (
        ask.n is None
        and ask.best_of is None
        and ask.prompt is NONE
        and ask.prompt_embeds is NONE
        and ask.text is NONE
        and ask.input_ids is NONE
        and ask.sampling_params is None
        and ask.parameters is None
    )


def is_counted(param: str) -> bool:
    """Is that a field, or a part of one, that says how much may come?"""
    return param.partition(".")[0] in COUNTED


def read(body: bytes, *, named: bool = True) -> Ask:
    """`named`: it must say which model it is for."""
    try:
        ask = _decoder.decode(body)
        plain = is_plain(ask)
        ask.outputs = 1 if plain else outputs(ask)
    except msgspec.ValidationError as error:
        text = str(error)
        param = text.partition("`$.")[2].partition("`")[0]
        raise NotReadable(text, param or ("model" if "`model`" in text else "")) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotReadable(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise NotReadable("the body is nested too deeply") from None
    if named and not ask.model:
        raise NotReadable("a model must be named", "model")
    if ask.outputs > N_MAX:
        param = "n" if (ask.n or 1) > N_MAX or (ask.best_of or 1) > N_MAX else "prompt"
        raise NotReadable(f"at most {N_MAX} outputs at a time, of all prompts together", param)
    if (
        (ask.max_tokens or 0) < 0
        or (ask.max_completion_tokens or 0) < 0
        or (ask.max_output_tokens or 0) < 0
        or (not plain and ask.least < 0)
    ):
        raise NotReadable("expected a number of tokens, not less than 0", "max_tokens")
    return ask


def with_usage(body: bytes, ask: Ask, *, all_the_time: bool = False) -> tuple[bytes, bool]:
    """The body of a stream that will tell its usage at the end; did whoever asked want to see it?"""
    wanted = ask.stream_options is not None and bool(ask.stream_options.include_usage)
    if wanted and not all_the_time:
        return body, True
    if ask.stream_options is not None or body.find(b'"stream_options"') >= 0:
        try:
            return _told_otherwise(body, all_the_time), wanted
        except NOT_JSON:  # a name that is no text: the last of two fields holds
            pass
    cut = body.rstrip()
    return cut[:-1] + b"," + (USAGE_ALL_THE_TIME if all_the_time else USAGE) + b"}", wanted


def _told_otherwise(body: bytes, all_the_time: bool) -> bytes:
    """Where it says something else, or the same in other words."""
    fields = _fields.decode(body)
    said = fields.get("stream_options", _null)
    options = {} if said == _null else _fields.decode(said)
    options["include_usage"] = _true
    if all_the_time:
        options["continuous_usage_stats"] = _true
    fields["stream_options"] = msgspec.Raw(msgspec.json.encode(options))
    return msgspec.json.encode(fields)


def prompt_size(body: bytes) -> tuple[int, int]:
    """Bytes of text, and pictures or sounds. Those are counted by the piece and not by their encoding."""
    if body.find(IMAGE) < 0 and body.find(AUDIO) < 0:  # not `in`: see sse
        return len(body), 0
    try:
        everything = _anything.decode(body)
    except NOT_JSON:
        return len(body), 0
    pieces, encoded = _media(everything)
    return max(0, len(body) - encoded), pieces


def _media(part: Any) -> tuple[int, int]:
    """How many pieces, and how many bytes they are in the body."""
    pieces = encoded = 0
    todo = [part]
    while todo:
        part = todo.pop()
        if isinstance(part, list):
            todo += part
        elif isinstance(part, dict):
            for name, inner in part.items():
                if name in ("image_url", "input_audio"):
                    pieces += 1
                    source = inner if isinstance(inner, str) else _source(inner)
                    encoded += len(source)
                else:
                    todo.append(inner)
    return pieces, encoded


def _source(inner: Any) -> str:
    if isinstance(inner, dict):
        found = inner.get("url") or inner.get("data")
        if isinstance(found, str):
            return found
    return ""


def left(body: bytes, made: int) -> int | None:
    """How many tokens a chat may still have of which so many have come; None: it does not say."""
    ask = _decoder.decode(body)
    most = ask.max_completion_tokens or ask.max_tokens  # as engines read it
    return most - made if most else None


def continued(body: bytes, text: str, made: int) -> bytes | None:
    """The same question with the beginning of its answer, of so many tokens, for an engine that goes on from
    there (vLLM and SGLang do). It counts what is new, so what may still be said is less by that (and one, if
    nothing is `left`: look first). None: it cannot be asked so."""
    try:
        fields = _fields.decode(body)
        messages = _items.decode(fields.get("messages", _null))
        if _has_form(fields) or _anything.decode(fields.get("n", _null)) not in (None, 0, 1):
            return None
        for name in LENGTHS:
            most = _length.decode(fields.get(name, _null))
            if most is not None and most > 0:
                fields[name] = msgspec.Raw(b"%d" % max(1, most - made))
        if fields.get("continue_final_message") == _true:  # the client has begun the answer itself
            messages = [*messages[:-1], _longer(messages[-1], text)]
        else:
            begun = msgspec.json.encode({"role": "assistant", "content": text})
            messages = [*messages, msgspec.Raw(begun)]
    except (*NOT_JSON, IndexError):
        return None
    fields["messages"] = msgspec.Raw(msgspec.json.encode(messages))
    fields["continue_final_message"] = _true
    fields["add_generation_prompt"] = _false
    return msgspec.json.encode(fields)


def _has_form(fields: dict[str, msgspec.Raw]) -> bool:
    """Must the answer have a form that would begin anew in its middle?"""
    for name in FORMS:
        if fields.get(name, _null) not in (_null, _false):
            return True
    return _anything.decode(fields.get("response_format", _null)) not in (None, {"type": "text"})


def _longer(message: msgspec.Raw, text: str) -> msgspec.Raw:
    """The last message, gone on with: an engine goes on with no other. An error, if that cannot be."""
    fields = _fields.decode(message)
    if _anything.decode(fields.get("role", _null)) != "assistant":
        raise msgspec.ValidationError("it is no answer")
    content = _content.decode(fields.get("content", _null))
    if isinstance(content, list):
        last = _fields.decode(content[-1])
        last["text"] = msgspec.Raw(msgspec.json.encode(_text.decode(last.get("text", _null)) + text))
        longer = msgspec.json.encode([*content[:-1], last])
    else:
        longer = msgspec.json.encode((content or "") + text)
    fields["content"] = msgspec.Raw(longer)
    return msgspec.Raw(msgspec.json.encode(fields))
