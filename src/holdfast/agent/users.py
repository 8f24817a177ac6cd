"""Which user a replica runs as: one of its own for each workload, where the agent is root.

The question is what a program may do to its node. As the agent's own user it may do everything: read the key
of the node, prolong its own lease, stop the agent, and read the environment and the checkpoints of all others
that run there. With another user's id the kernel refuses each of these by itself, whatever the program is.

The number comes from the control plane, made of the fleet's secret and the workload's project and name
(`wire.identity.user_number`). So a workload is the same user on every node, and finds its checkpoints on
shared storage again; nobody who may name workloads can choose the number of another; and nothing needs to be
written down. Two of one node that meet by chance are kept apart by taking the next number that is free, also
while one of them does not run: what it has saved still belongs to its number.

Ids are in a range that nothing else uses (systemd leaves 0x70000000 and above alone). Where the kernel maps
fewer ids to us, in a container for example, a range is taken that distributions leave alone.

What must be so before anybody is separated (`found`): the agent is root with the capabilities for it, the
folders of the node and its checkpoints can be reached by others and written to by none of them, and the
Python that the agent runs on can be reached, for then programs of this machine can be, too. Otherwise
replicas run as the agent's user, as they do under an agent that is not root, and the node says so
(`isolation: none`).

Refused: a user for each replica. The next filling of a slot reads the checkpoints of the one before, and
members of a gang on one node share memory. Refused: users that are made with useradd: they would outlive the
node's membership, and need a lock on a file of the host. Refused: a user namespace for each: it maps ids, but
the files that a program has made would belong to nobody outside.
"""

import grp
import hashlib
import os
import resource
import stat
import sys
from collections.abc import Callable, Collection

from holdfast.agent import become, below
from holdfast.agent.become import Rights
from holdfast.ports import private_folder

PASSAGE = private_folder.PASSAGE
FIRST, COUNT = 0x7000_0000, 0x1000_0000
FEW_FIRST, FEW_COUNT = 30_000, 30_000  # in a container: neither people nor services
NEEDED = {
    "CAP_CHOWN": 0,
    "CAP_DAC_OVERRIDE": 1,
    "CAP_FOWNER": 3,
    "CAP_KILL": 5,
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
}
GPU_GROUPS = ("render", "video")  # may open the devices of AMD
TASKS_MAX = 32_768  # processes and threads of a workload
TASKS_SHARE = (
    8  # it has at most so many'th part of what the machine may have, so that some together leave room
)
TASKS_LEAST = 4_096  # but so many, where that is no more than half
ANSWER_BYTES = 4096
GIVEN = (stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK)


class Users:
    """Those of one node."""

    def __init__(self, first: int, count: int, *, own_tmp: bool) -> None:
        self._first, self._count, self.own_tmp = first, count, own_tmp

    def of(self, workload: str, number: int, taken: Collection[int]) -> int:
        """`taken`: those of other workloads, which run here or have checkpoints here. `number`: 0 if the
        control plane sent none. ValueError: every id is taken."""
        number = number or int.from_bytes(hashlib.sha256(workload.encode()).digest()[:8], "big")
        users = (self._first + (number + more) % self._count for more in range(len(taken) + 1))
        user = next((user for user in users if user not in taken), 0)
        if not user:
            raise ValueError("every user id that workloads may have is taken")
        return user

    def may_be(self, user: int) -> bool:
        return self._first <= user < self._first + self._count


def found(root: str, checkpoints: str, python: str = sys.executable) -> tuple[Users | None, str]:
    """None, and why: replicas run as the agent's user. `python`: empty, if it need not be reached. To be
    called while there is one thread only."""
    why = _incapable()
    first, count = (FIRST, COUNT) if _are_mapped(FIRST, COUNT) else (FEW_FIRST, FEW_COUNT)
    if not why and not _are_mapped(first, count):
        why = "too few ids are mapped to us"
    if why:
        return None, why
    for folder in (root, checkpoints):
        why = private_folder.exposed(folder)  # before anything is made there
        if not why:
            private_folder.make(folder)
            why = private_folder.exposed(folder)
        if why:
            return None, why
    ours = [folder for folder in (root, checkpoints) if os.stat(folder).st_uid == os.geteuid()]
    ways = [root, checkpoints, *([os.path.realpath(python)] if python else [])]
    why = _asked(lambda: _as(first, lambda: _closed(ways, ours))) or _unable_to_give(checkpoints, first)
    if why:
        return None, why
    shared = any(is_below(folder, place) for folder in (root, checkpoints) for place in become.TEMPORARY)
    return Users(first, count, own_tmp=not shared and not _asked(_no_mounts)), ""


def is_below(path: str, folder: str) -> bool:
    return f"{os.path.realpath(path)}/".startswith(f"{folder}/")


def open_way(folder: str) -> None:
    """Through a folder, if it is ours."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        seen = os.fstat(handle)
        if seen.st_mode & PASSAGE != PASSAGE and seen.st_uid == os.geteuid():
            os.fchmod(handle, stat.S_IMODE(seen.st_mode) | PASSAGE)
    finally:
        os.close(handle)


def give(folder: str, user: int) -> None:
    """A folder that is the user's alone."""
    handle = below.entered(folder)
    try:
        _give(handle, user)
    finally:
        os.close(handle)


def _give(folder: int, user: int) -> None:
    os.fchown(folder, user, user)
    os.fchmod(folder, private_folder.PRIVATE)


def give_all(folder: int, user: int) -> None:
    """The folder of this handle, with what is in it. Files that have another name elsewhere stay as they
    are, and so do links. Each is looked at and given by one handle: nobody can put another in its place."""
    for above, name, _ in below.walk(folder):
        try:
            handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
        except FileNotFoundError:
            continue
        try:
            seen = os.fstat(handle)
            plain = stat.S_IFMT(seen.st_mode) in GIVEN and seen.st_nlink == 1
            if stat.S_ISDIR(seen.st_mode) or plain:
                os.chown(f"/proc/self/fd/{handle}", user, user)
        finally:
            os.close(handle)
    _give(folder, user)


def rights(user: int, tmp: str, *, gpus: bool) -> Rights:
    return Rights(user, _gpu_groups() if user and gpus else (), tmp, tasks_max())


def tasks_max() -> int:
    """So that neither a workload nor two can take all the processes of a machine. 0: there is a lower limit
    already."""
    machine = 2 * TASKS_MAX * TASKS_SHARE
    for name in ("pid_max", "threads-max"):
        with open(f"/proc/sys/kernel/{name}", encoding="ascii") as file:
            machine = min(machine, int(file.read()))
    most = share_of_tasks(machine)
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    return most if hard == resource.RLIM_INFINITY or hard >= most else 0


def share_of_tasks(machine: int) -> int:
    return min(TASKS_MAX, max(machine // TASKS_SHARE, min(TASKS_LEAST, machine // 2)))


def _gpu_groups() -> tuple[int, ...]:
    known = {each.gr_name: each.gr_gid for each in grp.getgrall() if each.gr_name in GPU_GROUPS}
    return tuple(known.values())


def _incapable() -> str:
    if os.geteuid() != 0:
        return "the agent is not root"
    with open("/proc/self/status", encoding="ascii") as file:
        has = next(int(line.split()[1], 16) for line in file if line.startswith("CapEff:"))
    missing = [name for name, bit in NEEDED.items() if not has >> bit & 1]
    return f"it lacks {', '.join(missing)}" if missing else ""


def _are_mapped(first: int, count: int) -> bool:
    for name in ("uid", "gid"):
        with open(f"/proc/self/{name}_map", encoding="ascii") as file:
            ranges = [[int(word) for word in line.split()] for line in file]
        if not any(start <= first and first + count <= start + length for start, _, length in ranges):
            return False
    return True


def _asked(question: Callable[[], str]) -> str:
    """Answered by a process of its own, for it gives up what we have."""
    answer, said = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(said, question().encode()[:ANSWER_BYTES])
        except OSError as error:
            os.write(said, (error.strerror or str(error)).encode())
        finally:
            os._exit(0)
    os.close(said)
    try:
        return os.read(answer, ANSWER_BYTES).decode()
    finally:
        os.close(answer)
        os.waitpid(child, 0)


def _as(user: int, question: Callable[[], str]) -> str:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    return question()


def _closed(ways: list[str], ours: list[str]) -> str:
    """The first on the way to one of these that does not let us through; `ours` can be opened."""
    for path in ways:
        for end in [*(at for at, letter in enumerate(path) if letter == "/" and at), len(path)]:
            if path[:end] not in ours and not os.access(path[:end], os.X_OK):
                return f"{path[:end]} is closed to other users"
    return ""


def _unable_to_give(checkpoints: str, user: int) -> str:
    trial = f"{checkpoints}/.holdfast-{os.getpid()}"
    try:
        os.mkdir(trial, private_folder.PRIVATE)
        try:
            give(trial, user)
        finally:
            os.rmdir(trial)
    except OSError as error:
        return f"folders in {checkpoints} cannot be given to other users: {error.strerror}"
    return ""


def _no_mounts() -> str:
    become.own_tmp("/dev")
    return ""
