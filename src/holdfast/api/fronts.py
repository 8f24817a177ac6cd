"""What a gateway is told of the world: `gateway.view.View`, made once a change for all who watch.

An upstream is a replica that gateways are told of (`core.gateway.fronted`), at the address of its node.
"""

import msgspec

from holdfast.core.gateway.fronted import ready, staying
from holdfast.core.gateway.lender import clamp
from holdfast.gateway.settings import Service, Upstream
from holdfast.gateway.view import View
from holdfast.model import workload as model
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
    found = ((replica, node) for replica, node in ready(world, name) if node.address and replica.port)
    return tuple(
        Upstream(f"http://{_host(node.address)}:{replica.port}", replica.id)
        for replica, node in staying(found)
    )


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address
