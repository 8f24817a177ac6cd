"""From a fork of the shim to the program: what it may, as whom, and then its command.

The order matters. Whatever takes the agent's rights comes first (its control group, its mounts), then the
user changes, and with that the rights are gone: the kernel clears what root could do, and neither a
set-user-id program nor a capability on a file brings anything back (`no_new_privs`). Changing the user also
clears the parent-death signal, so it is asked for again. Only then is the folder entered and the command
looked for: whoever owns what is on the way there decides what is found. A probe that is a command comes the
same way (`probes.py`).

It is part of the shim, and imports as little.
"""

import os
from _collections_abc import Callable

from holdfast.agent import cgroup, kernel

TEMPORARY = ("/tmp", "/var/tmp")


class Rights:
    """As whom a program runs, and what it is kept to. `user`: 0 is whoever the agent is."""

    def __init__(self, user: int = 0, groups: tuple[int, ...] = (), tmp: str = "", tasks: int = 0) -> None:
        self.user = user  # and the group with the same number
        self.groups = groups  # besides that
        self.tmp = tmp  # what it finds as /tmp; empty: /tmp itself
        self.tasks = (
            tasks  # processes and threads that its user may have at a time; 0: as many as the agent's
        )


def rights_of(fields: list[tuple[str, str]]) -> Rights:
    """As they stand in a replica's `spec`; an agent of an older version wrote none."""
    one = dict(fields)
    groups = tuple(int(value) for name, value in fields if name == "group")
    return Rights(int(one.get("user", "0")), groups, one.get("tmp", ""), int(one.get("tasks", "0")))


class Start:
    """What a shim makes a program of."""

    def __init__(
        self, command: list[str], env: dict[str, str], workdir: str, group: str, rights: Rights
    ) -> None:
        self.command, self.env, self.workdir, self.group, self.rights = command, env, workdir, group, rights


def fork_program(
    start: Start, nice: int, began: int, output: int, say: Callable[[], None] = lambda: None
) -> int:
    parent = os.getpid()
    program = os.fork()
    if program == 0:
        _become(start, parent, nice, began, output, say)
    return program


def _become(start: Start, parent: int, nice: int, began: int, output: int, say: Callable[[], None]) -> None:
    """In the child: become the program, or say why not."""
    why = ""
    try:
        kernel.default_signals()
        os.setsid()
        _die_with(parent)
        be_quick(nice)
        say()
        if start.group:
            cgroup.enter(start.group)
        nothing = os.open("/dev/null", os.O_RDONLY)
        for source, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        _take(start.rights)
        _die_with(parent)
        why = _enter(start.workdir) or _execute(start.command, start.env)
        if why.startswith("not executable") and start.rights.user:
            why += f" by the user of this workload, {start.rights.user}"
    except (OSError, ValueError) as error:
        why = f"it could not be started: {error}"
    finally:
        os.write(began, why.encode("utf-8", "replace") or b"it could not be started")
        os._exit(127)


def _die_with(parent: int) -> None:
    kernel.die_with_parent()
    if os.getppid() != parent:
        os._exit(127)  # it died before we asked to die with it


def _take(rights: Rights) -> None:
    _be_expendable()
    if rights.tasks:
        kernel.limit_tasks(rights.tasks)
    if not rights.user:
        return
    kernel.own_keyring()
    if rights.tmp:
        own_tmp(rights.tmp)
    _drop(rights)


def own_tmp(folder: str) -> None:
    """What is mounted for us is seen by nobody else."""
    kernel.own_mounts()
    for place in TEMPORARY:
        kernel.bind(folder, place)


def _drop(rights: Rights) -> None:
    kernel.gain_no_rights()
    os.setgroups(rights.groups)
    os.setresgid(rights.user, rights.user, rights.user)
    os.setresuid(rights.user, rights.user, rights.user)
    kernel.have_no_rights()


def _be_expendable() -> None:
    """An agent may be spared when memory runs out; what it runs may not, for that reason."""
    try:
        with open("/proc/self/oom_score_adj", "r+", encoding="ascii") as file:
            if int(file.read()) < 0:
                file.seek(0)
                file.write("0")
    except (OSError, ValueError):
        return


def _enter(workdir: str) -> str:
    try:
        os.chdir(workdir)
    except FileNotFoundError:
        return f"no such folder: {workdir}"
    except OSError as error:
        return f"cannot enter the folder {workdir}: {error.strerror}"
    return ""


def _execute(command: list[str], env: dict[str, str]) -> str:
    """Returns only if it fails, with the reason that says most."""
    if not command or not command[0]:
        return "there is no command"
    name = command[0]
    paths = [name]
    if "/" not in name:
        paths = [f"{folder or '.'}/{name}" for folder in env.get("PATH", os.defpath).split(":")]
    why = f"no such command: {name}"
    for path in paths:
        try:
            os.execve(path, command, env)
        except PermissionError:
            if "/" in name or os.path.exists(path):  # else that folder is closed to us, and no answer
                why = f"not executable: {name}"
        except (FileNotFoundError, NotADirectoryError):
            if os.path.exists(path):
                why = f"the interpreter that {name} asks for does not exist"
        except (OSError, ValueError) as error:
            return f"cannot run {name}: {getattr(error, 'strerror', None) or error}"
    return why


def be_quick(nice: int) -> None:
    try:
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    except OSError:  # not for every user
        return
