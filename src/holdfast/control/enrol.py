"""Who may be this node?

A name belongs to the key that first proved itself with a join token. Nodes that we launch get a token that is
good for their name only; newcomers bring one that an operator made. Later the key is enough. Each refusal
says what is wrong and what to do about it, because the person who reads it sits at another machine.
"""

import hmac
import re
from collections.abc import Callable, Container
from dataclasses import dataclass

from holdfast.model.node import COMING, NodeState
from holdfast.model.world import World
from holdfast.ports.clock import Clock
from holdfast.ports.errors import PortError
from holdfast.ports.registry import Identity, Registry, Role, Token, unfit
from holdfast.wire import pin
from holdfast.wire.identity import gateway_secret, hashed, launch_token, signed, user_number
from holdfast.wire.messages import BOUND, PROTOCOL, PROTOCOL_OLDEST, Hello

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
ASK_FOR_TOKEN = "ask for a new one: holdfast token create --role join"


class Refusal(Exception):
    def __init__(self, code: str, why: str, hint: str = "") -> None:
        super().__init__(why)
        self.code, self.why, self.hint = code, why, hint


@dataclass
class Joining:
    """Somebody came with a join token."""

    node: str  # as it calls itself
    origin: str
    token: Token | None = None  # None: it is none of ours
    why: str = ""  # it was refused


class Enrolment:
    def __init__(
        self,
        registry: Registry,
        clock: Clock,
        secret: bytes,
        shown: Callable[[], Container[bytes]] = frozenset[bytes],
    ) -> None:
        self.registry, self.clock, self.secret = registry, clock, secret
        self._shown = shown  # hashes of the certificates that agents may have been shown
        self.noted: Callable[[Joining], None] = lambda joining: None  # somebody has brought a join token
        self._keys: dict[str, bytes] = {}  # of nodes enrolled before: what is enrolled stays so

    def token_for(self, node: str) -> str:
        return launch_token(self.secret, node)

    def gateway_secret(self, workload: str) -> str:
        return gateway_secret(self.secret, workload)

    def user_number(self, project: str, workload: str) -> int:
        return user_number(self.secret, project, workload)

    async def forget(self, node: str) -> None:
        """It is gone: its key opens nothing any more, and its name is free."""
        await self.registry.forget(node)
        self._keys.pop(node, None)

    def begin(self) -> None:
        """We lead: what others forgot meanwhile is not remembered here."""
        self._keys.clear()

    async def check(
        self,
        hello: Hello,
        nonce: bytes,
        world: World,
        connected: str,
        *,
        over_tls: bool = False,
        origin: str = "",
    ) -> None:
        """Raises Refusal. `connected`: the instance of a living agent of that name. `origin`: its address."""
        self._check_words(hello, nonce, world)
        self._check_channel(hello, over_tls=over_tls)
        try:
            await self._check_identity(hello, world, origin)
        except PortError as error:
            raise Refusal(
                "full", f"the registry does not answer: {error}", "it will be tried again"
            ) from None
        if connected and connected != hello.instance:
            raise Refusal(
                "connected",
                f"an agent called {hello.node} is connected already",
                "stop the other one, or give this one another --name",
            )

    def _check_words(self, hello: Hello, nonce: bytes, world: World) -> None:
        if not PROTOCOL_OLDEST <= hello.protocol <= PROTOCOL:
            older = hello.protocol < PROTOCOL_OLDEST
            ours = f"{PROTOCOL_OLDEST} to {PROTOCOL}"
            raise Refusal(
                "protocol",
                f"the agent speaks protocol {hello.protocol}, this control plane {ours}",
                f"upgrade the {'agent' if older else 'control plane'}",
            )
        if not NAME.fullmatch(hello.node):
            raise Refusal("name", "a node's name has letters, digits, - _ and ., at most 63", "use --name")
        channel = hello.channel if hello.protocol >= BOUND else None
        if not signed(hello.key, hello.signature, nonce, hello.node, hello.instance, channel):
            raise Refusal("key", "the signature does not fit the key", "is the key file damaged?")
        node = world.nodes.get(hello.node)
        if node is not None and node.state is NodeState.TERMINATING:
            raise Refusal("gone", f"{hello.node} is being terminated", "give the machine another name")

    def _check_channel(self, hello: Hello, *, over_tls: bool) -> None:
        """Where TLS ends at us, it must be the certificate that we showed. Where a proxy ends it, it is the
        proxy's, and cannot be known. An agent of protocol 1 signs none; one that does cannot be made to."""
        if over_tls and hello.protocol >= BOUND and hello.channel not in self._shown():
            raise Refusal(
                "channel",
                "the agent was shown another certificate than ours: somebody in between ends its TLS",
                "let proxies pass TLS through, or put one that ends it before a control plane without TLS",
            )

    async def _check_identity(self, hello: Hello, world: World, origin: str) -> None:
        known = self._keys.get(hello.node)
        if known is None:
            identity = await self.registry.identity(hello.node)
            known = identity.key if identity is not None else None
        if known is not None:
            if not hmac.compare_digest(known, hello.key):
                raise Refusal(
                    "taken",
                    f"the name {hello.node} belongs to another key",
                    "use another --name, or bring back the key file of the node's first start",
                )
            if hello.node not in world.nodes:
                await self._check_former(hello, world)
            self._keys[hello.node] = known
            return
        if not hello.token:
            raise Refusal("token", f"{hello.node} is not known here and brings no join token", ASK_FOR_TOKEN)
        joining = Joining(hello.node, origin)
        try:
            await self._enrol(hello, world, joining)
        except Refusal as refusal:
            joining.why = refusal.why
            raise
        finally:
            if joining.token is not None or joining.why:
                self.noted(joining)

    async def _enrol(self, hello: Hello, world: World, joining: Joining) -> None:
        now = self.clock.wall()
        secret = pin.split(hello.token)[0]  # agents send nothing else, those of before it was there do
        ours = hmac.compare_digest(secret.encode(), self.token_for(hello.node).encode())
        known = world.nodes.get(hello.node)
        if ours and known is None:
            raise Refusal("gone", f"{hello.node} is no node of ours any more", "its machine can go")
        pool = known.pool if known is not None else hello.pool
        if not ours:
            if known is not None and known.state in COMING:
                raise Refusal(
                    "taken",
                    f"{hello.node} is a node that was launched here, and brings a token of its own",
                    "use another --name",
                )
            self._check_pool(hello, world)
            token = await self.registry.find(hashed(secret))
            joining.token = token
            why = unfit(token, hello.node, pool, now)
            if why:
                raise Refusal("token", why, _instead(token, hello, pool))
            if known is None and token is not None and token.pool != pool:
                self._check_takes_newcomers(pool, world)
        identity = Identity(hello.node, hello.key, pool, now)
        why = await self.registry.enrol(identity, None if ours else hashed(secret))
        if why:
            raise Refusal("token", why, ASK_FOR_TOKEN)
        self._keys[hello.node] = hello.key

    async def _check_former(self, hello: Hello, world: World) -> None:
        """It was enrolled once, and the world does not know it (any more): its key is for that pool alone."""
        self._check_pool(hello, world)
        identity = await self.registry.identity(hello.node)
        if identity is not None and identity.pool != hello.pool:
            self._check_takes_newcomers(hello.pool, world)

    def _check_takes_newcomers(self, pool: str, world: World) -> None:
        """A pool that launches its nodes takes a stranger only if an operator meant this pool."""
        if world.pools[pool].can_launch:
            raise Refusal(
                "pool",
                f"the pool {pool} launches its own nodes, and takes others only with a token made for it",
                f"holdfast token create --role join --pool {pool}, or another --pool",
            )

    def _check_pool(self, hello: Hello, world: World) -> None:
        """A newcomer joins a pool that is there; one of our own came from a pool anyway."""
        if hello.node in world.nodes:
            return
        if hello.pool not in world.pools:
            known = ", ".join(world.pools) or "none yet: apply one"
            raise Refusal(
                "pool", f"there is no pool called {hello.pool or '(none given)'}", f"pools: {known}"
            )
        if world.pool_states[hello.pool].deleted_at:
            raise Refusal("pool", f"the pool {hello.pool} is being deleted", "use another --pool")
        if hello.place is None or hello.capacity is None:
            says = "--place PROVIDER/REGION/ZONE/RACK, as much of it as is known"
            lacks = "where it is" if hello.place is None else "what it has"
            raise Refusal(
                "pool", f"a newcomer must say {lacks}", says if hello.place is None else "use --cpus"
            )


def _instead(token: Token | None, hello: Hello, pool: str) -> str:
    """A token that is good for another name or pool is better brought there."""
    if token is None or token.role is not Role.JOIN or not token.left:
        return ASK_FOR_TOKEN
    if token.node and token.node != hello.node:
        return f"use --name {token.node}"
    return f"--pool {token.pool}" if token.pool and token.pool != pool else ASK_FOR_TOKEN
