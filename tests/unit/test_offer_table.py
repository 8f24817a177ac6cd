"""The table of offers is kept, not made anew: it always says what a new one would say."""

from typing import Any

import numpy as np
from msgspec.structs import replace

from holdfast.core.market import offers
from holdfast.core.market.offer_history import GRID
from holdfast.core.state import fold
from holdfast.core.state.snapshot import dump, load
from holdfast.model import event as ev
from holdfast.model.offer_table import HYPOTHESES, Table
from holdfast.model.pool import Offer
from holdfast.model.units import MINUTE
from holdfast.model.workload import Service, Workload
from holdfast.model.world import World
from tests.build import needs
from tests.play import Play, offer, pool

LISTED: dict[str, Any] = {"lists_offers": True, "lists_stock": True}


def anew(world: World) -> Table:
    """As a world that was read from a snapshot makes it."""
    return offers.listed(load(dump(world)))


def the_same(table: Table, other: Table) -> bool:
    columns = [
        (getattr(table, kind)[name], getattr(other, kind)[name])
        for kind in ("ints", "floats", "bools")
        for name in getattr(table, kind)
    ]
    columns += [(table.log_weights, other.log_weights)]
    same = all(np.array_equal(left, right) for left, right in columns)
    return same and list(table.row.items()) == list(other.row.items()) and table.offers == other.offers


def listed(play: Play, *there: Offer) -> None:
    play.tell(ev.OffersListed(at=play.now, pool="pool", offers=there))


def test_there_is_a_column_for_every_hypothesis() -> None:
    assert len(GRID.stays) == HYPOTHESES


def test_it_is_the_same_table_while_nothing_changes() -> None:
    play = Play(offers=(offer("a"), offer("b")))
    table = offers.listed(play.world)
    play.later(60 * MINUTE)
    assert offers.listed(play.world) is table


def test_a_refusal_and_a_new_price_are_in_the_rows_and_no_others_are_written() -> None:
    play = Play(offers=(offer("a"), offer("b")), max=3, **LISTED)
    table = offers.listed(play.world)
    play.apply(Workload("web", Service(1), needs(cpu=8)))
    play.settle()
    name = next(iter(play.world.nodes))
    play.tell(ev.ActionFailed(at=play.now, action="p", node=name, error="CapacityShort", why="none"))
    listed(play, offer("a", price=70), offer("b"))
    assert offers.listed(play.world) is table
    assert table.ints["price"][table.row["pool/a"]] == 70
    assert the_same(table, anew(play.world))


def test_offers_that_come_and_go_leave_the_table_as_a_new_one() -> None:
    a, b, c = offer("a"), offer("b", "b"), offer("c", "c", spot=True)
    play = Play(offers=(a, b), **LISTED)
    for there in ((a,), (c, a, b), (b,), (), (a, b, c)):
        play.now += MINUTE
        listed(play, *there)
        assert the_same(offers.listed(play.world), anew(play.world))


def test_what_holds_for_a_pool_holds_for_its_offers() -> None:
    play = Play(offers=(offer("a"),))
    offers.listed(play.world)
    fold.observe(play.world, ev.PoolApplied(at=play.now, pool=pool(offers=(offer("a"),), taints=("gpu",))))
    table = offers.listed(play.world)
    assert not offers.suits(table, needs())[table.row["pool/a"]]
    assert offers.suits(table, replace(needs(), tolerates=("gpu",)))[table.row["pool/a"]]


def test_what_was_worked_out_for_needs_does_not_pile_up() -> None:
    play = Play(offers=(offer("a"),))
    table = offers.listed(play.world)
    for memory in range(offers.MEMO_MAX + 10):
        offers.suits(table, needs(memory=memory + 1))
    assert len(table.fixed_memo) <= offers.MEMO_MAX
