"""What /proc says about processes: who descends from whom, what they use, and whose they are.

One pass over /proc answers for all replicas of a node. A process that belongs to a replica and has lost its
shim is known by a mark in its environment, which it inherits however often it forks and whatever session it
starts.
"""

import os

from holdfast.agent import kernel

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


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
    line = _read(f"/proc/{pid}/stat")
    return Seen(line) if line else None


def scan() -> dict[int, Seen]:
    """Every process there is; it costs about 20 us for each."""
    found = {}
    for pid in _pids():
        line = _read(f"/proc/{pid}/stat")
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
    return [pid for pid in _pids() if wanted in b"\0" + _read(f"/proc/{pid}/environ")]


def unshared_bound(pid: int) -> int:
    """At least as many bytes as `held_bytes`, for next to nothing."""
    return _kib(f"/proc/{pid}/status", b"RssAnon:", b"RssShmem:")


def held_bytes(pid: int) -> int:
    """What it makes the machine hold in memory: no pages of files, and its part of what others share. Dear:
    the kernel walks all its pages."""
    path = f"/proc/{pid}/smaps_rollup"
    return _kib(path, b"Pss_Anon:", b"Pss_Shmem:")


def _kib(path: str, *names: bytes) -> int:
    found = (line.split() for line in _read(path).split(b"\n"))
    return sum(int(words[1]) << 10 for words in found if len(words) > 1 and words[0] in names)


def kill(pids: list[int], signal: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal)
        except OSError:  # it has ended, or has taken another user's rights
            continue


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _read(path: str) -> bytes:
    """Nothing if it ended meanwhile, or is not ours to read."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        parts = []
        while part := os.read(handle, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    except OSError:
        return b""
    finally:
        os.close(handle)
