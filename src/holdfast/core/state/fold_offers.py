"""What an event or an action tells of the offer behind it, and of the losses of a service on spot.

The folds of `offer_history` say what a launch, a loss or a list means for a record; here it is decided which
of them an event is. A node that was told it will be taken away, or was called dead, is lost once, however it
ends; one that we end ourselves lived at least so long. A launch that failed by a lack of capacity is the
offer's own failure and holds back nothing else; being throttled, denied or cut off is its provider's, and the
pool backs off (`fold_events`).

A service on a mix of spot and on demand learns how its nodes go (`reliability.losses`): each loss is told to
those that had a copy there, with how many nodes with copies of theirs that offer left; and whenever a seat of
theirs goes down or is ready again, whether they are short. Seats that are down by plan (new, or moving) do
not count. Only `fold` calls these.
"""

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from holdfast.core.market import offer_history
from holdfast.core.state import index
from holdfast.model.event import PoolListed
from holdfast.model.market import Losses, OfferRecord, key_of
from holdfast.model.node import COMING, Node, NodeState
from holdfast.model.pool import Offer, Pool
from holdfast.model.replica import LIVE
from holdfast.model.units import Instant
from holdfast.model.verdict import Level, Said, Word
from holdfast.model.world import World
from holdfast.reliability.losses import lost, told


def asked(world: World, node: Node, at: Instant) -> None:
    _write(world, node, lambda record: offer_history.asked(record, at))


def refused(world: World, node: Node, at: Instant, why: str) -> None:
    policy = world.policy.capacity
    backoff, most = policy.backoff_ms, policy.backoff_max_ms
    _write(world, node, lambda record: offer_history.refused(record, at, backoff, most, why))
    world.agenda.at(world.records[key_of(node.pool, node.offer)].retry_at, "pool", node.pool)


def joined(world: World, node: Node, at: Instant) -> None:
    """For the first time."""
    took = at - node.launched_at
    _write(world, node, lambda record: offer_history.came_up(record, at, took))


def given_up(world: World, node: Node, at: Instant) -> None:
    """We terminate it: did it fail to come up in time, or do we not want it any more?"""
    policy, age = world.policy.capacity, at - node.since
    limit = policy.boot_timeout_ms if node.state is NodeState.BOOTING else policy.launch_timeout_ms
    ended = node.clues.word is Word.STOPPED
    if node.state in COMING and not node.joined_at and (ended or age >= limit):
        why, backoff, most = "it never joined", policy.backoff_ms, policy.backoff_max_ms
        _write(world, node, lambda record: offer_history.failed(record, at, backoff, most, why))
        world.agenda.at(world.records[key_of(node.pool, node.offer)].retry_at, "pool", node.pool)


def taken(world: World, node: Node, at: Instant) -> None:
    """It is told that it will be gone, or is dead. Where spot is taken away there is none left, for now."""
    if node.joined_at and not is_lost(node):
        _write(world, node, lambda record: offer_history.preempted(record, at, at - node.joined_at))
        if node.spot:
            _write(world, node, lambda record: offer_history.taken(record, at))
            _tell_services(world, node, at)
            again = at + world.policy.capacity.after_loss_ms
            world.agenda.at(again, "pool", node.pool)  # by then it may be worth a try again


def _tell_services(world: World, node: Node, at: Instant) -> None:
    key = key_of(node.pool, node.offer)
    for name in dict.fromkeys(world.replicas[replica].workload for replica in world.on_node[node.id]):
        if name in world.mixed:
            left = sum(
                other.id != node.id and key_of(other.pool, other.offer) == key and not is_lost(other)
                for other in _homes(world, name)
            )
            world.losses[name] = lost(world.losses.get(name, Losses()), at, key, left)


def _homes(world: World, workload: str) -> Iterable[Node]:
    copies = [world.replicas[name] for slot in world.of_workload[workload] for name in world.of_slot[slot]]
    return [world.nodes[name] for name in dict.fromkeys(copy.node for copy in copies if copy.state in LIVE)]


def counted(world: World, workload: str, at: Instant) -> None:
    """One of its seats has gone down, or is ready again."""
    if workload in world.mixed:
        known = world.losses.get(workload, Losses())
        world.losses[workload] = told(known, at, short=bool(world.struck.get(workload)))


def still_there(world: World, pool: str, at: Instant) -> None:
    """Spot nodes that live show that their offer has not gone."""
    nodes = [world.nodes[name] for name in world.in_pool.get(pool, ())]
    alive = {node.offer: node for node in nodes if node.spot and node.joined_at and not is_lost(node)}
    for node in alive.values():
        _write(world, node, lambda record: offer_history.seen(record, at, there=True))


def gone(world: World, node: Node, at: Instant) -> None:
    """Its provider confirms it."""
    if node.joined_at and not is_lost(node):
        _write(world, node, lambda record: offer_history.ended(record, at, at - node.joined_at))


def queued(world: World, event: PoolListed) -> None:
    """Which of those to come wait for their turn, and until when."""
    for name in world.in_pool.get(event.pool, ()) if event.queued is not None else ():
        node, told = world.nodes[name], event.queued or {}
        if node.state not in COMING or node.joined_at or not (node.queued_at or name in told):
            continue
        since, left = (node.queued_at or event.at) if name in told else 0, told.get(name)
        starts_at = 0 if left is None else event.asked_at + left
        index.put_node(world, replace(node, queued_at=since, starts_at=starts_at))


def watch_queue(world: World, pool: str, at: Instant) -> None:
    """While something is to come from a pool with a queue, it is asked how that moves."""
    nodes = (world.nodes[name] for name in world.in_pool.get(pool, ()))
    if pool in world.pools and world.pools[pool].queues and any(node.may_queue for node in nodes):
        world.agenda.at(at + world.policy.capacity.queue_every_ms, "pool", pool)


def is_lost(node: Node) -> bool:
    """Counted already."""
    return node.verdict.level is Level.DEAD or node.clues.said is Said.NOTICE


def listed(world: World, pool: Pool, offers: Iterable[Offer], at: Instant) -> None:
    """What is in the list, and what was and is not."""
    there = {offer.name: offer for offer in offers}
    for name, offer in there.items():
        key, price = key_of(pool.name, name), offer.price_micro_usd
        record = world.records.get(key, OfferRecord(key))
        index.put_record(world, offer_history.listed(record, at, True, price, proves=pool.lists_stock))
    for offer in world.offers[pool.name]:
        key = key_of(pool.name, offer.name)
        if offer.name not in there and key in world.records:
            index.put_record(world, offer_history.listed(world.records[key], at, False))


def _write(world: World, node: Node, change: Callable[[OfferRecord], OfferRecord]) -> None:
    """Machines that come by themselves have no offer to speak of."""
    if node.offer:
        key = key_of(node.pool, node.offer)
        index.put_record(world, change(world.records.get(key, OfferRecord(key))))
