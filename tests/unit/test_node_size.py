"""How much does a node have? One that was launched has no more than was asked for."""

import pytest
from msgspec.structs import replace

from holdfast.control.node_size import size_of
from holdfast.core.state.index import put_node
from holdfast.model.place import Place
from holdfast.model.pool import Offer, Pool
from holdfast.model.resources import GPU, Resources
from holdfast.model.world import World
from holdfast.wire.messages import Hello
from tests.build import node

SMALL, LARGE = Resources(4_000, 8_192), Resources(8_000, 32_768, 2 * GPU, "a100")
OFFERS = tuple(Offer(name, Place("p"), size) for name, size in (("small", SMALL), ("large", LARGE)))


def size(has: Resources, offer: str, *, launches: bool = True, known: bool = True) -> Resources | None:
    world = World()
    world.pools["p"] = Pool("p", "ec2", OFFERS, can_launch=launches)
    world.offers["p"] = OFFERS
    if known:
        put_node(world, replace(node("n1"), pool="p", offer=offer))
    return size_of(Hello(1, "n1", b"", b"", "i", pool="p", offer=offer, capacity=has), world)


BOAST = Resources(10_000_000, 1 << 30, 1_024 * GPU, "h100")


@pytest.mark.parametrize(
    ("offer", "most"),
    [("small", SMALL), ("large", LARGE), ("gone", LARGE)],
)
@pytest.mark.parametrize("known", [True, False])
def test_a_node_of_a_pool_that_launches_has_no_more_than_its_offer(
    offer: str, most: Resources, *, known: bool
) -> None:
    assert size(BOAST, offer, known=known) == most


def test_less_than_its_offer_is_believed() -> None:
    less = Resources(2_000, 4_096, GPU, "a100")
    assert size(less, "large") == less


def test_a_node_of_a_pool_that_takes_newcomers_is_what_it_says() -> None:
    assert size(BOAST, "small", launches=False, known=False) == BOAST


def test_what_an_offer_does_not_say_does_not_bound() -> None:
    world = World()
    world.pools["p"] = Pool("p", "ec2", (Offer("dark", Place("p"), Resources()),))
    world.offers["p"] = world.pools["p"].offers
    hello = Hello(1, "n1", b"", b"", "i", pool="p", offer="dark", capacity=SMALL)
    assert size_of(hello, world) == SMALL
