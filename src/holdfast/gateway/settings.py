"""What a gateway is told: where it listens, which services it leads to, and how it treats each."""

from pathlib import Path

import msgspec

from holdfast.model.gateway import Key, Limits

MIB = 1_048_576


class Upstream(msgspec.Struct, frozen=True):
    """One place that answers: http://HOST:PORT, https://HOST:PORT or unix:PATH."""

    url: str
    id: str = ""  # empty: its url
    weight: float = 1.0
    priority: int = 0  # 0 is asked first, the next ones when nobody there can
    credential: str = ""  # sent as a bearer token, in place of the client's key


class Hold(msgspec.Struct, frozen=True):
    """How much may wait while nobody can answer."""

    requests: int = 1_000
    tokens: int = 10_000_000
    patience_s: float = 120.0


class Service(msgspec.Struct, frozen=True):
    name: str
    models: tuple[str, ...] = ()  # the names it answers to; "llama-*": all that begin so
    upstreams: tuple[Upstream, ...] = ()
    leaving: tuple[str, ...] | None = None  # those that were, and will end what they have begun; None: all
    hosts: tuple[str, ...] = ()  # any path of these hosts leads here
    prefixes: tuple[str, ...] = ()  # and these paths of any host
    open: bool = False  # hosts and prefixes: no key is needed
    paths: tuple[str, ...] = ()  # of hosts and prefixes, where models answer too: as requests for a model
    probe: str = ""  # a path that answers 200 while all is well; empty: only what requests meet counts
    probe_every_s: float = 2.0
    hold: Hold | None = Hold()
    concurrent: int = 0  # requests at a time for one upstream; 0: no limit
    context: int = 0  # tokens that prompt and answer may have together; 0: not known
    prefix_aware: bool = True
    hedge: bool = False
    continues: bool = False  # a chat that was cut goes on elsewhere, with what it has said so far
    usage_all_the_time: bool = False  # the engine tells its usage with every event, if asked (vLLM, SGLang)
    tries: int = 3
    connect_s: float = 2.0
    first_byte_s: float = 120.0  # of a stream
    stall_s: float = 60.0
    total_s: float = 3_600.0
    names_models: bool = False  # its models were written down, and are not its name for want of others


class Gateway(msgspec.Struct, frozen=True):
    state: Path
    host: str = "127.0.0.1"
    port: int = 8080
    admin_host: str = "127.0.0.1"
    admin_port: int = 8081
    workers: int = 1
    certificate: Path | None = None
    key: Path | None = None
    upstream_ca: Path | None = None  # who may vouch for https upstreams, besides those everybody trusts
    body_max: int = 32 * MIB
    connections: int = 10_000  # at a time, for one worker
    connections_per_address: int = 1_000
    trusted_proxies: tuple[str, ...] = ()  # networks whose connections are not counted by address
    buffers: int = 512 * MIB  # what one worker keeps of bodies
    buffers_per_key: int = 256 * MIB
    buffers_per_address: int = 128 * MIB
    head_within_s: float = 10.0
    body_within_s: float = 300.0
    idle_s: float = 75.0
    services: tuple[Service, ...] = ()
    limits: dict[str, Limits] = {}  # by scope
    keys: tuple[Key, ...] = ()
    open: bool = False  # nobody needs a key
    insecure: bool = False  # plain http beyond loopback: TLS ends elsewhere, or the network is trusted
    fail_open: bool = False  # when nobody can say what is left of a quota: let them in, and book it later
    shadow: bool = True  # keys that seem to be nobody's are named, not touched
