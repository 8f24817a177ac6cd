"""All that a gateway behind a control plane goes by: whole when it connects, then what changes of it.

A view is whole, so nothing can be missed by whoever has just come. With thousands of keys it is megabytes,
and most changes are of one key: these are sent by themselves, numbered, so that a gap would be seen.
"""

from collections.abc import Iterable
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.gateway.settings import Service
from holdfast.model.gateway import Key, Limits, key_of

T = TypeVar("T")


class View(msgspec.Struct, frozen=True):
    services: tuple[Service, ...] = ()
    keys: dict[str, Key] = {}  # by id, with the hashes of their secrets
    limits: dict[str, Limits] = {}  # by scope
    clamps: dict[str, float] = {}  # of keys held back: the share that they get
    number: int = 0  # of the last change that is in it


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    number: int = 0
    services: tuple[Service, ...] | None = None  # all of them; None: as before
    keys: dict[str, Key] = {}  # new, or other than before
    gone: tuple[str, ...] = ()  # keys; with one that is another under an old name, both
    limits: dict[str, Limits] = {}  # none at all: not limited any more
    clamps: dict[str, float] = {}  # 1.0: not held back any more


NOTHING = Change()


def difference(before: View, after: View) -> Change:
    """What makes the one the other; NOTHING but for its number, if they say the same."""
    keys, gone = {}, []
    if before.keys is not after.keys:
        gone = [id for id in before.keys if id not in after.keys]
        for id, key in after.keys.items():
            old = before.keys.get(id)
            if old is key or old == key:
                continue
            keys[id] = key
            if old is not None and old.hash != key.hash:
                gone.append(id)
    anew = {id for id in gone if id in keys}  # whoever is told that a key is gone forgets all of it
    return Change(
        services=after.services if after.services != before.services else None,
        keys=keys,
        gone=tuple(gone),
        limits=_other(before.limits, after.limits, Limits())
        | {scope: each for scope, each in after.limits.items() if anew and key_of(scope) in anew},
        clamps=_other(before.clamps, after.clamps, 1.0)
        | {id: after.clamps[id] for id in anew if id in after.clamps},
    )


def _other(before: dict[str, T], after: dict[str, T], none: T) -> dict[str, T]:
    if before is after:
        return {}
    names = (*after, *(name for name in before if name not in after))
    return {name: said for name in names if (said := after.get(name, none)) != before.get(name, none)}


def changed(view: View, change: Change) -> View:
    gone = {id for id in change.gone if id not in change.keys}
    return View(
        services=view.services if change.services is None else change.services,
        keys={id: key for id, key in (view.keys | change.keys).items() if id not in gone},
        limits={scope: each for scope, each in (view.limits | change.limits).items() if each != Limits()},
        clamps={id: share for id, share in (view.clamps | change.clamps).items() if share < 1.0},
        number=change.number,
    )


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
        names_models=service.names_models,
        hosts=service.hosts,
        prefixes=service.prefixes,
        probe=service.probe or added.probe,
        concurrent=service.concurrent or added.concurrent,
        upstreams=(*service.upstreams, *added.upstreams),
        leaving=service.leaving,
    )
