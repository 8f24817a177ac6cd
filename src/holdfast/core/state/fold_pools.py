"""What the world is after a provider answered: a launch, a termination, a list; and which pools there are.

An answer that surely had no effect undoes what was asked for. Of one that may have had one nobody knows: the
node stays in the books until its provider says that it is gone, and a provider that does not know of it is no
proof as long as the machine may still come.
"""

from typing import Any

from msgspec.structs import replace

from holdfast.core.state import accounts, fold_offers, index
from holdfast.model import event as ev
from holdfast.model.market import key_of
from holdfast.model.node import Node, NodeState
from holdfast.model.plan import AGAIN
from holdfast.model.pool import PoolState, Reserve
from holdfast.model.units import MINUTE, Instant
from holdfast.model.verdict import Word
from holdfast.model.world import World

UNLISTED_MS = 2 * MINUTE  # a machine that was launched may be so long in coming into its provider's list
DOUBLINGS_MAX = 30
LATE_MS = 5 * MINUTE  # a launch that nobody answered may come to a machine so long after it was given up
WELL: dict[str, Any] = {"failures_in_a_row": 0, "retry_at": 0, "why": "", "why_at": 0}
DEFINITE = frozenset({"CapacityShort", "Denied", "Throttled"})  # the request surely had no effect
SHORT = frozenset({"CapacityShort"})  # nor did an earlier one for the same node: it would have been found


def applied(world: World, event: ev.PoolApplied) -> None:
    """What failed under other rules says nothing of these. One that was deleted is wanted again."""
    pool, before = event.pool, world.pool_states.get(event.pool.name, PoolState(event.pool.name))
    world.pools[pool.name] = pool
    known = world.offers.get(pool.name) if pool.lists_offers else None
    index.put_offers(world, pool.name, known or pool.offers)
    world.in_pool.setdefault(pool.name, {})
    world.pool_states[pool.name] = replace(before, **WELL, deleted_at=0)
    world.agenda.note("pool", pool.name)
    accounts.watch(world, pool.name, event.at)


def deleted(world: World, event: ev.PoolDeleted) -> None:
    """It takes no more nodes. It stays until those it has are gone (`pools`)."""
    pool = world.pools.get(event.pool)
    if pool is None or world.pool_states[pool.name].deleted_at:
        return
    none = replace(pool, min=0, max=0, standby=0, standby_covers=0.0, reserve=Reserve())
    world.pools[pool.name] = none
    index.put_offers(world, pool.name, world.offers[pool.name])
    note_pool(world, pool.name, **WELL, deleted_at=event.at)


def forget(world: World, name: str) -> None:
    """Its account stays: what it cost is part of what the fleet cost."""
    for key in [key for key in world.records if key.startswith(key_of(name, ""))]:  # old offers' too
        del world.records[key]
        world.market.changed.pop(key, None)
    for kept in (world.pools, world.pool_states, world.offers, world.in_pool, world.serving):
        kept.pop(name, None)
    world.market.outdated = True


def launched(world: World, event: ev.NodeLaunched) -> None:
    node = world.nodes.get(event.node)
    if node is None or node.joined_at:
        return
    launching = node.state is NodeState.LAUNCHING
    state, since = (NodeState.BOOTING, event.at) if launching else (node.state, node.since)
    index.put_node(world, replace(node, state=state, since=since, answered=True))
    if launching:
        note_pool(world, node.pool, **WELL)
        fold_offers.watch_queue(world, node.pool, event.at)


def may_come(world: World, event: ev.NodeTerminated) -> bool:
    """Its launch was never answered, so its provider may be about to make it: then it stays in the books, and
    is terminated again after a while. It may have been asked for once more until it was given up."""
    node = world.nodes[event.node]
    return is_unproven(node) and event.at < _too_late(world, node)


def is_unproven(node: Node) -> bool:
    """Its provider never said that it is there, and it never joined."""
    return not node.answered and not node.joined_at


def _too_late(world: World, node: Node) -> Instant:
    """Its launch comes to no machine from then on."""
    return node.launched_at + world.policy.capacity.launch_timeout_ms + LATE_MS


def action_failed(world: World, event: ev.ActionFailed) -> None:
    node = world.nodes.get(event.node)
    if node is None:
        return
    policy = world.policy.capacity
    state = world.pool_states[node.pool]
    doubled = policy.backoff_ms << min(state.failures_in_a_row, DOUBLINGS_MAX)
    wait = max(min(doubled, policy.backoff_max_ms), event.retry_after_ms)
    if node.state is not NodeState.LAUNCHING:
        if state.deleted_at and is_unproven(node) and event.at >= _too_late(world, node):
            # A provider that never answers would keep the pool for ever, for a machine that nobody has seen.
            accounts.undo_node(world, node, event.at)
            index.drop_node(world, node.id)
            return
        index.put_node(world, replace(node, retry_at=event.at + wait))
        if state.deleted_at:
            note_pool(world, node.pool, why=f"{node.id}: {event.why}", why_at=event.at)
        return
    if event.error == "CapacityShort":  # the offer's own: nothing else waits for it
        fold_offers.refused(world, node, event.at, event.why)
    else:
        note_pool(
            world,
            node.pool,
            failures_in_a_row=state.failures_in_a_row + 1,
            retry_at=event.at + wait,
            why=event.why,
            why_at=event.at,
        )
    if event.error in (SHORT if event.action.startswith(AGAIN) else DEFINITE):
        accounts.undo_node(world, node, event.at)
        index.drop_node(world, node.id)


def pool_listed(world: World, event: ev.PoolListed) -> None:
    """What nobody knows is an orphan. What should have been there for a while and is not, has ended. What is
    there though nobody answered its launch, was launched."""
    if event.pool not in world.pools:
        return
    world.orphans |= {name: event.pool for name in event.nodes if name not in world.nodes}
    fold_offers.still_there(world, event.pool, event.at)
    fold_offers.queued(world, event)
    there = set(event.nodes)
    for name in list(world.in_pool.get(event.pool, ())):
        node = world.nodes[name]
        if name in there and not node.answered:
            launched(world, ev.NodeLaunched(at=event.at, node=name))
        due = node.state is NodeState.BOOTING and event.asked_at - node.since >= UNLISTED_MS
        if due and name not in there:
            index.put_node(world, replace(node, clues=replace(node.clues, word=Word.STOPPED)))
    world.agenda.note("pool", event.pool)


def listed(world: World, event: ev.OffersListed) -> None:
    """Spot nodes that are there cost what spot costs now; others keep the price they were launched at."""
    pool = world.pools.get(event.pool)
    if pool is None or not pool.lists_offers:
        return
    there = world.offers[pool.name] if event.offers is None else event.offers
    fold_offers.listed(world, pool, there, event.at)
    if event.offers is None:
        return
    index.put_offers(world, pool.name, event.offers)
    prices = {offer.name: offer.price_micro_usd for offer in event.offers if offer.spot}
    for name in world.in_pool[pool.name]:
        node = world.nodes[name]
        price = prices.get(node.offer, node.price_micro_usd)
        if node.spot and price != node.price_micro_usd and node.state is not NodeState.LAUNCHING:
            index.put_node(world, accounts.reprice(world, node, event.at, price))
    world.agenda.note("pool", pool.name)


def stepped(world: World, event: ev.LeaderChanged) -> None:
    """The clock was set forward between two leaders. What is on its way was asked for that much later, so
    that it is paid back to the unit, and is remembered to have booted as fast as it did."""
    at, ms = event.at, event.stepped_ms
    for node in [node for node in world.nodes.values() if not node.joined_at]:
        index.put_node(world, replace(node, launched_at=min(node.launched_at + ms, at)))
    accounts.step(world, at, ms)


def note_pool(world: World, name: str, **changes: object) -> None:
    state = replace(world.pool_states[name], **changes)
    world.pool_states[name] = state
    world.agenda.note("pool", name)
    if state.retry_at:
        world.agenda.at(state.retry_at, "pool", name)
