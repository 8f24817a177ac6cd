"""The control plane's API, from the side of the command line.

Answers come as bytes: with `--json` they are what is printed, and `read` makes shapes of them otherwise. A
control plane that does not lead sends orders on to the leader (307); we follow, and stay with the leader, so
that what is read next has seen what was ordered. The token goes along because the control plane that we trust
named the place, except over plain http to another machine, unless that was wanted.

No proxy and no .netrc is taken from the environment: a control plane is in one's own network.
"""

import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

import httpx
import msgspec

from holdfast.api import shapes
from holdfast.cli.client.address import Server, is_plain_http, stays_here
from holdfast.wire import pin
from holdfast.wire.causes import said_by_the_system

T = TypeVar("T")
HOPS_MAX = 4
CONNECT_S = 3.0
ANSWER_S = 30.0
# While control planes change hands an order waits for the next leader: repeated, it is the same order.
ORDER_S = 15.0
AGAIN_S = 0.3
ORDERS = ("/v1/apply", "/v1/plan", "/v1/workloads/", "/v1/nodes/", "/v1/brake/")
REACH_HINT = "is it running? start one with: holdfast up"
REACH_THERE_HINT = "does it run there, and may this machine reach it? --url names another"
REACH_GATEWAY_HINT = "is it running? start it with: holdfast gateway; --url names a control plane instead"
TOKEN_HINT = (
    "give one with --token TOKEN or in $HOLDFAST_TOKEN, or name the --dir of the control plane in"
    " $HOLDFAST_DIR; an admin makes others: holdfast token create"
)
UNTRUSTED_HINT = (
    "is this the control plane of that token? Where a proxy ends TLS before it, leave out what is behind the"
    " dot of the token"
)
GATEWAY_TOKEN_HINT = "give it with --token TOKEN: it is in the file admin-token of the gateway's folder"
KEEP_ALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]


class Unanswered(Exception):
    """What we asked for did not happen, or may not have: what to tell the user."""

    def __init__(self, errors: list[str], hint: str = "", status: int = 0) -> None:
        super().__init__("; ".join(errors))
        self.errors, self.hint, self.status = errors, hint, status  # status 0: there was no answer

    @property
    def may_pass(self) -> bool:
        """Is it worth asking again by and by?"""
        return self.status in (0, 502, 503, 504)


class Client:
    def __init__(
        self,
        server: Server,
        *,
        connect_s: float = CONNECT_S,
        answer_s: float = ANSWER_S,
        order_s: float = ORDER_S,
    ) -> None:
        self.server, self.order_s = server, order_s
        self.base = server.urls[0]
        self.timeout = httpx.Timeout(answer_s, connect=connect_s)
        self._sessions: dict[str, httpx.Client] = {}
        self._authority = ""  # of the fleet, once it was fetched

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()

    def get(self, path: str, **params: object) -> bytes:
        return self._ask("GET", path, params=_given(params))

    def post(self, path: str, body: object = None, **params: object) -> bytes:
        content = msgspec.json.encode(body) if body is not None else b""
        return self._ask("POST", path, content, "application/json", _given(params))

    def put(self, path: str, body: object) -> bytes:
        return self._ask("PUT", path, msgspec.json.encode(body), "application/json")

    def send(self, path: str, text: str) -> bytes:
        """A workload file."""
        return self._ask("POST", path, text.encode("utf-8", "surrogatepass"), "application/yaml")

    def delete(self, path: str) -> bytes:
        return self._ask("DELETE", path)

    def _ask(
        self,
        method: str,
        path: str,
        content: bytes = b"",
        media_type: str = "",
        params: Mapping[str, str] | None = None,
    ) -> bytes:
        headers = {"Content-Type": media_type} if media_type else {}
        ends = time.monotonic() + (self.order_s if path.startswith(ORDERS) and method != "GET" else 0)
        while True:
            try:
                with self._answered(method, path, content, headers, params or {}, self.timeout) as response:
                    return response.read()
            except httpx.HTTPError as error:
                raise lost(error, is_gateway=self.server.is_gateway) from None
            except Unanswered as error:
                if error.status != 503 or time.monotonic() >= ends:
                    raise
            time.sleep(AGAIN_S)

    @contextmanager
    def stream(
        self, path: str, headers: Mapping[str, str], *, silent_s: float | None, **params: object
    ) -> Iterator[httpx.Response]:
        """An answer that goes on, with so much silence in it; None: however long."""
        timeout = httpx.Timeout(CONNECT_S, read=silent_s)
        with self._answered("GET", path, b"", headers, _given(params), timeout) as response:
            yield response

    @contextmanager
    def _answered(
        self,
        method: str,
        path: str,
        content: bytes,
        headers: Mapping[str, str],
        params: Mapping[str, str],
        timeout: httpx.Timeout,
    ) -> Iterator[httpx.Response]:
        """The answer, at last, of whoever can give it."""
        with self._reached(method, path, content, headers, params, timeout) as response:
            if response.status_code < 300:
                yield response
                return
            location, is_gateway = response.headers.get("location", ""), self.server.is_gateway
            error = refused(response.status_code, response.read(), location, is_gateway=is_gateway)
            if error.status == 401 and is_gateway:
                error.hint = GATEWAY_TOKEN_HINT
            raise error

    @contextmanager
    def _reached(
        self,
        method: str,
        path: str,
        content: bytes,
        headers: Mapping[str, str],
        params: Mapping[str, str],
        timeout: httpx.Timeout,
    ) -> Iterator[httpx.Response]:
        url, query = self.base + path, params or None  # an empty one would take the address's own away
        for _ in range(HOPS_MAX):
            session = self._session(url)
            request = session.build_request(
                method, url, content=content or None, headers={**self.headers(url), **headers}, params=query
            )
            request.extensions["timeout"] = timeout.as_dict()
            response = self._sent(session, request)
            try:
                if response.status_code not in (307, 308) or not response.headers.get("location"):
                    yield response
                    return
                url = urljoin(url, response.headers["location"])
                query = None  # it is in the new address
            finally:
                response.close()
            self.base = origin(url)
        raise Unanswered(["no control plane leads: they send us in a circle"], "try again in a moment", 503)

    def _sent(self, session: httpx.Client, request: httpx.Request) -> httpx.Response:
        """Tries the other control planes when one cannot be reached at all."""
        others = [url for url in self.server.urls if url != origin(str(request.url))]
        while True:
            try:
                return session.send(request, stream=True)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                if not others:
                    raise self.unreached(error) from None
                self.base = others.pop(0)
                request.url = httpx.URL(self.base + request.url.raw_path.decode("ascii"))
                request.headers["host"] = request.url.netloc.decode("ascii")
                session = self._session(self.base)
            except httpx.HTTPError as error:
                raise lost(error, is_gateway=self.server.is_gateway) from None

    def unreached(self, error: httpx.HTTPError | OSError) -> Unanswered:
        where = self.server.called if self.server.is_gateway else ", ".join(self.server.urls)
        here = all(stays_here(url) for url in self.server.urls)
        hint = REACH_HINT if here else REACH_THERE_HINT
        hint = REACH_GATEWAY_HINT if self.server.is_gateway else hint
        if "WRONG_VERSION_NUMBER" in str(error):
            return Unanswered(
                [f"{where} speaks plain http, and no TLS"], f"http{where.removeprefix('https')}", 495
            )
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            why = f"the certificate of {where} is not signed by anybody we trust"
            if "match" in str(error):
                why = f"the certificate of {where} is for another name"
                hint = "name the host as it does, or give a token with its pin (all that token create prints)"
                return Unanswered([why], hint, 495)
            if "not yet valid" in str(error) or "has expired" in str(error):
                now = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
                why = f"the certificate of {where} is not valid at {now} UTC, which the clock here says"
                return Unanswered([why], "is the clock right? If it is, the certificate must be renewed", 495)
            hint = "give --ca FILE, or a token with its pin (all that holdfast token create prints)"
            return Unanswered([why], hint, 495)
        return Unanswered([f"cannot connect to {where}: {_why(error)}"], hint)

    def headers(self, url: str) -> dict[str, str]:
        project = {"Holdfast-Project": self.server.project} if self.server.project else {}
        may_be_read = self.server.insecure or is_plain_http(self.server.urls[0])
        if not self.server.token or (is_plain_http(url) and not may_be_read):
            return project
        return {"Authorization": f"Bearer {self.server.token}", **project}

    def trust(self, url: str) -> ssl.SSLContext | bool:
        """Loading the certificates of the system takes longer than a request, so only where it is needed."""
        server = self.server
        if url.startswith("http:") or server.insecure:
            return False
        try:
            if not server.ca and (server.pin or server.authority):
                return pin.context(self.authority(url) or Path(server.authority).read_text())
            return ssl.create_default_context(cafile=server.ca or None)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", "") or error
            raise Unanswered(
                [f"{server.ca or server.authority}: expected certificates, got: {why}"], "--ca FILE", 495
            ) from None

    def authority(self, sent_to: str = "") -> str:
        """The certificate of the fleet's authority, by its pin, from the first control plane that answers."""
        trouble: OSError | None = None
        for place in map(urlsplit, (*self.server.urls, sent_to) if self.server.pin else ()):
            if self._authority or place.scheme != "https":
                continue
            try:
                self._authority = pin.fetch(place.hostname or "", place.port or 443, self.server.pin)
            except pin.Untrusted as error:
                raise Unanswered([f"{place.geturl()}: {error}"], UNTRUSTED_HINT, 495) from None
            except OSError as error:
                trouble = error
        if trouble is not None and not self._authority:
            raise self.unreached(trouble)
        return self._authority

    def _session(self, url: str) -> httpx.Client:
        where = origin(url)
        if where not in self._sessions:
            transport = httpx.HTTPTransport(verify=self.trust(where), socket_options=KEEP_ALIVE)
            self._sessions[where] = httpx.Client(transport=transport, trust_env=False, timeout=self.timeout)
        return self._sessions[where]


def origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def refused(status: int, body: bytes, location: str = "", *, is_gateway: bool = False) -> Unanswered:
    """What the control plane says of it, or the gateway."""
    try:
        problem = shapes.read(body, shapes.Problem)
    except msgspec.MsgspecError:
        what = f"sends us to {location}" if location else f"answers with status {status}"
        who, option = ("second listener of a gateway", "gateway") if is_gateway else ("control plane", "url")
        return Unanswered([f"what is there is no {who}: it {what}"], f"look at --{option}", status)
    hint = problem.hint
    if status == 401:  # its own hint is for programs, which send a header
        hint = TOKEN_HINT
    return Unanswered(problem.problems or [problem.detail or problem.title], hint, status)


def lost(error: httpx.HTTPError, *, is_gateway: bool = False) -> Unanswered:
    if isinstance(error, httpx.TimeoutException):
        who = "gateway" if is_gateway else "control plane"
        return Unanswered([f"the {who} took too long to answer"], "if it was an order, look first")
    hint = "if it was an order, look first"
    if "without sending a response" in str(error):
        hint += "; if none is ever answered: does it speak TLS (https)?"
    return Unanswered([f"the connection broke: {_why(error)}"], hint)


def read(body: bytes, shape: type[T]) -> T:
    try:
        return shapes.read(body, shape)
    except msgspec.MsgspecError as error:
        raise Unanswered([f"the answer cannot be read: {error}"], "is it of another version?", 1) from None


def _why(error: Exception) -> str:
    return said_by_the_system(error) or str(error) or type(error).__name__


def _given(params: Mapping[str, Any]) -> dict[str, str]:
    words = {True: "true", False: "false"}
    return {
        name: words[value] if isinstance(value, bool) else str(value)
        for name, value in params.items()
        if value not in (None, "")
    }
