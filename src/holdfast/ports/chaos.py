"""Doing harm on purpose: what a provider offers that lets us try how well we hold."""

from typing import Protocol, runtime_checkable

from holdfast.model.units import Millis


@runtime_checkable
class Chaos(Protocol):
    """Nobody is told beforehand or afterwards; the control plane has to notice. Errors: NotFound, and those
    of a provider."""

    async def kill(self, node: str) -> None:
        """Power off: everything on the node ends at once. Returns when it has."""

    async def hang(self, node: str) -> None:
        """Nothing on the node moves any more, and nothing ends."""

    async def resume(self, node: str) -> None:
        """What was hung goes on, without knowing that time has passed."""


@runtime_checkable
class MarketChaos(Protocol):
    """A market that turns against us. Errors: as above."""

    async def notice(self, node: str, left_ms: Millis) -> None:
        """The node is told that it will be taken away, and then it is."""

    async def sell_out(self, pool: str, offer: str, for_ms: Millis) -> None:
        """Nothing of the offer (empty: of any offer) can be had for so long; what is there stays."""
