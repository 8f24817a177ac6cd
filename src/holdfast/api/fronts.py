"""What a gateway is told of the world: `gateway.view.View`, and then each `Change` of it, made once for all
who watch.

An upstream is a replica that is ready, at the address of its node. Of replicas that are being stopped, and of
standbys, nobody is told. A node that is being drained keeps what runs on it until it runs elsewhere too, so
its replicas are left out as soon as there are others.
"""

from collections import deque

import msgspec
from msgspec.structs import replace

from holdfast.control.gateways import clamp
from holdfast.gateway.settings import Service, Upstream
from holdfast.gateway.view import NOTHING, View, difference
from holdfast.model import workload as model
from holdfast.model.gateway import Grade
from holdfast.model.node import NodeState
from holdfast.model.replica import Phase, Role, State
from holdfast.model.world import World

NOBODY = View()
CHANGES_KEPT = 1_000  # whoever is further behind is told all of it

_encode = msgspec.json.Encoder().encode


class Fronts:
    """The newest view, and the last changes that led to it, as bytes."""

    def __init__(self) -> None:
        self._of: World | None = None
        self._length = -1
        self._view = NOBODY
        self._whole = b""
        self._changes: deque[bytes] = deque(maxlen=CHANGES_KEPT)

    def look(self, world: World, length: int) -> int:
        """The number of the last change. `length` of the journal: with it there may be another."""
        if world is not self._of or length != self._length:
            self._of, self._length = world, length
            now = view(world, self._view)
            change = difference(self._view, now)
            if change != NOTHING:
                number = self._view.number + 1
                self._view, self._whole = replace(now, number=number), b""
                self._changes.append(_encode(replace(change, number=number)))
        return self._view.number

    def whole(self) -> bytes:
        if not self._whole:
            self._whole = _encode(self._view)
        return self._whole

    def since(self, number: int) -> list[bytes] | None:
        """The changes after this one; None: they are not kept any more."""
        missing = self._view.number - number
        return None if missing > len(self._changes) else list(self._changes)[len(self._changes) - missing :]


def view(world: World, before: View = NOBODY) -> View:
    """A table that changed is another table: of one that did not, what was made before still holds."""
    clamps = before.clamps
    if world.keys is not before.keys:
        clamps = {key.id: clamp(key) for key in world.keys.values() if key.grade is Grade.CLAMP}
    return View(
        services=tuple(service for name in world.fronted if (service := _service(world, name)) is not None),
        keys=world.keys,
        limits=world.limits,
        clamps=clamps,
    )


def _service(world: World, name: str) -> Service | None:
    shape = world.workloads[name].shape
    if not isinstance(shape, model.Service) or shape.serves is None:
        return None
    serves = shape.serves
    return Service(
        name=name,
        models=serves.models or (name,),
        upstreams=_upstreams(world, name),
        hosts=serves.hosts,
        prefixes=serves.prefixes,
        probe=serves.probe,
        concurrent=serves.concurrent,
    )


def _upstreams(world: World, name: str) -> tuple[Upstream, ...]:
    found = []
    for slot in (world.slots[each] for each in world.of_workload.get(name, ())):
        if slot.role is not Role.ACTIVE or slot.phase is not Phase.OPEN:
            continue
        for replica in (world.replicas[each] for each in world.of_slot[slot.id]):
            node = world.nodes.get(replica.node)
            if replica.state is State.READY and node is not None and node.address and replica.port:
                host = f"[{node.address}]" if ":" in node.address else node.address
                leaves = node.state is NodeState.DRAINING or bool(node.deadline)
                found.append((Upstream(f"http://{host}:{replica.port}", replica.id), leaves))
    staying = tuple(upstream for upstream, leaves in found if not leaves)
    return staying or tuple(upstream for upstream, _ in found)
