"""What processes make the machine hold: memory, and files that no folder has any more.

Memory that a program has made as a file (`memfd_create`, or deleted from /dev/shm) counts for no process
while it is not mapped, and stays as long as anybody has it open. The same goes for what was deleted from a
disk. So what is open is looked at besides what is mapped.
"""

import errno
import functools
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from holdfast.agent import procfs

SMAPS_BYTES = 32 << 20  # some 50,000 mappings
SHARED = "/dev/shm"
BLOCK = 512


class Parts(NamedTuple):
    """Bytes of memory: their own of processes, and what is made to be shared."""

    anonymous: int
    shared: int


def unshared_bound(pid: int) -> int:
    """At least as many bytes as `held_bytes`, for next to nothing."""
    return sum(bound_parts(pid))


def bound_parts(pid: int) -> Parts:
    """What it has mapped, as if it shared it with nobody."""
    return Parts(*_kib(f"/proc/{pid}/status", b"RssAnon:", b"RssShmem:"))


def held_bytes(pid: int) -> int:
    """What it makes the machine hold in memory: no pages of files, and its part of what others share. Dear:
    the kernel walks all its pages."""
    return sum(held_parts(pid))


def held_parts(pid: int) -> Parts:
    return Parts(*_kib(f"/proc/{pid}/smaps_rollup", b"Pss_Anon:", b"Pss_Shmem:"))


def mapped_bytes(pid: int, inodes: set[int]) -> int:
    """Its part of what it has mapped of these files. Dearer still."""
    total, counts = 0, False
    for line in procfs.read(f"/proc/{pid}/smaps", SMAPS_BYTES).split(b"\n"):
        words = line.split(maxsplit=5)
        if not words:
            continue
        if b"-" in words[0] and not words[0].endswith(b":"):  # the head of a mapping
            counts = len(words) > 4 and words[4].isdigit() and int(words[4]) in inodes
        elif counts and words[0] == b"Pss:":
            total += int(words[1]) << 10
    return total


def of_machine() -> Parts:
    """All that the machine holds, mapped or not: nobody holds more."""
    return Parts(*_kib("/proc/meminfo", b"AnonPages:", b"Shmem:"))


def written_bytes(pid: int) -> int:
    """To disks, by it and by its children that have ended."""
    for line in procfs.read(f"/proc/{pid}/io").split(b"\n"):
        name, _, number = line.partition(b": ")
        if name == b"write_bytes":
            return int(number)
    return 0


def nameless(pid: int) -> Iterator[os.stat_result]:
    """Files that it holds open and that no folder has any more: memory that it made as a file, and what was
    deleted. A link says so before the file is asked, which may be on a disk that does not answer."""
    try:
        with os.scandir(f"/proc/{pid}/fd") as handles:
            for handle in handles:
                try:
                    named = not os.readlink(handle.path).endswith(" (deleted)")
                except OSError as error:
                    named = error.errno != errno.ENAMETOOLONG
                if named:
                    continue
                with suppress(OSError):
                    seen = os.stat(handle.path)
                    if seen.st_nlink == 0 and stat.S_ISREG(seen.st_mode):
                        yield seen
    except OSError:  # it has ended
        return


def _kib(path: str, *names: bytes) -> list[int]:
    """In bytes, in this order; 0: it is not there."""
    found = (line.split() for line in procfs.read(path).split(b"\n"))
    lines = {words[0]: int(words[1]) << 10 for words in found if len(words) > 1 and words[0] in names}
    return [lines.get(name, 0) for name in names]


@functools.cache
def memory_devices() -> frozenset[int]:
    """Where files are memory: what has never had a name, and what has one in /dev/shm."""
    found = set()
    with suppress(OSError):
        handle = os.memfd_create("holdfast")
        found.add(os.fstat(handle).st_dev)
        os.close(handle)
    with suppress(OSError):
        found.add(os.stat(SHARED).st_dev)
    return frozenset(found)
