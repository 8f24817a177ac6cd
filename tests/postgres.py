"""A PostgreSQL server of our own for tests: in a temporary folder, on a loopback port, with fsync on.

`shared()` is one server for everything in this process; each test makes itself a place in it (`fresh`).
Tests that stop or kill a server take one for themselves (`private()`). `Gate` stands between a client and the
server and drops connections when told to, at the very moment of a COMMIT if need be: what a network does.

PostgreSQL refuses to run as root, so under root it runs as `postgres` or `nobody`.
"""

import contextlib
import glob
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
from psycopg import sql

from tests.packages import need
from tests.ports import free_port
from tests.servers import Shared

START_S = 60
STOP_S = 60
USER = "holdfast"
CONFIG = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
fsync = on
max_connections = 60
shared_buffers = 16MB
"""

COMMIT = b"Q\0\0\0\x0bCOMMIT\0"  # the message of the protocol

_numbers = itertools.count(1)


def programs() -> Path:
    """The folder of initdb and postgres; installs Debian's package if there is none."""
    return need(_find, "postgresql")


def _find() -> Path | None:
    on_path = shutil.which("initdb")
    folders = [str(Path(on_path).resolve().parent)] if on_path else []
    folders += sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=_version, reverse=True)
    return next((Path(folder) for folder in folders if (Path(folder) / "postgres").exists()), None)


def _version(folder: str) -> float:
    number = Path(folder).parent.name
    return float(number) if number.replace(".", "", 1).isdigit() else 0.0


def _account() -> tuple[int, int] | None:
    """Whom to run it as; None: ourselves."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return entry.pw_uid, entry.pw_gid
    raise RuntimeError("PostgreSQL does not run as root, and there is no account postgres or nobody")


def _run_as() -> dict[str, object]:
    account = _account()
    return {} if account is None else {"user": account[0], "group": account[1], "extra_groups": []}


class Postgres:
    """One server. `start` again after `stop` or `kill`: the data is still there."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-pg-"))
        self.data, self.log = self.folder / "data", self.folder / "log"
        self.give(self.folder)
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        initdb = [
            str(programs() / "initdb"),
            "-D",
            str(self.data),
            "-U",
            USER,
            "-N",
            "--auth=trust",
            "-E",
            "UTF8",
        ]
        done = subprocess.run(
            [*initdb, "--locale=C"], capture_output=True, text=True, timeout=START_S, cwd="/", **_run_as()
        )  # type: ignore[call-overload]
        if done.returncode:
            raise RuntimeError(f"initdb failed: {done.stdout}{done.stderr}")
        with (self.data / "postgresql.conf").open("a") as config:
            config.write(CONFIG)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """On the port it had before, if it had one."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            port = self.port or free_port()
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    [str(programs() / "postgres"), "-D", str(self.data), "-p", str(port)],
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    cwd="/",
                    start_new_session=True,  # an interrupt from the keyboard is for the tests
                    **_run_as(),
                )  # type: ignore[call-overload]
            if self._answers(port, deadline):
                self.port = port
                return
            time.sleep(0.2)  # the port was taken, or children of a killed server are not gone yet
        raise RuntimeError(f"PostgreSQL does not start: {self.log.read_text(errors='replace')[-2000:]}")

    def _answers(self, port: int, deadline: float) -> bool:
        assert self._process is not None
        while self._process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(self._address("postgres", port), connect_timeout=2).close()
                return True
            time.sleep(0.05)
        return False

    @staticmethod
    def _address(database: str, port: int) -> str:
        return f"postgresql://{USER}@127.0.0.1:{port}/{database}"

    def url(self, database: str) -> str:
        return self._address(database, self.port)

    def fresh(self) -> str:
        """The URL of a new, empty place for tables: a schema, which is made far sooner than a database."""
        name = f"t{os.getpid()}_{next(_numbers)}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
        return f"{self.url('postgres')}?options=-csearch_path%3D{name}"

    def give(self, folder: Path) -> None:
        """The server may write there."""
        account = _account()
        if account is not None:
            os.chown(folder, *account)

    def stop(self) -> None:
        """As an operator does: connections are closed."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """As a loss of power does, except that the disk's cache survives."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """It neither answers nor closes anything, like a host that hangs."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: signal.Signals) -> None:
        """The server and the processes that it made for its clients."""
        assert self._process is not None
        server = self._process.pid
        children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
        for pid in (server, *map(int, children)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(STOP_S)
            self._process = None

    def remove(self) -> None:
        self._end(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def private() -> Iterator[Postgres]:
    server = Postgres()
    try:
        server.start()
        yield server
    finally:
        server.remove()


shared = Shared(Postgres)


class Gate:
    """A way to the server that can be shut. `url` leads through it."""

    def __init__(self, url: str) -> None:
        address, _, self._database = url.rpartition("/")
        self._server = ("127.0.0.1", int(address.rpartition(":")[2]))
        self._listener: socket.socket | None = None
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._drop = ""  # the next COMMIT: "write" (it never arrives) or "answer" (only the answer is lost)
        self.port = free_port()
        self.open()

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{self._database}"

    def open(self) -> None:
        listener = socket.create_server(("127.0.0.1", self.port))
        self._listener = listener
        self._begin(self._accept, listener)

    def close(self) -> None:
        """No more connections, and those there are end at once."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        with self._lock:
            ends = list(self._open)
        for end in ends:
            _shut(end)
        for thread in self._threads:
            thread.join(10)
        self._threads.clear()

    def lose_next_write(self) -> None:
        self._drop = "write"

    def lose_next_answer(self) -> None:
        self._drop = "answer"

    def _begin(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._server, timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            self._begin(self._carry, client, server)

    def _carry(self, client: socket.socket, server: socket.socket) -> None:
        """One connection; a thread for each direction."""
        with self._lock:
            self._open |= {client, server}
        back = threading.Thread(target=self._answers, args=(server, client), daemon=True)
        back.start()
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                if COMMIT in data and self._drop == "write":
                    self._drop = ""
                    break
                server.sendall(data)
        _shut(client)
        _shut(server)
        back.join(10)
        with self._lock:
            self._open -= {client, server}
        client.close()
        server.close()

    def _answers(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                if b"COMMIT\0" in data and self._drop == "answer":  # the tag of a completed COMMIT
                    self._drop = ""
                    break
                client.sendall(data)
        _shut(client)
        _shut(server)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
