"""What a keeper and its workers say to each other, over a socket of their own."""

import msgspec

from holdfast.core.gateway.key_audit.audit import Seen
from holdfast.core.gateway.quota.broker import Ask, Grants
from holdfast.core.gateway.routing.updates import Load, Went
from holdfast.gateway.counts import Counted
from holdfast.gateway.settings import MIB
from holdfast.gateway.settings import Service as ServiceSettings
from holdfast.model.gateway import Key, Limits
from holdfast.model.units import Instant

SawOne = tuple[str, float, Seen]  # key, when (monotonic: one machine, one clock), what


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    pass


class Sharing(msgspec.Struct, frozen=True, array_like=True):
    """Of one service: where prompts went, and what is in flight at each replica."""

    went: list[Went]
    loads: dict[str, Load]


class Shared(Message, frozen=True):
    """What a worker tells its siblings, by service. The keeper passes it on as it is."""

    worker: str
    services: dict[str, Sharing]


# to a worker


class Start(Message, frozen=True):
    name: str
    host: str
    port: int
    body_max: int
    connections: int
    head_within_s: float
    body_within_s: float
    idle_s: float
    open: bool
    fail_open: bool
    close_within_s: float
    siblings: int = 0
    certificate: str = ""  # paths; empty: none
    key: str = ""
    upstream_ca: str = ""
    buffers: int = 512 * MIB
    buffers_per_key: int = 256 * MIB
    buffers_per_address: int = 128 * MIB
    connections_per_address: int = 1_000
    trusted_proxies: tuple[str, ...] = ()
    wall: Instant = 0  # by the keeper, which has looked at it for longer
    log_json: bool = False  # as the keeper's own lines


class Granted(Message, frozen=True):
    grants: Grants


class KeyPut(Message, frozen=True):
    key: Key


class KeyGone(Message, frozen=True):
    id: str


class LimitsPut(Message, frozen=True):
    scope: str
    limits: Limits


class Clamped(Message, frozen=True):
    key: str
    share: float


class ServicesPut(Message, frozen=True):
    services: tuple[ServiceSettings, ...]


class SiblingGone(Message, frozen=True):
    worker: str


class Close(Message, frozen=True):
    pass


ToWorker = (
    Start | Granted | KeyPut | KeyGone | LimitsPut | Clamped | ServicesPut | Shared | SiblingGone | Close
)


# to the keeper


class Hello(Message, frozen=True):
    pid: int


class Ready(Message, frozen=True):
    """It listens."""


class Asked(Message, frozen=True):
    ask: Ask


class Wanting(Message, frozen=True):
    """Somebody waits for this service."""

    service: str


class CountedNow(Message, frozen=True):
    counted: Counted


class Saw(Message, frozen=True):
    requests: list[SawOne]


ToKeeper = Hello | Ready | Asked | Wanting | CountedNow | Saw | Shared
