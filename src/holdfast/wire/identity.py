"""Who is who on the link: an Ed25519 key for each node, and a signature over the control plane's challenge.

The signature covers the nonce (so that a recorded hello is worth nothing), the name, the instance and the
channel: over TLS the hash of the certificate that the agent was shown. So somebody in between, who shows
another one, cannot pass the hello on and become the node. (The exporter of RFC 9266 would bind to the very
connection; Python's ssl has none. The certificate is what `tls-server-end-point` of RFC 5929 binds to, and
enough: only who has its key can be at the other end.) Agents of protocol 1 sign no channel.
"""

import hashlib
import hmac
import os
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

NONCE_BYTES = 32
KEY_BYTES = 32


class Key:
    """A node's private key: made on the first start, kept in a file that only its owner can read."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public = private.public_key().public_bytes_raw()

    @classmethod
    def at(cls, path: Path) -> "Key":
        try:
            return cls(Ed25519PrivateKey.from_private_bytes(path.read_bytes()))
        except FileNotFoundError:
            pass
        private = Ed25519PrivateKey.generate()
        fresh = path.with_suffix(".new")
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(private.private_bytes_raw())
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        return cls(private)

    def sign(self, nonce: bytes, node: str, instance: str, channel: bytes | None) -> bytes:
        return self._private.sign(to_sign(nonce, node, instance, channel))


def to_sign(nonce: bytes, node: str, instance: str, channel: bytes | None) -> bytes:
    """`channel`: empty without TLS; None: as protocol 1 has it."""
    said = [nonce.hex().encode(), node.encode(), instance.encode()]
    if channel is None:
        return b"\0".join((b"holdfast hello", *said))
    return b"\0".join((b"holdfast hello 2", *said, channel.hex().encode()))


def signed(
    key: bytes, signature: bytes, nonce: bytes, node: str, instance: str, channel: bytes | None
) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, to_sign(nonce, node, instance, channel))
    except (InvalidSignature, ValueError):
        return False
    return True


def hashed(token: str) -> bytes:
    """Tokens are long and random, so one round is enough."""
    return hashlib.sha256(token.encode()).digest()


def launch_token(secret: bytes, node: str) -> str:
    """The join token of a node that we launch ourselves: good for this name only, and the same however often
    the launch is repeated."""
    return "hfl_" + hmac.new(secret, b"join\0" + node.encode(), hashlib.sha256).hexdigest()


def gateway_secret(secret: bytes, workload: str) -> str:
    """By which the replicas of a workload know the gateways of their fleet. It is made from what the fleet
    has already, so nothing more is written down, and every control plane makes the same."""
    return "hfw_" + hmac.new(secret, b"gateway\0" + workload.encode(), hashlib.sha256).hexdigest()


def user_number(secret: bytes, project: str, workload: str) -> int:
    """Of which nodes make the user id of a workload. The same everywhere; whoever may name workloads cannot
    choose one that has the number of another's."""
    said = b"\0".join((b"user", project.encode(), workload.encode()))
    digest = hmac.new(secret, said, hashlib.sha256).digest()
    return int.from_bytes(digest[:5], "big") or 1  # 40 bits: as many as a record of a node takes
