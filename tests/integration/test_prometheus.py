"""One number from a Prometheus: asked over real HTTP, of a twin that answers as it is told."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from holdfast.adapters.telemetry import prometheus
from holdfast.adapters.telemetry.prometheus import Prometheus
from holdfast.ports.errors import Denied, Unreachable
from tests.prometheus_twin import DRIPPING, ENDLESS, SILENT, PrometheusTwin, answer, vector


@contextlib.asynccontextmanager
async def asking() -> AsyncIterator[tuple[PrometheusTwin, Prometheus]]:
    asked = Prometheus()
    try:
        async with PrometheusTwin().serving() as twin:
            yield twin, asked
    finally:
        await asked.close()


@pytest.mark.parametrize(
    ("body", "number"),
    [
        (answer("scalar", [1.5, "42.5"]), 42.5),
        (vector("7"), 7.0),
        (vector("1e3"), 1000.0),
        (vector("0"), 0.0),
    ],
)
async def test_a_scalar_and_a_vector_of_one_are_a_number(body: bytes, number: float) -> None:
    async with asking() as (twin, asked):
        twin.answers['sum(rate(x{job="a b"}[1m]))'] = body
        assert await asked.ask(f"{twin.url}/", 'sum(rate(x{job="a b"}[1m]))') == number


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (vector(), "gives 0 numbers"),
        (vector("1", "2"), "gives 2 numbers, one is needed: aggregate it"),
        (b'{"status": "error", "errorType": "bad_data", "error": "parse error at char 3"}', "char 3"),
        (b'{"status": "success"}', "the query failed"),
        (b"<html>a proxy</html>", "not one number"),
        (b"", "not one number"),
        (vector("many"), "not one number"),
        (answer("string", [1.5, "42"]), "not one number"),
        (answer("matrix", [{"metric": {}, "values": [[1.5, "4"]]}]), "not one number"),
        (answer("scalar", {"a": 1}), "not one number"),
    ],
)
async def test_what_is_not_one_number_is_refused_and_never_taken_for_zero(body: bytes, why: str) -> None:
    async with asking() as (twin, asked):
        twin.answers["q"] = body
        with pytest.raises(Denied, match=why):
            await asked.ask(twin.url, "q")


async def test_one_that_is_silent_or_away_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "TIMEOUT_S", 0.5)
    async with asking() as (twin, asked):
        twin.answers["slow"], twin.answers["quick"] = SILENT, vector("1")
        with pytest.raises(Unreachable):
            await asked.ask(twin.url, "slow")
        assert await asked.ask(twin.url, "quick") == 1, "one that hangs does not spoil the next"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            with pytest.raises(Unreachable):
                await asked.ask(f"http://127.0.0.1:{free.getsockname()[1]}", "q")


async def test_one_that_answers_byte_by_byte_is_not_waited_for_longer_than_one_that_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every other signal waits for this answer too."""
    monkeypatch.setattr(prometheus, "TIMEOUT_S", 0.5)
    async with asking() as (twin, asked):
        twin.answers["q"] = DRIPPING
        async with asyncio.timeout(20):
            with pytest.raises(Unreachable, match="no whole answer within"):
                await asked.ask(twin.url, "q")


async def test_an_answer_without_end_is_refused_before_it_fills_the_memory() -> None:
    async with asking() as (twin, asked):
        twin.answers["q"] = ENDLESS
        with pytest.raises(Denied, match="one number is not as long as"):
            await asked.ask(twin.url, "q")
        assert twin.sent < 20 * prometheus.BODY_MAX


@pytest.mark.parametrize("where", ["nonsense", "http://[::1", "ftp://127.0.0.1"])
async def test_what_is_no_address_is_an_error_of_the_port(where: str) -> None:
    async with asking() as (_, asked):
        with pytest.raises((Denied, Unreachable)):
            await asked.ask(where, "q")
