"""How a replica is reached, by the address it was given."""

from urllib.parse import urlsplit

import msgspec

from holdfast.gateway import settings


class Target(msgspec.Struct, frozen=True):
    """How a replica is reached."""

    host: bytes  # as the head says it
    path: bytes  # before the path that was asked for
    authorization: bytes
    address: tuple[str, int] | str  # host and port, or the path of a socket
    tls: str = ""  # the name its certificate must have; empty: no TLS


def target_of(upstream: settings.Upstream) -> Target:
    authorization = (
        f"authorization: Bearer {upstream.credential}\r\n".encode() if upstream.credential else b""
    )
    if upstream.url.startswith("unix:"):
        return Target(b"localhost", b"", authorization, upstream.url.removeprefix("unix:"))
    parts = urlsplit(upstream.url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    path = parts.path.rstrip("/").removesuffix("/v1")  # what clients ask for begins with it
    tls = host if parts.scheme == "https" else ""
    return Target(parts.netloc.rpartition("@")[2].encode(), path.encode(), authorization, (host, port), tls)
