"""Clients of a gateway that come over TLS, and are refused while they still send."""

import asyncio
import contextlib
import http.client
import socket
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from holdfast.gateway.down import Down
from holdfast.gateway.keeper import CannotListen
from tests.certificates import self_signed, write
from tests.gateway_twins import Notes
from tests.gateways import CHAT, SECRET, served, service
from tests.planes import until

BODY = b"x" * 4_000_000


@pytest.fixture
def certified(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate, and its key."""
    files = tmp_path / "cert.pem", tmp_path / "key.pem"
    write(files, self_signed("toy"))
    return files


async def test_who_sends_too_much_reads_why_it_was_refused(
    tmp_path: Path, certified: tuple[Path, Path]
) -> None:
    trusts = ssl.create_default_context(cafile=str(certified[0]))
    line = f"POST {CHAT} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {SECRET}\r\n"
    refusals = {
        413: f"{line}content-length: {len(BODY)}\r\n\r\n".encode() + BODY,
        431: f"{line}x: {'y' * 100_000}\r\ncontent-length: {len(BODY)}\r\n\r\n".encode() + BODY,
        400: b"nonsense\r\n\r\n" + BODY,
    }
    tls: dict[str, Any] = {"certificate": certified[0], "key": certified[1]}
    async with served(tmp_path / "state", service(), body_max=1_000_000, **tls) as (serving, _):
        found = await asyncio.gather(
            *(asyncio.to_thread(_answer, serving.url, sent, trusts) for sent in refusals.values())
        )
    for status, answer in zip(refusals, found, strict=True):
        assert answer.startswith(b"HTTP/1.1 %d " % status), answer
        assert answer.endswith(b"}"), "the whole answer, and an end that is meant"


def _answer(url: str, data: bytes, trusts: ssl.SSLContext) -> bytes:
    """All of it goes out before the first byte of the answer is read, and then all until the end."""
    parts = httpx.URL(url)
    with (
        socket.create_connection((parts.host, parts.port or 0), timeout=30) as plain,
        trusts.wrap_socket(plain, server_hostname=parts.host, suppress_ragged_eofs=False) as client,
    ):
        client.sendall(data)
        return b"".join(iter(lambda: client.recv(65_536), b""))


async def test_it_reads_it_also_where_there_is_no_uvloop(certified: tuple[Path, Path]) -> None:
    """asyncio's own loop reads nothing of a connection that it closes: what still came was answered with a
    reset."""
    loop, worker = asyncio.get_running_loop(), Notes()
    assert isinstance(loop, asyncio.SelectorEventLoop)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*certified)

    def made() -> Any:
        return Down(worker)  # type: ignore[arg-type]

    server = await loop.create_server(made, "127.0.0.1", ssl=tls)
    trusts = ssl.create_default_context(cafile=str(certified[0]))
    port = server.sockets[0].getsockname()[1]

    def asked() -> tuple[int, bytes]:
        client = http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=trusts)
        with contextlib.closing(client):
            client.request("POST", CHAT, BODY)
            answer = client.getresponse()
            return answer.status, answer.read()

    async with server:
        status, body = await asyncio.to_thread(asked)
        await until(lambda: not worker.downs)
    assert status == 413
    assert b"at most 1000000 bytes" in body


async def test_who_does_not_shake_hands_is_let_go_as_who_sends_no_head(
    certified: tuple[Path, Path], tmp_path: Path
) -> None:
    """It was a connection for a minute, and counted among none."""
    tls: dict[str, Any] = {"certificate": certified[0], "key": certified[1]}
    async with served(tmp_path / "state", service(), head_within_s=0.5, **tls) as (serving, _):
        url = httpx.URL(serving.url)
        reader, writer = await asyncio.open_connection(url.host, url.port)
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()


async def test_both_listeners_show_a_renewed_certificate_without_a_restart(
    certified: tuple[Path, Path], tmp_path: Path
) -> None:
    """A gateway that was not restarted for 90 days would refuse everybody."""
    tls: dict[str, Any] = {"certificate": certified[0], "key": certified[1], "workers": 2}
    async with served(tmp_path / "state", service(), admin_host="0.0.0.0", **tls) as (serving, _):
        assert serving.admin_url.startswith("https://")
        ports = [httpx.URL(url).port or 0 for url in (serving.url, serving.admin_url)]
        await _shown(ports, certified[0])
        write(certified, self_signed("renewed"))
        await _shown(ports, certified[0])
        assert [seat.restarts for seat in serving.keeper.seats] == [0, 0]


async def _shown(ports: list[int], certificate: Path) -> None:
    """Waits until every listener shows it, several times in a row: there is more than one worker."""
    wanted = certificate.read_text().strip()
    async with asyncio.timeout(60):
        for port in ports:
            times = 0
            while times < 20:
                found = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
                times = times + 1 if found.strip() == wanted else 0
                await asyncio.sleep(0 if times else 0.1)


async def test_a_gateway_does_not_start_with_a_key_that_others_could_read(
    certified: tuple[Path, Path], tmp_path: Path
) -> None:
    certified[1].chmod(0o644)
    tls: dict[str, Any] = {"certificate": certified[0], "key": certified[1]}
    with pytest.raises(CannotListen, match="has the mode 0644") as problem:
        async with served(tmp_path / "state", service(), **tls):
            pass
    assert problem.value.hint.startswith(f"chmod 600 {certified[1]}")


async def test_plain_http_beyond_this_machine_takes_a_word_and_is_told(tmp_path: Path) -> None:
    with pytest.raises(CannotListen, match="plain http") as problem:
        async with served(tmp_path / "state", service(), host="0.0.0.0"):
            pass
    assert "--insecure" in problem.value.hint
    with capture_logs() as told:
        async with served(tmp_path / "state", service(), host="0.0.0.0", insecure=True):
            pass
    assert [each["log_level"] for each in told if each["event"] == "no TLS: insecure"] == ["warning"]
