"""What EC2 offers, and at which price now: each type in each zone that has it, on demand and as spot.

Sizes come from EC2 (DescribeInstanceTypes), spot prices from DescribeSpotPriceHistory, prices on demand from
the price list; where the price list does not answer, from the pool's setting `prices`. An offer without a
known price is left out: priced 0 it would be the cheapest of all. The price list changes a few times a year
and is slow, so its prices are kept for hours; one that did not answer is asked again after some minutes.

A pool that lists offers by hand gets these and no others, with the current price, or with the written one
where EC2 knows none.
"""

import asyncio
import json
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec
import structlog
from msgspec.structs import replace

from holdfast.adapters.providers.ec2.account import Account
from holdfast.adapters.providers.ec2.order import instance_type, zone_of
from holdfast.adapters.providers.ec2.settings import Ec2Settings, write
from holdfast.model.place import Place
from holdfast.model.pool import Offer, Pool
from holdfast.model.resources import GPU, Resources
from holdfast.model.units import MicroUsd
from holdfast.ports.errors import Denied, PortError

KEEP_S = 6 * 3600.0
ASK_AGAIN_S = 600.0
# The hypervisor and the kernel keep some of what the type is said to have: 3% of large machines, 7% of small.
MEMORY_USABLE = 0.925
SYSTEM: Final = "Linux/UNIX"
# One row of the price list: the plain machine, nothing on it, nothing reserved.
PLAIN: Final[Mapping[str, str]] = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
}

Words = dict[str, Any]
Spot = dict[tuple[str, str], MicroUsd]  # by type and zone

log = structlog.get_logger()


class Kind(msgspec.Struct, frozen=True):
    capacity: Resources
    spot: bool


class Listed(msgspec.Struct, frozen=True):
    price: MicroUsd | None
    until: float


class Market:
    def __init__(self, account: Account, settings: Ec2Settings) -> None:
        self._account, self._settings = account, settings
        self._listed: dict[tuple[str, str], Listed] = {}
        self._silent_until = 0.0

    async def offers(self, pool: Pool) -> tuple[Offer, ...]:
        by_hand = [offer for offer in pool.offers if instance_type(offer.name)]
        if by_hand:
            return await self._priced(by_hand)
        if not self._settings.instance_types:
            what = write("instance_types")
            raise Denied(f"{pool.name} lists no offers, and its settings name no types: {what}")
        regions = self._settings.regions
        found = await asyncio.gather(*(self._of_region(pool.provider, region) for region in regions))
        return tuple(offer for several in found for offer in several)

    # by hand

    async def _priced(self, offers: list[Offer]) -> tuple[Offer, ...]:
        regions = sorted({offer.place.region for offer in offers})
        kinds = sorted({instance_type(offer.name) for offer in offers})
        spot: Spot = {}
        for prices in await asyncio.gather(*(self._spot_prices(region, kinds) for region in regions)):
            spot |= prices
        priced = []
        for offer in offers:
            kind = instance_type(offer.name)
            now = (
                _spot_of(spot, kind, offer.place)
                if offer.spot
                else await self._on_demand(offer.place.region, kind)
            )
            price = now or offer.price_micro_usd
            if price:
                priced.append(replace(offer, price_micro_usd=price))
            else:
                _no_price(offer.name)
        return tuple(priced)

    # all there is

    async def _of_region(self, provider: str, region: str) -> list[Offer]:
        kinds = await self._kinds(region)
        zones, spot = await asyncio.gather(self._zones(region), self._spot_prices(region, list(kinds)))
        on_demand = {kind: await self._on_demand(region, kind) for kind in kinds}
        found = []
        for kind, zone in zones:
            if kind not in kinds:
                continue
            place, has = Place(provider, region, zone), kinds[kind]
            asked = []
            if self._settings.buy != "spot":
                asked.append((f"{kind}@{zone}", on_demand[kind], False))
            if has.spot and self._settings.buy != "on-demand":
                asked.append((f"{kind}@{zone}:spot", spot.get((kind, zone)), True))
            for name, price, is_spot in asked:
                if price:
                    found.append(Offer(name, place, has.capacity, price, is_spot))
                else:
                    _no_price(name)
        return found

    async def _kinds(self, region: str) -> dict[str, Kind]:
        # As a filter: a type that the region does not have is then no error.
        wanted = [{"Name": "instance-type", "Values": list(self._settings.instance_types)}]
        answer = await self._account.look(region, "describe_instance_types", Filters=wanted)
        return {each["InstanceType"]: _kind(each) for each in answer.get("InstanceTypes", [])}

    async def _zones(self, region: str) -> list[tuple[str, str]]:
        wanted = [{"Name": "instance-type", "Values": list(self._settings.instance_types)}]
        answer = await self._account.look(
            region,
            "describe_instance_type_offerings",
            LocationType="availability-zone",
            Filters=wanted,
        )
        return sorted(
            (each["InstanceType"], each["Location"]) for each in answer.get("InstanceTypeOfferings", [])
        )

    # prices

    async def _spot_prices(self, region: str, kinds: list[str]) -> Spot:
        if not kinds:
            return {}
        answer = await self._account.look(
            region,
            "describe_spot_price_history",
            InstanceTypes=kinds,
            ProductDescriptions=[SYSTEM],
            StartTime=datetime.now(UTC),  # since now: the last price of each
        )
        found: dict[tuple[str, str], tuple[datetime, MicroUsd]] = {}
        for each in answer.get("SpotPriceHistory", []):
            key = (each["InstanceType"], each["AvailabilityZone"])
            at, price = each["Timestamp"], micro_usd(each["SpotPrice"])
            if price and (key not in found or found[key][0] <= at):
                found[key] = (at, price)
        return {key: price for key, (_, price) in found.items()}

    async def _on_demand(self, region: str, kind: str) -> MicroUsd | None:
        now = time.monotonic()
        kept = self._listed.get((region, kind))
        if kept is None or kept.until <= now:
            price = await self._from_list(region, kind)
            kept = Listed(price, now + (KEEP_S if price else ASK_AGAIN_S))
            self._listed[region, kind] = kept
        written = self._settings.prices
        return kept.price or written.get(f"{region}/{kind}") or written.get(kind)

    async def _from_list(self, region: str, kind: str) -> MicroUsd | None:
        """One type after the other: a price list that hangs is waited for once, and by one thread."""
        if time.monotonic() < self._silent_until:
            return None
        wanted = {**PLAIN, "instanceType": kind, "regionCode": region}
        try:
            answer = await self._account.price_list(
                ServiceCode="AmazonEC2",
                Filters=[
                    {"Type": "TERM_MATCH", "Field": key, "Value": value} for key, value in wanted.items()
                ],
            )
            return listed_price(answer.get("PriceList", []))
        except (PortError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("no_price_list", region=region, type=kind, why=str(error))
            self._silent_until = time.monotonic() + ASK_AGAIN_S
            return None


def listed_price(products: Iterable[str]) -> MicroUsd | None:
    """The highest of the rows that fit: there should be one. Rows of other units and free ones do not."""
    prices = [
        price
        for product in products
        for term in json.loads(product).get("terms", {}).get("OnDemand", {}).values()
        for row in term["priceDimensions"].values()
        if row.get("unit") == "Hrs" and (price := micro_usd(row["pricePerUnit"].get("USD", "")))
    ]
    return max(prices, default=None)


def micro_usd(text: str) -> MicroUsd | None:
    """None: no price, or one that makes no sense."""
    try:
        amount = Decimal(text)
    except InvalidOperation:
        return None
    if not amount.is_finite() or not 0 < amount < 1_000_000:
        return None
    return max(1, round(amount * 1_000_000))


def _spot_of(spot: Spot, kind: str, place: Place) -> MicroUsd | None:
    """In its zone; an offer of no zone may end up in the dearest of its region."""
    zone = zone_of(place)
    if zone:
        return spot.get((kind, zone))
    return max((p for (k, z), p in spot.items() if k == kind and z.startswith(place.region)), default=None)


def _kind(said: Words) -> Kind:
    gpus = said.get("GpuInfo", {}).get("Gpus", [])
    count = sum(int(gpu.get("Count", 0)) for gpu in gpus)
    name = str(gpus[0].get("Name", "")) if gpus else ""
    return Kind(
        Resources(
            cpu_milli=int(said["VCpuInfo"]["DefaultVCpus"]) * 1000,
            memory_mib=int(said["MemoryInfo"]["SizeInMiB"] * MEMORY_USABLE),
            gpu_milli=count * GPU,
            gpu_kind=name.lower().replace(" ", "-") if count else "",
        ),
        spot="spot" in said.get("SupportedUsageClasses", ["spot"]),
    )


def _no_price(offer: str) -> None:
    log.warning("offer_without_price", offer=offer, hint=f"{write('prices')}")
