"""Folders that nobody else on the machine may look into, whatever the umask.

What a control plane and an agent keep holds keys, tokens and checkpoints. A mode that is given to mkdir is
cut by the umask and never widened by it, but parents that are made on the way get the umask's; so each is
made here, one by one.
"""

import os
import stat

PRIVATE = 0o700
PASSAGE = 0o711  # others may go through and see nothing


def make(path: str | os.PathLike[str], mode: int = PRIVATE) -> None:
    """The folder and those above it that are missing. What is there stays as it is."""
    path = os.path.abspath(path)
    if os.path.isdir(path):
        return
    make(os.path.dirname(path), PRIVATE)
    try:
        os.mkdir(path, PRIVATE)
    except FileExistsError:
        if os.path.isdir(path):  # another process was quicker
            return
        raise
    if mode != PRIVATE:
        os.chmod(path, mode)


def close_to_others(path: str | os.PathLike[str], mode: int = PRIVATE) -> None:
    """`make`, and a folder that was made by an older version, or by hand, gets this mode if it is ours. Only
    for folders that are ours by their meaning: not for a home, nor for one that all share."""
    make(path, mode)
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = os.fstat(handle)
        shared = found.st_uid != os.geteuid() or found.st_mode & stat.S_ISVTX
        if not shared and stat.S_IMODE(found.st_mode) & ~mode:
            os.fchmod(handle, mode)
    finally:
        os.close(handle)
