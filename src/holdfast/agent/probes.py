"""Probes that are commands: run by whoever started the program, and at the agent's word.

A probe is the program's own code: the program can write the file that is run. So it must be held by all that
holds the program, and the agent must not touch it. It is started as the program was (`become.py`), by the
process that reaps what the program leaves behind: the first process of its PID namespace (`init.py`), or else
the shim. It is a descendant of that one and ends with it, however it forks and whatever it forgets.

Between the two there is an attendant for each probe, a fork that lives as long as the probe. It hears what is
asked, enforces the time-out, answers, and kills all that descends from it: what a probe left behind does not
mix with what the program did. It may wait for anything; shim and first process never wait. A probe that
cannot be killed (the kernel holds it) keeps its attendant, and so many of those are there at a time and no
more.

The agent asks on a socket in the replica's folder, which only its own user can open. It names the probe and
nothing else: what is run stands in `spec`. When the agent closes the connection the probe is killed, and so
nothing is left of what a killed agent had asked.
"""

import _socket
import os
import select
import time

from holdfast.agent import become, kernel, procfs, records

ASK = "ask"  # the socket
READY, ALIVE = "ready", "alive"  # what it may be asked for
WELL, UNWELL = b"+", b"-"  # begins the answer; the reason comes after it
ANSWER_BYTES = 1024
PLACES = 4
WORD_BYTES = 16
WORD_MS = 2_000  # the agent sends it with the connection
TIMEOUT_MAX_MS = (1 << 31) - 1
LOOK_AGAIN_MS = 1
LOOK_AGAIN_MAX_MS = 100


class Check:
    def __init__(self, start: become.Start, timeout_ms: int) -> None:
        self.start, self.timeout_ms = start, min(timeout_ms, TIMEOUT_MAX_MS)


def checks_of(fields: records.Fields, program: become.Start) -> dict[str, Check]:
    """Those that stand in a `spec`, to be started like the program."""
    one, found = dict(fields), {}
    for kind in (READY, ALIVE):
        command = [value for name, value in fields if name == f"{kind}_arg"]
        if command:
            start = become.Start(command, program.env, program.workdir, program.group, program.rights)
            found[kind] = Check(start, int(one[f"{kind}_ms"]))
    return found


class Probes:
    """Of one replica, in the process that reaps for it."""

    def __init__(self, checks: dict[str, Check], nice: int) -> None:
        """In the working directory. `nice`: as the program has it."""
        self._checks, self._nice = checks, nice
        self._attendants: set[int] = set()
        self._socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        before = os.umask(0o177)
        try:
            self._socket.bind(ASK)
        finally:
            os.umask(before)
        self._socket.listen(PLACES)
        self._socket.setblocking(False)
        self.handle = self._socket.fileno()  # readable: `take` one

    def take(self) -> None:
        try:
            handle, _ = self._socket._accept()  # type: ignore[attr-defined]
        except OSError:  # it has gone
            return
        connection = _socket.socket(fileno=handle)
        try:
            if _is_ours(connection):
                self._attend(connection)
        except OSError:  # it has gone: no reason for whoever reaps to end
            return
        finally:
            connection.close()

    def _attend(self, connection: _socket.socket) -> None:
        if len(self._attendants) >= PLACES:
            _refuse(connection, "earlier ones have not ended yet")
            return
        parent = os.getpid()
        try:
            attendant = os.fork()
        except OSError as error:
            _refuse(connection, f"it could not be started: {error.strerror}")
            return
        if attendant == 0:
            _become_attendant(connection, self._checks, self._nice, parent)
        self._attendants.add(attendant)

    def ended(self, pid: int) -> None:
        """A child has been reaped, whichever."""
        self._attendants.discard(pid)

    def close(self) -> None:
        self._socket.close()


def _is_ours(connection: _socket.socket) -> bool:
    credentials = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[4:8], "little") == os.geteuid()


def _refuse(connection: _socket.socket, why: str) -> None:
    """Whatever was asked. What came and was not read, when we close, would take the answer away."""
    connection.setblocking(False)
    connection.shutdown(_socket.SHUT_RD)
    _word(connection)
    _answer(connection, why)


def _word(connection: _socket.socket) -> str:
    """Empty: none has come."""
    try:
        return connection.recv(WORD_BYTES).decode("ascii", "replace")
    except OSError:
        return ""


def _answer(connection: _socket.socket, why: str) -> None:
    try:
        connection.setblocking(False)
        connection.send(UNWELL + records.cut(why).encode() if why else WELL)
    except OSError:  # nobody waits for it
        return


# the attendant


def _become_attendant(connection: _socket.socket, checks: dict[str, Check], nice: int, parent: int) -> None:
    """Does not return. It ends by itself when its parent has: nothing that hides below it must be left."""
    try:
        kernel.close_others({0, 1, 2, connection.fileno()})
        guard = os.pidfd_open(parent)
        if os.getppid() == parent:
            kernel.adopt_orphans()
            try:
                _see_to(connection, guard, checks, nice)
            except OSError as error:  # no process or descriptor to be had
                _answer(connection, f"it could not be started: {error.strerror}")
            connection.close()
            _clear_away()
    finally:
        os._exit(0)


def _see_to(connection: _socket.socket, guard: int, checks: dict[str, Check], nice: int) -> None:
    ends = (connection.fileno(), guard)
    check = checks.get(_word(connection) if ends[0] in _first(ends, WORD_MS) else "")
    if check is None:
        _answer(connection, "there is no such probe")
        return
    why = f"no answer within {check.timeout_ms} ms"
    began, say = os.pipe()
    os.set_blocking(began, False)
    nothing = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
    probe = become.fork_program(check.start, nice, say, nothing)
    os.close(say)
    ended = os.pidfd_open(probe)
    in_time = ended in _first((ended, *ends), check.timeout_ms)
    try:
        os.killpg(probe, kernel.SIGKILL)  # not yet reaped: the number is its own
    except OSError:  # it has no group yet, or other rights
        procfs.kill([probe], kernel.SIGKILL)
    if in_time:
        why = _judged(check.start.command[0], os.waitpid(probe, 0)[1], began)
    _answer(connection, why)


def _first(handles: tuple[int, ...], patience_ms: int) -> set[int]:
    """Those that are readable or closed, as soon as one is. None: time is up."""
    poll = select.poll()
    for handle in handles:
        poll.register(handle, select.POLLIN)
    return {handle for handle, _ in poll.poll(patience_ms)}


def _judged(name: str, status: int, began: int) -> str:
    """Empty: it is well."""
    try:
        why = os.read(began, ANSWER_BYTES).decode("utf-8", "replace")
    except BlockingIOError:
        why = ""
    if why:
        return why
    if os.WIFSIGNALED(status):
        return f"{name}: killed by signal {os.WTERMSIG(status)}"
    code = os.WEXITSTATUS(status)
    return f"{name}: exit code {code}" if code else ""


def _clear_away() -> None:
    """Until nothing descends from us."""
    pause = LOOK_AGAIN_MS
    while _reap():
        time.sleep(pause / 1000)
        pause = min(2 * pause, LOOK_AGAIN_MAX_MS)
        if _reap():
            procfs.kill_below()


def _reap() -> bool:
    """False: there are no more."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return False
    return True
