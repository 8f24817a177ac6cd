"""Starting a shim: a process that belongs to itself from its first instruction.

posix_spawn, because it does not copy the agent's memory and leaves no object behind that wants to be waited
for. The shim starts in a session of its own with its signals blocked, so that one sent to it while Python is
still loading waits until there is somebody to take it.
"""

import fcntl
import os
import signal
import sys

import holdfast

# Imported and not run as a script, so that its compiled form is used. Its name is in its command line all the
# same, for whoever looks at the processes of this machine.
_SHIM = os.path.join(os.path.dirname(os.path.abspath(holdfast.__file__)), "agent", "shim.py")
_CODE = (
    "import sys; sys.path.append(sys.argv[1].removesuffix('/holdfast/agent/shim.py')); "
    "from holdfast.agent.shim import main; main(sys.argv[2], *map(int, sys.argv[3:]))"
)
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD, signal.SIGHUP, signal.SIGINT)


def spawn_shim(folder: str, listener: int, env: dict[str, str]) -> tuple[int, int]:
    """Its process id, and the pipe on which it says that the program runs."""
    report, tell = os.pipe()
    try:
        pid = _spawn_locked(folder, tell, listener, env)
    except (OSError, ValueError):
        os.close(report)
        raise
    finally:
        os.close(tell)
    os.set_blocking(report, False)
    return pid, report


def _spawn_locked(folder: str, tell: int, listener: int, env: dict[str, str]) -> int:
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return _spawn(folder, [lock, tell, listener], env)
    finally:
        os.close(lock)  # the lock stays: it belongs to the shim's copy as well


def _spawn(folder: str, handles: list[int], env: dict[str, str]) -> int:
    actions: list[tuple[int, int, int] | tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, f"{folder}/shim.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
    ]
    # Onto itself: that takes away the close-on-exec.
    actions += [(os.POSIX_SPAWN_DUP2, handle, handle) for handle in handles if handle >= 0]
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", "-X", "utf8", "-c", _CODE, _SHIM, folder, *map(str, handles)],
        env,
        file_actions=actions,
        setsid=True,
        setsigmask=_SIGNALS,
        setsigdef=_SIGNALS,
    )
