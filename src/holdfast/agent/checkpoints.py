"""The folders of checkpoints: made, told apart and given away, by handles and by no link.

    CHECKPOINTS/WORKLOAD/           of the agent, and others go through
        .workload                   the number of the workload, by which it is known again
        SEAT/                       of the user of the workload

They may be on a disk that many nodes share, and they stay for long. Whoever could put something in the place
of one of these names would have root write, open and give away what he likes. So where workloads have users
of their own nobody else may write on the way to CHECKPOINTS (`users.found` looks), and below it each folder
is entered from the one above it and must not be a link. That the folder of a workload is the agent's is
looked at again each time: it may be from before anybody looked.

A user id is a workload's own as long as something here belongs to it (`taken`): a number may fall on the same
id as another's, and that one's checkpoints are there also while it does not run.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain, count

from holdfast.agent import below, records, users
from holdfast.ports import private_folder

OWNER = ".workload"


def prepare(folder: str, number: int, user: int) -> None:
    """`folder`: of the seat. `number`: of the workload; 0: it is not known. `user`: of its own; 0: it is the
    agent's. OSError: it cannot be."""
    of_workload, seat = os.path.split(folder)
    root, workload = os.path.split(of_workload)
    private_folder.make(root)
    with _handle(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as all_of_them:
        before = _number(workload, all_of_them)
        if before and number and before != number:
            _put_aside(workload, before, all_of_them)
            before = 0
        with _handle(_made(workload, all_of_them)) as kept:
            if user:
                _close(kept, user, of_workload)
            if number and before != number:
                records.write(f"/proc/self/fd/{kept}/{OWNER}", f"{number}\n".encode())
            with _handle(_made(seat, kept)) as place:
                if user and os.fstat(place).st_uid != user:
                    users.give_all(place, user)


def taken(root: str, workload: str, number: int) -> set[int]:
    """Users to whom checkpoints of other workloads belong. `workload`: as the name of a folder."""
    found: set[int] = set()
    try:
        names = os.listdir(root)
    except OSError:  # there are none yet
        return found
    for name in names:
        its = records.read_number(f"{root}/{name}/{OWNER}")
        if (its != number) if its and number else (name != workload):
            found |= _owners(f"{root}/{name}")
    return found


def _owners(folder: str) -> set[int]:
    found = set()
    with suppress(OSError), os.scandir(folder) as seats:
        for seat in seats:
            if seat.is_dir(follow_symlinks=False):
                found.add(seat.stat(follow_symlinks=False).st_uid)
    return found


def _number(workload: str, all_of_them: int) -> int:
    """Of the workload that had this name last; 0: unknown, or there was none."""
    try:
        handle = below.entered(workload, all_of_them)
    except OSError:
        return 0
    with _handle(handle):
        return records.read_number(f"/proc/self/fd/{handle}/{OWNER}")


def _put_aside(workload: str, before: int, all_of_them: int) -> None:
    """Of a workload that had this name before, in another project: its number tells, whether it has a user of
    its own here or not."""
    aside = f"{workload}.of-{before}"
    there = os.listdir(all_of_them)
    names = chain([aside], (f"{aside}.{more}" for more in count(2)))
    name = next(name for name in names if name not in there)
    os.rename(workload, name, src_dir_fd=all_of_them, dst_dir_fd=all_of_them)


def _made(name: str, at: int) -> int:
    with suppress(FileExistsError):
        os.mkdir(name, private_folder.PRIVATE, dir_fd=at)
    try:
        return below.entered(name, at)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise OSError(
                error.errno, "not a folder: checkpoints are reached through no link", name
            ) from None
        raise


def _close(kept: int, user: int, path: str) -> None:
    """The folder of a workload is the agent's; others go through it."""
    seen = os.fstat(kept)
    if seen.st_uid not in (0, os.geteuid(), user):
        raise OSError(errno.EPERM, f"checkpoints belong to another user, {seen.st_uid}", path)
    if seen.st_uid == user:
        os.fchown(kept, os.geteuid(), os.getegid())
    mode = (stat.S_IMODE(seen.st_mode) | private_folder.PASSAGE) & ~(stat.S_IWGRP | stat.S_IWOTH)
    if mode != stat.S_IMODE(seen.st_mode):
        os.fchmod(kept, mode)


@contextmanager
def _handle(handle: int) -> Iterator[int]:
    try:
        yield handle
    finally:
        os.close(handle)
