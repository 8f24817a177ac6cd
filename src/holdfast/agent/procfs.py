"""What /proc says about processes: who descends from whom, what they use, and whose they are.

One pass over /proc answers for all replicas of a node. A process that belongs to a replica and has lost its
shim is known by a mark in its environment, which it inherits however often it forks and whatever session it
starts.
"""

import os
from _collections_abc import Iterator  # as in the shim, of which this is a part

from holdfast.agent import kernel

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
FILE_BYTES = ENVIRON_BYTES = CHUNK = 1 << 16  # of one file, unless more is asked for: programs make them long


class Seen:
    """One line of /proc/PID/stat."""

    __slots__ = ("dead", "pages", "parent", "session", "start", "ticks")

    def __init__(self, line: bytes) -> None:
        # The name is in parentheses and may hold anything, also spaces and parentheses.
        fields = line[line.rindex(b")") + 2 :].split()
        self.dead = fields[0] in (b"Z", b"X")
        self.parent = int(fields[1])
        self.session = int(fields[3])
        self.ticks = sum(int(field) for field in fields[11:15])  # its own, and of children that ended
        self.start = int(fields[19])  # in ticks since boot: with it, a process id is unmistakable
        self.pages = int(fields[21])


def look(pid: int) -> Seen | None:
    """None: there is no such process."""
    line = read(f"/proc/{pid}/stat")
    return Seen(line) if line else None


def scan() -> dict[int, Seen]:
    """Every process there is; it costs about 20 us for each."""
    found = {}
    for pid in _pids():
        line = read(f"/proc/{pid}/stat")
        if line:
            found[pid] = Seen(line)
    return found


def families(seen: dict[int, Seen]) -> dict[int, list[int]]:
    """The children of each process that has some."""
    children: dict[int, list[int]] = {}
    for pid, process in seen.items():
        children.setdefault(process.parent, []).append(pid)
    return children


def descendants(of: int, seen: dict[int, Seen], children: dict[int, list[int]]) -> list[int]:
    """All that come from it and have not ended, not itself."""
    found = []
    ahead = list(children.get(of, ()))
    while ahead:
        pid = ahead.pop()
        if not seen[pid].dead:
            found.append(pid)
        ahead += children.get(pid, ())
    return found


def programs(of: int, seen: dict[int, Seen], children: dict[int, list[int]]) -> list[int]:
    """Of those below a shim or what it contains: without forks of itself, which alone are of its session."""
    own = seen[of].session if of in seen else 0
    return [pid for pid in descendants(of, seen, children) if seen[pid].session != own]


def kill_below() -> None:
    """All that descends from us, whatever it did to hide."""
    seen = scan()
    for pid in descendants(int(os.readlink("/proc/self")), seen, families(seen)):
        try:
            kernel.kill_seen(pid)
        except OSError:  # it has ended, or has taken another user's rights
            continue


def marked(mark: str) -> list[int]:
    """Processes with an environment in which an entry begins like this: `HOLDFAST_SHIM=...`."""
    wanted = b"\0" + mark.encode()
    return [pid for pid in _pids() if _says(pid, wanted)]


def _says(pid: int, wanted: bytes) -> bool:
    """A program may have made its environment as large as it likes: only the first part is read."""
    tail = b"\0"
    for part in parts_of(f"/proc/{pid}/environ", ENVIRON_BYTES):
        if wanted in tail + part:
            return True
        tail = (tail + part)[-len(wanted) :]
    return False


def kill(pids: list[int], signal: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal)
        except OSError:  # it has ended, or has taken another user's rights
            continue


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def read(path: str, most: int = FILE_BYTES) -> bytes:
    """Nothing if it ended meanwhile, or is not ours to read."""
    return b"".join(parts_of(path, most))


def parts_of(path: str, most: int) -> Iterator[bytes]:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        while most > 0 and (part := os.read(handle, min(most, CHUNK))):
            most -= len(part)
            yield part
    except OSError:
        return
    finally:
        os.close(handle)
