"""What a gateway is told of the world: `gateway.view.View`, and then each `Change` of it, made once for all
who watch.

An upstream is a replica that gateways are told of (`core.gateway.request.endpoints_of`), at the address of
its node, and the secret by which replicas of its workload know the gateways of their fleet.
"""

from collections import deque
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from holdfast.core.gateway.quota.leader_broker import clamp
from holdfast.core.gateway.request.endpoints_of import leaving, ready, staying
from holdfast.gateway.settings import Service, Upstream
from holdfast.gateway.view import NOTHING, View, difference
from holdfast.model import workload as model
from holdfast.model.gateway import Grade
from holdfast.model.world import World

SecretOf = Callable[[str], str]
NOBODY = View()
CHANGES_KEPT = 1_000  # whoever is further behind is told all of it

_encode = msgspec.json.Encoder().encode


def no_secret(workload: str) -> str:
    return ""


class Fronts:
    """The newest view, and the last changes that led to it, as bytes."""

    def __init__(self, gateway_secret: SecretOf = no_secret) -> None:
        self._secret = gateway_secret
        self._of: World | None = None
        self._length = -1
        self._view = NOBODY
        self._whole = b""
        self._changes: deque[bytes] = deque(maxlen=CHANGES_KEPT)

    def look(self, world: World, length: int) -> int:
        """The number of the last change. `length` of the journal: with it there may be another."""
        if world is not self._of or length != self._length:
            self._of, self._length = world, length
            now = view(world, self._view, self._secret)
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


def view(world: World, before: View = NOBODY, gateway_secret: SecretOf = no_secret) -> View:
    """A table that changed is another table: of one that did not, what was made before still holds."""
    clamps = before.clamps
    if world.keys is not before.keys:
        clamps = {key.id: clamp(key) for key in world.keys.values() if key.grade is Grade.CLAMP}
    return View(
        services=tuple(
            service
            for name in world.fronted
            if (service := _service(world, name, gateway_secret(name))) is not None
        ),
        keys=world.keys,
        limits=world.limits,
        clamps=clamps,
    )


def served(world: World) -> list[str]:
    """All models that there are."""
    found: list[str] = []
    for name in world.fronted:
        shape = world.workloads[name].shape
        if isinstance(shape, model.Service) and shape.serves is not None:
            found += shape.serves.models or (name,)
    return found


def _service(world: World, name: str, secret: str) -> Service | None:
    shape = world.workloads[name].shape
    if not isinstance(shape, model.Service) or shape.serves is None:
        return None
    serves = shape.serves
    upstreams = _upstreams(world, name, secret)
    return Service(
        name=name,
        models=serves.models or (name,),
        names_models=bool(serves.models),
        upstreams=upstreams,
        leaving=tuple(leaving(world, name, {upstream.id for upstream in upstreams})),
        hosts=serves.hosts,
        prefixes=serves.prefixes,
        probe=serves.probe,
        concurrent=serves.concurrent,
    )


def _upstreams(world: World, name: str, secret: str) -> tuple[Upstream, ...]:
    found = ((replica, node) for replica, node in ready(world, name) if node.address and replica.port)
    return tuple(
        Upstream(f"http://{_host(node.address)}:{replica.port}", replica.id, credential=secret)
        for replica, node in staying(found)
    )


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address
