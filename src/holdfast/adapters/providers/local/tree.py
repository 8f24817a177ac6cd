"""All processes of a node, and none of anybody else: start the agent; find, freeze, wake and kill the rest.

A node is not one process but a tree that falls apart: shims outlive the agent, programs fork twice, change
their session, or clear their environment. So a process belongs to a node if

- its environment names the node's root (`HOLDFAST_NODE_ROOT`, set for the agent and inherited by the rest);
- or it is in the node's control group, when we could make one (`<root>/cgroup` says where);
- or it descends from such a process, or is in a session that such a process began.

Process groups and pid files alone were refused: one `setsid` escapes the first, and a pid that was given to
somebody else fools the second. Signals go through a pidfd whose start time was compared, so they never hit a
stranger. Killing freezes first: no process sees the others die, and none forks meanwhile.

Only the standard library is used, and no other module of ours: this text is also run on hosts that have
nothing of us installed.
"""

import contextlib
import errno
import os
import select
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

MARK = "HOLDFAST_NODE_ROOT"
LOG_BYTES_MAX = 1 << 20  # an agent's log that is longer than this when it starts is put aside
PASSES_MAX = 50  # scans until a tree must have come to rest
PATIENCE_S = 20.0  # for processes to end that were killed
EXEC_S = 2.0  # what an `exec` takes at most; usually below a millisecond
KERNEL_THREAD = 0x0020_0000
SHIM = b"agent/shim.py\0"
GONE = (FileNotFoundError, ProcessLookupError)  # any other error must not look like a process that has ended


class Process(NamedTuple):
    pid: int
    start: int  # in clock ticks since boot: with it, the pid is unmistakable
    parent: int
    session: int
    state: str


class Lingering(Exception):
    """Processes that were killed and have not ended: a disk or a driver holds them."""


# finding


def look(pid: int) -> Process | None:
    """None: it has ended (perhaps nobody has waited for it yet), or belongs to the kernel."""
    try:
        fields = _read(f"/proc/{pid}/stat").rpartition(b") ")[2].split()
    except GONE:
        return None
    if len(fields) < 20:
        return None
    state = chr(fields[0][0])
    if state in "ZX" and int(fields[17]) <= 1:  # with more threads it still works, though its first one ended
        return None
    if int(fields[6]) & KERNEL_THREAD:
        return None
    return Process(pid, int(fields[19]), int(fields[1]), int(fields[3]), state)


def is_alive(pid: int, start: int) -> bool:
    found = look(pid)
    return found is not None and found.start == start


def survey() -> dict[str, list[int]]:
    """One pass over all processes: the roots that any of them names, each with the pids."""
    found: dict[str, list[int]] = {}
    for pid in _pids():
        root = _root_of(pid)
        if root:
            found.setdefault(root, []).append(pid)
    return found


def members(*roots: str) -> list[Process]:
    """Every living process of these nodes, the eldest first."""
    wanted = set(roots)
    everyone: dict[int, Process] = {}
    ours: set[int] = set()
    for pid in _pids():
        process = look(pid)
        if process is not None:
            everyone[pid] = process
            if _root_of(pid) in wanted:
                ours.add(pid)
    for root in roots:
        ours.update(pid for pid in _in_cgroup(root) if pid in everyone and pid != os.getpid())
    sessions = {everyone[pid].session for pid in ours} - {0, os.getsid(0)}
    # A session whose leader has ended was begun by one of ours; one whose leader lives is judged by that.
    leaderless = {session for session in sessions if session not in everyone}
    _add_kin(ours, everyone, leaderless)
    return sorted((everyone[pid] for pid in ours), key=lambda process: (process.start, process.pid))


def _add_kin(ours: set[int], everyone: dict[int, Process], leaderless: set[int]) -> None:
    grown = bool(ours)
    while grown:
        fresh = {
            pid
            for pid, process in everyone.items()
            if pid not in ours
            and (process.parent in ours or process.session in ours or process.session in leaderless)
        }
        fresh.discard(os.getpid())
        ours |= fresh
        grown = bool(fresh)


def alive(root: str) -> bool:
    """Looked at twice before we say no: one may be born where a scan has passed while its parent ends."""
    return root in survey() or is_populated(root) or root in survey()


def is_populated(root: str) -> bool:
    """Is anything left in its control group?"""
    return any(look(pid) for pid in _in_cgroup(root))


def agent_of(root: str, agent_root: str) -> Process | None:
    """The process that was told to keep this root: found by its arguments."""
    told = b"\0--root\0" + os.fsencode(agent_root) + b"\0"
    return next((process for process in members(root) if told in _command(process.pid)), None)


def shims(*roots: str) -> list[Process]:
    return [process for process in members(*roots) if SHIM in _command(process.pid)]


def _pids() -> Iterator[int]:
    me = os.getpid()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != me:
            yield int(name)


def _root_of(pid: int) -> str:
    try:
        environment = _environment(f"/proc/{pid}") or _after_exec(pid)
    except (*GONE, PermissionError):  # another user's
        return ""
    _, mark, after = (b"\0" + environment).partition(f"\0{MARK}=".encode())
    return os.fsdecode(after.partition(b"\0")[0]) if mark else ""


def _environment(path: str) -> bytes:
    try:
        return _read(f"{path}/environ")
    except GONE:  # a thread that has ended, though others of its process may not
        return b""


def _after_exec(pid: int) -> bytes:
    """The environment of a process that showed none. In the middle of an `exec` nobody has one, and a process
    that we have just started is there more often than not; the kernel then says that it begins nowhere. Where
    only the first thread has ended, another shows it."""
    until = time.monotonic() + EXEC_S
    while (found := look(pid)) is not None and time.monotonic() < until:
        if found.state in "ZX":
            threads = (f"/proc/{pid}/task/{name}" for name in os.listdir(f"/proc/{pid}/task"))
            return next(filter(None, map(_environment, threads)), b"")
        begins, ends = _read(f"/proc/{pid}/stat").rpartition(b") ")[2].split()[47:49]
        if begins != b"0":
            return _read(f"/proc/{pid}/environ") if ends != begins else b""
        time.sleep(0.0005)
    return b""


def _command(pid: int) -> bytes:
    try:
        return _read(f"/proc/{pid}/cmdline")
    except GONE:
        return b""


def _read(path: str) -> bytes:
    """Without the layers of `open`: this is most of what a scan costs."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = b""
        while part := os.read(descriptor, 65_536):  # lists come in parts, each less than a page
            text += part
        return text
    finally:
        os.close(descriptor)


# signals


def send(process: Process, what: signal.Signals) -> bool:
    """False: it has ended."""
    with _held(process) as descriptor:
        if descriptor is None:
            return False
        try:
            signal.pidfd_send_signal(descriptor, what)
        except ProcessLookupError:
            return False
        return True


@contextlib.contextmanager
def _held(process: Process) -> Iterator[int | None]:
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        yield None
        return
    try:
        yield descriptor if is_alive(process.pid, process.start) else None
    finally:
        os.close(descriptor)


def wait(processes: Iterable[Process], timeout_s: float) -> list[Process]:
    """Until they have ended; those that have not, when the time is over."""
    until = time.monotonic() + timeout_s
    left = []
    for process in processes:
        with _held(process) as descriptor:
            if descriptor is None:
                continue
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                left.append(process)
    return left


def stop(*roots: str) -> list[Process]:
    """Freeze everything, processes born meanwhile too; all that were found."""
    for _ in range(PASSES_MAX):
        found = members(*roots)
        moving = [process for process in found if process.state not in "Tt"]
        for process in moving:
            send(process, signal.SIGSTOP)
        if not moving:
            break
        time.sleep(0.001)
    return found


def resume(*roots: str) -> None:
    for _ in range(PASSES_MAX):
        stopped = [process for process in members(*roots) if process.state == "T"]
        if not stopped:
            return
        for process in stopped:
            send(process, signal.SIGCONT)
        time.sleep(0.001)


def kill(*roots: str, patience_s: float = PATIENCE_S) -> None:
    """Returns when nothing of these nodes is left; Lingering if something does not go.

    One may be born where a scan has passed while its parent ends, so being gone is seen twice.
    """
    until = time.monotonic() + patience_s
    found = stop(*roots)
    empty = 0
    while found or empty < 1:
        if found:
            _end(roots, found, until)
        empty = 0 if found else empty + 1
        time.sleep(0.001)
        found = members(*roots)
    for root in roots:
        drop_cgroup(root)


def _end(roots: tuple[str, ...], found: list[Process], until: float) -> None:
    for root in roots:
        path = cgroup_of(root)
        if path:
            _write(os.path.join(path, "cgroup.kill"), "1")
    for process in found:
        send(process, signal.SIGKILL)
    left = wait(found, until - time.monotonic())
    if left:
        raise Lingering(f"processes {', '.join(str(p.pid) for p in left)} were killed and do not end")
    if time.monotonic() > until:
        raise Lingering("new processes come up as quickly as they are killed")


# starting


def start(root: str, command: list[str], inherited: Mapping[str, str] | None = None) -> int:
    """An agent in a session of its own, so that neither our end nor a Ctrl-C in our terminal reaches it;
    what it says goes to `<root>/agent.log`. `inherited`: its environment, where ours is not that of the node.

    `posix_spawn` and not `subprocess`: that one wants to be asked about its child before it is forgotten, and
    we mean to forget it.
    """
    import shutil  # only here: on a host over ssh each import is paid with each request

    if shutil.which(command[0]) is None:
        raise FileNotFoundError(errno.ENOENT, "no such command", command[0])
    path = os.path.join(root, "agent.log")
    if os.path.exists(path) and os.path.getsize(path) > LOG_BYTES_MAX:
        os.replace(path, path + ".1")
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return _spawn(_inside(make_cgroup(root), command), environment(root, inherited), log)
    finally:
        os.close(log)


def _inside(cgroup: str, command: list[str]) -> list[str]:
    """The command, but it is in the control group before it begins: a moment later it may have children."""
    procs = os.path.join(cgroup, "agent", "cgroup.procs")
    return ["/bin/sh", "-c", 'echo 0 > "$0"; exec "$@"', procs, *command] if cgroup else command


def _spawn(command: list[str], env: dict[str, str], log: int) -> int:
    return os.posix_spawnp(
        command[0],
        command,
        env,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, log, 1),
            (os.POSIX_SPAWN_DUP2, log, 2),
        ],
        setsid=True,
        setsigmask=[],
        setsigdef=[signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP],
    )


def environment(root: str, inherited: Mapping[str, str] | None = None) -> dict[str, str]:
    """What is inherited, else all of ours, without what is said to us alone: tokens and settings of this
    program."""
    found = os.environ if inherited is None else inherited
    kept = {name: value for name, value in found.items() if not name.startswith("HOLDFAST_")}
    return kept | {MARK: root}


def boot_id() -> str:
    """Another one after each boot: start times count from there."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


# control groups


def make_cgroup(root: str) -> str:
    """A group for the node below our own one; "" where we may not make any.

    The agent goes into the leaf `agent` of it, so that controllers can be switched on for its siblings.
    """
    parent, known = _own_cgroup(), cgroup_of(root)
    if not parent and not known:
        return ""
    path = known or os.path.join(parent, "holdfast-" + os.urandom(8).hex())
    try:
        if not known:
            with open(os.path.join(root, "cgroup"), "w") as file:
                file.write(path)
        os.makedirs(os.path.join(path, "agent"), exist_ok=True)
        if not os.access(os.path.join(path, "cgroup.kill"), os.W_OK):
            raise PermissionError(errno.EPERM, "this kernel or user cannot end a control group")
    except OSError:
        drop_cgroup(root)
        return ""
    return path


def cgroup_of(root: str) -> str:
    try:
        with open(os.path.join(root, "cgroup")) as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return ""


def drop_cgroup(root: str) -> None:
    path = cgroup_of(root)
    if path:
        _remove(path)
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(root, "cgroup"))


def _own_cgroup() -> str:
    try:
        with open("/proc/mounts", errors="replace") as table, open("/proc/self/cgroup") as groups:
            mounts, own = table.read().splitlines(), groups.read().splitlines()
    except OSError:
        return ""
    mount = next((line.split()[1] for line in mounts if line.split()[2:3] == ["cgroup2"]), "")
    within = next((line[3:] for line in own if line.startswith("0::")), "")
    return mount + within.rstrip("/") if mount and within else ""


def _in_cgroup(root: str) -> Iterator[int]:
    path = cgroup_of(root)
    for folder, _, _ in os.walk(path) if path else ():
        try:
            yield from map(int, _read(os.path.join(folder, "cgroup.procs")).split())
        except OSError:
            continue


def _remove(path: str) -> None:
    for folder, _, _ in os.walk(path, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def _write(path: str, text: str) -> None:
    with contextlib.suppress(OSError), open(path, "w") as file:
        file.write(text)
