"""The control plane, as a gateway sees it: somebody who may be away, or send us on to the leader.

We stay with whoever led last, and try the others when it cannot be reached. Where one takes a question and
does not answer, or says that it cannot, the next question goes to another. The token goes along to where we
are sent, because the control plane that we trust named the place, except from https to plain http elsewhere.
Whom we trust: the certificates of `ca` if there are, else the authority that the pin of our token names
(fetched once, and kept), else what the system trusts. No proxy and no .netrc is taken from the environment.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar
from urllib.parse import urljoin, urlsplit

import httpx
import msgspec

from holdfast.gateway.keyring import write_whole
from holdfast.gateway.view import Change, View
from holdfast.wire import pin
from holdfast.wire.address import is_loopback
from holdfast.wire.causes import said_by_the_system

HOPS_MAX = 4
CONNECT_S = 2.0
SILENT_S = 6.0  # of a stream; something comes every two seconds
WATCH = "/v1/gateway/watch"
LARGEST = 256 << 20
DENIED = (401, 403)
SAID_MAX = 1_000
NOT_TRUSTED = "CERTIFICATE_VERIFY_FAILED"
# ValueError: it sent us to something that is no address
TROUBLE = (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, ValueError)
CLOSED = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)  # it may have been idle for too long


T = TypeVar("T")


class Away(Exception):
    """It cannot be reached, or cannot answer now."""


class Denied(Exception):
    """It will not have us: the token is not good, or not good enough."""

    hint = "give a token of the role gateway with --token-file (holdfast token create --role gateway)"


class Impostor(Denied):
    """It is another than the one that our token is from, and gets nothing from us."""

    hint = "is this the control plane that the token is from? Behind a proxy that ends TLS: --ca FILE"


class Untrusted(Denied):
    """Nobody says whom to trust."""

    hint = (
        "give a token of the role gateway with --token-file (holdfast token create --role gateway): it says"
        " whom to trust; or the certificate of the authority with --ca"
    )


class Problem(msgspec.Struct):
    """What an answer says of itself (RFC 9457)."""

    detail: str
    hint: str = ""


class ControlPlane:
    def __init__(
        self,
        urls: tuple[str, ...],
        token: str = "",
        ca: str = "",
        *,
        authority: str = "",
        ca_pin: str = "",
        kept: Path | None = None,
    ) -> None:
        """`authority`: the file of the fleet's own; or it is found by its pin, and kept there."""
        self.urls, self.token = urls, token
        self.base = urls[0]
        self._ca, self._authority, self._pin, self._kept = ca, authority, ca_pin, kept
        self._made: httpx.AsyncClient | None = None
        self._trusting = asyncio.Lock()

    async def close(self) -> None:
        if self._made is not None:
            await self._made.aclose()

    async def _client(self) -> httpx.AsyncClient:
        """Away: whom to trust is not known yet, and nobody can be asked now."""
        async with self._trusting:  # several ask at once
            if self._made is None:
                self._made = httpx.AsyncClient(verify=await self._trust(), trust_env=False)
        return self._made

    async def _trust(self) -> ssl.SSLContext:
        if self._authority and not self._ca:
            return pin.context(Path(self._authority).read_text())
        if self._ca or not self._pin:
            return ssl.create_default_context(cafile=self._ca or None)
        return pin.context(self._known() or await self._fetched())

    def _known(self) -> str:
        """The certificate of the authority, from an earlier run."""
        with contextlib.suppress(OSError, ValueError):
            if self._kept is not None and pin.pin_of(found := self._kept.read_text()) == self._pin:
                return found
        return ""

    async def _fetched(self) -> str:
        trouble = "no control plane is asked over https"
        for place in map(urlsplit, self.urls):
            if place.scheme != "https":
                continue
            try:
                found = await asyncio.to_thread(
                    pin.fetch, place.hostname or "", place.port or 443, self._pin, CONNECT_S
                )
            except pin.Untrusted as error:
                raise Impostor(f"{place.geturl()}: {error}") from None
            except OSError as error:
                trouble = error.strerror or str(error)
                continue
            if self._kept is not None:
                with contextlib.suppress(OSError):  # it is asked again, the next time
                    write_whole(self._kept, found.encode())
            return found
        raise Away(trouble)

    async def post(self, path: str, body: bytes, within_s: float) -> bytes:
        headers = {"content-type": "application/json"}
        try:
            async with (
                asyncio.timeout(within_s),
                self._answered("POST", path, headers, body, httpx.Timeout(within_s)) as response,
            ):
                return await response.aread()
        except (*TROUBLE, TimeoutError) as error:
            raise Away(_why(error)) from None

    async def view(self, within_s: float) -> View:
        """As it is now."""
        try:
            async with (
                asyncio.timeout(within_s),
                self._answered("GET", WATCH, {}, b"", httpx.Timeout(within_s)) as response,
            ):
                return _read(await response.aread(), View)
        except (*TROUBLE, TimeoutError) as error:
            why = _why(error)
            untrusted = NOT_TRUSTED in str(error) and not (self.token or self._ca or self._authority)
            raise Untrusted(why) if untrusted else Away(why) from None

    async def views(self) -> AsyncIterator[View | Change]:
        """As it is, and as it changes; ends when whoever told it does not lead any more."""
        timeout = httpx.Timeout(CONNECT_S, read=SILENT_S)
        headers = {"accept": "text/event-stream"}
        try:
            async with self._answered("GET", WATCH, headers, b"", timeout) as response:
                said = bytearray()
                async for piece in response.aiter_bytes():
                    looked = max(0, len(said) - 1)  # the end of an event may come in two
                    said += piece
                    if len(said) > LARGEST:
                        raise Away("what it says has no end")
                    if said.find(b"\n\n", looked) < 0:
                        continue
                    *events, rest = bytes(said).split(b"\n\n")
                    said = bytearray(rest)
                    for event in events:
                        name, _, data = event.partition(b"\ndata: ")
                        if data:
                            yield _read(data, Change) if name == b"event: change" else _read(data, View)
        except TROUBLE as error:
            raise Away(_why(error)) from None

    @contextlib.asynccontextmanager
    async def _answered(
        self, method: str, path: str, headers: dict[str, str], content: bytes, timeout: httpx.Timeout
    ) -> AsyncIterator[httpx.Response]:
        """The answer of whoever can give it."""
        asked = [self.base]
        try:
            async with self._asked(asked, method, path, headers, content, timeout) as response:
                yield response
        except (httpx.HTTPError, Away, TimeoutError, asyncio.CancelledError):
            self._leave(asked[-1])
            raise

    def _leave(self, base: str) -> None:
        """It hangs, or cannot answer. Others may; and whoever of them does not lead sends us on."""
        if self.base == base:  # nobody has left it yet
            after = self.urls.index(base) + 1 if base in self.urls else 0
            self.base = self.urls[after % len(self.urls)]

    @contextlib.asynccontextmanager
    async def _asked(
        self,
        asked: list[str],
        method: str,
        path: str,
        headers: dict[str, str],
        content: bytes,
        timeout: httpx.Timeout,
    ) -> AsyncIterator[httpx.Response]:
        """`asked`: one after the other; the last has answered, or has not."""
        client = await self._client()
        url, others, again = self.base + path, [each for each in self.urls if each != self.base], False
        for _ in range(HOPS_MAX + 1 + len(others)):
            sent = client.build_request(
                method,
                url,
                content=content or None,
                headers={**headers, **self._headers(url)},
                timeout=timeout,
            )
            try:
                response = await client.send(sent, stream=True)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                if not others:
                    self.base = self.urls[0]
                    raise
                self.base = others.pop(0)
                asked.append(self.base)
                url = self.base + path
                continue
            except CLOSED:
                if again:
                    raise
                again = True  # on a new connection; what we say may be said twice
                continue
            try:
                where = response.headers.get("location", "") if response.status_code in (307, 308) else ""
                if not where:
                    await self._check(response)
                    yield response
                    return
            finally:
                await response.aclose()
            url = urljoin(url, where)
            parts = urlsplit(url)
            self.base = f"{parts.scheme}://{parts.netloc}"
            asked.append(self.base)
        raise Away("control planes send us in a circle")

    async def _check(self, response: httpx.Response) -> None:
        if response.status_code < 300:
            return
        await response.aread()
        why = f"it answers with status {response.status_code}: {_said(response)}"
        raise Denied(why) if response.status_code in DENIED else Away(why)

    def _headers(self, url: str) -> dict[str, str]:
        plain_now = url.startswith("http:") and self.urls[0].startswith("https:")
        if not self.token or (plain_now and not is_loopback(urlsplit(url).hostname or "")):
            return {}
        return {"authorization": f"Bearer {self.token}"}


def _said(response: httpx.Response) -> str:
    """Why, in words, and what helps."""
    try:
        problem = msgspec.json.decode(response.content, type=Problem)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return response.text[:SAID_MAX]
    return (problem.detail + f" ({problem.hint})" * bool(problem.hint))[:SAID_MAX]


def _read(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Away(f"what it says cannot be read: {error}") from None


def _why(error: BaseException) -> str:
    if isinstance(error, TimeoutError | httpx.TimeoutException):
        return "it does not answer in time"
    if NOT_TRUSTED in str(error):
        return f"its certificate is not trusted (--ca FILE, or a token with its pin): {error}"
    return said_by_the_system(error) or str(error) or type(error).__name__
