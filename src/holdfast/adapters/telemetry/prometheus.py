"""One number from a Prometheus query: a scalar, or a vector with exactly one element.

A query that finds nothing is no zero: whoever scales by it would take a service away because its exporter is
down. So it is an error, and the signal is missing.

Who names an address has the control plane's host ask it: an admin may name any (but see `where`), everybody
else one that a file of that host lists. Redirects are not followed.
"""

import asyncio
from collections.abc import Callable, Collection

import httpx
import msgspec

from holdfast.adapters.telemetry import where as places
from holdfast.ports.errors import Denied, Unreachable

TIMEOUT_S = 5.0
BODY_MAX = 1 << 20
PATH = "/api/v1/query"

Sample = tuple[float, str]


class Element(msgspec.Struct, frozen=True):
    value: Sample


class Data(msgspec.Struct, frozen=True):
    result_type: str = msgspec.field(name="resultType")
    result: msgspec.Raw


class Answer(msgspec.Struct, frozen=True):
    status: str
    data: Data | None = None
    error: str = ""


class Prometheus:
    def __init__(self, listed: Callable[[], Collection[str]] = tuple) -> None:
        self._listed = listed
        self._client: httpx.AsyncClient | None = None

    async def ask(self, where: str, query: str) -> float:
        client = self._client = self._client or httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False)
        try:
            async with asyncio.timeout(TIMEOUT_S):  # the client's own is for each byte
                body = await _asked(client, httpx.URL(where.rstrip("/") + PATH), query)
        except (httpx.InvalidURL, UnicodeError) as error:
            raise Denied(f"{where} is no address: {error}") from None
        except TimeoutError:
            raise Unreachable(f"{where}: no whole answer within {TIMEOUT_S:g} s") from None
        except (httpx.HTTPError, OSError) as error:
            raise Unreachable(f"{where}: {str(error) or type(error).__name__}") from None
        return number_of(body)

    def is_listed(self, where: str) -> bool:
        return where.rstrip("/") in {each.rstrip("/") for each in self._listed()}

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()


async def _asked(client: httpx.AsyncClient, url: httpx.URL, query: str) -> bytes:
    """Of the first address that takes a connection."""
    if url.scheme not in ("http", "https") or not url.host:
        raise Denied(f"{url} is no address: it begins with http:// or https://")
    failed: httpx.ConnectError | None = None
    for address in await places.addresses_of(url):
        try:
            return await _body(client, url, address, query)
        except httpx.ConnectError as error:
            failed = error
    raise failed or OSError("nobody knows this name")


async def _body(client: httpx.AsyncClient, url: httpx.URL, address: str, query: str) -> bytes:
    found, host = bytearray(), url.netloc.rpartition(b"@")[2].decode()
    there = url.copy_with(host=address)
    sni = {"sni_hostname": url.host}
    async with client.stream(
        "GET", there, params={"query": query}, headers={"Host": host}, extensions=sni
    ) as response:
        async for part in response.aiter_bytes():
            found += part
            if len(found) > BODY_MAX:
                raise Denied(
                    f"the answer has more than {BODY_MAX:,} bytes: one number is not as long as that"
                )
    return bytes(found)


def number_of(body: bytes) -> float:
    try:
        answer = msgspec.json.decode(body, type=Answer)
        if answer.status != "success" or answer.data is None:
            raise Denied(answer.error or "the query failed")
        return _one(answer.data)
    except (msgspec.DecodeError, ValueError) as error:
        raise Denied(f"the answer is not one number: {error}") from None


def _one(data: Data) -> float:
    if data.result_type == "scalar":
        return float(msgspec.json.decode(data.result, type=Sample)[1])
    found = msgspec.json.decode(data.result, type=list[Element])
    if len(found) != 1:
        raise Denied(f"the query gives {len(found)} numbers, one is needed: aggregate it")
    return float(found[0].value[1])
