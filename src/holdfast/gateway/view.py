"""All that a gateway behind a control plane goes by: whole, each time anything of it changes."""

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from holdfast.gateway.settings import Service
from holdfast.model.gateway import Key, Limits


class View(msgspec.Struct, frozen=True):
    services: tuple[Service, ...] = ()
    keys: tuple[Key, ...] = ()  # with the hashes of their secrets
    limits: dict[str, Limits] = {}  # by scope
    clamps: dict[str, float] = {}  # of keys held back: the share that they get


def together(seen: Iterable[Service], own: Iterable[Service]) -> tuple[Service, ...]:
    """The services of a control plane, and what the file of a gateway adds to them: upstreams elsewhere, and
    how patient it is with each. A service that is only in the file is taken as it is."""
    mine = {service.name: service for service in own}
    found = []
    for service in seen:
        added = mine.pop(service.name, None)
        found.append(service if added is None else _both(service, added))
    return (*found, *mine.values())


def _both(service: Service, added: Service) -> Service:
    return replace(
        added,
        models=service.models,
        hosts=service.hosts,
        prefixes=service.prefixes,
        probe=service.probe or added.probe,
        concurrent=service.concurrent or added.concurrent,
        upstreams=(*service.upstreams, *added.upstreams),
    )
