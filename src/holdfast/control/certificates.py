"""The certificate that a control plane shows, and how it is renewed while it runs.

There is one context for all connections, and a certificate that is loaded into it counts from the next
handshake on: nothing is restarted, and no connection ends. Files that somebody else renews are looked at
every few seconds, and taken when both fit each other; until then, and if they never do, the ones before stay.
One of our own authority is made anew when a third of its time is left.

Agents sign the hash of the certificate that they were shown (`enrol`), so the hashes of the last two are
known: a hello may come over a connection from just before.
"""

import asyncio
import hashlib
import os
import ssl
from collections import deque
from pathlib import Path

import structlog

from holdfast.control.authority import CERTIFICATE_DAYS, Authority
from holdfast.ports import private_folder

LOOK_S = 5.0  # at the files
RENEW_AFTER_S = CERTIFICATE_DAYS * 86_400 * 2 / 3
AGAIN_S = 600.0  # after one could not be kept

log = structlog.get_logger("holdfast")


class Certificates:
    """Of files, or of an authority. `ca`: what launched nodes must trust; `pin`: of our own authority."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """OSError: they cannot be used; those of ssl are among them."""
        self._certificate, self._key = certificate, key
        self.context = _context()
        self.ca = self.pin = ""
        self._shown = deque[bytes](maxlen=2)
        self._seen = self._stamps()
        self._load()

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

    def _load(self) -> None:
        """Tried on another context first: one that is half changed would serve nobody."""
        pem = self._certificate.read_text()
        _context().load_cert_chain(self._certificate, self._key)
        self.context.load_cert_chain(self._certificate, self._key)
        self.ca = pem
        self._shown.append(fingerprint(ssl.PEM_cert_to_DER_cert(_first(pem))))

    def _stamps(self) -> tuple[object, ...]:
        found: list[object] = []
        for file in (self._certificate, self._key):
            try:
                status = file.stat()
                found.append((status.st_mtime_ns, status.st_ino, status.st_size))
            except OSError:
                found.append(None)
        return tuple(found)


class OwnCertificates(Certificates):
    """In a folder that only we can read: ca.pem, cert.pem and key.pem."""

    def __init__(self, authority: Authority, folder: Path, hosts: tuple[str, ...]) -> None:
        private_folder.close_to_others(folder)
        self._authority, self._folder, self._hosts = authority, folder, hosts
        self._renew()
        super().__init__(folder / "cert.pem", folder / "key.pem")
        self.ca, self.pin = authority.pem, authority.pin

    async def keep(self) -> None:
        wait_s = RENEW_AFTER_S
        while True:
            await asyncio.sleep(wait_s)
            wait_s = RENEW_AFTER_S if self.renew() else AGAIN_S

    def renew(self) -> bool:
        try:
            self._renew()
            self._load()
        except OSError as error:
            log.error("no new certificate could be made", why=error.strerror or str(error))
            return False
        log.info("the certificate was renewed", days=CERTIFICATE_DAYS)
        return True

    def _load(self) -> None:
        super()._load()
        self.ca = self._authority.pem

    def _renew(self) -> None:
        chain, key = self._authority.certificate(self._hosts)
        for name, content in (
            ("ca.pem", self._authority.pem.encode()),
            ("key.pem", key),
            ("cert.pem", chain),
        ):
            fresh = self._folder / f".{name}.new"
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(content)
            fresh.replace(self._folder / name)


def fingerprint(der: bytes) -> bytes:
    """Of a certificate, as both sides of a connection know it."""
    return hashlib.sha256(der).digest()


def _first(pem: str) -> str:
    """Of a chain: the one of the server itself."""
    end = "-----END CERTIFICATE-----"
    begin = pem.find("-----BEGIN CERTIFICATE-----")
    return pem[begin : pem.index(end, begin) + len(end)]


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE+AESGCM:ECDHE+CHACHA20")  # of TLS 1.2; those of 1.3 are all good
    return context
