"""How many tokens may this request use, before anybody has counted them?

What is reserved should be at least what is used, or the bound of `bucket` is only repaid later; and not much
more, or callers are refused for nothing. The gateway has no tokenizer: it would cost more than the rest of
the request and would have to be the right one for each model. The rule:
- prompt: bytes of the body over the bytes that a token has for this model, learned from what replicas report.
  We keep a low quantile (1 in 20 prompts has fewer bytes a token), so that it is mostly estimated high. Until
  something is learned 2.5, which is low for prose and about right for code and for scripts of two or three
  bytes a letter. Never below 1: byte-level tokenizers make at most one token of a byte, and the frame that a
  chat template puts around a message is shorter than the JSON around it;
- tools and schemas are in the body, so they are in the bytes. An image is not: its base64 says nothing of its
  tokens. It costs a fixed 1,300, a picture of a million pixels in patches of 28 x 28 (1,280), and its frame;
- a list of prompts has at least a token for each number and two for each text, and is not cut to the context,
  which each of them may fill;
- answer: what the caller allows itself (max_tokens), for each of its n answers to each of its prompts. Who
  names no limit gets the answer that 19 of 20 of its own to this model stay below; a new key that of all keys
  for the model; and a new model 1,024. All of it is cut to the model's context, where that is known.

A quantile is learned by small steps in proportion to itself: up a large one when the answer was longer, down
a small one when it was not; they balance when 1 in 20 is longer. One number and a count, no list. The steps
begin large and become small, but not smaller than a tenth: habits change. Keys seen longest ago are forgotten
first.

Refused: four characters a token, which is wrong by 2 for code and by 4 for Chinese, and low where it is
wrong.
"""

from collections import OrderedDict
from math import ceil, sqrt

PROMPT_QUANTILE = 0.05
ANSWER_QUANTILE = 0.95
BYTES_PER_TOKEN = 2.5
BYTES_PER_TOKEN_MIN = 1.0
BYTES_PER_TOKEN_MAX = 16.0
FRAME_TOKENS = 16  # of the chat template, whatever the prompt
IMAGE_TOKENS = 1_300
ANSWER_TOKENS = 1_024
ANSWER_TOKENS_MIN = 16.0
STEP_FIRST = 0.5
STEP_LAST = 0.1
ENTRIES_MAX = 10_000
MODELS_MAX = 1_000
LEARN_ALL = 1_000  # of the first answers a gateway learns from all, then
LEARN_EVERY = 8


class Quantile:
    __slots__ = ("count", "share", "value")

    def __init__(self, value: float, share: float) -> None:
        self.value = value
        self.share = share
        self.count = 0

    def learn(self, seen: float, least: float, most: float) -> None:
        step = max(STEP_LAST, STEP_FIRST / sqrt(1 + self.count / 16))
        self.count += 1
        share = self.share if seen > self.value else self.share - 1.0
        self.value = min(most, max(least, self.value * (1.0 + step * share)))


class Model:
    __slots__ = ("answer", "bytes_per_token")

    def __init__(self) -> None:
        self.bytes_per_token = Quantile(BYTES_PER_TOKEN, PROMPT_QUANTILE)
        self.answer = Quantile(ANSWER_TOKENS, ANSWER_QUANTILE)


class Estimator:
    __slots__ = ("_answers", "_entries_max", "_models")

    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        self._models: OrderedDict[str, Model] = OrderedDict()
        self._answers: OrderedDict[tuple[str, str], Quantile] = OrderedDict()
        self._entries_max = entries_max

    def prompt(self, model: str, prompt_bytes: int, images: int = 0) -> int:
        known = self._models.get(model)
        ratio = BYTES_PER_TOKEN if known is None else known.bytes_per_token.value
        text = min(prompt_bytes, ceil(prompt_bytes / ratio) + FRAME_TOKENS)
        return text + images * IMAGE_TOKENS

    def answer(self, model: str, key: str) -> int:
        """How long an answer may be whose caller named no limit."""
        own = self._answers.get((key, model))
        if own is not None:
            return ceil(own.value)
        known = self._models.get(model)
        return ANSWER_TOKENS if known is None else ceil(known.answer.value)

    def reserve(
        self,
        model: str,
        key: str,
        prompt_bytes: int,
        images: int,
        max_tokens: int | None,
        n: int,
        context: int = 0,
        listed: int = 0,
    ) -> int:
        """`listed`: it is a list of prompts, with so many tokens at least."""
        prompt = self.prompt(model, prompt_bytes, images)
        answer = self.answer(model, key) if max_tokens is None else max_tokens
        if listed > 0:
            prompt = max(prompt, listed)
            if context > 0:  # of each of them
                answer = min(answer, context)
        elif context > 0:
            prompt = min(prompt, context)
            # The prompt may be shorter than we think, and an answer with a limit of its own longer for it.
            answer = min(answer, context - prompt if max_tokens is None else context)
        if answer < 0:
            return prompt
        return prompt + (answer * n if n > 1 else answer)

    def learn(
        self,
        model: str,
        key: str,
        prompt_bytes: int,
        images: int,
        prompt_tokens: int,
        completion_tokens: int,
        n: int = 1,
    ) -> None:
        """What a replica says it used, all n answers together."""
        known = self._models.get(model)
        if known is None:
            known = self._models[model] = Model()
            if len(self._models) > MODELS_MAX:
                self._models.popitem(last=False)
        if images == 0 and prompt_bytes > 0 and prompt_tokens > 0:
            ratio = prompt_bytes / max(1, prompt_tokens - FRAME_TOKENS)
            known.bytes_per_token.learn(ratio, BYTES_PER_TOKEN_MIN, BYTES_PER_TOKEN_MAX)
        if completion_tokens <= 0:
            return
        answer = completion_tokens / max(1, n)
        place = (key, model)
        own = self._answers.get(place)
        if own is None:
            own = self._answers[place] = Quantile(known.answer.value, ANSWER_QUANTILE)
            if len(self._answers) > self._entries_max:
                self._answers.popitem(last=False)
        else:
            self._answers.move_to_end(place)
        known.answer.learn(answer, ANSWER_TOKENS_MIN, float("inf"))
        own.learn(answer, ANSWER_TOKENS_MIN, float("inf"))
