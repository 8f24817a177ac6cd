"""A whole gateway: its keeper, and the second listener beside it."""

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import structlog
import uvicorn
from msgspec.structs import replace

from holdfast.gateway import native, settings
from holdfast.gateway.admin import Admin, new_token
from holdfast.gateway.behind import Behind, following
from holdfast.gateway.exposed import exposed
from holdfast.gateway.keeper import CannotListen, Keeper
from holdfast.ports import secret_file
from holdfast.wire import certificates
from holdfast.wire.address import is_loopback
from holdfast.wire.certificates import Certificates
from holdfast.wire.server import Server

CLOSE_S = 3

log = structlog.get_logger("holdfast.gateway")


class Serving:
    def __init__(self, keeper: Keeper, admin_port: int, admin_token: str) -> None:
        self.keeper, self.admin_token = keeper, admin_token
        scheme = "https" if keeper.wanted.certificate else "http"
        self.url = f"{scheme}://{_host(keeper.wanted.host)}:{keeper.port}"
        admin_scheme = "https" if _secured(keeper.wanted) else "http"
        self.admin_url = f"{admin_scheme}://{_host(keeper.wanted.admin_host)}:{admin_port}"


@contextlib.asynccontextmanager
async def gateway(
    wanted: settings.Gateway,
    behind: Behind | None = None,
    stop: asyncio.Event | None = None,
    hurry: asyncio.Event | None = None,
) -> AsyncIterator[Serving]:
    """A gateway that answers, until the block ends; alone, or behind a control plane, for which it waits
    until it has something to go by, or until `stop`. In a `hurry` it does not wait for requests that run."""
    _check_exposed(wanted)
    _check_tls(wanted)
    _check_native()
    listener = _listen(wanted)
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(contextlib.closing(listener))
        wanted.state.mkdir(parents=True, exist_ok=True)
        keeper = Keeper(wanted, behind.urls[0] if behind is not None else "")
        if behind is not None:
            await stack.enter_async_context(following(keeper, behind, stop or asyncio.Event()))
        token = admin_token(wanted.state)
        files = _files(wanted)
        config = uvicorn.Config(
            Admin(keeper, token).app(),
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            headers=[("X-Content-Type-Options", "nosniff"), ("Cache-Control", "no-store")],
            ws="none",
            timeout_graceful_shutdown=CLOSE_S,
        )
        server = Server(config, files.context if files is not None else None)
        await stack.enter_async_context(keeper.running(hurry))
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(server.serve(sockets=[listener]))
            renewing = group.create_task(files.keep()) if files is not None else None
            found = Serving(keeper, listener.getsockname()[1], token)
            where = wanted.state / "admin-url"
            where.unlink(missing_ok=True)
            if behind is None:  # else keys and limits are the control plane's: it is found by its own file
                _note(where, found)
            try:
                yield found
            finally:
                where.unlink(missing_ok=True)
                if renewing is not None:
                    renewing.cancel()
                server.should_exit = True
                await serving


def _files(wanted: settings.Gateway) -> Certificates | None:
    if wanted.certificate is None or wanted.key is None or not _secured(wanted):
        return None
    return Certificates(wanted.certificate, wanted.key)


def _check_exposed(wanted: settings.Gateway) -> None:
    for _, text, hint in exposed(wanted):
        raise CannotListen(text, f"{hint}, or --insecure")
    for field, text, _ in exposed(replace(wanted, insecure=False)):
        log.warning("no TLS: insecure", field=field, why=text)


def _secured(wanted: settings.Gateway) -> bool:
    """Is the second listener https? The certificate is for the name that clients use, not for loopback."""
    return wanted.certificate is not None and not is_loopback(wanted.admin_host)


def _check_tls(wanted: settings.Gateway) -> None:
    """Here, where somebody reads it: a worker that cannot start would only try again."""
    try:
        if wanted.certificate is not None and wanted.key is not None:
            certificates.check(wanted.certificate, wanted.key)
        if wanted.upstream_ca is not None:
            ssl.create_default_context().load_verify_locations(wanted.upstream_ca)
    except secret_file.Exposed as error:
        raise CannotListen(f"the key of tls: {error}", error.hint) from None
    except OSError as error:  # ssl's own are among them
        why = f"the files for TLS cannot be used: {error.strerror or error}"
        raise CannotListen(why, "look at tls and upstream_ca in the file") from None


def _check_native() -> None:
    try:
        native.found()
    except native.NotCompiled as error:
        raise CannotListen(str(error), f"compile, or leave {native.SWITCH} out") from None


def _listen(wanted: settings.Gateway) -> socket.socket:
    family = socket.AF_INET6 if ":" in wanted.admin_host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((wanted.admin_host, wanted.admin_port))  # until it serves whoever asks is refused
    except OSError as error:
        listener.close()
        where = f"{wanted.admin_host}:{wanted.admin_port}"
        raise CannotListen(f"cannot listen on {where}: {error.strerror}") from None
    return listener


def admin_token(state: Path) -> str:
    """Made at the first start, kept in a file that only its owner reads. One that others could read is
    replaced."""
    path = state / "admin-token"
    with contextlib.suppress(FileNotFoundError):
        if not path.stat().st_mode & 0o077 and (kept := path.read_text().strip()):
            return kept
        log.warning("the admin token could be read by others, or is empty: a new one is made", file=str(path))
        path.unlink()
    token = new_token()
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(token + "\n")
    return token


def _note(where: Path, serving: Serving) -> None:
    """The command line finds the second listener by this file."""
    fresh = where.with_name(".admin-url.new")
    fresh.write_text(serving.admin_url + "\n")
    fresh.replace(where)


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
