"""Folders that nobody else on the machine may look into, whatever the umask.

What a control plane and an agent keep holds keys, tokens and checkpoints. A mode that is given to mkdir is
cut by the umask and never widened by it, but parents that are made on the way get the umask's; so each is
made here, one by one.
"""

import os
import stat

PRIVATE = 0o700
PASSAGE = 0o711  # others may go through and see nothing
LINKS_MAX = 40  # as in the kernel


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


def exposed(path: str | os.PathLike[str]) -> str:
    """Why somebody else could write there, or put another folder in its place; empty: nobody could. On the
    way a folder that all may write to (`/tmp`) does if it is sticky and the next one is ours. What is missing
    at the end would be made by us."""
    here, links = "/", 0
    ahead = os.path.abspath(path).split("/")[::-1]
    while ahead:
        name = ahead.pop()
        if name in ("", "."):
            continue
        here = os.path.dirname(here) if name == ".." else os.path.join(here, name)
        try:
            seen = os.lstat(here)
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f"{here}: {error.strerror}"
        if seen.st_uid not in (0, os.geteuid()):
            return f"{here} belongs to another user, {seen.st_uid}"
        if stat.S_ISLNK(seen.st_mode):
            links += 1
            if links > LINKS_MAX:
                return f"{here}: too many links"
            target = os.readlink(here)
            here = "/" if target.startswith("/") else os.path.dirname(here)
            ahead += target.split("/")[::-1]
        elif writable_by_others(seen) and not (ahead and seen.st_mode & stat.S_ISVTX):
            return f"{here} may be written to by others"
    return ""


def writable_by_others(seen: os.stat_result) -> bool:
    """A group with the number of the owner is the owner's own, as distributions make them."""
    group = seen.st_mode & stat.S_IWGRP and seen.st_gid != seen.st_uid
    return bool(group or seen.st_mode & stat.S_IWOTH)
