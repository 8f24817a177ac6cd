"""Tokens, keys of nodes and shared secrets, in the same database as the journal.

Writers take turns (see `Backend.lock_registry`), so what a write looked at still holds when it is committed:
a join token enrols as many nodes as it may, whoever else tries it in the same moment.
"""

from functools import partial
from typing import Any

from msgspec.structs import asdict
from sqlalchemy import Connection, Row, delete, func, insert, select, update

from holdfast.adapters.stores.codec import storable
from holdfast.adapters.stores.database import Database
from holdfast.adapters.stores.schema import audit, identities, secrets, tokens
from holdfast.model.units import NEVER, Instant
from holdfast.ports.audit import KEPT, Kind, Record
from holdfast.ports.errors import Denied
from holdfast.ports.registry import Identity, Role, Token, unfit

LOOK_EVERY = 500  # records: are there too many?


class SqlRegistry:
    def __init__(self, database: Database) -> None:
        self.database = database

    async def secret(self, name: str, proposal: bytes) -> bytes:
        found = await self.database.read(partial(_secret, name))
        if found is not None:
            return found
        return await self.database.write(partial(self._propose, name, proposal))

    def _propose(self, name: str, proposal: bytes, connection: Connection) -> bytes:
        self.database.backend.lock_registry(connection)
        found = _secret(name, connection)
        if found is None:
            connection.execute(insert(secrets), {"name": name, "value": proposal})
        return proposal if found is None else found

    async def add(self, token: Token) -> None:
        await self.database.write(partial(self._add, token))

    def _add(self, token: Token, connection: Connection) -> None:
        self.database.backend.lock_registry(connection)
        same = (tokens.c.id == token.id) | (tokens.c.hash == token.hash)
        known = [_token(row) for row in connection.execute(select(tokens).where(same))]
        if any((one.id, one.hash) != (token.id, token.hash) for one in known):
            raise Denied(f"there is another token with the id or the secret of {token.id}")
        if not known:
            connection.execute(insert(tokens), asdict(token))

    async def tokens(self) -> tuple[Token, ...]:
        asked = select(tokens).order_by(tokens.c.created_at, tokens.c.id)
        rows = await self.database.read(lambda connection: connection.execute(asked).all())
        return tuple(_token(row) for row in rows)

    async def find(self, hash: bytes) -> Token | None:
        return await self.database.read(partial(_find, hash), crowd=True)

    async def revoke(self, id: str) -> bool:
        gone = delete(tokens).where(tokens.c.id == id)
        return await self.database.write(lambda connection: connection.execute(gone).rowcount > 0)

    async def identity(self, node: str) -> Identity | None:
        return await self.database.read(partial(_identity, node), crowd=True)

    async def enrol(self, identity: Identity, token: bytes | None) -> str:
        return await self.database.write(partial(self._enrol, identity, token), crowd=True)

    def _enrol(self, identity: Identity, hash: bytes | None, connection: Connection) -> str:
        self.database.backend.lock_registry(connection)
        known = _identity(identity.node, connection)
        if known is not None:
            return "" if known.key == identity.key else f"the name {identity.node} belongs to another key"
        if hash is not None:
            why = unfit(_find(hash, connection), identity.node, identity.pool, identity.enrolled_at)
            if why:
                return why
            once_more = {"used_by": identity.node, "used": tokens.c.used + 1}
            connection.execute(update(tokens).where(tokens.c.hash == hash).values(once_more))
        connection.execute(insert(identities), asdict(identity))
        return ""

    async def first_use(self, token: str, at: Instant) -> bool:
        unused = (tokens.c.id == token) & (tokens.c.first_used == 0)
        used = update(tokens).where(unused).values(first_used=at)
        return await self.database.write(lambda connection: connection.execute(used).rowcount > 0, crowd=True)

    async def record(self, records: tuple[Record, ...]) -> None:
        await self.database.write(partial(self._record, records), crowd=True)

    def _record(self, records: tuple[Record, ...], connection: Connection) -> None:
        """Under the lock, so that numbers are seen in their order and whoever follows misses none."""
        self.database.backend.lock_registry(connection)
        known = select(audit.c.id).where(audit.c.id.in_([record.id for record in records]))
        there = set(connection.execute(known).scalars())
        last = connection.execute(select(func.max(audit.c.seq))).scalar() or 0
        fresh = [asdict(record) for record in records if record.id not in there]
        for seq, row in enumerate(fresh, last + 1):
            row.update(seq=seq, kind=row["kind"].value)
            row.update(
                (name, storable(row[name])) for name in ("actor", "origin", "subject", "text", "plane")
            )
        if fresh:
            connection.execute(insert(audit), fresh)
            if last // LOOK_EVERY != (last + len(fresh)) // LOOK_EVERY:
                _forget_oldest(connection)

    async def audited(
        self,
        *,
        actor: str = "",
        after: int = 0,
        before: int = 0,
        since: Instant = 0,
        until: Instant = 0,
        limit: int = 100,
    ) -> tuple[Record, ...]:
        asked = select(audit).where(audit.c.seq > after, audit.c.seq < (before or NEVER))
        asked = asked.where(audit.c.at >= since, audit.c.at < (until or NEVER))
        if actor:
            asked = asked.where((audit.c.actor == storable(actor)) | (audit.c.token == storable(actor)))
        asked = asked.order_by(audit.c.seq if after else audit.c.seq.desc()).limit(limit)
        rows = await self.database.read(lambda connection: connection.execute(asked).all(), crowd=True)
        found = [Record(**{**row._mapping, "kind": Kind(row.kind)}) for row in rows]
        return tuple(found if after else reversed(found))

    async def forget(self, node: str) -> None:
        gone = delete(identities).where(identities.c.node == node)
        await self.database.write(lambda connection: connection.execute(gone))


def _secret(name: str, connection: Connection) -> bytes | None:
    value = connection.execute(select(secrets.c.value).where(secrets.c.name == name)).scalar()
    return bytes(value) if value is not None else None


def _find(hash: bytes, connection: Connection) -> Token | None:
    row = connection.execute(select(tokens).where(tokens.c.hash == hash)).one_or_none()
    return _token(row) if row is not None else None


def _identity(node: str, connection: Connection) -> Identity | None:
    row = connection.execute(select(identities).where(identities.c.node == node)).one_or_none()
    return Identity(row.node, row.key, row.pool, row.enrolled_at) if row is not None else None


def _token(row: Row[Any]) -> Token:
    return Token(**{**row._mapping, "role": Role(row.role)})


def _forget_oldest(connection: Connection) -> None:
    for kind, most in KEPT.items():
        of_kind = audit.c.kind == kind.value
        beyond = select(audit.c.seq).where(of_kind).order_by(audit.c.seq.desc()).offset(most).limit(1)
        last = connection.execute(beyond).scalar()
        if last is not None:
            connection.execute(delete(audit).where(of_kind, audit.c.seq <= last))
