"""One connection to a control plane: opened, upgraded from HTTP, then messages both ways.

The upgrade lets agents use the port of the API, and so whatever stands in front of it. A protocol class and
not streams: a message is handled in the callback that brought it, in the order in which it came, and a link
needs no task of its own.
"""

import asyncio
import hashlib
import os
import ssl
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from holdfast.agent.settings import Url
from holdfast.wire import frame
from holdfast.wire.messages import PATH, UPGRADE, Message, ToAgent

CONNECT_S = 3.0
UPGRADE_S = 5.0
HEAD_MAX = 8 << 10
UNSENT_HIGH = 256 << 10  # bytes that wait: from here on logs do
OUT_OF_TIME = (9, 10)  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED
TRY_LATER = frozenset({408, 425, 429})  # of the answers that blame the one who asks


class NoLink(Exception):
    """It did not come about. `hint`: and will not, unless somebody follows it."""

    def __init__(self, why: str, hint: str = "") -> None:
        super().__init__(why)
        self.hint = hint


class Listener(Protocol):
    """Whoever talks over a link."""

    def opened(self, link: "Link") -> None: ...

    def receive(self, message: msgspec.Struct) -> None:
        """May raise BadFrame for what makes no sense."""

    def closed(self, why: str) -> None:
        """Called once, if it was opened."""


class Link(asyncio.Protocol):
    def __init__(self, url: Url, listener: Listener) -> None:
        self.url, self._listener = url, listener
        self.upgraded: asyncio.Future[NoLink | None] = asyncio.get_running_loop().create_future()
        self.gone = asyncio.Event()
        self._why = ""  # it was closed, if we did it
        self._head: bytes | None = b""  # of the answer to our request, until it is complete
        self._reader = frame.Reader(ToAgent, frame.TO_AGENT_MAX)
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._full = False
        self._hushed: asyncio.TimerHandle | None = None

    # what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=UNSENT_HIGH)
        self._writable.set()
        wanted = ("Connection: Upgrade", f"Upgrade: {UPGRADE}")
        lines = (f"GET {PATH} HTTP/1.1", f"Host: {self.url.authority}", *wanted, "", "")
        transport.write("\r\n".join(lines).encode())

    def data_received(self, data: bytes) -> None:
        if self._head is not None:
            data = self._read_head(self._head + data)
        try:
            for message in self._reader.feed(data):
                self._listener.receive(message)
                if self._transport is None or self._transport.is_closing():
                    return
        except frame.BadFrame as error:
            self.close(f"garbage from the control plane: {error}", at_once=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.gone.set()
        self._writable.set()  # whoever waits shall see that it is over
        if self._hushed is not None:
            self._hushed.cancel()
        broke = f"the connection broke: {exc}" if exc else "the control plane closed the connection"
        if not self.upgraded.done():
            self.upgraded.set_result(NoLink(self._why or broke))
        elif self._head is None:
            self._listener.closed(self._why or broke)

    def pause_writing(self) -> None:
        self._full = True
        self._writable.clear()

    def resume_writing(self) -> None:
        self._full = False
        if self._hushed is None:
            self._writable.set()

    # the upgrade

    def _read_head(self, head: bytes) -> bytes:
        """The bytes after the answer's head, once that is complete."""
        head, complete, rest = head.partition(b"\r\n\r\n")
        if not complete:
            self._head = head
            if len(head) > HEAD_MAX:
                self._no_upgrade(NoLink("no HTTP there", "is this the address of a control plane?"))
            return b""
        problem = _problem(head)
        if problem is not None or self.upgraded.done():  # done: we have given up waiting
            self._no_upgrade(problem or NoLink("too late"))
            return b""
        self._head = None
        self.upgraded.set_result(None)
        self._listener.opened(self)
        return rest

    def _no_upgrade(self, problem: NoLink) -> None:
        if not self.upgraded.done():
            self.upgraded.set_result(problem)
        self.close(str(problem), at_once=True)

    # what we do with it

    def send(self, message: Message) -> None:
        """Says it, unless the link is over or pretends to be cut."""
        if self._transport is not None and self._hushed is None and not self._transport.is_closing():
            self._transport.write(frame.pack(message))

    async def writable(self) -> None:
        """Waits while too much waits to be sent."""
        while not self._writable.is_set():  # several wait, and the first may have filled it again
            await self._writable.wait()

    def hush(self, for_s: float, then: Callable[[], None]) -> None:
        """Neither hears nor says anything for so long, as if the network were cut."""
        if self._transport is None:
            return
        if self._hushed is not None:
            self._hushed.cancel()
        else:
            self._transport.pause_reading()
        self._writable.clear()
        self._hushed = asyncio.get_running_loop().call_later(for_s, self._unhush, then)

    def _unhush(self, then: Callable[[], None]) -> None:
        self._hushed = None
        if self._transport is not None:
            self._transport.resume_reading()
            if not self._full:
                self._writable.set()
            then()

    @property
    def hushed(self) -> bool:
        return self._hushed is not None

    @property
    def address(self) -> str:
        """Ours, as this connection sees it."""
        name = self._transport.get_extra_info("sockname") if self._transport is not None else None
        return str(name[0]) if name else ""

    @property
    def channel(self) -> bytes:
        """The hash of the certificate that we were shown; empty: there is no TLS."""
        tls = self._transport.get_extra_info("ssl_object") if self._transport is not None else None
        shown = tls.getpeercert(binary_form=True) if tls is not None else None
        return hashlib.sha256(shown).digest() if shown else b""

    @property
    def met_itself(self) -> bool:
        """Nobody listens there, but the kernel drew the very port we ask for as ours: we hear ourselves."""
        ends = self._transport.get_extra_info if self._transport is not None else None
        return ends is not None and ends("sockname") == ends("peername")

    def close(self, why: str, *, at_once: bool = False) -> None:
        """At once: what was not sent yet is dropped."""
        self._why = self._why or why
        if self._hushed is not None:
            self._hushed.cancel()
        if self._transport is not None:
            self._transport.abort() if at_once else self._transport.close()


def _problem(head: bytes) -> NoLink | None:
    """Is this the answer of a control plane that will talk to us?"""
    status, *headers = head.decode("latin-1").split("\r\n")
    version, _, rest = status.partition(" ")
    code = rest[:3]
    if not version.startswith("HTTP/1.") or not code.isdecimal():
        return NoLink("no HTTP there", "is this the address of a control plane?")
    if code == "101":
        wanted = f"upgrade: {UPGRADE}"
        if any(" ".join(line.lower().split()) == wanted for line in headers):
            return None
        return NoLink("it switched to another protocol than ours", "is this the address of a control plane?")
    blames_us = code.startswith("4") and int(code) not in TRY_LATER
    return NoLink(f"it answered {rest[:80]}", "is this the address of a control plane?" if blames_us else "")


async def connect(url: Url, tls: ssl.SSLContext | None, listener: Listener) -> Link:
    """A link on which messages are exchanged from now on; raises NoLink."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_S):
            _, link = await loop.create_connection(lambda: Link(url, listener), url.host, url.port, ssl=tls)
    except TimeoutError:
        raise NoLink(f"no connection within {CONNECT_S:g} s") from None
    except ssl.SSLCertVerificationError as error:
        raise _untrusted(error) from None
    except ssl.SSLError as error:
        raise NoLink(f"no TLS there: {error.reason or error}") from None
    except OSError as error:
        number = error.errno or 0  # below zero: a name that cannot be resolved
        raise NoLink(os.strerror(number) if number > 0 else error.strerror or str(error)) from None
    except ValueError:  # nothing that could be asked for
        why = f"{url.host!r} is no name of a host"
        raise NoLink(why, "is this the address of a control plane?") from None
    if link.met_itself:
        link.close("nobody listens there", at_once=True)
        raise NoLink("nobody listens there")
    try:
        async with asyncio.timeout(UPGRADE_S):
            problem = await link.upgraded
    except TimeoutError:
        problem = NoLink(f"no answer to the request within {UPGRADE_S:g} s")
    except asyncio.CancelledError:
        link.close("not needed any more", at_once=True)
        raise
    if problem is not None:
        link.close(str(problem), at_once=True)
        raise problem
    return link


def _untrusted(error: ssl.SSLCertVerificationError) -> NoLink:
    """A clock that is wrong may be put right any minute (the first after a boot): it is tried again."""
    why = f"its certificate is not trusted: {error.verify_message}"
    if error.verify_code in OUT_OF_TIME:
        now = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
        return NoLink(f"{why}. Is the clock of this machine right? It says {now} UTC")
    return NoLink(
        why,
        "a join token brings the pin of the fleet's own authority: --token-file; for another one: --ca FILE",
    )


def tls_context(ca: str, *, insecure: bool) -> ssl.SSLContext:
    """OSError: the file cannot be read or holds no certificates."""
    context = ssl.create_default_context(cafile=ca or None)
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
