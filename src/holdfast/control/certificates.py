"""The certificates that a control plane shows: one by the authority of its fleet, and one of files if any.

Who trusts the authority by its pin asks for it by a name of its own (`wire.pin.NAME`, in the TLS handshake)
and is shown the certificate of the authority; everybody else is shown the one of the files, if there is one.
So a fleet whose agents keep the authority's certificate goes on when a publicly signed certificate is
introduced later, is removed again, or is another on each control plane. (Refused: to fall back to what the
system trusts when the pin does not fit. A pin that gives way is none.)

One of the authority is made anew when a third of its time is left, by the clock of the wall: a machine that
slept, or whose clock was wrong when it booted, would show one that has ended.
"""

import asyncio
import os
import ssl
import time
from pathlib import Path

import structlog

from holdfast.control.authority import CERTIFICATE_DAYS, Authority
from holdfast.ports import private_folder
from holdfast.wire import pin
from holdfast.wire.certificates import Certificates

RENEW_AFTER_S = CERTIFICATE_DAYS * 86_400 * 2 / 3
LOOK_S = 60.0  # at the clock; after one could not be kept, too

log = structlog.get_logger("holdfast")


class OwnCertificates(Certificates):
    """In a folder that only we can read: ca.pem, cert.pem and key.pem."""

    def __init__(self, authority: Authority, folder: Path, hosts: tuple[str, ...]) -> None:
        private_folder.close_to_others(folder)
        self._authority, self._folder, self._hosts = authority, folder, hosts
        self._warn_of_another()
        self._renew()
        super().__init__(folder / "cert.pem", folder / "key.pem")

    async def keep(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            if self.is_due():
                self.renew()

    def is_due(self) -> bool:
        return not 0 <= time.time() - self._made_at < RENEW_AFTER_S

    def renew(self) -> bool:
        try:
            self._renew()
            self._load()
        except OSError as error:
            log.error("no new certificate could be made", why=error.strerror or str(error))
            return False
        log.info("the certificate was renewed", days=CERTIFICATE_DAYS)
        return True

    def _warn_of_another(self) -> None:
        """The database was put back from before it had an authority, or is another one."""
        try:
            before = pin.pin_of((self._folder / "ca.pem").read_text())
        except (OSError, ValueError):
            return
        if before != self._authority.pin:
            log.error(
                "the database has another certificate authority than this folder had: nodes, gateways and"
                " people with the earlier pin will trust this control plane no more. Restore a later backup,"
                " or give them the new pin",
                before=before,
                now=self._authority.pin,
            )

    def _renew(self) -> None:
        made_at = time.time()
        chain, key = self._authority.certificate(self._hosts)
        for name, content in (
            ("ca.pem", self._authority.pem.encode()),
            ("key.pem", key),
            ("cert.pem", chain),
        ):
            fresh = self._folder / f".{name}.new"
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(content)
            fresh.replace(self._folder / name)
        self._made_at = made_at


class Shown:
    """What the one port shows. `authority` is that of the fleet; `given`: of files."""

    def __init__(self, authority: Authority, own: OwnCertificates, given: Certificates | None) -> None:
        self.authority, self._own, self.given = authority, own, given
        self.context = own.context if given is None else given.context
        if given is not None:
            given.context.sni_callback = self._lead

    @property
    def hashes(self) -> frozenset[bytes]:
        return self._own.shown | (self.given.shown if self.given is not None else frozenset())

    async def keep(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._own.keep())
            if self.given is not None:
                group.create_task(self.given.keep())

    def _lead(self, line: "ssl.SSLObject", name: str | None, _: ssl.SSLContext) -> None:
        shown = self._own if self.given is None or name == pin.NAME else self.given
        line.context = shown.current
