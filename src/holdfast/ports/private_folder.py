"""Folders that nobody else on the machine may look into, whatever the umask.

What a control plane and an agent keep holds keys, tokens and checkpoints. A mode that is given to mkdir is
cut by the umask and never widened by it, but parents that are made on the way get the umask's; so each is
made here, one by one.
"""

import errno
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


def claim(path: str | os.PathLike[str], mode: int = PRIVATE, *, ours: bool = True) -> None:
    """`close_to_others`, of a folder in which nobody else may have a hand: whoever made it, or could write to
    it, could put his own keys and tokens there. `ours`: by its meaning; else only one that is empty is
    closed. OSError: it is not ours alone, and why."""
    make(path, mode)
    check_owner(path)
    was_open = writable_by_others(os.stat(path))
    if was_open:
        _check_entries(path)  # before it is closed: refused once, it is not taken the next time
    if ours or (was_open and not os.listdir(path)):
        close_to_others(path, mode)
    if not was_open:
        return
    if writable_by_others(os.stat(path)):
        raise OSError(errno.EPERM, "others may write to it", path)
    _check_entries(path)


def _check_entries(path: str | os.PathLike[str]) -> None:
    for name in os.listdir(path):
        owner = os.lstat(os.path.join(path, name)).st_uid
        if owner not in (0, os.geteuid()):
            why = f"others could write to it, and {name} in it belongs to another user, {owner}"
            raise OSError(errno.EPERM, why, path)


def check_owner(path: str | os.PathLike[str]) -> None:
    """OSError: somebody else could have made it, or all share it."""
    seen = os.stat(path)
    if seen.st_uid not in (0, os.geteuid()):
        raise OSError(errno.EPERM, f"it belongs to another user, {seen.st_uid}", path)
    if seen.st_mode & stat.S_ISVTX and writable_by_others(seen):
        raise OSError(errno.EPERM, "all may write to it", path)


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
