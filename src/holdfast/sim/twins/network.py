"""The network's twin: delay, jitter, loss, and cuts that need not be the same in both directions.

Parties are named: nodes by their id, control planes as `cp-1`, `cp-2`. A cut separates a set of nodes from
everybody else, or only from the control planes (then peers still reach them: two views of the same node that
differ).
"""

import random

import msgspec

from holdfast.model.units import Instant, Millis
from holdfast.sim.scenario.scenario import Between, Direction, NetworkTraits

CONTROL = "cp-"


class Cut(msgspec.Struct, frozen=True):
    inside: frozenset[str]
    between: Between
    direction: Direction
    until: Instant

    def blocks(self, sender: str, receiver: str) -> bool:
        if (sender in self.inside) == (receiver in self.inside):
            return False
        outsider = receiver if sender in self.inside else sender
        if self.between is Between.CONTROL and not outsider.startswith(CONTROL):
            return False
        if self.direction is Direction.TO:
            return receiver in self.inside
        if self.direction is Direction.FROM:
            return sender in self.inside
        return True


class Network:
    def __init__(self, traits: NetworkTraits, seed: str) -> None:
        self.traits = traits
        self.random = random.Random(f"network/{seed}")
        self.cuts: list[Cut] = []

    def open(self, sender: str, receiver: str) -> bool:
        return not any(cut.blocks(sender, receiver) for cut in self.cuts)

    def delay_ms(self) -> Millis:
        return self.traits.delay_ms + int(self.random.expovariate(1) * self.traits.jitter_ms)

    def arrives(self, sender: str, receiver: str) -> Millis | None:
        """How long this message takes, or None if it never arrives."""
        if self.random.random() < self.traits.loss or (self.cuts and not self.open(sender, receiver)):
            return None
        return self.delay_ms()
