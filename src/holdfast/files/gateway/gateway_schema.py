"""How people write a gateway: `gateway.settings` and `model.gateway`, with addresses as words."""

import ipaddress
import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field

from holdfast.files.struct_schema import Strict
from holdfast.files.values import (
    FLAG,
    IDENTITY,
    MEMORY,
    NAMES,
    PATHS,
    TEXT,
    Leaf,
    duration,
    number,
    whole,
)
from holdfast.model.gateway import Limits
from holdfast.model.units import HOUR, MINUTE, SECOND

TOKENS_MAX = 10**15
DIGEST = re.compile(r"[0-9a-f]{64}")


def _address(value: object) -> tuple[str, int]:
    if not isinstance(value, str):
        raise ValueError
    host, colon, port = value.strip().rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise ValueError
    return host.strip("[]") or "127.0.0.1", int(port)


def _url(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError
    if value.startswith("unix:"):
        if not value.startswith("unix:/"):
            raise ValueError
        return value
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError
    parts.port  # noqa: B018 - ValueError if it is none
    return value


def _network(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError
    return str(ipaddress.ip_network(value.strip()))


def _digest(value: object) -> bytes:
    if not isinstance(value, str) or not DIGEST.fullmatch(value.strip().lower()):
        raise ValueError
    return bytes.fromhex(value.strip())


def _table(value: object) -> object:
    """An upstream may be its URL alone."""
    return {"url": value} if isinstance(value, str) else value


ADDRESS = Leaf(
    'an address such as "127.0.0.1:8080"', '"127.0.0.1:8080"', _address, lambda at: f'"{at[0]}:{at[1]}"'
)
URL = Leaf('"http://HOST:PORT", "https://HOST" or "unix:/PATH"', '"http://127.0.0.1:8000"', _url)
NETWORK = Leaf('an address or a network such as "10.0.0.0/8"', '"10.0.0.0/8"', _network)
SHA256 = Leaf("the SHA-256 of the secret, 64 hexadecimal digits", '"9f86d0..."', _digest)
TOKENS = whole(0, TOKENS_MAX, 100_000)


class LimitsForm(Strict):
    """What may be taken; what is left out is not limited."""

    tokens_per_min: Annotated[int | None, TOKENS] = Field(None, description="prompt and answer together")
    requests_per_min: Annotated[int | None, TOKENS] = Field(None, description="requests")
    concurrent: Annotated[int | None, whole(0, 1_000_000, 16)] = Field(None, description="requests at a time")
    tokens_total: Annotated[int | None, TOKENS] = Field(
        None, description="a budget that does not come back by itself"
    )
    tokens_burst: Annotated[int | None, TOKENS] = Field(
        None, description="the most tokens at once; what a minute brings"
    )
    requests_burst: Annotated[int | None, TOKENS] = Field(
        None, description="the most requests at once; what a minute brings"
    )


class ScopeForm(LimitsForm):
    """Limits, and others for single models."""

    models: dict[str, LimitsForm] = Field({}, description="limits for single models, besides")


def limits_of(form: LimitsForm) -> Limits:
    return Limits(
        tokens_per_min=form.tokens_per_min,
        requests_per_min=form.requests_per_min,
        concurrent=form.concurrent,
        tokens_total=form.tokens_total,
        tokens_burst=form.tokens_burst,
        requests_burst=form.requests_burst,
    )


class AllLimitsForm(Strict):
    everybody: LimitsForm | None = Field(None, alias="global", description="all keys together")
    teams: dict[str, ScopeForm] = Field({}, description="by team")
    models: dict[str, LimitsForm] = Field({}, description="by model")


class UpstreamForm(Strict):
    """One place that answers; its URL alone will do."""

    url: Annotated[str, URL] = Field(description="where it is; a trailing /v1 is left out")
    id: Annotated[str, TEXT] = Field("", description="how metrics and errors call it; its URL")
    weight: Annotated[float, number(0.01, 1000, "1")] = Field(1.0, description="its share, beside the others")
    priority: Annotated[int, whole(0, 100)] = Field(
        0, description="0 is asked first; the next ones when nobody there can"
    )
    credential: Annotated[str, TEXT] = Field(
        "", description="sent to it as a bearer token; `env:NAME` is taken from the environment"
    )


class HoldForm(Strict):
    """Who may wait while nobody can answer."""

    requests: Annotated[int, whole(0, 1_000_000)] = Field(1_000, description="so many requests")
    tokens: Annotated[int, TOKENS] = Field(10_000_000, description="and so many tokens")
    patience: Annotated[int, duration(1)] = Field(2 * MINUTE, description="for so long")


class ServiceForm(Strict):
    name: Annotated[str, IDENTITY] = Field(description="its name")
    models: Annotated[tuple[str, ...], NAMES] = Field(
        (), description='the models it answers for; "llama-*": all that begin so; its name'
    )
    upstreams: list[Annotated[UpstreamForm, BeforeValidator(_table)]] = Field(
        [], description="where it is answered"
    )
    hosts: Annotated[tuple[str, ...], NAMES] = Field((), description="any path of these hosts leads here")
    prefixes: Annotated[tuple[str, ...], PATHS] = Field((), description="and these paths of any host")
    open: Annotated[bool, FLAG] = Field(False, description="hosts and prefixes: no key is needed")
    paths: Annotated[tuple[str, ...], PATHS] = Field(
        (),
        description="with `models`: which of their paths take more than GET; `/x/*`: all that begin so",
    )
    probe: Annotated[str, TEXT] = Field("", description="a path that answers while all is well; none")
    probe_every: Annotated[int, duration(1)] = Field(2 * SECOND, description="how often it is asked")
    hold: HoldForm = Field(HoldForm(), description="who may wait while nobody can answer")
    concurrent: Annotated[int, whole(0, 1_000_000)] = Field(
        0, description="requests at a time for one upstream; no limit"
    )
    context: Annotated[int, whole(0, 100_000_000)] = Field(
        0, description="tokens that prompt and answer may have together; not known"
    )
    prefix_aware: Annotated[bool, FLAG] = Field(
        True, description="prompts that begin alike go to the same upstream"
    )
    hedge: Annotated[bool, FLAG] = Field(False, description="a late request is asked of a second upstream")
    continues: Annotated[bool, FLAG] = Field(
        False, description="a chat that was cut goes on at another upstream (vLLM, SGLang)"
    )
    usage_all_the_time: Annotated[bool, FLAG] = Field(
        False, description="ask the engine for its usage with every event (vLLM, SGLang)"
    )
    tries: Annotated[int, whole(1, 10)] = Field(3, description="how often a request is tried in all")
    connect: Annotated[int, duration(1)] = Field(2 * SECOND, description="within which a connection is made")
    first_byte: Annotated[int, duration(1)] = Field(2 * MINUTE, description="within which a stream begins")
    stall: Annotated[int, duration(1)] = Field(1 * MINUTE, description="without a byte, a stream is lost")
    total: Annotated[int, duration(1)] = Field(1 * HOUR, description="within which an answer ends")


class KeyForm(Strict):
    id: Annotated[str, IDENTITY] = Field(description="how reports call it")
    sha256: Annotated[bytes, SHA256] = Field(description="of the secret: `printf %s SECRET | sha256sum`")
    owner: Annotated[str, TEXT] = Field("", description="whom to ask about it")
    team: Annotated[str, TEXT] = Field("", description="whose limits it shares")
    models: Annotated[tuple[str, ...], NAMES] = Field((), description="what it may use; everything")
    limits: LimitsForm = Field(LimitsForm(), description="of this key alone")
    exempt: Annotated[bool, FLAG] = Field(False, description="never judged for working for nobody")


class TlsForm(Strict):
    certificate: Annotated[str, TEXT] = Field(
        description="certificate chain (PEM); read again when it changes"
    )
    key: Annotated[str, TEXT] = Field(description="its key (PEM), which nobody else may read")


class GatewayForm(Strict):
    listen: Annotated[tuple[str, int], ADDRESS] = Field(("127.0.0.1", 8080), description="where clients come")
    admin: Annotated[tuple[str, int], ADDRESS] = Field(
        ("127.0.0.1", 8081), description="health, metrics and keys; not for clients"
    )
    workers: Annotated[int, whole(1, 256)] = Field(1, description="processes that serve")
    tls: TlsForm | None = Field(None, description="serve https")
    upstream_ca: Annotated[str, TEXT] = Field(
        "", description="who may vouch for https upstreams besides (PEM)"
    )
    body_max: Annotated[int, MEMORY] = Field(32, description="the largest request")
    connections: Annotated[int, whole(1, 1_000_000)] = Field(
        10_000, description="connections of one worker at a time; fewer if it may not open as many files"
    )
    connections_per_address: Annotated[int, whole(1, 1_000_000)] = Field(
        1_000, description="and of them from one address (of IPv6: one /64)"
    )
    trusted_proxies: list[Annotated[str, NETWORK]] = Field(
        [], description="load balancers: not limited by address; `x-forwarded-for` counts from there"
    )
    buffers: Annotated[int, MEMORY] = Field(512, description="what one worker keeps of requests")
    buffers_per_key: Annotated[int, MEMORY] = Field(256, description="and of them for one key")
    buffers_per_address: Annotated[int, MEMORY] = Field(128, description="and from one address")
    open: Annotated[bool, FLAG] = Field(False, description="nobody needs a key")
    insecure: Annotated[bool, FLAG] = Field(
        False, description="plain http beyond loopback: TLS ends in front of it, or the network is your own"
    )
    fail_open: Annotated[bool, FLAG] = Field(
        False, description="let requests in when nobody can say what is left of a quota, and book them later"
    )
    shadow: Annotated[bool, FLAG] = Field(
        True, description="keys that seem to work for nobody are named, not clamped"
    )
    services: list[ServiceForm] = Field([], description="what is behind it")
    limits: AllLimitsForm = Field(AllLimitsForm(), description="of teams, models and all together")
    keys: list[KeyForm] = Field([], description="who may ask; more with `holdfast keys create`")
