"""The end of what replicas wrote, beside the journal and bounded by itself.

Not in the journal: nothing is decided by it, and it would have to be read by everybody who begins from there.
When all of them take too much the oldest go. Each counts as a page more than it holds, so that a great many
short ones are bounded too.
"""

from collections.abc import Iterator, Sequence

from sqlalchemy import Connection, delete, func, insert, select

from holdfast.adapters.stores.codec import storable
from holdfast.adapters.stores.schema import tails
from holdfast.model.units import Instant
from holdfast.ports.store import TAIL_COSTS, TAILS_BYTES_MAX, Tail

AFTER_DROPPING = TAILS_BYTES_MAX * 15 // 16  # so that not every one that is kept has to look for the oldest
AT_ONCE = 1_000  # names in one statement: databases take only so many values


def keep_tails(told: Sequence[Tail], connection: Connection) -> None:
    rows = [
        {
            "replica": storable(tail.replica),
            "node": storable(tail.node),
            "at": tail.at,
            "size": len(tail.data) + TAIL_COSTS,
            "written": tail.written,
            "data": tail.data,
            "ended": int(tail.ended),
        }
        for tail in told
    ]
    for names in _batched([storable(tail.replica) for tail in told]):
        connection.execute(delete(tails).where(tails.c.replica.in_(names)))
    connection.execute(insert(tails), rows)
    if connection.execute(select(func.sum(tails.c.size))).scalar_one() > TAILS_BYTES_MAX:
        _drop_oldest(connection)


def _batched(names: list[str]) -> Iterator[list[str]]:
    for first in range(0, len(names), AT_ONCE):
        yield names[first : first + AT_ONCE]


def _drop_oldest(connection: Connection) -> None:
    newer = func.sum(tails.c.size).over(order_by=tails.c.at.desc())  # with all of the same instant
    summed = select(tails.c.at, newer.label("newer")).subquery()
    too_old = select(func.max(summed.c.at)).where(summed.c.newer > AFTER_DROPPING).scalar_subquery()
    connection.execute(delete(tails).where(tails.c.at <= too_old))


def find_tail(replica: str, connection: Connection) -> Tail | None:
    row = connection.execute(select(tails).where(tails.c.replica == storable(replica))).one_or_none()
    if row is None:
        return None
    return Tail(row.replica, row.node, bytes(row.data), row.written, row.at, bool(row.ended))


def forget_tails(before: Instant, connection: Connection) -> None:
    connection.execute(delete(tails).where(tails.c.at < before))
