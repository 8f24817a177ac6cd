"""Something that can launch and terminate nodes."""

from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from holdfast.model.action import LaunchNode
from holdfast.model.verdict import Word


class Join(msgspec.Struct, frozen=True):
    """What a node that we launch needs to join us."""

    urls: tuple[str, ...]  # of the control planes
    token: str
    ca: str = ""  # certificates to trust, as PEM text; empty: those of the system


Credentials = Callable[[str], Awaitable[Join]]  # for the node of this name, asked for when it is launched


class Provider(Protocol):
    """Every call is idempotent by the node's id, which the plan chose. Errors are those of `ports.errors`."""

    async def launch(self, request: LaunchNode) -> None:
        """Begins to make the node. Asking again for the same id is not a second machine."""

    async def terminate(self, node: str) -> None:
        """Returns when the provider confirms that it is gone; NotFound means the same."""

    async def reset(self, node: str) -> None:
        """Restarts the machine."""

    async def state(self, node: str) -> Word: ...

    async def list(self, pool: str) -> tuple[str, ...]:
        """Ids of all nodes that exist (and cost money) in the pool."""
