"""Nodes that come by themselves: machines of people who lend them, or that somebody else starts.

Such a pool has no provider to ask. It launches nothing, and its word about a node is that it does not know.
"""

from typing import Self

from holdfast.adapters.providers.settings import Settings
from holdfast.model.action import LaunchNode
from holdfast.model.pool import Offer, Pool
from holdfast.model.verdict import Word
from holdfast.ports.errors import Denied
from holdfast.ports.provider import Credentials


class JoinProvider:
    takes = Settings({})

    @classmethod
    def from_settings(cls, settings: dict[str, str], credentials: Credentials) -> Self:
        return cls()

    async def launch(self, request: LaunchNode) -> None:
        raise Denied(f"{request.pool} launches no nodes: start agents with --pool {request.pool}")

    async def terminate(self, node: str) -> None:
        raise Denied(f"{node} is not ours to terminate")

    async def reset(self, node: str) -> None:
        raise Denied(f"{node} is not ours to reset")

    async def state(self, node: str) -> Word:
        return Word.UNKNOWN

    async def list(self, pool: str) -> tuple[str, ...]:
        return ()

    async def offers(self, pool: Pool) -> tuple[Offer, ...]:
        return pool.offers
