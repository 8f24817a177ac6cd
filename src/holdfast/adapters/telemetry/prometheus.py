"""One number from a Prometheus query: a scalar, or a vector with exactly one element.

A query that finds nothing is no zero: whoever scales by it would take a service away because its exporter is
down. So it is an error, and the signal is missing.
"""

import asyncio

import httpx
import msgspec

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
    def __init__(self) -> None:
        self._client: httpx.AsyncClient | None = None

    async def ask(self, where: str, query: str) -> float:
        client = self._client = self._client or httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False)
        try:
            async with asyncio.timeout(TIMEOUT_S):  # the client's own is for each byte
                body = await _body(client, where.rstrip("/") + PATH, query)
        except httpx.InvalidURL as error:
            raise Denied(f"{where} is no address: {error}") from None
        except httpx.HTTPError as error:
            raise Unreachable(f"{where}: {str(error) or type(error).__name__}") from None
        except TimeoutError:
            raise Unreachable(f"{where}: no whole answer within {TIMEOUT_S:g} s") from None
        return number_of(body)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()


async def _body(client: httpx.AsyncClient, url: str, query: str) -> bytes:
    found = bytearray()
    async with client.stream("GET", url, params={"query": query}) as response:
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
