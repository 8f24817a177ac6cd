"""Something that can launch and terminate nodes."""

from collections.abc import Awaitable, Callable
from typing import Protocol, runtime_checkable

import msgspec

from holdfast.model.action import LaunchNode
from holdfast.model.pool import Offer, Pool
from holdfast.model.units import Millis
from holdfast.model.verdict import Word


class Join(msgspec.Struct, frozen=True):
    """What a node that we launch needs to join us."""

    urls: tuple[str, ...]  # of the control planes
    token: str
    ca: str = ""  # certificates to trust, as PEM text; empty: those of the system
    insecure: bool = False  # the control plane was started without TLS for other machines


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

    async def offers(self, pool: Pool) -> tuple[Offer, ...]:
        """What can be had for the pool now, and at which price. Whoever knows no more than the pool's own
        list answers with that."""


@runtime_checkable
class Supervised(Protocol):
    """A provider that has something to do by itself."""

    async def supervise(self) -> None:
        """Until it is cancelled."""


@runtime_checkable
class Queueing(Protocol):
    """A provider whose launches may have to wait for their turn."""

    async def queued(self, pool: str) -> dict[str, Millis | None]:
        """Nodes of the pool that wait, and how long they will, as far as it can tell."""


@runtime_checkable
class Closing(Protocol):
    """A provider that holds something to be let go."""

    async def close(self) -> None:
        """Nodes go on."""


def agent_arguments(
    request: LaunchNode, join: Join, *, root: str, token_file: str, checkpoints: str, ca_file: str = ""
) -> list[str]:
    """What an agent is told of the node it is, whatever machine it runs on. It finds `join.token` and, if
    there is one, `join.ca` in these files, and keeps its own in the folder `root`."""
    place, has = request.place, request.capacity
    said = [
        *("--join", ",".join(join.urls)),
        *("--name", request.node),
        *("--root", root),
        *("--token-file", token_file),
        *("--pool", request.pool),
        *("--offer", request.offer),
        *("--place", "/".join((place.provider, place.region, place.zone, place.rack))),
        *("--checkpoints", checkpoints),
    ]
    sizes = {
        "--cpus": has.cpu_milli and f"{has.cpu_milli / 1000:g}",
        "--memory": has.memory_mib,
        "--gpus": has.gpu_milli and f"{has.gpu_milli / 1000:g}",
        "--gpu-kind": has.gpu_milli and has.gpu_kind,
    }
    said += ["--ca", ca_file] if join.ca and ca_file else []
    said += ["--insecure"] if join.insecure else []
    return said + [word for name, size in sizes.items() if size for word in (name, str(size))]
