"""The first process of an exclusive replica's PID namespace: whatever the program starts dies with its shim.

A lease is worth what enforces it. A shim can be killed like any other process, and then nobody is left who
would end the program in time: its children may have forked twice, begun sessions of their own and thrown away
their environment. So the kernel does it. The shim starts the program below this process, which is number 1 of
a PID namespace. The kernel kills it when its parent, the shim, ends by any signal (the parent-death signal),
and when number 1 of a namespace ends, the kernel kills every process in it before it reports that end. There
is no moment at which the program runs and this does not hold: it is started only after a word from the shim,
and a shim that has died meanwhile is seen by the end of the pipe on which the word would come.

It is a fork of the shim, does not become another program, and does four things: it reaps orphans, says how
the program ended, has probes run that are commands, and watches the lease as the shim does, so that a shim
that was stopped does not disable it.

Root needs a PID namespace and mounts for a /proc that fits. A plain user needs a user namespace around both,
in which all ids stay what they are, but programs that change the user (sudo) do not work there.
"""

import _socket
import os
import select
from _collections_abc import Callable  # already loaded: collections.abc brings all of collections with it

from holdfast.agent import kernel
from holdfast.agent.probes import Probes

MESSAGE = 64
CREDENTIALS = 64


class Init:
    """As its shim sees it."""

    def __init__(self, keep: tuple[int, ...], live: "Live") -> None:
        """OSError: there can be no namespace. `keep`: what of ours it may hold open. Nothing of the program
        is started before `go`."""
        go, self._go = os.pipe()
        self._news, news = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        self._news.setsockopt(_socket.SOL_SOCKET, _socket.SO_PASSCRED, 1)
        self._news.setblocking(False)
        self.handle = self._news.fileno()  # readable: there are `messages`
        self.pid, self._user = _fork()
        if self.pid == 0:
            _begin(go, news, keep, live)
        os.close(go)
        news.close()

    def go(self) -> None:
        if self._user:
            _keep_ids(self.pid)
        os.write(self._go, b"!")

    def close(self) -> None:
        self._news.close()
        os.close(self._go)

    def messages(self) -> list[tuple[int, bytes]]:
        """Each with the process that sent it, by the number it has here: the kernel sees to that."""
        found: list[tuple[int, bytes]] = []
        while True:
            try:
                text, extra, _, _ = self._news.recvmsg(MESSAGE, CREDENTIALS)
            except BlockingIOError:
                return found
            if not text:
                return found
            pids = [
                int.from_bytes(data[:4], "little")
                for _, kind, data in extra
                if kind == _socket.SCM_CREDENTIALS
            ]
            found += [(pid, text) for pid in pids]


Live = Callable[["News"], None]


class News:
    """What happens below, told to the shim."""

    def __init__(self, go: int, socket: _socket.socket) -> None:
        self.go, self._socket = go, socket

    def began(self) -> None:
        """Called by what will become the program: by that the shim knows its process id."""
        self._socket.send(b"began")

    def ended(self, status: int) -> None:
        self._socket.send(b"ended %d" % status)


def _fork() -> tuple[int, bool]:
    try:
        return kernel.fork_into_namespaces(user=False), False
    except PermissionError:
        return kernel.fork_into_namespaces(user=True), True


def _keep_ids(pid: int) -> None:
    """All that we have, if we may; else our own."""
    for name in ("uid", "gid"):
        own = os.geteuid() if name == "uid" else os.getegid()
        with open(f"/proc/self/{name}_map", encoding="ascii") as file:
            ranges = [line.split() for line in file]
        try:
            _write(f"/proc/{pid}/{name}_map", "".join(f"{first} {first} {n}\n" for first, _, n in ranges))
        except OSError:
            if name == "gid":
                _write(f"/proc/{pid}/setgroups", "deny")
            _write(f"/proc/{pid}/{name}_map", f"{own} {own} 1\n")


def _write(path: str, text: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)


# inside


def _begin(go: int, socket: _socket.socket, keep: tuple[int, ...], live: Live) -> None:
    """Does not return."""
    try:
        kernel.die_with_parent()
        kernel.close_others({0, 1, 2, go, socket.fileno(), *keep})
        if os.read(go, 1):  # else the shim died before we asked to die with it
            live(News(go, socket))
    finally:
        os._exit(1)


def own_proc() -> bool:
    """False: the kernel would not have it, and /proc counts as outside."""
    try:
        kernel.mount_own_proc()
    except OSError:
        return False
    return True


def oversee(
    news: News, program: int, signals: int, lease_end: Callable[[], int], probes: Probes | None
) -> None:
    """Until the lease is over or the shim has ended; then all in the namespace ends with us."""
    timer = kernel.timer_fd()
    poll = select.poll()
    asked = probes.handle if probes else -1
    for handle in (news.go, signals, timer, asked):
        if handle >= 0:
            poll.register(handle, select.POLLIN)
    while True:
        end = lease_end()
        if kernel.boot_ms() >= end:
            return
        kernel.set_timer(timer, end)
        for handle, _ in poll.poll():
            if handle == news.go:
                return
            if handle == signals:
                kernel.signals_of(signals)
            if probes and handle == asked:
                probes.take()
        for pid, status in reaped():
            if probes:
                probes.ended(pid)
            if pid == program:
                news.ended(status)


def reaped() -> list[tuple[int, int]]:
    """Children that have ended."""
    found: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        found.append((pid, status))


# can there be one?


def refusal() -> tuple[str, bool]:
    """Why this machine can have none (empty: it can), and whether it would have a /proc of its own. Found out
    by making one; to be called while there is one thread only."""
    result, said = os.pipe()
    try:
        first = Init((said,), lambda news: _try_out(said))
    except OSError as error:
        os.close(result)
        os.close(said)
        return error.strerror or str(error), False
    os.close(said)
    why = ""
    try:
        first.go()
    except OSError as error:
        why = error.strerror or str(error)
    first.close()  # it ends, if it was not told to go
    own = os.read(result, 1)
    os.close(result)
    os.waitpid(first.pid, 0)
    return why, own == b"y"


def _try_out(said: int) -> None:
    os.write(said, b"y" if own_proc() else b"n")
