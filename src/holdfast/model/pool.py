"""Where nodes come from, and what can be had there."""

import msgspec

from holdfast.model.money import Budget
from holdfast.model.place import Place
from holdfast.model.resources import Resources
from holdfast.model.units import MicroUsd, Millis


class Offer(msgspec.Struct, frozen=True):
    """A kind of node for rent in one place at one price."""

    name: str
    place: Place
    capacity: Resources
    price_micro_usd: MicroUsd = 0  # per hour
    spot: bool = False


class Reserve(msgspec.Struct, frozen=True):
    """The last nodes of a pool are for what is important: launched for nothing else, and nothing else is put
    there."""

    nodes: int = 0
    priority: int = 1  # and above


class Pool(msgspec.Struct, frozen=True):
    """One provider and one set of rules. Differences between providers are facts here, never names."""

    name: str
    provider: str
    offers: tuple[Offer, ...]
    min: int = 0
    max: int = 1_000
    standby: int = 0  # warm nodes kept empty and ready
    standby_covers: float = 0.0  # more, if failures during a boot are to find one with this probability
    labels: dict[str, str] = {}
    taints: tuple[str, ...] = ()
    can_launch: bool = True
    can_terminate: bool = True
    can_reset: bool = True
    lists_offers: bool = False  # its provider knows what can be had and at which price: ask
    lists_stock: bool = False  # and only what can be had now is in that list
    queues: bool = False  # what is launched may have to wait for its turn, and its provider tells
    idle_ms: Millis = 600_000  # an empty node above min + standby is released after this long
    settings: dict[str, str] = {}  # for its provider alone: nothing here reads them
    profile: str = ""  # more settings, from a file of the control plane's host, under this name
    budget: Budget = Budget()
    reserve: Reserve = Reserve()
    price_max_micro_usd: MicroUsd | None = None  # an hour: dearer offers are left alone
    network: tuple[str, ...] = ()  # CIDR: where its nodes may say that they are reached


class PoolState(msgspec.Struct, frozen=True):
    """What we remember of a pool: its back-off after failures, when it was last listed, and its failure
    record."""

    name: str
    retry_at: int = 0
    failures_in_a_row: int = 0
    listed_at: int = 0
    offers_at: int = 0  # when its offers were last asked for
    why: str = ""  # of the last request that failed, if none was answered since
    why_at: int = 0
    deleted_at: int = 0  # nobody wants it any more: it is forgotten when its nodes are gone
    deaths: int = 0
    notices: int = 0
    served_ms: int = 0  # node-time seen, of nodes that have left since
