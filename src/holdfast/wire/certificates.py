"""The certificate that a server shows, read from files that somebody else renews.

A renewed certificate counts from the next handshake on: nothing is restarted, and no connection ends. It
comes in a context of its own, to which each handshake is led: OpenSSL would keep the one before beside it
if the kind of its key is another, and go on showing that. The files are looked at every few seconds, and
taken when both fit each other; until then, and if they never do, the ones before stay. A key that others on
the machine can read is not taken (`ports.secret_file`).

The hashes of the last two are known, for agents sign the one that they were shown (`wire.identity`): a hello
may come over a connection from just before.
"""

import asyncio
import hashlib
import ssl
from collections import deque
from pathlib import Path

import structlog

from holdfast.ports import secret_file

LOOK_S = 5.0  # at the files

log = structlog.get_logger("holdfast")


class Certificates:
    def __init__(self, certificate: Path, key: Path, alpn: tuple[str, ...] = ()) -> None:
        """OSError: they cannot be used; those of ssl are among them, and `secret_file.Exposed`."""
        self._certificate, self._key, self._alpn = certificate, key, list(alpn)
        self._shown = deque[bytes](maxlen=2)
        self._seen = self._stamps()
        self._load()
        self.context = self.current  # what a server listens with
        self.context.sni_callback = self._lead

    @property
    def shown(self) -> frozenset[bytes]:
        return frozenset(self._shown)

    async def keep(self) -> None:
        """For as long as we run."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        stamps = self._stamps()
        if stamps == self._seen:
            return
        self._seen = stamps
        try:
            self._load()
        except OSError as error:
            why = error.strerror or str(error)
            log.error("the new certificate cannot be used", file=str(self._certificate), why=why)
        else:
            log.info("the certificate was renewed", file=str(self._certificate))

    def _lead(self, line: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        line.context = self.current

    def _load(self) -> None:
        """All of it or nothing."""
        secret_file.check(self._key)
        fresh = _context()
        if self._alpn:
            fresh.set_alpn_protocols(self._alpn)
        _load(fresh, self._certificate, self._key)
        first = ssl.PEM_cert_to_DER_cert(_first(self._certificate.read_text(errors="replace")))
        self._shown.append(fingerprint(first))
        self.current = fresh

    def _stamps(self) -> tuple[object, ...]:
        found: list[object] = []
        for file in (self._certificate, self._key):
            try:
                status = file.stat()
                found.append((status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size))
            except OSError:
                found.append(None)
        return tuple(found)


def check(certificate: Path, key: Path) -> None:
    """OSError: they cannot be used."""
    secret_file.check(key)
    _load(_context(), certificate, key)


def fingerprint(der: bytes) -> bytes:
    """Of a certificate, as both sides of a connection know it."""
    return hashlib.sha256(der).digest()


def _load(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """A key with a passphrase is refused: OpenSSL would ask for it on the terminal."""
    context.load_cert_chain(certificate, key, password="")


def _first(pem: str) -> str:
    """Of a chain: the one of the server itself."""
    end = "-----END CERTIFICATE-----"
    begin = pem.find("-----BEGIN CERTIFICATE-----")
    ends = pem.find(end, begin)
    if min(begin, ends) < 0:
        raise OSError(None, "there is no certificate in it")
    return pem[begin : ends + len(end)]


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # by strangers, as often as they like
    context.set_ciphers("ECDHE+AESGCM:ECDHE+CHACHA20")  # of TLS 1.2; those of 1.3 are all good
    return context
