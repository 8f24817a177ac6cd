"""Writing the accounts: which changes of a node are changes of what it costs.

A node begins to cost when it is asked for, or joins unasked, and ceases when its provider confirms that it is
gone. Only `fold` calls these, as it alone writes the world; how accounts are kept is told in `budgets`.

Money goes by elapsed time. While one leads its clock is steady; from one leader to the next it starts from
the wall clock, which may have been set forward meanwhile. How far is known if the next leader runs in the
same boot of the same machine, or has watched the journal grow; then nobody is charged for it (`stepped_ms`,
`step`). Else the time between the two is charged as the clocks show it: a control plane that was away for a
night must not forget what the night has cost. See docs/decisions/0019.
"""

from msgspec.structs import replace

from holdfast.core.cost import budgets
from holdfast.model.money import Account
from holdfast.model.node import Node
from holdfast.model.units import NEVER, Instant, MicroUsd, Millis
from holdfast.model.world import Leader, World


def open_node(world: World, node: Node, at: Instant) -> None:
    """It costs its price from now on."""
    _change(world, node.pool, at, node.price_micro_usd)


def close_node(world: World, node: Node, at: Instant) -> None:
    _change(world, node.pool, at, -node.price_micro_usd)


def undo_node(world: World, node: Node, at: Instant) -> None:
    """The request for it surely had no effect."""
    close_node(world, node, at)
    world.accounts[node.pool] = budgets.paid_back(
        world.accounts[node.pool], node.launched_at, node.price_micro_usd
    )


def reprice(world: World, node: Node, at: Instant, price_micro_usd: MicroUsd) -> Node:
    _change(world, node.pool, at, price_micro_usd - node.price_micro_usd)
    return replace(node, price_micro_usd=price_micro_usd)


def _change(world: World, pool: str, at: Instant, by_micro_usd: MicroUsd) -> None:
    account = world.accounts.get(pool, Account(pool, as_of=at))
    world.accounts[pool] = budgets.changed(account, at, by_micro_usd)
    watch(world, pool, at)


def watch(world: World, pool: str, at: Instant, *, looked: bool = False) -> None:
    """When does the money come to its end, or a new month begin? `looked`: what is due now has been seen.
    What is noted already for an earlier time is enough: whoever looks then notes the next."""
    if pool in world.pools:
        due = budgets.due(world, pool, at)
        due = budgets.month_end(at) if looked and due <= at else due
        if due < NEVER and not at < world.agenda.watched.get(pool, 0) <= due:
            world.agenda.watched[pool] = due
            world.agenda.at(due, "pool", pool)


def stepped_ms(before: Leader, era: str, offset: Millis, seen: Millis | None) -> Millis:
    """By how much the clock of a new leader was set forward since the one before. `offset`: its distance from
    the monotonic clock of this era; `seen`: that of the leader before, if the new one has watched it."""
    known = before.offset if era and before.era == era else seen
    return 0 if known is None else max(0, offset - known)


def begins_at(
    before: Leader, era: str, monotonic: Instant, least: Millis | None, last_at: Instant
) -> Instant:
    """The earliest instant that it can be when a new leader begins. Its own wall clock may be behind the
    journal's time, which the leader before took from another clock; what passed since its last entry has
    cost money all the same. `least`: the journal's time is at least so far from our monotonic clock, as we
    watched it grow; `last_at`: of its last entry."""
    known = before.offset if era and before.era == era else least
    return last_at if known is None else max(last_at, monotonic + known)


def step(world: World, at: Instant, ms: Millis) -> None:
    """The clock was set forward: nothing costs anything for a time that has not passed."""
    for name, account in world.accounts.items():
        world.accounts[name] = replace(account, as_of=min(account.as_of + ms, at))
    for name in world.pools:
        watch(world, name, at)
