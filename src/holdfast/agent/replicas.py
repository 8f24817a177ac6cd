"""What is on disk about each replica of a node, so that another agent can go on where this one ended.

    ROOT/agent.lock                 held by the agent that is here
    ROOT/lease                      see lease.py
    ROOT/logs/web%2F0.3/log.0       see logs.py; kept for a while after the end
    ROOT/replicas/web%2F0.3/        locked as long as its shim lives, also while that is still starting
        task                        what to run, as this agent was told it last
        spec, stop                  for the shim
        running, exit               from the shim
        ask                         a socket: the agent asks for probes that are commands (`probes.py`)
        ready                       it has passed its readiness probe
        state.json                  for the program
        out/progress                from it
        work/                       where it runs, unless it asks for another folder
        tmp/                        what it finds as /tmp, if its user is its own
    ROOT/gone/                      forgotten, and about to be deleted

The lock is the kernel's word that a shim lives, and no reused process id can counterfeit it.

Where a workload has a user of its own (`users.py`), that one owns `work`, `out`, `tmp` and its checkpoints,
and can go through the folders above without seeing what is in them; all the rest is the agent's.
"""

import fcntl
import os

import msgspec

from holdfast.agent import checkpoints, probes, records, users
from holdfast.agent.become import Rights
from holdfast.agent.environment import Folders, seat_of, signal_number, state_of
from holdfast.agent.lease import boot_id
from holdfast.model.event import Ended
from holdfast.model.program import Program
from holdfast.model.units import Instant, Millis
from holdfast.ports import private_folder
from holdfast.ports.runtime import Exit, Task

_task_decoder = msgspec.json.Decoder(Task)


class Tree:
    """The folders below one root."""

    def __init__(self, root: str, checkpoints: str) -> None:
        self.root = root
        self.replicas = f"{root}/replicas"
        self.logs = f"{root}/logs"
        self.gone = f"{root}/gone"
        self.lease = f"{root}/lease"
        self.checkpoints = checkpoints

    def make(self, *, passage: bool = False) -> None:
        """`passage`: users of replicas go through to what is theirs."""
        mode = private_folder.PASSAGE if passage else private_folder.PRIVATE
        for folder in (self.root, self.replicas):
            private_folder.close_to_others(folder, mode)  # never closed in between: replicas may be at work
        for folder in (self.logs, self.gone):
            private_folder.close_to_others(folder)
        if passage:
            private_folder.make(self.checkpoints)
            for folder in (self.root, self.replicas, self.checkpoints):
                users.open_way(folder)

    def lock(self) -> int:
        """BlockingIOError: another agent has it."""
        handle = os.open(f"{self.root}/agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise
        return handle

    def folders(self, task: Task) -> Folders:
        name = quoted(task.wanted.replica)
        seat = "gang" if task.wanted.gang else seat_of(task.wanted.slot)
        checkpoint = f"{self.checkpoints}/{quoted(task.workload)}/{quoted(seat)}"
        return Folders(f"{self.replicas}/{name}", f"{self.logs}/{name}", checkpoint)


def quoted(name: str) -> str:
    """As the name of a folder."""
    name = name.replace("%", "%25").replace("/", "%2F").replace("\0", "%00")
    return f"%2E{name[1:]}" if name.startswith(".") else name


def lay_out(
    task: Task, folders: Folders, env: dict[str, str], fields: records.Fields, rights: Rights
) -> None:
    """All that a shim needs to start it. FileExistsError: there is one already. ValueError: what is asked for
    makes no sense."""
    program = task.brief.program
    spec = [
        *fields,
        ("boot", boot_id()),
        ("workdir", os.path.join(folders.work, program.workdir)),
        ("log", folders.log),
        ("grace_ms", str(task.brief.grace_ms)),
        ("tell", str(signal_number(program.tell))),
        ("progress", folders.progress),
        *fields_of(rights),
        *checks_of(program),
        *(("arg", argument) for argument in program.command),
        *(("env", f"{name}={value}") for name, value in env.items()),
    ]
    os.mkdir(folders.own, 0o700)
    for folder in (folders.work, folders.out, folders.tmp):
        os.mkdir(folder, 0o700)
        if rights.user:
            users.give(folder, rights.user)
    if rights.user:
        users.open_way(folders.own)
    private_folder.make(folders.log)
    save_task(task, folders, rights.user)
    records.write(f"{folders.own}/spec", records.encode(spec))


def fields_of(rights: Rights) -> records.Fields:
    own = [("user", str(rights.user)), ("tmp", rights.tmp)] if rights.user else []
    return [*own, *(("group", str(group)) for group in rights.groups), ("tasks", str(rights.tasks))]


def checks_of(program: Program) -> records.Fields:
    """Probes that are commands."""
    fields: records.Fields = []
    for kind, probe in ((probes.READY, program.ready), (probes.ALIVE, program.alive)):
        if probe is not None and probe.exec:
            fields.append((f"{kind}_ms", str(probe.timeout_ms)))
            fields += [(f"{kind}_arg", argument) for argument in probe.exec]
    return fields


def save_task(task: Task, folders: Folders, user: int) -> None:
    """`user`: of its own; 0: it is the agent's."""
    checkpoints.prepare(folders.checkpoint, task.brief.user, user)
    state = msgspec.json.encode(state_of(task.wanted, folders.checkpoint))
    records.write(folders.state, state, reader=user)
    records.write(f"{folders.own}/task", msgspec.json.encode(task))


def load_task(folder: str) -> Task | None:
    """None: there is nothing, or nothing that we understand."""
    try:
        with open(f"{folder}/task", "rb") as file:
            return _task_decoder.decode(file.read())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def load_spec(folder: str) -> records.Fields:
    try:
        return records.read(f"{folder}/spec")
    except OSError:
        return []


def locked(folder: str) -> bool:
    """A shim lives there."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def running(folder: str) -> tuple[int, int]:
    """The shim and the program, by process id; 0: not yet."""
    try:
        fields = dict(records.read(f"{folder}/running"))
        return int(fields.get("shim", "0")), int(fields.get("program", "0"))
    except (OSError, ValueError):
        return 0, 0


def contained(folder: str) -> bool:
    """Was it started so that the kernel ends all of it with its shim?"""
    return "contained" in dict(load_spec(folder))


def first_process(folder: str) -> tuple[int, int]:
    """Of its PID namespace, and when that was started; 0: none ever was, so nothing of the program was."""
    try:
        fields = dict(records.read(f"{folder}/running"))
        return int(fields["init"]), int(fields["init_start"])
    except (OSError, KeyError, ValueError):
        return 0, 0


def write_stop(folder: str, deadline: Instant, how: str = "", why: str = "") -> None:
    fields = [("deadline", str(max(0, deadline))), ("how", how), ("why", why)]
    records.write(f"{folder}/stop", records.encode([field for field in fields if field[1]]))


def read_stop(folder: str) -> dict[str, str]:
    try:
        return dict(records.read(f"{folder}/stop"))
    except OSError:
        return {}


def read_exit(folder: str, replica: str) -> Exit | None:
    try:
        fields = dict(records.read(f"{folder}/exit"))
        proven = "unproven" not in fields
        return Exit(replica, Ended(fields["how"]), fields["why"], int(fields["progress"]), proven)
    except (OSError, KeyError, ValueError):
        return None


def write_exit(folder: str, exit: Exit) -> None:
    fields = [("how", exit.how.value), ("why", records.cut(exit.why)), ("progress", str(exit.progress_ms))]
    if not exit.proven:
        fields.append(("unproven", "1"))
    records.write_reserved(f"{folder}/exit", records.encode(fields))


def progress(folders: Folders) -> Millis:
    """What the program says that its last checkpoint holds."""
    return records.read_number(folders.progress)


def complaint(folder: str) -> str:
    """The last thing a shim said that ended by a mistake of ours."""
    try:
        with open(f"{folder}/shim.err", encoding="utf-8", errors="replace") as file:
            lines = file.read(1 << 16).split("\n")
    except OSError:
        return ""
    return next((line for line in reversed(lines) if line.strip()), "")
