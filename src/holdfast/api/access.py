"""Who may do this?

A request brings a token; the token has a role; an endpoint names the role that it takes (`Role.allows`). Only
hashes of tokens are kept anywhere, and what was found in the registry is believed for five seconds, so that a
revoked token is refused soon and a busy client does not cost a look-up each time.

Guessing a token of 256 bits is hopeless. What failed attempts can do is keep the registry busy; so each
client has a small budget of them. A good token is not held up by the failures of a neighbour behind the same
address: one that was good before is believed, and another is looked for in a list of all, which is read at
most once a second.

A stream goes on after its request was let in, so its token is looked up again, all the while and in the
registry itself: the budget of failed attempts plays no part in it, or a client could keep a revoked token
alive by bringing wrong ones. However many streams a token has, it is looked up twice a second.

There is no way in without a token, on loopback neither: other users of the machine, what runs on its nodes,
web pages in its browsers and any service that fetches URLs for others reach loopback too. A web page cannot
bring a token that it does not know, so no request needs a look at where its page came from.
"""

import asyncio
import hmac
import time
from collections import OrderedDict
from collections.abc import Callable

import msgspec
from starlette.requests import Request

from holdfast.api.problems import Refused
from holdfast.ports.errors import PortError
from holdfast.ports.registry import Registry, Role, Token
from holdfast.wire import pin
from holdfast.wire.address import counted_as
from holdfast.wire.identity import hashed

BELIEVED_S = 5.0
LOOK_AGAIN_S = 0.25  # at the token of a stream, and in the registry when it was not seen there
STREAM_BELIEVED_S = 0.5  # for so long; so a stream ends within a second of its token, look-up included
TOKENS_KEPT = 1_024
LISTED_FOR_S = 1.0
TOKEN_LENGTH_MAX = 512

FAILURES_MAX = 20.0  # in a row, from one client
FORGIVEN_PER_S = 1.0
CLIENTS_KEPT = 4_096

BRING = "send it as: Authorization: Bearer TOKEN"


class Admitted(msgspec.Struct, frozen=True):
    """Whoever asks, once it is known that they may."""

    role: Role
    name: str  # by it history knows who asked
    token: str = ""  # its id
    project: str = ""  # the only one that it is for; empty: all
    origin: str = ""  # the address of the client
    unused: bool = False  # the registry has not seen it used yet

    @classmethod
    def by(cls, token: Token, origin: str) -> "Admitted":
        return cls(token.role, token.name, token.id, token.project, origin, not token.first_used)


class Forbidden(Refused):
    """A good token, and not for this."""

    def __init__(self, who: Admitted, detail: str, hint: str) -> None:
        super().__init__(403, detail, hint)
        self.who = who


class Expired(Refused):
    def __init__(self, who: Admitted, hint: str) -> None:
        headers = {"WWW-Authenticate": "Bearer"}
        super().__init__(401, f"the token {who.token} has expired", hint, headers=headers)
        self.who = who


class Believed(msgspec.Struct):
    token: Token
    until: float
    seen: float  # when it was looked up


class Access:
    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._believed: OrderedDict[bytes, Believed] = OrderedDict()
        self._failures = Failures()
        self._listed: frozenset[bytes] = frozenset()  # hashes of all tokens
        self._listed_until = 0.0

    async def admit(self, request: Request, registry: Registry, least: Role) -> Admitted:
        """Who asks, and their role; Refused if it is not enough."""
        ask = f"ask an admin for one: holdfast token create --role {least}"
        token = await self._token(request, registry, ask)
        who = Admitted.by(token, client_of(request))
        if who.role is Role.JOIN:
            raise Forbidden(who, "a join token enrols a node, and does nothing else", ask)
        if not who.role.allows(least):
            what = f"this needs a token of the role {least}, yours has the role {who.role}"
            raise Forbidden(who, what, ask)
        return who

    async def _token(self, request: Request, registry: Registry, ask: str) -> Token:
        secret = _secret(request)
        if not secret:
            raise unauthorized("a token is needed", BRING)
        if len(secret) > TOKEN_LENGTH_MAX:
            raise unauthorized("this is no token of ours", ask)
        client = client_of(request)
        token = await self._find(hashed(secret), registry, counted_as(client), ask)
        if expired(token):
            raise Expired(Admitted.by(token, client), ask)
        return token

    async def _find(self, digest: bytes, registry: Registry, client: str, ask: str = "") -> Token:
        now = self._clock()
        known = self._believed.get(digest)
        if known is not None and now < known.until:
            return known.token
        if (
            known is None
            and self._failures.spent(client, now)
            and not await self._is_listed(digest, registry)
        ):
            raise too_many()
        found = self._found(digest, await registry.find(digest), now)
        if found is None:
            self._failures.add(client, now)
            raise unauthorized("the token is not known, or was revoked", ask)
        return found.token

    async def _is_listed(self, digest: bytes, registry: Registry) -> bool:
        """Is it worth a look-up, whoever else tries what from the same address?"""
        if (now := self._clock()) >= self._listed_until:
            self._listed_until = now + LISTED_FOR_S
            self._listed = frozenset([token.hash for token in await registry.tokens()])
        return digest in self._listed

    def _found(self, digest: bytes, token: Token | None, now: float) -> Believed | None:
        """What the registry answered is remembered."""
        if token is None or not hmac.compare_digest(token.hash, digest):
            self._believed.pop(digest, None)
            return None
        found = self._believed[digest] = Believed(token, now + BELIEVED_S, now)
        if len(self._believed) > TOKENS_KEPT:
            self._believed.popitem(last=False)
        return found

    async def lapsed(self, request: Request, registry: Registry) -> None:
        """Returns when the token of this stream is revoked or expired."""
        digest = hashed(_secret(request))
        while True:
            await asyncio.sleep(LOOK_AGAIN_S)
            try:
                if not await self._stands(digest, registry):
                    return
            except PortError:
                continue  # nobody can say

    async def _stands(self, digest: bytes, registry: Registry) -> bool:
        now = self._clock()
        known = self._believed.get(digest)
        if known is None or now - known.seen >= STREAM_BELIEVED_S:
            if known is not None:
                known.seen = now  # the other streams of this token need not look too
            known = self._found(digest, await registry.find(digest), now)
        return known is not None and not expired(known.token)

    def forget(self, token_id: str) -> None:
        """It was revoked here: no reason to believe it any longer."""
        for digest in [d for d, known in self._believed.items() if known.token.id == token_id]:
            del self._believed[digest]


class Failures:
    """How many failed attempts each client has left: a bucket that fills again with time."""

    def __init__(self) -> None:
        self._used: OrderedDict[str, tuple[float, float]] = OrderedDict()  # client -> (used, when)

    def spent(self, client: str, now: float) -> bool:
        return self._now_used(client, now) > FAILURES_MAX - 1

    def add(self, client: str, now: float) -> None:
        used = self._now_used(client, now) + 1
        self._used[client] = (used, now)
        self._used.move_to_end(client)
        if len(self._used) > CLIENTS_KEPT:
            self._used.popitem(last=False)

    def _now_used(self, client: str, now: float) -> float:
        used, at = self._used.get(client, (0.0, now))
        return max(0.0, used - FORGIVEN_PER_S * (now - at))


def _secret(request: Request) -> str:
    """What was brought; empty: nothing that could be a token. A pin behind it is for whoever brought it."""
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    return pin.split(secret)[0] if scheme.lower() == "bearer" else ""


def expired(token: Token) -> bool:
    return 0 < token.expires_at <= time.time_ns() // 1_000_000


def too_many() -> Refused:
    hint = "wait a moment, then look at the token"
    return Refused(429, "too many failed attempts from your address", hint, headers={"Retry-After": "2"})


def unauthorized(detail: str, hint: str) -> Refused:
    return Refused(401, detail, hint, headers={"WWW-Authenticate": "Bearer"})


def client_of(request: Request) -> str:
    return request.client.host if request.client is not None else "?"
