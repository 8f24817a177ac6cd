"""Keeps an agent's log short while the agent runs: what was written so far is put aside, once.

Providers send what an agent says to `agent.log` in its folder and look at its size when they start it. An
agent runs for months. It does not know who opened the file, and others write to it too (its launcher, a
shell around it), so it is not renamed under them: its content is copied to `agent.log.1`, then it is cut to
nothing, and everybody who appends goes on at its beginning.

Only a file of that name that was opened for appending is cut. What somebody else made of our output, such as
`holdfast agent 2> my.log`, is theirs.
"""

import contextlib
import fcntl
import os
import shutil
import stat

NAME = "agent.log"
LOG_BYTES_MAX = 1 << 20  # as providers allow when they start an agent
STDERR = 2


def keep_short(handle: int = STDERR, most: int = LOG_BYTES_MAX) -> bool:
    """True: it was too long, and is not any more."""
    try:
        found = os.fstat(handle)
        if found.st_size <= most or not stat.S_ISREG(found.st_mode):
            return False
        path = os.readlink(f"/proc/self/fd/{handle}")
        if os.path.basename(path) != NAME or not fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_APPEND:
            return False
        with contextlib.suppress(OSError):  # on a full disk it is cut all the same
            _copy(path, found)
        os.ftruncate(handle, 0)
    except OSError:
        return False
    return True


def _copy(path: str, found: os.stat_result) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(path, "rb") as written:
        if not os.path.samestat(os.fstat(written.fileno()), found):
            return
        with open(os.open(path + ".1", flags, 0o600), "wb") as kept:
            shutil.copyfileobj(written, kept)
