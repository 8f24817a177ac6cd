"""What a gateway is told of the world: `gateway.view.View`, made once a change for all who watch.

An upstream is a replica that is ready, at the address of its node. Of replicas that are being stopped, and of
standbys, nobody is told. A node that is being drained keeps what runs on it until it runs elsewhere too, so
its replicas are left out as soon as there are others.
"""

import msgspec

from holdfast.control.gateways import clamp
from holdfast.gateway.settings import Service, Upstream
from holdfast.gateway.view import View
from holdfast.model import workload as model
from holdfast.model.node import NodeState
from holdfast.model.replica import Phase, Role, State
from holdfast.model.world import World

_encode = msgspec.json.Encoder().encode


class Fronts:
    """The newest view, as bytes."""

    def __init__(self) -> None:
        self._of: World | None = None
        self._length = -1
        self._said = b""

    def said(self, world: World, length: int) -> bytes:
        """`length` of the journal: with it the view may have changed."""
        if world is not self._of or length != self._length:
            self._of, self._length, self._said = world, length, _encode(view(world))
        return self._said


def view(world: World) -> View:
    keys = world.keys.values()
    return View(
        services=tuple(service for name in world.fronted if (service := _service(world, name)) is not None),
        keys=tuple(keys),
        limits=world.limits,
        clamps={key.id: clamp(key) for key in keys if clamp(key) < 1.0},
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
