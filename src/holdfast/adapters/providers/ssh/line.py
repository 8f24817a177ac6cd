"""A line to one host: one request, one answer, and every way of failing named for the next move.

The connection is kept and made anew when it is found broken. What matters is on which side of the request it
broke: before it was sent nothing happened (Unreachable); after that nobody knows (OutcomeUnknown), unless the
request only looks. A host key that is not known is never taken on trust.
"""

import asyncio
import contextlib
import json
import shlex
from importlib import resources
from types import ModuleType
from typing import Any

from holdfast.adapters.providers.library import Library
from holdfast.adapters.providers.local import tree
from holdfast.adapters.providers.ssh import remote
from holdfast.adapters.providers.ssh.hosts import SshHost
from holdfast.ports.errors import (
    CapacityShort,
    Denied,
    Full,
    NotFound,
    OutcomeUnknown,
    PortError,
    Unreachable,
)

CONNECT_S = 10.0
ANSWER_S = 75.0  # longer than a host waits for its own lock, or for processes that linger
AT_ONCE = 4  # requests to one host
KEEPALIVE_S = 15
PYTHON_OLDEST = (3, 11)
TOO_OLD = 86  # exit status
BEGIN = f"import sys;sys.version_info<{PYTHON_OLDEST} and sys.exit({TOO_OLD});exec(sys.stdin.buffer.read())"

ERRORS: dict[str, type[PortError]] = {
    "taken": CapacityShort,
    "missing": NotFound,
    "denied": Denied,
    "full": Full,
    "busy": Unreachable,
    "slow": Unreachable,
    "lingering": OutcomeUnknown,
}


ASYNCSSH = Library("asyncssh", "hosts over ssh need asyncssh: pip install 'holdfast[ssh]'")


class NeedsInstall(Exception):
    """The host does not have this version of the agent."""


class Lost(Exception):
    """The connection broke, or no answer came in time."""


class Line:
    def __init__(self, host: SshHost) -> None:
        self.host = host
        self._connection: Any = None
        self._connecting = asyncio.Lock()
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def ask(
        self, request: dict[str, Any], *, only_looks: bool, within_s: float = ANSWER_S
    ) -> dict[str, Any]:
        body = script({**request, "root": self.host.root})
        async with self._turns:
            process = await self._begin()
            try:
                said = await self._hear(process, body, within_s)
            except Lost as error:
                if only_looks:
                    raise Unreachable(f"{self.host.name}: {error}") from error
                raise OutcomeUnknown(f"{self.host.name}: {error}") from error
        return self._read(said)

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CONNECT_S):
                    await connection.wait_closed()

    # before the request

    async def _begin(self) -> Any:
        """A Python on the host that waits for its text. A kept connection may have died unseen, so a failure
        on an old one is tried again on a new one; nothing has been asked yet."""
        command = f"{shlex.quote(self.host.python)} -I -S -c {shlex.quote(BEGIN)}"
        errors = (ASYNCSSH.load().Error, OSError, TimeoutError)
        failed: Any = None
        while True:
            connection, is_new = await self._connected(failed)
            try:
                async with asyncio.timeout(CONNECT_S):
                    return await connection.create_process(command, encoding=None)
            except errors as error:
                if is_new or failed is not None:
                    raise Unreachable(f"{self.host.name}: {error or 'no answer'}") from error
                failed = connection

    async def _connected(self, failed: Any) -> tuple[Any, bool]:
        """A connection other than the one that failed, and whether it was made just now."""
        async with self._connecting:
            if failed is not None and self._connection is failed:
                failed.abort()
                self._connection = None
            if self._connection is not None and not self._connection.is_closed():
                return self._connection, False
            self._connection = await self._connect()
            return self._connection, True

    async def _connect(self) -> Any:
        ssh, host = ASYNCSSH.load(), self.host
        given: dict[str, Any] = {
            "username": host.user,
            "client_keys": [host.key_file] if host.key_file else (),
            "known_hosts": host.known_hosts,
        }
        try:
            async with asyncio.timeout(CONNECT_S):
                return await ssh.connect(
                    host.address,
                    host.port,
                    keepalive_interval=KEEPALIVE_S,
                    **{name: value for name, value in given.items() if value},
                )
        except ssh.HostKeyNotVerifiable as error:
            raise Denied(
                f"{host.name}: its host key is not in known_hosts ({error}). If you know that the host is "
                f"the right one, add its key: ssh-keyscan -p {host.port} {host.address}"
            ) from error
        except ssh.PermissionDenied as error:
            raise Denied(
                f"{host.name}: {host.address} does not let {host.user or 'us'} in ({error}). Is the public "
                f"key of {host.key_file or 'a default key'} in its authorized_keys?"
            ) from error
        except (ssh.KeyImportError, FileNotFoundError, PermissionError) as error:
            raise Denied(f"{host.name}: a key cannot be read: {error}") from error
        except TimeoutError as error:
            raise Unreachable(
                f"{host.name}: {host.address} does not answer within {CONNECT_S:g} s"
            ) from error
        except (ssh.Error, OSError) as error:
            raise Unreachable(f"{host.name}: {host.address}:{host.port}: {error}") from error
        except (ValueError, OverflowError) as error:  # no such name or number can be
            raise Denied(f"{host.name}: {host.address}:{host.port} cannot be called: {error}") from error

    # after it

    async def _hear(self, process: Any, body: bytes, within_s: float) -> Any:
        try:
            async with asyncio.timeout(within_s):
                try:
                    out, err = await process.communicate(body)
                except BrokenPipeError:  # it ended before it was asked: what did it say?
                    out, err = await process.communicate()
                await process.wait_closed()
        except TimeoutError as error:
            raise Lost(f"no answer within {within_s:g} s") from error
        except (ASYNCSSH.load().Error, OSError) as error:
            raise Lost(str(error)) from error
        finally:
            process.close()
        killed = process.exit_status is None or process.exit_status < 0  # or the line broke
        if killed and not answers(out or b""):
            raise Lost("it broke off before the answer came")
        return process.exit_status, out or b"", err or b""

    def _read(self, said: tuple[int | None, bytes, bytes]) -> dict[str, Any]:
        status, out, err = said
        said_by_us = answers(out)
        if not said_by_us:
            raise Denied(f"{self.host.name}: {self._complaint(status, err)}")
        answer: dict[str, Any] = json.loads(said_by_us[-1])
        kind, why = answer.get("error"), f"{self.host.name}: {answer.get('why', '')}"
        if kind == "install":
            raise NeedsInstall(why)
        if kind is not None:
            raise ERRORS[kind](why)
        return answer

    def _complaint(self, status: int | None, err: bytes) -> str:
        oldest = ".".join(map(str, PYTHON_OLDEST))
        match status:
            case 127 | 126:
                return f"it has no {self.host.python}; say in `python` where Python {oldest} or newer is"
            case _ if status == TOO_OLD:
                return f"its {self.host.python} is older than {oldest}; say in `python` where a newer one is"
            case _:
                said = err.decode(errors="replace").strip().splitlines()
                return f"{self.host.python} ended with {status}: {' / '.join(said[-2:])}"


def answers(out: bytes) -> list[str]:
    """The complete lines, from the mark on: what a shell says before it may lack the end of its own line."""
    lines = out.decode(errors="replace").split("\n")[:-1]
    return [text for _, mark, text in (line.partition(remote.MARK) for line in lines) if mark]


def script(request: dict[str, Any]) -> bytes:
    """The text that a host runs: `tree`, `remote`, and the request."""
    lines = [
        "import types",
        "tree = types.ModuleType('tree')",
        f"exec({_source(tree)!r}, tree.__dict__)",
        _source(remote),
        f"print(MARK + json.dumps(answer(json.loads({json.dumps(request)!r}))))",
    ]
    return "\n".join(lines).encode()


def _source(module: ModuleType) -> str:
    package, _, name = module.__name__.rpartition(".")
    return (resources.files(package) / f"{name}.py").read_text(encoding="utf-8")
