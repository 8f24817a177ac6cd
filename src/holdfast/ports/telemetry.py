"""Whoever measures what we do not measure ourselves."""

from typing import Protocol


class Telemetry(Protocol):
    async def ask(self, where: str, query: str) -> float:
        """One number. Unreachable: nobody answers there; Denied: they do not understand, or it is not one."""
