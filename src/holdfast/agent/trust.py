"""Whose certificates does this node trust?

The file of `--ca` if one is given, any certificate with `--insecure`. Else the authority of the fleet itself,
if a pin for it came with the join token or with `--ca-pin`: its certificate is fetched once, checked against
the pin and kept in the node's folder, so that later starts need neither. A control plane then has to be of
that authority, under whatever name it is reached; that others vouch for it changes nothing. Else what the
system trusts.
"""

import asyncio
import ssl

from holdfast.agent.home import Home, Unusable
from holdfast.agent.link import NoLink, tls_context
from holdfast.agent.settings import Settings, Url, join_token
from holdfast.wire import pin

KEPT = "ca.pem"  # in the node's folder
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
            pem = "" if self._settings.insecure else await self._authority(url)
            self._context = pin.context(pem) if pem else tls_for(self._settings)
        return self._context

    async def _authority(self, url: Url) -> str:
        """Its certificate; empty: there is no pin, and never was."""
        kept, wanted = self._home.read(KEPT), self._pin()
        if kept and _is(kept, wanted):
            return kept + "\n"
        if kept and not wanted:
            why = f"the certificate of the fleet's authority in {self._home.path / KEPT} is damaged"
            raise NoLink(why, "start it once with --ca-pin: holdfast token create --role join shows it")
        if not wanted:
            return ""
        try:
            found = await asyncio.to_thread(pin.fetch, url.host, url.port, wanted)
        except pin.Untrusted as error:
            raise NoLink(str(error), FOREIGN) from None
        except OSError as error:
            raise NoLink(f"its authority cannot be read: {error.strerror or error}") from None
        self._home.keep(KEPT, found.strip())
        return found

    def _pin(self) -> str:
        given = self._settings.ca_pin
        joined = bool(self._home.read("joined"))
        return given or pin.split(join_token(self._settings, joined=joined))[1]


def _is(pem: str, wanted: str) -> bool:
    """Damaged, it is fetched anew if there is a pin."""
    try:
        found = pin.pin_of(pem)
    except ValueError:
        return False
    return not wanted or found == wanted


def tls_for(settings: Settings) -> ssl.SSLContext:
    try:
        return tls_context(str(settings.ca or ""), insecure=settings.insecure)
    except OSError as error:
        why = f"the certificates in {settings.ca} cannot be used: {error.strerror or error}"
        raise Unusable(why, "--ca takes a file of PEM certificates") from None
