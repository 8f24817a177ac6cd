"""What is below a folder that a program has filled: looked through and removed, however deep, by no link.

A program may leave a folder in a folder, thousands of times, and may go on moving them while we look.
Python's own ways (`shutil.rmtree`, `os.fwalk`) recurse and end with an error that is none of the system. So
this goes down and up again with one handle at a time: a folder is entered by its name in the one that is open
and never through a link, and left by `..`, which must be the folder that we came from. Whatever is moved
meanwhile ends the walk there, and what is on another disk is not entered.
"""

import contextlib
import os
import stat
from collections.abc import Callable, Iterator

_ENTER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Found = tuple[int, str, os.stat_result]  # the handle of its folder, its name there, and what it is


def entered(name: str, at: int | None = None) -> int:
    """A handle of a folder, which its name is itself and no link to it. OSError: it is not."""
    return os.open(name, _ENTER, dir_fd=at)


def walk(top: int, emptied: Callable[[int, str], None] = lambda folder, name: None) -> Iterator[Found]:
    """All below the folder of this handle, a folder before what is in it. `emptied`: called with each folder
    below it, by the handle of the one above and its name, after all in it was given out."""
    handle = entered(".", top)
    device = os.fstat(handle).st_dev
    try:
        inner: list[str] = []
        yield from _in(handle, inner)
        trail = [(_identity(handle), "", inner)]
        while True:
            _, name, ahead = trail[-1]
            if ahead:
                step = _down(handle, ahead.pop(), device)
                if step is None:
                    continue
                os.close(handle)
                handle, name = step
                inner = []
                trail.append((_identity(handle), name, inner))
                yield from _in(handle, inner)
                continue
            trail.pop()
            if not trail:
                return
            above = entered("..", handle)
            os.close(handle)
            handle = above
            if _identity(handle) != trail[-1][0]:  # it was moved while we were in it
                return
            emptied(handle, name)
    finally:
        os.close(handle)


def _in(handle: int, inner: list[str]) -> Iterator[Found]:
    """What is directly in this one; folders of it are noted besides."""
    with os.scandir(handle) as found:
        for entry in found:
            try:
                seen = entry.stat(follow_symlinks=False)
            except OSError:  # it went away
                continue
            if stat.S_ISDIR(seen.st_mode):
                inner.append(entry.name)
            yield handle, entry.name, seen


def _down(handle: int, name: str, device: int) -> tuple[int, str] | None:
    """None: it has gone, became something else, is closed to us, or is another disk."""
    try:
        inner = entered(name, handle)
    except OSError:
        return None
    if os.fstat(inner).st_dev == device:
        return inner, name
    os.close(inner)
    return None


def _identity(handle: int) -> tuple[int, int]:
    seen = os.fstat(handle)
    return seen.st_dev, seen.st_ino


def remove(path: str) -> None:
    """As far as it can be: what is left is left for the next time."""
    with contextlib.suppress(OSError):
        _empty(path)
    with contextlib.suppress(OSError):
        os.rmdir(path)


def _empty(path: str) -> None:
    try:
        top = entered(path)
    except NotADirectoryError:
        os.unlink(path)
        return
    try:
        for folder, name, seen in walk(top, _remove_folder):
            if not stat.S_ISDIR(seen.st_mode):
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=folder)
    finally:
        os.close(top)


def _remove_folder(above: int, name: str) -> None:
    with contextlib.suppress(OSError):  # not empty: what was in it could not be removed, or came meanwhile
        os.rmdir(name, dir_fd=above)
