"""What the world knows of keys, limits and budgets after something happened to them.

The question: what may gateways be told? The keys with the hashes of their secrets, the limits, and how much
of each budget is used up. All of it changes by hand and rarely, and is read by whoever lends out quota at
every question; so a change makes a new table, and a reader sees by the table itself that nothing changed.
Refused: a counter of changes in the world. A world read back from a snapshot would have another one.

Of limits a minute it knows what their lender has written down (`tranches`): by this the next leader goes on.
It is worth that only if each leader in between wrote it down, which one of an older version does not. A limit
that changed, or a key that is held back or let go, counts as used up from there on: what was written of the
old limit says too much of the new one.

A key that is deleted takes its budget and its limits for single models along. A word about the budget of a
key that is gone changes nothing: its lender had not heard of it yet.
"""

from typing import assert_never

from holdfast.model import event as ev
from holdfast.model.gateway import Grade, Key, Limits, Tranche, key_of, scope_of_key
from holdfast.model.world import World

GatewayNews = ev.KeyPut | ev.KeyDeleted | ev.LimitsSet | ev.BudgetDrawn


def observe(world: World, event: GatewayNews) -> None:
    match event:
        case ev.KeyPut(key=key):
            _changed_key(world, key)
            world.keys = {**world.keys, key.id: key}
        case ev.KeyDeleted(key=id):
            world.keys = {name: key for name, key in world.keys.items() if name != id}
            world.limits = {scope: found for scope, found in world.limits.items() if key_of(scope) != id}
            world.drawn = {scope: drawn for scope, drawn in world.drawn.items() if key_of(scope) != id}
            _forget_tranches(world, id)
        case ev.LimitsSet(scope=scope, limits=limits):
            if scope in world.limits and world.limits[scope] != limits:
                _used_up(world, scope)
            others = {name: found for name, found in world.limits.items() if name != scope}
            world.limits = {**others, scope: limits} if limits != Limits() else others
        case ev.BudgetDrawn(drawn=drawn, tranches=tranches, full=full, term=term):
            gone = [scope for scope in drawn if (key_id := key_of(scope)) and key_id not in world.keys]
            world.drawn = {**world.drawn, **{scope: n for scope, n in drawn.items() if scope not in gone}}
            if term:
                _lent(world, tranches, full, term)
        case _:
            assert_never(event)


def led(world: World, generation: int) -> None:
    """Another leads from now on. What the last one lent is not known if it did not write it down."""
    if world.tranches_of not in (world.leader.generation, generation):
        world.tranches, world.tranches_of = {}, 0


def _lent(world: World, tranches: dict[str, Tranche], full: tuple[str, ...], term: int) -> None:
    found = {**world.tranches, **tranches}
    world.tranches = {
        name: each for name, each in found.items() if name not in full and _is_known(world, name)
    }
    world.tranches_of = term


def _is_known(world: World, counter: str) -> bool:
    key = key_of(counter.partition("|")[2])
    return not key or key in world.keys


def _changed_key(world: World, key: Key) -> None:
    before = world.keys.get(key.id)
    if before is None:
        return
    if before.hash != key.hash:  # another under an old name
        _forget_tranches(world, key.id)
    elif before.limits != key.limits or (before.grade is Grade.CLAMP) != (key.grade is Grade.CLAMP):
        _used_up(world, scope_of_key(key.id))


def _used_up(world: World, scope: str) -> None:
    names = (f"tokens|{scope}", f"requests|{scope}")
    used_up = {name: world.tranches.get(name, Tranche()).used_up() for name in names}
    world.tranches = {**world.tranches, **used_up}


def _forget_tranches(world: World, key: str) -> None:
    world.tranches = {
        name: each for name, each in world.tranches.items() if key_of(name.partition("|")[2]) != key
    }
