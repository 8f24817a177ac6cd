"""What the shim asks of Linux that Python 3.11 does not offer, through ctypes.

Signals come through a file descriptor (they are blocked from the first instant, so none can be missed or kill
a shim that is still starting), and so does time: a timer on the boot-time clock fires at once after the
machine was suspended past its end, which a time-out of poll does not. Numbers are those of x86 and ARM.
"""

import ctypes
import errno
import os
import time

SIGHUP = 1
SIGINT = 2
SIGKILL = 9
SIGUSR1 = 10
SIGTERM = 15
SIGCHLD = 17
SIGCONT = 18
_SIGNALS_END = 32  # from there on they are the C library's own

_PR_SET_PDEATHSIG = 1
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT, _CLEAR_ALL = 47, 4
_CAPABILITIES = 64  # more than there are
_RLIMIT_NPROC = 6
_CLOCK_BOOTTIME = 7
_CLOEXEC = 0o2000000
_NONBLOCK = 0o4000
_TIMER_ABSTIME = 1
_SIG_SETMASK = 2
_SIGNAL_BYTES = 128  # of a signalfd_siginfo, and of a sigset_t
_CLONE = {"x86_64": 56, "aarch64": 220, "riscv64": 220}  # the number of this system call
_KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219}
_JOIN_SESSION_KEYRING = 1
_PIDFD_SEND_SIGNAL = 424  # everywhere
_CAPABILITIES_VERSION = 0x2008_0522
_NEW_MOUNTS = 0x0002_0000
_NEW_USER = 0x1000_0000
_NEW_PIDS = 0x2000_0000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MS_BIND, _MS_RECURSIVE, _MS_SLAVE = 1 << 12, 1 << 14, 1 << 19

_libc = ctypes.CDLL(None, use_errno=True)


def boot_ms() -> int:
    """Milliseconds since the machine started; goes on while it is suspended."""
    return time.clock_gettime_ns(_CLOCK_BOOTTIME) // 1_000_000


def _checked(result: int) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def adopt_orphans() -> None:
    """Whoever loses its parent below us becomes our child."""
    _checked(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


def die_with_parent() -> None:
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0))


def fork_into_namespaces(user: bool) -> int:
    """A fork whose child is the first process of a PID namespace, with mounts of its own; `user`: also of a
    user namespace, which is how a plain user may do it. The C library has no such fork: this is the system
    call itself, which is safe because there is only one thread."""
    flags = SIGCHLD | _NEW_PIDS | _NEW_MOUNTS | (_NEW_USER if user else 0)
    number = _CLONE.get(os.uname().machine, -1)  # -1: the kernel says that it has no such call
    return _checked(_libc.syscall(ctypes.c_long(number), ctypes.c_ulong(flags), *map(ctypes.c_long, [0] * 4)))


def mount_own_proc() -> None:
    """So that /proc shows the processes of this PID namespace, to its members only. What is mounted elsewhere
    later is still seen here."""
    _hide_mounts()
    flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    _checked(_libc.mount(b"proc", b"/proc", b"proc", flags, None))


def own_mounts() -> None:
    """A mount namespace: what is mounted here is seen by us and what we start."""
    _checked(_libc.unshare(_NEW_MOUNTS))
    _hide_mounts()


def _hide_mounts() -> None:
    _checked(_libc.mount(b"none", b"/", None, ctypes.c_ulong(_MS_RECURSIVE | _MS_SLAVE), None))


def bind(folder: str, at: str) -> None:
    source, target = os.fsencode(folder), os.fsencode(at)
    _checked(_libc.mount(source, target, None, ctypes.c_ulong(_MS_BIND), None))


def gain_no_rights() -> None:
    """Whatever we execute has no more rights than we have: no set-user-id, no capabilities of files."""
    for capability in range(_CAPABILITIES):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:  # there are no more, or we may not
            break
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def have_no_rights() -> None:
    """Changing the user does this too, unless somebody before us told the kernel otherwise (securebits)."""
    _libc.prctl(_PR_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0)  # fails where there are none
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)
    _checked(_libc.capset(header, (ctypes.c_uint32 * 6)()))


def own_keyring() -> None:
    """A session keyring that is new and empty: the one we were started with may hold keys of others."""
    number = _KEYCTL.get(os.uname().machine, -1)
    try:
        _checked(_libc.syscall(ctypes.c_long(number), ctypes.c_long(_JOIN_SESSION_KEYRING), None))
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):  # there are none here, or nobody may use them
            raise


def limit_tasks(most: int) -> None:
    """So many processes and threads may the user have while it starts another. Root may always."""
    both = (ctypes.c_ulong * 2)(most, most)
    _checked(_libc.setrlimit(_RLIMIT_NPROC, both))


def kill_seen(pid: int) -> None:
    """By what /proc calls it, which may be that of another PID namespace. OSError: it has gone, or has taken
    another user's rights."""
    handle = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        number = ctypes.c_long(_PIDFD_SEND_SIGNAL)
        _checked(_libc.syscall(number, ctypes.c_long(handle), ctypes.c_long(SIGKILL), None, ctypes.c_long(0)))
    finally:
        os.close(handle)


def close_others(ours: set[int]) -> None:
    """All that we have open, but for these."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in ours:
            try:
                os.close(int(name))
            except OSError:  # it was the one with which we listed them
                continue


def signal_fd(signals: tuple[int, ...]) -> int:
    """Blocks the signals and returns where they are read instead."""
    mask = _mask(signals)
    _checked(_libc.sigprocmask(_SIG_SETMASK, mask, None))
    return _checked(_libc.signalfd(-1, mask, _CLOEXEC | _NONBLOCK))


def signals_of(handle: int) -> set[int]:
    """The signals that have come since the last call."""
    try:
        data = os.read(handle, 32 * _SIGNAL_BYTES)
    except BlockingIOError:
        return set()
    return {int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), _SIGNAL_BYTES)}


def default_signals() -> None:
    """As a program expects to find them: Python ignores two, a shim blocks some, and whoever started the
    agent in the background may have ignored more."""
    for signal in range(SIGHUP, _SIGNALS_END):
        _libc.signal(signal, None)
    _checked(_libc.sigprocmask(_SIG_SETMASK, _mask(()), None))


def _mask(signals: tuple[int, ...]) -> bytes:
    bits = 0
    for signal in signals:
        bits |= 1 << (signal - 1)
    return bits.to_bytes(_SIGNAL_BYTES, "little")


def timer_fd() -> int:
    return _checked(_libc.timerfd_create(_CLOCK_BOOTTIME, _CLOEXEC | _NONBLOCK))


def set_timer(handle: int, at_ms: int) -> None:
    """Readable from that instant on; 0: never."""
    spec = (ctypes.c_long * 4)(0, 0, at_ms // 1000, at_ms % 1000 * 1_000_000)
    _checked(_libc.timerfd_settime(handle, _TIMER_ABSTIME, spec, None))
