"""uvicorn, as control planes and the second listener of gateways need it.

Without its own signal handlers: we stop it. With a TLS context that may get another certificate while it
runs, and in which a handshake has ten seconds; asyncio alone would let one that sends nothing wait for a
minute.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator

import uvicorn

HANDSHAKE_S = 10.0


class Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, tls: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self._tls = tls

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        def protocol() -> asyncio.Protocol:
            made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
                config=self.config, server_state=self.server_state, app_state={}
            )
            return made

        within = HANDSHAKE_S if self._tls is not None else None
        loop, backlog = asyncio.get_running_loop(), self.config.backlog
        self.servers = [
            await loop.create_server(
                protocol, sock=each, ssl=self._tls, ssl_handshake_timeout=within, backlog=backlog
            )
            for each in sockets or ()
        ]
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
