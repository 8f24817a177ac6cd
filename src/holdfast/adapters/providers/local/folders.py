"""What a local provider knows, all of it on disk: a folder for each node, and the names that are spent.

    <root>/checkpoints/     shared by all nodes
    <root>/nodes/.lock      held while a node is entered
                 .gone      names of terminated nodes, one a line: spent for ever
                 .sold-out/ a file for each pool, or offer of one, that has nothing to be had: until when
                 <node>/launch.json     what was asked for
                        lock            held by whoever starts or ends it
                        fate.json       when it boots, and when it will be taken away
                        started.json    the agent: pid and start time
                        ending          it is being terminated: never start it again
                        token ca.pem agent.log cgroup
                        agent/          the agent's own, and the notice that it will be taken away

Any control plane of this machine, also one that was started anew, finds the nodes of all others here. A
database was refused: the folders must be there anyway, and a rename is as atomic.
"""

import asyncio
import contextlib
import fcntl
import os
import shutil
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import ParamSpec, Protocol, TypeVar
from urllib.parse import quote, unquote

import msgspec

from holdfast.adapters.providers.local import market
from holdfast.adapters.providers.local.market import Fate, LocalTraits
from holdfast.model.action import LaunchNode
from holdfast.model.units import Instant
from holdfast.ports import private_folder
from holdfast.ports.errors import CapacityShort, NotFound, Unreachable

P = ParamSpec("P")
T = TypeVar("T")

BUSY_S = 60.0  # the longest that a node may be in another's hands: a termination that lingers


class Started(msgspec.Struct, frozen=True):
    """The agent that was started last. Pid 0: none, and the machine is off."""

    pid: int
    start: int
    boot: str  # start times count from the machine's boot
    urls: tuple[str, ...] = ()  # of the control planes it was told to join; empty: not known


class Beside(Protocol):
    """Does what may block where it holds up nobody."""

    async def __call__(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...


async def at_once(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """For a disk of this machine: it takes microseconds."""
    return function(*args, **kwargs)


class Folders:
    def __init__(self, root: Path, beside: Beside = at_once) -> None:
        self._beside = beside
        self.root = root.resolve()  # the same for all: processes are found by it
        self.nodes = self.root / "nodes"
        self.checkpoints = self.root / "checkpoints"
        private_folder.close_to_others(self.nodes)
        self._requests: dict[str, LaunchNode] = {}
        self._spent: set[str] = set()
        self._spent_read = 0

    def reach(self) -> None:
        """A folder that is not there (a disk that was unmounted) must not look like a provider without
        nodes."""
        if not self.nodes.is_dir():
            raise Unreachable(f"{self.nodes} is not there")

    def of(self, node: str) -> Path:
        if not node:
            raise NotFound("a node has a name")
        name = quote(node, safe="")
        return self.nodes / (name.replace(".", "%2E", 1) if name.startswith(".") else name)

    def names(self) -> list[str]:
        try:
            with os.scandir(self.nodes) as entries:
                found = [entry.name for entry in entries if entry.is_dir()]
        except FileNotFoundError as error:
            raise Unreachable(f"{self.nodes} is not there") from error
        return sorted(unquote(name) for name in found if not name.startswith("."))

    def has(self, node: str) -> bool:
        return self.of(node).is_dir()

    def request(self, node: str) -> LaunchNode:
        if node not in self._requests:
            found = _read(self.of(node) / "launch.json", LaunchNode)
            if found is None:
                raise NotFound(f"there is no {node} here")
            self._requests[node] = found
        return self._requests[node]

    # entering and leaving

    def enter(self, request: LaunchNode, traits: LocalTraits) -> bool:
        """Makes the node's folder, whole or not at all. False: it is there already, or its name is spent.
        CapacityShort: its market has none.

        (`leave` spends the name before the folder goes, so whoever sees no folder sees the name.)
        """
        with self._locked():
            if self.has(request.node) or self.is_spent(request.node):
                return False
            if why := self.shortage(request.pool, request.offer, traits):
                raise CapacityShort(why)
            if market.is_refused(request, traits):
                raise CapacityShort(f"the market has no {request.offer} for {request.node}")
            fresh = self.nodes / f".new-{uuid.uuid4().hex}"
            private_folder.make(fresh / "agent")
            write(fresh / "launch.json", msgspec.json.encode(request))
            fate = market.fate(request, traits, wall_ms())
            if fate != Fate():
                write(fresh / "fate.json", msgspec.json.encode(fate))
            fresh.rename(self.of(request.node))
            self._requests[request.node] = request
            return True

    def leave(self, node: str, *, spend: bool) -> None:
        """Forget it, and let its name never be used again if it was a machine."""
        if spend:
            with open(self.nodes / ".gone", "a", encoding="utf-8") as file:
                file.write(quote(node, safe="") + "\n")
                file.flush()
                os.fsync(file.fileno())
        aside = self.nodes / f".old-{uuid.uuid4().hex}"
        with contextlib.suppress(FileNotFoundError):
            self.of(node).rename(aside)
        self._requests.pop(node, None)
        shutil.rmtree(aside, ignore_errors=True)

    def is_spent(self, node: str) -> bool:
        with contextlib.suppress(FileNotFoundError), open(self.nodes / ".gone", "rb") as file:
            file.seek(self._spent_read)
            text = file.read()
            whole = text[: text.rfind(b"\n") + 1]  # another process may be in the middle of a line
            self._spent_read += len(whole)
            self._spent.update(unquote(name.decode()) for name in whole.splitlines())
        return node in self._spent

    # the market

    def shortage(self, pool: str, offer: str, traits: LocalTraits) -> str:
        """Why none of this offer can be had; empty: it can."""
        names = self.names()
        if len(names) >= traits.capacity:
            return f"this machine may have {traits.capacity} nodes, and has them"
        for what in (pool, f"{pool}@{offer}"):
            if self._sold_out_until(what) > wall_ms():
                return f"{offer} is sold out"
        stock = traits.stock_of(offer)
        if stock is not None and sum(self._is_of(node, pool, offer) for node in names) >= stock:
            return f"there are {stock} of {offer}, and you have them" if stock else f"there is no {offer}"
        return ""

    def sell_out(self, pool: str, offer: str, until: Instant) -> None:
        folder = self.nodes / ".sold-out"
        private_folder.make(folder)
        write(folder / _mark(f"{pool}@{offer}" if offer else pool), str(until).encode())

    def _sold_out_until(self, what: str) -> Instant:
        try:
            return int((self.nodes / ".sold-out" / _mark(what)).read_bytes())
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return 0

    def _is_of(self, node: str, pool: str, offer: str) -> bool:
        try:
            request = self.request(node)
        except NotFound:  # it left while we looked
            return False
        return (request.pool, request.offer) == (pool, offer)

    def fate(self, node: str) -> Fate:
        return _read(self.of(node) / "fate.json", Fate) or Fate()

    def note_fate(self, node: str, fate: Fate) -> None:
        write(self.of(node) / "fate.json", msgspec.json.encode(fate))

    def tell_fate(self, node: str, fate: Fate) -> None:
        """Where the node's agent looks for it (`agent.notice`), once."""
        path, text = self.of(node) / "agent" / "notice", f"{fate.goes_at / 1000:.3f}".encode()
        if not path.exists() or path.read_bytes() != text:
            write(path, text)

    # one node

    def started(self, node: str) -> Started | None:
        return _read(self.of(node) / "started.json", Started)

    def note_started(self, node: str, started: Started | None) -> None:
        path = self.of(node) / "started.json"
        if started is None:
            path.unlink(missing_ok=True)
        else:
            write(path, msgspec.json.encode(started))

    def is_ending(self, node: str) -> bool:
        return (self.of(node) / "ending").exists()

    def note_ending(self, node: str) -> None:
        """A disk too full even for this must not keep anybody from ending a node."""
        with contextlib.suppress(OSError):
            (self.of(node) / "ending").touch()

    @contextlib.asynccontextmanager
    async def held(self, node: str) -> AsyncIterator[Path]:
        """The node is in our hands alone, of all processes of this machine. NotFound: there is none."""
        folder = self.of(node)
        opened = Opened(folder / "lock")
        try:
            try:
                lock = await self._beside(opened.open)
            except (FileNotFoundError, NotADirectoryError) as error:
                await self._beside(self.reach)
                raise NotFound(f"there is no {node} here") from error
            await self._lock(lock, node)
            if not await self._beside(_is_at, lock, folder / "lock"):  # it left while we waited
                raise NotFound(f"there is no {node} here")
            yield folder
        finally:
            if opened.leave():
                with contextlib.suppress(Unreachable):  # what is held is told by what held it
                    try:
                        await self._beside(opened.close)
                    finally:
                        opened.close_beside()

    async def _lock(self, descriptor: int, node: str) -> None:
        try:
            async with asyncio.timeout(BUSY_S):
                while not await self._beside(_try_lock, descriptor):
                    await asyncio.sleep(0.01)
        except TimeoutError as error:
            raise Unreachable(f"another process has been busy with {node} for {BUSY_S:g} s") from error

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """In a thread. Whoever holds it needs milliseconds."""
        until = time.monotonic() + BUSY_S
        lock = os.open(self.nodes / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while not _try_lock(lock):
                if time.monotonic() > until:
                    raise Unreachable(f"another process has been busy in {self.nodes} for {BUSY_S:g} s")
                time.sleep(0.002)
            yield
        finally:
            os.close(lock)


class Opened:
    """A file that is closed once, also if whoever opens it stands still and nobody waits for it any more."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._guard = threading.Lock()
        self._descriptor = -1
        self._left = False

    def open(self) -> int:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with self._guard:
            if not self._left:
                self._descriptor = descriptor
                return descriptor
        os.close(descriptor)
        return -1  # and nobody is there to read it

    def leave(self) -> bool:
        """Nobody wants it any more. Is there something to close?"""
        with self._guard:
            self._left = True
            return self._descriptor >= 0

    def close(self) -> None:
        with self._guard:
            descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def close_beside(self) -> None:
        """If that had no turn: a lock that is given back later is better than one that never is. There are
        never more such threads than files that could be opened."""
        if self._descriptor >= 0:
            threading.Thread(target=self.close, name="give back", daemon=True).start()


def wall_ms() -> Instant:
    """The clock that all processes of this machine share, and that goes on while they are away."""
    return time.time_ns() // 1_000_000


def _mark(what: str) -> str:
    """A pool's name, or `pool@offer`, as the name of a file."""
    return "@".join(quote(part, safe="").replace(".", "%2E") for part in what.split("@", 1))


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _read(path: Path, kind: type[T]) -> T | None:
    """None: it is not there. We write it whole or not at all, so what cannot be read was damaged: that is no
    file that is not there."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise Unreachable(f"{path} cannot be read: {error}") from error


def write(path: Path, text: bytes, mode: int = 0o600) -> None:
    """Whole or not at all, also after a power cut."""
    fresh = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
