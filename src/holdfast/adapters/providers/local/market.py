"""A market that a local pool pretends to buy its nodes on: boots that take time, offers that run out,
launches that are refused, spot nodes that are taken away.

A pool says in its `settings` what it is to be like, all of it text:

    boot: 2s..4s           from the launch to the agent's start; two durations: something between them
    stock: 3               so many nodes of each offer at a time; or by offer: zone-a=2,zone-b=0
    refuses: 10%           this share of the launches is refused
    lives: 5m..20m         a spot node is taken away so long after its boot
    notice: 30s            and is told so long before; 2m unless it is said, as the largest cloud does
    capacity: 10           nodes that this machine may have in all

What is left to chance is drawn from the node's name: the same names have the same luck each time, and a
launch that is repeated gets the same answer. To draw at the moment of the call was refused: a control plane
that started anew would have another market. A node's fate is settled when it is launched and is on disk from
then on (`folders`), so no control plane has to remember it, and a pool that is changed changes no node that
is there.
"""

import random
from collections.abc import Collection, Iterator, Mapping

import msgspec

from holdfast.adapters.providers.settings import (
    Kind,
    Settings,
    Wrong,
    duration_ms,
    said,
    share,
    span_ms,
    whole,
)
from holdfast.model.action import LaunchNode
from holdfast.model.units import MINUTE, Instant, Millis

ANY = ""  # stands for each offer that is not named


class LocalTraits(msgspec.Struct, frozen=True):
    boot_ms: Millis = 0  # pretended: the agent is started after this
    boot_spread_ms: Millis = 0  # or up to so much later
    capacity: int = 1_000  # nodes of this machine
    stock: dict[str, int] = {}  # offer -> how many can be had at a time; `ANY`: of each other one
    refuses: float = 0.0  # share of launches
    lives_ms: Millis = 0  # a spot node is taken away after this; 0: never
    lives_spread_ms: Millis = 0
    notice_ms: Millis = 2 * MINUTE

    def stock_of(self, offer: str) -> int | None:
        return self.stock.get(offer, self.stock.get(ANY))


class Fate(msgspec.Struct, frozen=True):
    """What is settled for a node; by the clock on the wall, in milliseconds since 1970."""

    boot_ms: Millis = 0
    boots_at: Instant = 0
    told_at: Instant = 0  # that it will be taken away
    goes_at: Instant = 0  # 0: never


def _stock(text: str) -> dict[str, int]:
    if "=" not in text:
        return {ANY: whole(text)}
    found: dict[str, int] = {}
    for part in text.split(","):
        offer, sign, count = part.partition("=")
        if not sign or not offer.strip() or offer.strip() in found:
            raise ValueError(text)
        found[offer.strip()] = whole(count)
    return found


SPAN = "a duration such as 2s, or two such as 2s..4s"
KINDS: Mapping[str, Kind] = {
    "boot": Kind(SPAN, "2s", span_ms),
    "stock": Kind("a number of nodes, or one for each offer such as a=2,b=0", "3", _stock),
    "refuses": Kind("a share such as 10% or 0.1", "10%", share),
    "lives": Kind(SPAN, "5m", span_ms),
    "notice": Kind("a duration such as 30s", "30s", duration_ms),
    "capacity": Kind("a number of nodes", "10", whole),
}


def _stock_is_of_its_offers(settings: Mapping[str, str], offers: Collection[str]) -> Iterator[Wrong]:
    known = ", ".join(offers)
    for offer in _stock(settings["stock"]) if "stock" in settings else ():
        if offer != ANY and offer not in offers:
            yield Wrong("stock", f"offers of the pool ({known})", offer, f"{next(iter(offers), 'a')}=2")


TAKES = Settings(KINDS, _stock_is_of_its_offers)


def traits(settings: Mapping[str, str], otherwise: LocalTraits) -> LocalTraits:
    """For settings that are not wrong."""
    changes: dict[str, object] = {}
    for name, text in said(settings).items():
        value = KINDS[name].read(text)
        if isinstance(value, tuple):
            changes[f"{name}_ms"], changes[f"{name}_spread_ms"] = value
        else:
            changes["notice_ms" if name == "notice" else name] = value
    return msgspec.structs.replace(otherwise, **changes)


def is_refused(request: LaunchNode, traits: LocalTraits) -> bool:
    return _luck(request.node, "refused") < traits.refuses


def fate(request: LaunchNode, traits: LocalTraits, now: Instant) -> Fate:
    boot_ms = traits.boot_ms + round(traits.boot_spread_ms * _luck(request.node, "boot"))
    boots_at = now + boot_ms
    if not request.spot or not traits.lives_ms + traits.lives_spread_ms:
        return Fate(boot_ms, boots_at) if boot_ms else Fate()
    goes_at = boots_at + traits.lives_ms + round(traits.lives_spread_ms * _luck(request.node, "life"))
    return Fate(boot_ms, boots_at, max(boots_at, goes_at - traits.notice_ms), goes_at)


def sooner(fate: Fate, now: Instant, left_ms: Millis) -> Fate:
    """It is told now that it will be taken away; never later than was settled before."""
    goes_at = min(now + left_ms, fate.goes_at or now + left_ms)
    return msgspec.structs.replace(fate, told_at=now, goes_at=goes_at)


def _luck(node: str, what: str) -> float:
    return random.Random(f"{what} of {node}").random()
