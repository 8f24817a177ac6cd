"""What the world knows of keys, limits and budgets after something happened to them.

The question: what may gateways be told? The keys with the hashes of their secrets, the limits, and how much
of each budget is used up. All of it changes by hand and rarely, and is read by whoever lends out quota at
every question; so a change makes a new table, and a reader sees by the table itself that nothing changed.
Refused: a counter of changes in the world. A world read back from a snapshot would have another one.

A key that is deleted takes its budget and its limits for single models along. A word about the budget of a
key that is gone changes nothing: its lender had not heard of it yet.
"""

from typing import assert_never

from holdfast.model import event as ev
from holdfast.model.gateway import Limits, key_of
from holdfast.model.world import World

GatewayNews = ev.KeyPut | ev.KeyDeleted | ev.LimitsSet | ev.BudgetDrawn


def observe(world: World, event: GatewayNews) -> None:
    match event:
        case ev.KeyPut(key=key):
            world.keys = {**world.keys, key.id: key}
        case ev.KeyDeleted(key=id):
            world.keys = {name: key for name, key in world.keys.items() if name != id}
            world.limits = {scope: found for scope, found in world.limits.items() if key_of(scope) != id}
            world.drawn = {scope: drawn for scope, drawn in world.drawn.items() if key_of(scope) != id}
        case ev.LimitsSet(scope=scope, limits=limits):
            others = {name: found for name, found in world.limits.items() if name != scope}
            world.limits = {**others, scope: limits} if limits != Limits() else others
        case ev.BudgetDrawn(drawn=drawn):
            gone = [scope for scope in drawn if (key_id := key_of(scope)) and key_id not in world.keys]
            world.drawn = {**world.drawn, **{scope: n for scope, n in drawn.items() if scope not in gone}}
        case _:
            assert_never(event)
