"""Control groups (version 2): limits for a replica, and an end that none of its processes can run away from.

All of it is a help that may be missing. Where there is no group we may write to, the shim still ends
everything that descends from the program; where the cpu and memory controllers are not ours (they are not
where version 1 has them), `cgroup.kill` still works and limits do not: there `watchdog.py` keeps memory. A
controller can only be handed down by a group that has no processes of its own, so an agent that was given a
subtree first steps aside into a leaf of it.
"""

import os

PERIOD_US = 100_000
QUOTA_US_MIN = 1_000  # the kernel refuses less
TASKS_MAX = 8_192  # processes and threads of one replica
CONTROLLERS = ("cpu", "memory", "pids")
_LEAF = "agent"


def find() -> str:
    """A group below which we may make others: our own, or the top if that is ours to write; empty: none."""
    mount = _mount()
    if not mount:
        return ""
    own = mount + _own_path().rstrip("/")
    if own.endswith(f"/{_LEAF}"):
        own = own[: -len(_LEAF) - 1]  # an agent before us stepped aside, and started us
    return own if _may_write(own) else ""


def _mount() -> str:
    for line in _read("/proc/mounts").splitlines():
        fields = line.split()
        if len(fields) > 2 and fields[2] == "cgroup2":
            return fields[1]
    return ""


def _own_path() -> str:
    for line in _read("/proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            return line[3:]
    return "/"


def _may_write(group: str) -> bool:
    return os.access(group, os.W_OK) and os.access(f"{group}/cgroup.procs", os.W_OK)


def prepare(root: str, group: str) -> bool:
    """Make `root/group` and let what is below it have limits; false: no groups here, do without."""
    _hand_down(root)
    try:
        os.makedirs(f"{root}/{group}", exist_ok=True)
    except OSError:
        return False
    _hand_down(f"{root}/{group}")
    return os.path.exists(f"{root}/{group}/cgroup.kill")


def limits(group: str) -> bool:
    """Are processors and memory of what is below it limited by the kernel?"""
    return {"cpu", "memory"} <= set(_read(f"{group}/cgroup.subtree_control").split())


def _hand_down(group: str) -> None:
    offered = set(_read(f"{group}/cgroup.controllers").split())
    missing = (set(CONTROLLERS) & offered) - set(_read(f"{group}/cgroup.subtree_control").split())
    for controller in sorted(missing):
        if _write(f"{group}/cgroup.subtree_control", f"+{controller}"):
            continue
        if str(os.getpid()) in _read(f"{group}/cgroup.procs").split():
            _step_aside(group)
            _write(f"{group}/cgroup.subtree_control", f"+{controller}")


def _step_aside(group: str) -> None:
    try:
        os.makedirs(f"{group}/{_LEAF}", exist_ok=True)
    except OSError:
        return
    _write(f"{group}/{_LEAF}/cgroup.procs", str(os.getpid()))


def make(group: str, cpu_milli: int, memory_mib: int) -> bool:
    """A group for one replica, with limits where the kernel takes them (0: none). One that runs out of memory
    is killed as a whole, and cannot take the machine's swap instead."""
    try:
        os.makedirs(group, exist_ok=True)
    except OSError:
        return False
    if cpu_milli:
        quota = max(QUOTA_US_MIN, cpu_milli * PERIOD_US // 1000)
        _write(f"{group}/cpu.max", f"{quota} {PERIOD_US}")
    if memory_mib:
        _write(f"{group}/memory.max", str(memory_mib << 20))
        _write(f"{group}/memory.swap.max", "0")
    _write(f"{group}/memory.oom.group", "1")
    _write(f"{group}/pids.max", str(TASKS_MAX))
    return True


def enter(group: str) -> None:
    """This process, and all that it starts."""
    _write(f"{group}/cgroup.procs", "0")


def kill(group: str) -> None:
    _write(f"{group}/cgroup.kill", "1")


def empty(group: str) -> bool:
    """Also when there is no such group."""
    return "populated 1" not in _read(f"{group}/cgroup.events")


def remove(group: str) -> None:
    """With the groups that the program made below it. What is still in use stays."""
    for folder, _, _ in os.walk(group, topdown=False):
        remove_empty(folder)


def remove_empty(group: str) -> None:
    try:
        os.rmdir(group)
    except OSError:  # somebody is in it, or it has gone
        return


def cpu_us(group: str) -> int:
    """All that it ever used; -1: not known."""
    return _number(f"{group}/cpu.stat", "usage_usec")


def memory_bytes(group: str) -> int:
    """-1: not known."""
    text = _read(f"{group}/memory.current").strip()
    return int(text) if text.isdigit() else -1


def ran_out_of_memory(group: str) -> bool:
    return _number(f"{group}/memory.events", "oom_kill") > 0


def _number(path: str, name: str) -> int:
    for line in _read(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return -1


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def _write(path: str, text: str) -> bool:
    """False: the kernel would not have it, or has no such file (which we must not create)."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(handle, text.encode())
    except OSError:
        return False
    finally:
        os.close(handle)
    return True
