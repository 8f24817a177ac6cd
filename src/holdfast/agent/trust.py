"""Whose certificates does this node trust?

The file of `--ca` if one is given, any certificate with `--insecure`. Else the authority of the fleet itself,
if a pin for it came with the join token or with `--ca-pin`: its certificate is fetched once, checked against
the pin and kept in the node's folder, so that later starts need neither. A control plane then has to be of
that authority, under whatever name it is reached; that others vouch for it changes nothing. Else what the
system trusts.
"""

import asyncio
import contextlib
import ssl

from holdfast.agent.home import Home, Unusable
from holdfast.agent.link import NoLink, tls_context
from holdfast.agent.settings import Settings, Url, join_token
from holdfast.wire import pin

KEPT, KEPT_PIN = "ca.pem", "ca.pin"  # in the node's folder; to hash the first anew costs an agent 3 MB
FOREIGN = "is this the control plane that the token is from? Its admin makes another: holdfast token create"


class Trust:
    def __init__(self, settings: Settings, home: Home) -> None:
        """Unusable: a file of certificates that holds none."""
        self._settings, self._home = settings, home
        self._context: ssl.SSLContext | None = None
        if settings.ca is not None:
            self._context = tls_for(settings)

    async def to(self, url: Url) -> ssl.SSLContext | None:
        """None: without TLS. NoLink: the authority there is not the one that was named, or is silent."""
        if url.scheme != "https":
            return None
        if self._context is None:
            found = None if self._settings.insecure else await self._authority(url)
            self._context = found or tls_for(self._settings)
        return self._context

    async def _authority(self, url: Url) -> ssl.SSLContext | None:
        """None: there is no pin, and never was."""
        kept, wanted = self._home.read(KEPT), self._pin()
        if kept and wanted in ("", self._home.read(KEPT_PIN)):
            with contextlib.suppress(ValueError, OSError):
                return pin.context(kept + "\n")
            if not wanted:
                why = f"the certificate of the fleet's authority in {self._home.path / KEPT} is damaged"
                hint = "start it once with --ca-pin: it is behind the dot of a new token"
                raise NoLink(why, hint)
        if not wanted:
            return None
        try:
            found = await asyncio.to_thread(pin.fetch, url.host, url.port, wanted)
        except pin.Untrusted as error:
            raise NoLink(str(error), FOREIGN) from None
        except OSError as error:
            raise NoLink(f"its authority cannot be read: {error.strerror or error}") from None
        self._home.keep(KEPT, found.strip())
        self._home.keep(KEPT_PIN, wanted)
        return pin.context(found)

    def _pin(self) -> str:
        given = self._settings.ca_pin
        joined = bool(self._home.read("joined"))
        return given or pin.split(join_token(self._settings, joined=joined))[1]


def tls_for(settings: Settings) -> ssl.SSLContext:
    try:
        return tls_context(str(settings.ca or ""), insecure=settings.insecure)
    except OSError as error:
        why = f"the certificates in {settings.ca} cannot be used: {error.strerror or error}"
        raise Unusable(why, "--ca takes a file of PEM certificates") from None
