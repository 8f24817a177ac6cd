"""One number from a Prometheus: asked over real HTTP, of a twin that answers as it is told."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

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


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "[fe80::1]",
        "[::ffff:169.254.169.254]",
        "[64:ff9b::a9fe:a9fe]",
        "[fd00:ec2::254]",
        "0.0.0.0",
        "224.0.0.1",
        "2852039166",  # another way to write the first
        "0xa9fea9fe",
    ],
)
async def test_an_address_that_answers_only_to_this_machine_is_never_asked(host: str) -> None:
    """Credentials of the machine are at some of them."""
    async with asking() as (_, asked):
        with pytest.raises(Denied, match="no Prometheus is asked at such an address"):
            await asked.ask(f"http://{host}/latest?", "q")


async def test_a_name_is_looked_up_once_so_that_it_cannot_lead_elsewhere_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with asking() as (twin, asked):
        twin.answers["q"], port = vector("3"), twin.url.rpartition(":")[2]
        loop, looked_up = asyncio.get_running_loop(), list[str]()

        async def once(host: str, port: int, **more: Any) -> list[Any]:
            looked_up.append(host)
            leads_to = "127.0.0.1" if len(looked_up) == 1 else "169.254.169.254"
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (leads_to, port))]

        monkeypatch.setattr(loop, "getaddrinfo", once)
        assert await asked.ask(f"http://prometheus.example:{port}", "q") == 3
        assert looked_up == ["prometheus.example"]
        assert twin.hosts == [f"prometheus.example:{port}"]


async def test_a_redirect_is_not_followed() -> None:
    async with asking() as (twin, asked):
        twin.answers["elsewhere"], twin.redirects["q"] = (
            vector("3"),
            f"{twin.url}/api/v1/query?query=elsewhere",
        )
        with pytest.raises(Denied, match="not one number"):
            await asked.ask(twin.url, "q")
        assert len(twin.hosts) == 1


def test_whoever_is_no_admin_has_listed_addresses_asked() -> None:
    listed = ["http://prometheus:9090/"]
    asked = Prometheus(lambda: listed)
    assert asked.is_listed("http://prometheus:9090")
    assert not asked.is_listed("http://prometheus:9090/x")
    assert not asked.is_listed("http://prometheus:9090@169.254.169.254")
    listed.clear()
    assert not asked.is_listed("http://prometheus:9090")
