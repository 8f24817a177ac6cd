"""What is read of requests and answers: the few fields that decide anything. The rest is skipped, not
built."""

from typing import Annotated

import msgspec


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Ask(msgspec.Struct):
    model: str
    stream: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    n: int | None = None
    best_of: int | None = None
    stream_options: StreamOptions | None = None

    @property
    def outputs(self) -> int:
        if self.n is None and self.best_of is None:
            return 1
        return max(1, self.n or 1, self.best_of or 1)

    @property
    def most(self) -> int | None:
        """The most tokens it lets one output have; the largest, if it says it several times."""
        most = self.max_tokens
        for other in (self.max_completion_tokens, self.max_output_tokens):
            if other is not None and (most is None or other > most):
                most = other
        return most


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
