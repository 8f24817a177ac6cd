"""What became of the requests to one service, counted."""

from collections import Counter

import msgspec

from holdfast.core.gateway.routing.retry_budget import Spread
from holdfast.model.units import SECOND, Millis, many, seconds


class Asked(msgspec.Struct, frozen=True):
    """As a result has it."""

    requests: int
    answered: int
    refused: dict[str, int]  # by reason
    cut: int  # after their first content
    gone: int  # with the gateway that had them
    on_their_way: int  # at the end
    asked_again: int
    waited: int  # until somebody could answer
    longest_wait_ms: Millis
    first_token_ms: Millis  # the median
    first_token_p99_ms: Millis


class Tally:
    def __init__(self) -> None:
        self.asked = self.asked_again = self.waits = 0
        self.longest_wait_ms: Millis = 0
        self.ends: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.first_tokens = Spread(forgets=False)
        self.closed = False  # its service was deleted: nobody asks any more

    @property
    def over(self) -> int:
        return self.ends.total()

    def ended(self, how: str, reason: str) -> None:
        self.ends[how] += 1
        if how == "refused":
            self.refused[reason or "without a reason"] += 1

    def began(self, after_ms: Millis) -> None:
        self.first_tokens.note(after_ms / SECOND)

    def waited(self, for_ms: Millis) -> None:
        self.waits += 1
        self.longest_wait_ms = max(self.longest_wait_ms, for_ms)

    def result(self) -> Asked:
        return Asked(
            requests=self.asked,
            answered=self.ends["answered"],
            refused=dict(sorted(self.refused.items())),
            cut=self.ends["cut"],
            gone=self.ends["gone"],
            on_their_way=self.asked - self.over,
            asked_again=self.asked_again,
            waited=self.waits,
            longest_wait_ms=self.longest_wait_ms,
            first_token_ms=int(self.first_tokens.quantile(0.5) * SECOND),
            first_token_p99_ms=int(self.first_tokens.quantile(0.99) * SECOND),
        )


def tell(asked: Asked) -> str:
    parts = [f"{asked.answered:,} of {many(asked.requests, 'request')} answered"]
    if asked.refused:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in asked.refused.items())
        parts.append(f"{sum(asked.refused.values()):,} refused ({reasons})")
    parts += [f"{asked.cut} cut after their first content"] if asked.cut else []
    parts += [f"{asked.gone} gone with their gateway"] if asked.gone else []
    parts += [f"{asked.on_their_way} on their way"] if asked.on_their_way else []
    parts += [f"{asked.asked_again} asked again"] if asked.asked_again else []
    if asked.waited:
        parts.append(f"{asked.waited} waited, at most {seconds(asked.longest_wait_ms)}")
    if asked.first_token_ms:
        typical, late = seconds(asked.first_token_ms), seconds(asked.first_token_p99_ms)
        parts.append(f"first token after {typical}, 99 in 100 within {late}")
    return ", ".join(parts)
