"""What a pool's provider says before the pool is wanted: can it be had here at all, and what would it offer?

A provider that cannot be loaded, or lacks the library of its cloud, would only be told in the log, and its
pool would be one that has nothing for anybody. So it is made once for a look, and let go again: one that
serves a pool also looks after its nodes, and there are none.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import msgspec

from holdfast.control.perform import answer_of, possible, why_of
from holdfast.model.pool import Offer, Pool
from holdfast.ports.errors import Denied, PortError
from holdfast.ports.provider import Provider

OFFERS_S = 20.0  # somebody waits for the answer

ForALook = Callable[[Pool], AbstractAsyncContextManager[Provider]]


class Found(msgspec.Struct, frozen=True):
    refused: str = ""  # why it cannot be had here; empty: it can
    unasked: str = ""  # why it cannot say what it offers
    offers: tuple[Offer, ...] | None = None  # none: it was not asked


async def usable(look: ForALook | None, pool: Pool) -> Found:
    """Only what lies in the control plane itself keeps a pool from being wanted: a cloud that is away, or an
    account that is not open yet, may come."""
    if look is None:
        return Found()
    try:
        async with look(pool):
            return Found()
    except Denied as error:
        return Found(refused=why_of(error))
    except PortError:
        return Found()


async def offered(look: ForALook | None, pool: Pool) -> Found:
    """The same, and what it offers if it is one that says so."""
    found = await usable(look, pool)
    if found.refused or look is None or not pool.lists_offers:
        return found
    try:
        async with look(pool) as provider:
            offers = await answer_of(lambda: provider.offers(pool), OFFERS_S, tuple[Offer, ...])
    except PortError as error:
        return Found(unasked=why_of(error))
    return Found(offers=possible(offers, pool.name))
