"""Who may speak to us: access tokens of people and programs, join tokens, and the keys of nodes.

Only hashes of tokens are kept. A join token enrols as many nodes as it is made for (usually one), each once;
after that the node's key proves it.
"""

import enum
from typing import Protocol

import msgspec

from holdfast.model.units import Instant
from holdfast.ports.audit import Record


class Role(enum.StrEnum):
    """What a token lets its bearer do. Read, operator and admin each may do what the one before may; the
    others are for one kind of machine each, and let it read nothing else."""

    ADMIN = "admin"  # tokens, policy, pools, chaos
    OPERATOR = "operator"  # plan, apply and delete workloads; drain, cordon
    READ = "read"
    GATEWAY = "gateway"  # what `holdfast gateway --control` needs
    SIGNALS = "signals"  # post what services scale by
    JOIN = "join"  # enrol nodes

    def allows(self, needed: "Role") -> bool:
        """Is this role enough for what takes that one?"""
        return self in ENOUGH[needed]


ENOUGH = {  # the roles that are enough for what takes this one
    Role.ADMIN: {Role.ADMIN},
    Role.OPERATOR: {Role.OPERATOR, Role.ADMIN},
    Role.READ: {Role.READ, Role.OPERATOR, Role.ADMIN},
    Role.GATEWAY: {Role.GATEWAY, Role.ADMIN},
    Role.SIGNALS: {Role.SIGNALS, Role.OPERATOR, Role.ADMIN},
    Role.JOIN: {Role.JOIN},
}


FIRST = "first"  # the id of the token that is made at the first start


class Token(msgspec.Struct, frozen=True):
    id: str
    hash: bytes  # SHA-256 of the secret
    role: Role
    note: str = ""
    pool: str = ""  # JOIN: the only pool it may join; empty: any that does not launch its own nodes
    node: str = ""  # JOIN: the only name it may take; empty: any
    created_at: Instant = 0
    expires_at: Instant = 0  # wall clock; 0: never
    used_by: str = ""  # JOIN: the last node that was enrolled with it
    uses: int = 1  # JOIN: so many nodes may be enrolled with it
    used: int = 0  # JOIN: so many were
    project: str = ""  # the only project it is for; empty: all
    first_used: Instant = 0  # by the wall clock; 0: not yet. A join token says how often it was used

    @property
    def name(self) -> str:
        """How history calls whoever brings it."""
        return self.id if self.id == FIRST else self.note or self.id

    @property
    def left(self) -> int:
        """How many more nodes it enrols. One that was used before uses were counted was used once."""
        return max(0, self.uses - max(self.used, int(self.used_by != "")))


class Identity(msgspec.Struct, frozen=True):
    node: str
    key: bytes  # Ed25519 public key
    pool: str
    enrolled_at: Instant


def unfit(token: Token | None, node: str, pool: str, now: Instant) -> str:
    """Why this join token does not enrol this node; empty: it does. The same answer everywhere."""
    if token is None or token.role is not Role.JOIN:
        return "this join token is not known"
    if token.expires_at and token.expires_at <= now:
        return "this join token has expired"
    if not token.left:
        many = f"is used up: {token.uses} of {token.uses} nodes joined with it, the last was {token.used_by}"
        return f"this join token {many if token.uses > 1 else f'was used by {token.used_by}'}"
    if token.node and token.node != node:
        return f"this join token is for {token.node}"
    if token.pool and token.pool != pool:
        return f"this join token is for the pool {token.pool}"
    return ""


class Registry(Protocol):
    async def secret(self, name: str, proposal: bytes) -> bytes:
        """A secret shared by all control planes: whoever asks first sets it."""

    async def add(self, token: Token) -> None: ...

    async def tokens(self) -> tuple[Token, ...]: ...

    async def find(self, hash: bytes) -> Token | None: ...

    async def revoke(self, id: str) -> bool:
        """False: there is no such token."""

    async def identity(self, node: str) -> Identity | None: ...

    async def enrol(self, identity: Identity, token: bytes | None) -> str:
        """Bind the key to the name and use the join token with this hash once, in one transaction. Empty if
        it was done (or had been done before, with the same key); else why not."""

    async def first_use(self, token: str, at: Instant) -> bool:
        """The token with this id was used. False: it had been used before, or is not known."""

    async def record(self, records: tuple[Record, ...]) -> None:
        """Keep these in the audit log, each once, in their order; of each kind, about the last
        KEPT."""

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
        """Records of this actor (name or id of a token), in the order in which they were kept, with numbers
        after and before these (0: no bound), from the instant `since` on to before `until` (0: no bound): the
        newest `limit` of them, or, with `after`, the oldest."""

    async def forget(self, node: str) -> None:
        """The name may be taken again, with a new token."""
