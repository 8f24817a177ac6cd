"""Whoever measures what we do not measure ourselves."""

from typing import Protocol


class Telemetry(Protocol):
    async def ask(self, where: str, query: str) -> float:
        """One number. Unreachable: nobody answers there; Denied: they do not understand, it is not one,
        or the address is none that is ever asked."""

    def is_listed(self, where: str) -> bool:
        """May whoever is no admin have this address asked?"""
