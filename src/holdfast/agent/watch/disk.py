"""A disk that fills up: which replica fills it, and its end before nobody can write any more.

A disk has no owner whom the kernel would hold to an amount, unless its file system counts (project quotas),
which few machines have set up. So it is watched: the disk of the node's folder, and that of the checkpoints
if it is another. While there is room that costs two system calls, and once a minute a look at what the kernel
says that each replica has written. When nearly nothing is left, of bytes or of files, it is measured what
each has written in the last minute and still holds there, by the time at which the kernel says that a file
changed (which a program cannot set), also in files that it has deleted and still has open; the one with most
is ended, with the reason, if that is enough to matter.

A program can make that measuring as long as it likes, with folders and files without end, or write where
nobody looks. Of one that could not be measured in its part of the time, and of all if nobody is found, counts
what the kernel says that they have written since the last minute, if the disk has lost as much.

Refused: a limit on the size of files (RLIMIT_FSIZE), which many small ones pass by. Refused: to end whoever
holds most: it may have held that for days, while another fills the disk. What none of them fills, a database
or a log of the machine, ends nobody. Logs of replicas are bounded already. Nothing is deleted here: folders
go when the end of their replica is journalled, checkpoints stay.
"""

import os
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from holdfast.agent import below, procfs
from holdfast.agent.watch import holdings

LOOK_S = 2.0
SHARE = 20  # of the time, at most one part in so many goes into measuring
NOTHING, NOTHING_BYTES, NOTHING_FILES = 0.01, 256 << 20, 10_000  # is left: whichever is less
LATELY_S = 60.0
MEASURE_S = 10.0  # for all replicas together
LEAST_S = 0.1  # for one of them


class Writing(NamedTuple):
    """Where a replica writes, apart from its log, and the process below which are all of its."""

    folders: tuple[str, ...]
    root: int


class Held(NamedTuple):
    bytes: int = 0
    files: int = 0
    all: bool = True  # it was looked through to its end

    def and_(self, other: "Held") -> "Held":
        return Held(self.bytes + other.bytes, self.files + other.files, self.all and other.all)


class Sample(NamedTuple):
    at: float
    free: int
    written: dict[str, int]  # ever, by replica


class Filling:
    """What fills the disk of this folder. `unless`: it is the disk of that folder as well."""

    def __init__(self, folder: str, unless: str = "") -> None:
        self._folder, self._unless = folder, unless
        self._not_before = 0.0
        self._samples: list[Sample] = []  # at most two: growth is told since the first

    def look(self, writing: Mapping[str, Writing]) -> dict[str, str]:
        """Who is to be ended, and why. By replica. To be called in a thread, for disks may be slow. OSError:
        the folder is not there."""
        device = os.stat(self._folder).st_dev
        if self._unless and os.stat(self._unless).st_dev == device:
            return {}
        (free, size), (free_files, files) = room(self._folder), room_for_files(self._folder)
        enough = min(int(NOTHING * size), NOTHING_BYTES)
        enough_files = min(int(NOTHING * files), NOTHING_FILES)
        began = time.monotonic()
        full, crowded = free <= enough, files > 0 and free_files <= enough_files
        if not (full or crowded) or began < self._not_before:
            self._sample(writing, free, began)
            return {}
        held = measured(writing, device)
        found: dict[str, str] = {}
        if full:
            found = fullest({name: each.bytes for name, each in held.items()}, enough, free)
            cut = {name for name, each in held.items() if not each.all}
            found = (
                found or self._grown(writing, cut, enough, free) or self._grown(writing, None, enough, free)
            )
        if crowded and not found:
            found = busiest({name: each.files for name, each in held.items()}, enough_files, free_files)
        self._not_before = time.monotonic() + SHARE * (time.monotonic() - began)
        return found

    def _sample(self, writing: Mapping[str, Writing], free: int, now: float) -> None:
        if not self._samples or now - self._samples[-1].at >= LATELY_S:
            self._samples = [*self._samples[-1:], Sample(now, free, written(writing))]

    def _grown(
        self, writing: Mapping[str, Writing], among: set[str] | None, enough: int, free: int
    ) -> dict[str, str]:
        """By what the kernel counts, since the disk had so much more room. `among`: none: all."""
        before = self._samples[0] if self._samples else None
        if before is None or before.free - free < enough or among == set():
            return {}
        grown = {
            name: now - before.written.get(name, 0)
            for name, now in written(writing).items()
            if among is None or name in among
        }
        return fullest(grown, enough, free)


def fullest(written: Mapping[str, int], enough: int, free: int) -> dict[str, str]:
    """The one that wrote most, if that matters."""
    name = _most(written, enough)
    if not name:
        return {}
    wrote = f"{written[name] >> 20} MiB in the last minute"
    return {name: f"filled the disk: wrote {wrote}, and {free >> 20} MiB were left (ended by the watchdog)"}


def busiest(made: Mapping[str, int], enough: int, free: int) -> dict[str, str]:
    """The one with most files that are new, or have changed, if that matters."""
    name = _most(made, enough)
    if not name:
        return {}
    wrote = f"{made[name]} files in the last minute"
    return {name: f"filled the disk: wrote {wrote}, and {free} more had room (ended by the watchdog)"}


def _most(amounts: Mapping[str, int], enough: int) -> str:
    name = max(amounts, key=lambda each: (amounts[each], each), default="")
    return name if name and amounts[name] >= max(1, enough) else ""


def room(folder: str) -> tuple[int, int]:
    """What is left for those who are not root, and all there is."""
    seen = os.statvfs(folder)
    return seen.f_bavail * seen.f_frsize, seen.f_blocks * seen.f_frsize


def room_for_files(folder: str) -> tuple[int, int]:
    """The same, in files; 0 of 0: this disk does not count them."""
    seen = os.statvfs(folder)
    return seen.f_favail, seen.f_files


def measured(writing: Mapping[str, Writing], device: int) -> dict[str, Held]:
    """What each has written lately and holds on this disk."""
    since = time.time() - LATELY_S
    each_s = max(LEAST_S, MEASURE_S / (1 + len(writing)))
    seen = procfs.scan()
    children = procfs.families(seen)
    found = {}
    for name, its in writing.items():
        until = time.monotonic() + each_s
        held = _deleted(procfs.descendants(its.root, seen, children), since, device, until)
        for folder in its.folders:
            with suppress(OSError):  # it went away, or there is none
                held = held.and_(held_below(folder, since, device, until))
        found[name] = held
    return found


def held_below(folder: str, since: float, device: int, until: float) -> Held:
    """On this disk, of files that were changed since then. What goes away meanwhile is passed over."""
    top = below.entered(folder)
    size = files = 0
    try:
        if os.fstat(top).st_dev != device:
            return Held()
        for _, _, seen in below.walk(top):
            if seen.st_ctime >= since:
                files += 1
                size += seen.st_blocks * holdings.BLOCK if stat.S_ISREG(seen.st_mode) else 0
            if time.monotonic() > until:
                return Held(size, files, all=False)
    finally:
        os.close(top)
    return Held(size, files)


def _deleted(pids: list[int], since: float, device: int, until: float) -> Held:
    """Files that have no name any more, and are there as long as somebody has them open."""
    sizes: dict[int, int] = {}
    for pid in pids:
        for seen in holdings.nameless(pid):
            if seen.st_dev == device and seen.st_ctime >= since:
                sizes[seen.st_ino] = seen.st_blocks * holdings.BLOCK
        if time.monotonic() > until:
            return Held(sum(sizes.values()), len(sizes), all=False)
    return Held(sum(sizes.values()), len(sizes))


def written(writing: Mapping[str, Writing]) -> dict[str, int]:
    """Bytes that each has ever written to disks, as the kernel counts them."""
    seen = procfs.scan()
    children = procfs.families(seen)
    found = {}
    for name, its in writing.items():
        pids = procfs.descendants(its.root, seen, children)
        found[name] = sum(map(holdings.written_bytes, [its.root, *pids]))
    return found
