"""What is read of requests and answers: the few fields that decide anything. The rest is skipped, not
built."""

from typing import Annotated

import msgspec

N_MAX = 128  # outputs of one request
NONE = msgspec.Raw()
UNREADABLE = N_MAX + 1


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Sampling(msgspec.Struct):
    """Where other APIs say it, on paths that are listed (`/generate` of SGLang, and of TGI)."""

    max_new_tokens: int | None = None
    max_tokens: int | None = None
    n: int | None = None
    best_of: int | None = None


class Ask(msgspec.Struct):
    model: str = ""
    stream: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    n: int | None = None
    best_of: int | None = None
    stream_options: StreamOptions | None = None
    prompt: msgspec.Raw = NONE
    prompt_embeds: msgspec.Raw = NONE
    input: msgspec.Raw = NONE
    text: msgspec.Raw = NONE
    input_ids: msgspec.Raw = NONE
    sampling_params: Sampling | None = None
    parameters: Sampling | None = None
    outputs: int = msgspec.field(default=1, name=" outputs")  # counted by whoever reads it

    @property
    def most(self) -> int | None:
        """The most tokens it lets one output have; the largest, if it says it several times. Engines take 0
        for as many as there is room for."""
        most = self.max_tokens or None
        for other in (self.max_completion_tokens, self.max_output_tokens):
            if other and (most is None or other > most):
                most = other
        if self.sampling_params is not None or self.parameters is not None:
            for said in (self.sampling_params, self.parameters):
                if said is not None:
                    most = max(most or 0, said.max_new_tokens or 0, said.max_tokens or 0) or None
        return most

    @property
    def least(self) -> int:
        """Of the lengths that it names in its parts."""
        named: list[int | None] = [0]
        for said in (self.sampling_params, self.parameters):
            if said is not None:
                named += [said.max_new_tokens, said.max_tokens]
        return min(each or 0 for each in named)


def outputs(ask: Ask) -> int:
    """Of all prompts together: each is answered as often as is wanted. To search by beams is to make as many
    as `n`."""
    found = max(1, ask.n or 1, ask.best_of or 1)
    for said in (ask.sampling_params, ask.parameters):
        if said is not None:
            found = max(found, said.n or 1, said.best_of or 1)
    return found * max(1, sum(map(prompts, (ask.prompt, ask.prompt_embeds, ask.text, ask.input_ids))))


# what is more than its fields is not built: a list may have millions
First = msgspec.defstruct(
    "First", [(f"at_{n}", msgspec.Raw, NONE) for n in range(N_MAX + 1)], array_like=True
)
_first = msgspec.json.Decoder(First)


def prompts(said: msgspec.Raw) -> int:
    """How many there are in what a request has for `prompt`, as far as that is at most so many as may be: a
    list of texts, or of lists of tokens, is several; a list of tokens is one."""
    view = memoryview(said)
    if len(view) == 0 or view[0] in b"n{":  # null, or a name for one that is stored elsewhere
        return 0
    if view[0] != ord("["):
        return 1
    several, tokens = 0, False
    for each in msgspec.structs.astuple(_first.decode(said)):
        if not each:
            break
        if _is_number(each):
            tokens = True
        else:
            several += 1
    if tokens and (several or any(bytes(said).find(mark, 1) >= 0 for mark in (b'"', b"[", b"{"))):
        return UNREADABLE  # tokens beside texts: nobody says how many these are
    return several or 1


def listed(said: msgspec.Raw) -> int:
    """At least so many tokens are in such a list: one for each number, two for each text, as there is a mark
    of its beginning too; 0: it is no list of these."""
    view = memoryview(said)
    if len(view) == 0 or view[0] != ord("["):
        return 0
    first = next(iter(msgspec.structs.astuple(_first.decode(said))))
    if not first or not (_is_number(first) or memoryview(first)[0] in b'["'):
        return 0
    return bytes(said).count(b'"') or bytes(said).count(b",") + 1


def _is_number(said: msgspec.Raw) -> bool:
    return memoryview(said)[0] in b"-0123456789"


Count = Annotated[int, msgspec.Meta(ge=0)]  # one below zero would give quota back that nobody took


class Usage(msgspec.Struct):
    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    total_tokens: Count = 0
    input_tokens: Count = 0  # as /v1/responses calls them
    output_tokens: Count = 0

    @property
    def prompt(self) -> int:
        return self.prompt_tokens or self.input_tokens

    @property
    def completion(self) -> int:
        return self.completion_tokens or self.output_tokens

    @property
    def total(self) -> int:
        both = self.prompt + self.completion
        return both if both > self.total_tokens else self.total_tokens


class Response(msgspec.Struct):
    usage: Usage | None = None


class WithUsage(msgspec.Struct):
    usage: Usage | None = None
    choices: list[msgspec.Raw] | None = None
    response: Response | None = None  # what the last event of /v1/responses has it in
