"""A list of actions with their reasons, numbered so that carrying one out twice can be noticed."""

import msgspec

from holdfast.model.action import Action
from holdfast.model.units import Instant

SEATS_AT_ONCE = (
    2_000  # made, closed and removed by one plan, of all workloads together: a turn must stay short
)
AGAIN = "again."  # before the name of a node: the id of an action that a new leader repeats


class Held(msgspec.Struct, frozen=True):
    """An action the brake held back, and why."""

    action: Action
    why: str


class Plan(msgspec.Struct, frozen=True, tag=True):
    number: int
    at: Instant
    actions: tuple[Action, ...] = ()
    held: tuple[Held, ...] = ()

    def action_id(self, index: int) -> str:
        return f"p{self.number}.{index}"


class Refusal(msgspec.Struct, frozen=True):
    """An action the checker refused: the invariant it would have broken."""

    action: Action
    invariant: str
