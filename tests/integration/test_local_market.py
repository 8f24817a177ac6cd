"""A market pretended on this machine: boots, stock, refusals, notices, and nodes that are taken away."""

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.adapters.providers.local.provider import LocalProvider
from holdfast.agent import notice
from holdfast.model.action import LaunchNode
from holdfast.model.place import Place
from holdfast.model.pool import Offer, Pool
from holdfast.model.resources import Resources
from holdfast.model.verdict import Word
from holdfast.ports.chaos import Chaos, MarketChaos
from holdfast.ports.errors import CapacityShort, Denied, NotFound, Unreachable
from tests.local_nodes import end, soon, supervised
from tests.stand_in import StandIn, join

TIMEOUT_S = 30.0
SIZE = Resources(1000, 1024)
OFFERS = tuple(Offer(zone, Place("local", "here", zone), SIZE, 1, spot=True) for zone in "ab")


def wish(node: str = "n1", offer: str = "a", pool: str = "spot", *, spot: bool = True) -> LaunchNode:
    there = Place("local", "here", offer)
    return LaunchNode(
        node=node, pool=pool, offer=offer, place=there, capacity=SIZE, price_micro_usd=1, spot=spot, why="w"
    )


def pool(name: str = "spot", **settings: str) -> Pool:
    return Pool(name, "local", OFFERS, settings=settings)


class Market:
    """A folder for nodes, and providers that share it."""

    def __init__(self, folder: Path) -> None:
        self.root, self.agent = folder / "local", StandIn(folder)
        self.agent.gate.touch()
        self.providers: list[LocalProvider] = []

    def provider(self, *pools: Pool) -> LocalProvider:
        made = LocalProvider(self.root, join, agent_command=self.agent.command)
        for one in pools:
            made.of(one)
        self.providers.append(made)
        return made

    def notice(self, node: str = "n1") -> Path:
        return self.root / "nodes" / node / "agent" / "notice"


@pytest.fixture
def market(tmp_path: Path) -> Iterator[Market]:
    made = Market(tmp_path)
    yield made
    end(made.provider(), made.providers)
    assert made.agent.roots() == []


# boots


async def test_a_node_takes_its_pools_time_to_boot_and_other_pools_do_not(market: Market) -> None:
    provider = market.provider(pool("slow", boot="300ms..400ms"), pool("quick"))
    begun = time.monotonic()
    await provider.launch(wish("s1", pool="slow"))
    await provider.launch(wish("q1", pool="quick"))
    assert await provider.list("slow") == ("s1",), "it costs money from the launch on"
    assert await provider.state("s1") is Word.RUNNING

    async def both_up() -> bool:
        return sorted(market.agent.made()) == ["q1", "s1"]

    await soon("both up", both_up)
    assert time.monotonic() - begun >= 0.3
    assert market.agent.made()[0] == "q1"


async def test_a_boot_goes_on_under_the_next_control_plane_with_the_time_that_was_left(
    market: Market,
) -> None:
    first = market.provider(pool(boot="1s"))
    await first.launch(wish())
    await first.close()
    assert market.agent.made() == []
    heir = market.provider()  # it has not heard of the pool yet

    async def up() -> bool:
        return market.agent.made() == ["n1"]

    async with supervised(heir):
        await soon("up", up)


# stock


async def test_no_more_of_an_offer_can_be_had_than_there_are(market: Market) -> None:
    provider = market.provider(shop := pool(stock="a=1,b=0"))
    await provider.launch(wish("n1"))
    await provider.launch(wish("n1"))
    with pytest.raises(CapacityShort, match="there are 1 of a"):
        await provider.launch(wish("n2"))
    with pytest.raises(CapacityShort, match="there is no b"):
        await provider.launch(wish("n3", "b"))
    assert await provider.offers(shop) == ()
    await provider.terminate("n1")
    assert [offer.name for offer in await provider.offers(shop)] == ["a"]
    await provider.launch(wish("n4"))
    assert await provider.list("spot") == ("n4",)


async def test_the_stock_of_one_pool_is_not_that_of_another(market: Market) -> None:
    provider = market.provider(pool(stock="1"), pool("other", stock="1"))
    await provider.launch(wish("n1"))
    await provider.launch(wish("n2", "b"))
    await provider.launch(wish("o1", pool="other"))
    with pytest.raises(CapacityShort):
        await provider.launch(wish("o2", pool="other"))


async def test_a_hundred_who_ask_at_once_get_what_there_is(market: Market) -> None:
    """Two control planes, and one stock."""
    shop = pool(stock="3", boot="1h")
    one, two = market.provider(shop), market.provider(shop)
    asked = [(one, two)[number % 2].launch(wish(f"n{number}")) for number in range(100)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(answer is None for answer in answers) == 3
    assert all(answer is None or isinstance(answer, CapacityShort) for answer in answers)
    assert len(await one.list("spot")) == 3


async def test_sold_out_by_hand_is_sold_out_for_every_control_plane_until_the_time_is_over(
    market: Market,
) -> None:
    provider, other = market.provider(pool()), market.provider(pool())
    await provider.launch(wish("n1"))
    await provider.sell_out("spot", "a", 60_000)
    with pytest.raises(CapacityShort, match="a is sold out"):
        await other.launch(wish("n2"))
    assert [offer.name for offer in await other.offers(pool())] == ["b"]
    await other.launch(wish("n3", "b"))
    assert await other.list("spot") == ("n1", "n3"), "what is there stays"
    await other.sell_out("spot", "", 60_000)
    assert await provider.offers(pool()) == ()
    for offer in ("", "a"):
        await provider.sell_out("spot", offer, 0)
    await other.launch(wish("n2"))


async def test_a_refusal_is_the_same_each_time_and_leaves_nothing(market: Market) -> None:
    provider = market.provider(pool(refuses="50%", boot="1h"))

    async def is_had(node: str) -> bool:
        with suppress(CapacityShort):
            await provider.launch(wish(node))
            return True
        return False

    first = [await is_had(f"n{number}") for number in range(20)]
    assert 0 < sum(first) < 20
    assert first == [await is_had(f"n{number}") for number in range(20)]
    assert len(await provider.list("spot")) == sum(first)


# spot


async def test_a_spot_node_is_told_and_then_taken_away(market: Market) -> None:
    provider = market.provider(pool(lives="1500ms", notice="1s"))
    await provider.launch(wish())
    await provider.launch(wish("od", spot=False))

    async def told() -> bool:
        return market.notice().exists()

    async def gone() -> bool:
        return await provider.list("spot") == ("od",)

    async with supervised(provider):
        assert not market.notice().exists()
        await soon("told", told)
        left = notice.left_ms(market.notice())
        assert left is not None
        assert 0 < left <= 1_000
        assert await provider.state("n1") is Word.RUNNING
        await soon("gone", gone)
        assert await provider.state("n1") is Word.STOPPED
        with pytest.raises(NotFound):
            await provider.terminate("n1")
        await asyncio.sleep(1.2)
    assert market.agent.roots() == [str(market.root / "nodes" / "od")], "nothing of it is left"
    assert not market.notice("od").exists()
    await provider.launch(wish())
    assert await provider.list("spot") == ("od",), "its name is spent"


async def test_a_node_is_taken_away_in_time_although_the_control_plane_was_away(market: Market) -> None:
    first = market.provider(pool(lives="1s", notice="0s"))
    await first.launch(wish())
    await first.close()
    heir = market.provider(pool())  # by now the pool says something else

    async def gone() -> bool:
        return await heir.list("spot") == ()

    async with supervised(heir):
        await soon("gone", gone)
    assert market.agent.roots() == []


async def test_a_notice_by_hand_is_given_at_once_and_kept(market: Market) -> None:
    provider = market.provider(pool())
    await provider.launch(wish(spot=False))
    await provider.notice("n1", 1_200)
    left = notice.left_ms(market.notice())
    assert left is not None
    assert 0 < left <= 1_200
    fate = json.loads((market.root / "nodes" / "n1" / "fate.json").read_bytes())
    assert fate["goes_at"] - fate["told_at"] == 1_200
    begun = time.monotonic()

    async def gone() -> bool:
        return await provider.list("spot") == ()

    async with supervised(provider):
        await soon("gone", gone)
    assert time.monotonic() - begun > 1.0
    with pytest.raises(NotFound):
        await provider.notice("n1", 1_000)


def test_it_can_be_harmed_in_every_way(market: Market) -> None:
    provider = market.provider()
    assert isinstance(provider, Chaos)
    assert isinstance(provider, MarketChaos)


# files that somebody damaged


@pytest.mark.parametrize("name", ["fate.json", "launch.json", "started.json"])
async def test_a_damaged_file_of_one_node_is_told_of_and_costs_no_other_node_its_care(
    market: Market, name: str
) -> None:
    first = market.provider(pool(lives="1s", notice="0s"))
    await first.launch(wish("a1", spot=False))
    await first.launch(wish("b1"))
    await first.close()
    damaged = market.root / "nodes" / "a1" / name
    damaged.write_bytes(b'{"half')
    heir = market.provider(pool())

    async def gone() -> bool:
        return not (market.root / "nodes" / "b1").exists()

    async with supervised(heir):
        await soon("gone", gone)
    if name == "launch.json":
        with pytest.raises(Unreachable, match=r"launch\.json cannot be read"):
            await heir.list("spot")
    await heir.terminate("a1")
    assert await heir.list("spot") == ()


# settings


async def test_wrong_settings_deny_a_launch_and_nothing_else(market: Market) -> None:
    provider = market.provider(pool())
    await provider.launch(wish())
    provider.of(pool(boot="soon", stok="1"))
    with pytest.raises(Denied, match=r"boot: expected a duration .*; stok is none of"):
        await provider.launch(wish("n2"))
    assert await provider.state("n1") is Word.RUNNING
    assert await provider.list("spot") == ("n1",)
    await provider.terminate("n1")
