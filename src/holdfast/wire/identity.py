"""Who is who on the link: an Ed25519 key for each node, and a signature over the control plane's challenge.

The signature covers the nonce (so that a recorded hello is worth nothing), the name and the instance.
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

    def sign(self, nonce: bytes, node: str, instance: str) -> bytes:
        return self._private.sign(to_sign(nonce, node, instance))


def to_sign(nonce: bytes, node: str, instance: str) -> bytes:
    return b"\0".join((b"holdfast hello", nonce.hex().encode(), node.encode(), instance.encode()))


def signed(key: bytes, signature: bytes, nonce: bytes, node: str, instance: str) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, to_sign(nonce, node, instance))
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
