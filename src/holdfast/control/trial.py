"""Can a pool be had here at all? It is asked before the pool is wanted.

A provider that cannot be loaded, or lacks the library of its cloud, would only be told in the log, and its
pool would be one that has nothing for anybody. So it is made once for a look, and let go again: one that
serves a pool also looks after its nodes, and there are none. It is not asked anything: nobody contacts a
cloud, and no program is run, with settings that are not applied.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from holdfast.control.perform import why_of
from holdfast.model.pool import Pool
from holdfast.ports.errors import Denied, PortError
from holdfast.ports.provider import Provider

ForALook = Callable[[Pool], AbstractAsyncContextManager[Provider]]


async def refusal(look: ForALook | None, pool: Pool) -> str:
    """Why it cannot be had here; empty: it can. Only what lies in the control plane itself keeps a pool from
    being wanted: a cloud that is away, or an account that is not open yet, may come."""
    if look is None:
        return ""
    try:
        async with look(pool):
            return ""
    except Denied as error:
        return why_of(error)
    except PortError:
        return ""
