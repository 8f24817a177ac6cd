"""The one port hands an agent's connection over whole: nothing of HTTP has a say in it any more."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import uvloop

from holdfast.control import front
from holdfast.wire.server import Server
from tests.certificates import self_signed, write
from tests.planes import nothing

STUCK_S = 0.2
HEAD = front.START + b"HTTP/1.1\r\nHost: localhost\r\nUpgrade: holdfast-link\r\nConnection: Upgrade\r\n\r\n"


class Silent(asyncio.Protocol):
    """A session that says one thing and then has nothing to say for long."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.heard = bytearray()
        self.lost = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(b"x" * 1_000)

    def data_received(self, data: bytes) -> None:
        self.heard += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_link_that_is_silent_for_long_is_not_cut_off(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    loop: Callable[[], asyncio.AbstractEventLoop],
    tls: bool,
) -> None:
    """Over TLS the answer to the upgrade waits for a moment in a buffer. What watched over that went on
    watching, and each agent was cut off every two minutes."""
    monkeypatch.setattr(front, "STUCK_S", STUCK_S)
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(_silent_for_long(tmp_path, tls=tls))


async def _silent_for_long(folder: Path, *, tls: bool) -> None:
    context = None
    if tls:
        write([folder / "cert.pem", folder / "key.pem"], self_signed("hub"))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    session = Silent()
    config = uvicorn.Config(
        nothing, http=front.front(lambda: session), ws="none", lifespan="off", log_config=None
    )
    config.load()
    server = Server(config, context)
    listener = socket.create_server(("127.0.0.1", 0))
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve(sockets=[listener]))
        trusting = ssl.create_default_context(cafile=folder / "cert.pem") if tls else None
        reader, writer = await asyncio.open_connection(*listener.getsockname(), ssl=trusting)
        try:
            writer.write(HEAD)
            assert await reader.readexactly(len(front.SWITCHING)) == front.SWITCHING
            await reader.readexactly(1_000)
            await asyncio.sleep(10 * STUCK_S)
            assert not session.lost
            writer.write(b"still here")
            session.transport.write(b"so am I")
            assert await reader.readexactly(7) == b"so am I"
            while session.heard != b"still here":
                await asyncio.sleep(0.01)
        finally:
            writer.close()
            server.should_exit = server.force_exit = True
            await serving
