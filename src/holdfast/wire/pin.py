"""Which certificate authority is a fleet's own, for one who trusts nothing of it yet?

A control plane gives the certificate of its fleet's authority to everybody under `/ca.pem`. The first
request for it goes over TLS that is not verified, so the answer may be anybody's: it is taken only if the
hash of its public key is the pin that came another way, with the join token or from a person. From then on
the connection is verified by that certificate, as by any other authority. Nothing secret is sent before.

Who trusts that authority asks for it by NAME in the handshake, so that a control plane which shows the world
another certificate shows its own to them. It signs nothing but certificates of control planes, so whose it is
needs no second check by host: a machine may be reached under any name and address.

The pin is `sha256:` and the hash of the key (SubjectPublicKeyInfo) in hex, as kubeadm has it: a certificate
that is made anew for the same key keeps it. A token carries it behind a dot, so that one string is enough to
paste; the part before the dot is the secret, and the only part that goes over the wire.
"""

import hashlib
import re
import socket
import ssl
import time
from typing import Any

PATH = "/ca.pem"
NAME = "control-plane.holdfast.internal"  # `internal` is nobody's, by ICANN
PREFIX = "sha256:"
HASH = re.compile(r"[0-9a-f]{64}")
PEM = re.compile(r"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")
END = b"-----END CERTIFICATE-----"
ANSWER_MAX = 64 << 10
WITHIN_S = 5.0


class Untrusted(Exception):
    """What is there has no authority, or another one than the pin says."""


def pin_of(pem: str) -> str:
    """ValueError: it holds no certificate."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = x509.load_pem_x509_certificate(pem.encode()).public_key()
    return (
        PREFIX + hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()
    )


def read_pin(text: str) -> str:
    """ValueError: it is none."""
    digest = text.strip().lower().removeprefix(PREFIX)
    if not HASH.fullmatch(digest):
        raise ValueError(f"expected {PREFIX} and 64 hexadecimal digits")  # what was given may be a token
    return PREFIX + digest


def with_pin(secret: str, pin: str) -> str:
    return f"{secret}.{pin.removeprefix(PREFIX)}" if pin else secret


def split(token: str) -> tuple[str, str]:
    """The secret, and the pin that came with it or nothing."""
    secret, _, digest = token.strip().partition(".")
    return secret, PREFIX + digest if HASH.fullmatch(digest) else ""


class Pinned(ssl.SSLContext):
    """Asks for NAME, whatever the host is called."""

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        return super().wrap_bio(incoming, outgoing, server_side, NAME, session)

    def wrap_socket(self, *words: Any, **named: Any) -> ssl.SSLSocket:
        return super().wrap_socket(*words, **{**named, "server_hostname": NAME})


def context(pem: str) -> ssl.SSLContext:
    """Trusts control planes of this authority and nobody else, whatever they are called. ValueError,
    OSError (those of ssl are): it holds no certificate."""
    made = Pinned(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.load_verify_locations(cadata=pem)
    return made


def is_damaged(token: str) -> bool:
    """It was cut when it was copied. Taken as one without a pin, it would have its bearer trust others."""
    _, dot, digest = token.strip().partition(".")
    return bool(dot) and not HASH.fullmatch(digest)


def fetch(host: str, port: int, pin: str, within_s: float = WITHIN_S) -> str:
    """The certificate of the authority there, as PEM. OSError: it does not answer. Untrusted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    ends, answer = time.monotonic() + within_s, b""
    with (
        socket.create_connection((host, port), timeout=within_s) as plain,
        context.wrap_socket(plain, server_hostname=NAME) as line,
    ):
        name = f"[{host}]" if ":" in host else host
        line.sendall(f"GET {PATH} HTTP/1.1\r\nHost: {name}:{port}\r\nConnection: close\r\n\r\n".encode())
        while len(answer) < ANSWER_MAX and END not in answer:
            if time.monotonic() >= ends:
                raise TimeoutError("it does not answer in time")
            line.settimeout(max(0.01, ends - time.monotonic()))
            part = line.recv(16_384)
            if not part:
                break
            answer += part
    return _checked(answer, pin)


def _checked(answer: bytes, pin: str) -> str:
    head, _, body = answer.partition(b"\r\n\r\n")
    found = PEM.search(body.decode("latin-1")) if head.split()[1:2] == [b"200"] else None
    if found is None:
        raise Untrusted("it gives no certificate of an authority of its own")
    try:
        theirs = pin_of(found[0])
    except ValueError:
        raise Untrusted("what it gives as its authority is no certificate") from None
    if theirs != pin:
        raise Untrusted(f"its authority is {theirs}, not {pin}: another fleet, or somebody in between")
    if not _signed_itself(found[0]):
        raise Untrusted("the certificate of its authority was changed on the way")
    return found[0] + "\n"


def _signed_itself(pem: str) -> bool:
    """The pin is of the key alone: with other dates it would be kept, and good for nothing later."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    certificate = x509.load_pem_x509_certificate(pem.encode())
    try:
        certificate.verify_directly_issued_by(certificate)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True
