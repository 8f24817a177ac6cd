"""A disk that fills up: which replica fills it, and its end before nobody can write any more.

A disk has no owner whom the kernel would hold to an amount, unless its file system counts (project quotas),
which few machines have set up. So it is watched. While there is room that costs one system call. When nearly
nothing is left, it is measured what each replica has written in the last minute and still holds there, by the
time at which the kernel says that a file changed (which a program cannot set); the one with most is ended,
with the reason, if that is enough to matter.

Refused: a limit on the size of files (RLIMIT_FSIZE), which many small ones pass by. Refused: to end whoever
holds most: it may have held that for days, while another fills the disk. What none of them fills, a database
or a log of the machine, ends nobody. Logs of replicas are bounded already. Nothing is deleted here: folders
go when the end of their replica is journalled, checkpoints stay.
"""

import asyncio
import os
import stat
import time
from collections.abc import Iterable, Mapping

LOOK_S = 2.0
SHARE = 20  # of the time, at most one part in so many goes into measuring
NOTHING, NOTHING_BYTES = 0.01, 256 << 20  # is left: whichever is less
LATELY_S = 60.0
BLOCK = 512


class Filling:
    """What fills the disk of this folder."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._not_before = 0.0

    async def look(self, folders: Mapping[str, Iterable[str]]) -> dict[str, str]:
        """Who is to be ended, and why. By replica: where it writes."""
        free, size = room(self._root)
        enough = min(int(NOTHING * size), NOTHING_BYTES)
        began = time.monotonic()
        if free > enough or began < self._not_before:
            return {}
        device = os.stat(self._root).st_dev
        since = time.time() - LATELY_S
        written = await asyncio.to_thread(
            lambda: {name: sum(held(each, since, device) for each in of) for name, of in folders.items()}
        )
        self._not_before = time.monotonic() + SHARE * (time.monotonic() - began)
        return fullest(written, enough, free)


def fullest(written: Mapping[str, int], enough: int, free: int) -> dict[str, str]:
    """The one that wrote most, if that matters."""
    name = max(written, key=lambda each: (written[each], each), default="")
    if not name or written[name] < enough:
        return {}
    wrote = f"{written[name] >> 20} MiB in the last minute"
    return {name: f"filled the disk: wrote {wrote}, and {free >> 20} MiB were left (ended by the watchdog)"}


def room(folder: str) -> tuple[int, int]:
    """What is left for those who are not root, and all there is."""
    seen = os.statvfs(folder)
    return seen.f_bavail * seen.f_frsize, seen.f_blocks * seen.f_frsize


def held(folder: str, since: float, device: int) -> int:
    """Bytes on this disk of files that were changed since then. What goes away meanwhile is passed over."""
    total = 0
    try:
        for _, folders, files, handle in os.fwalk(folder, follow_symlinks=False):
            if os.fstat(handle).st_dev != device:
                folders.clear()
                continue
            total += sum(_changed(name, handle, since) for name in files)
    except OSError:  # a folder went away while it was entered
        return total
    return total


def _changed(name: str, handle: int, since: float) -> int:
    try:
        seen = os.stat(name, dir_fd=handle, follow_symlinks=False)
    except OSError:
        return 0
    return seen.st_blocks * BLOCK if stat.S_ISREG(seen.st_mode) and seen.st_ctime >= since else 0
