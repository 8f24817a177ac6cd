"""The registry's twin: tokens, keys and secrets in memory."""

from msgspec.structs import replace

from holdfast.model.units import NEVER, Instant
from holdfast.ports.audit import KEPT, Record
from holdfast.ports.errors import Denied, Unreachable
from holdfast.ports.registry import Identity, Token, unfit


class SimRegistry:
    def __init__(self) -> None:
        self.secrets: dict[str, bytes] = {}
        self.known: dict[str, Token] = {}  # by id
        self.identities: dict[str, Identity] = {}
        self.kept: list[Record] = []  # of the audit log
        self.numbered = 0
        self.down = False

    async def secret(self, name: str, proposal: bytes) -> bytes:
        self._answer()
        return self.secrets.setdefault(name, proposal)

    async def add(self, token: Token) -> None:
        self._answer()
        for other in self.known.values():
            if (other.id == token.id) != (other.hash == token.hash):
                raise Denied(f"there is another token with the id or the secret of {token.id}")
        self.known.setdefault(token.id, token)

    async def tokens(self) -> tuple[Token, ...]:
        self._answer()
        return tuple(sorted(self.known.values(), key=lambda token: (token.created_at, token.id)))

    async def find(self, hash: bytes) -> Token | None:
        self._answer()
        return next((token for token in self.known.values() if token.hash == hash), None)

    async def revoke(self, id: str) -> bool:
        self._answer()
        return self.known.pop(id, None) is not None

    async def identity(self, node: str) -> Identity | None:
        self._answer()
        return self.identities.get(node)

    async def enrol(self, identity: Identity, token: bytes | None) -> str:
        self._answer()
        known = self.identities.get(identity.node)
        if known is not None:
            return "" if known.key == identity.key else f"the name {identity.node} belongs to another key"
        if token is not None:
            found = await self.find(token)
            why = unfit(found, identity.node, identity.pool, identity.enrolled_at)
            if why or found is None:
                return why
            self.known[found.id] = replace(found, used_by=identity.node, used=found.used + 1)
        self.identities[identity.node] = identity
        return ""

    async def first_use(self, token: str, at: Instant) -> bool:
        self._answer()
        found = self.known.get(token)
        if found is None or found.first_used:
            return False
        self.known[token] = replace(found, first_used=at)
        return True

    async def record(self, records: tuple[Record, ...]) -> None:
        self._answer()
        for record in records:
            if all(record.id != other.id for other in self.kept):
                self.numbered += 1
                self.kept.append(replace(record, seq=self.numbered))
        of_kind = {
            kind: [one.seq for one in self.kept if one.kind is kind][-most:] for kind, most in KEPT.items()
        }
        kept = {seq for numbers in of_kind.values() for seq in numbers}
        self.kept = [one for one in self.kept if one.seq in kept]

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
        self._answer()
        found = [
            one
            for one in self.kept
            if actor in ("", one.actor, one.token)
            and after < one.seq < (before or NEVER)
            and since <= one.at < (until or NEVER)
        ]
        return tuple(found[:limit] if after else found[-limit:])

    async def forget(self, node: str) -> None:
        self._answer()
        self.identities.pop(node, None)

    def _answer(self) -> None:
        if self.down:
            raise Unreachable("the registry does not answer")
