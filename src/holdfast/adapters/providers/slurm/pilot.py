"""What a pilot job runs on its compute node: it starts the agent, passes on what Slurm says, leaves nothing.

    FOLDER/pilot.json   what it is told
           began        job, host and time: a node lives once
           ended        nothing of the node is left
           ending       the control plane wants it gone
           agent/       the agent's own, and in it `notice`

**One life.** Whoever makes the file `began` is the node. A job that was queued twice, or requeued by Slurm or
by an operator, finds it there and ends at once: it would come back under a name that others count as dead.

**Notices.** SIGUSR1 comes some time before the limit (`--signal`). What SIGTERM means Slurm does not say: a
preemption with a grace, or the end. So it is asked for the end of the job, and if that is yet to come, it is
a notice. A preemption with a grace often reaches the job's steps and not this script; the control plane looks
for those itself (`provider`).

**The end.** Slurm ends the processes that it finds below the job, and without control groups that is not all
of them: shims begin sessions of their own and lose their parent with the agent. So the pilot ends everything
that carries the node's mark (`tree`), and only then says `ended`. Should it be killed itself, its keeper does
so: a process outside the job that waits for the pilot's end and does nothing else.

Only the standard library and `tree` (sent along) are used: this text is run by any Python.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.adapters.providers.local import tree

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD)
PATIENCE_S = 20.0  # for replicas to end by themselves; Slurm's own, until it kills, is usually 30
ASK_S = 5.0
LOOK_S = 30.0
SHORT_S = 60.0  # what Slurm's times are rounded to
LATE_S = 120.0  # after the limit, Slurm should have ended us
REVIVE_S, REVIVE_MAX_S = 0.15, 10.0  # the waits before an agent that crashed is started again
STEADY_S = 30.0  # one that has lived so long begins anew with its waits
GIVES_UP = (0, 2)  # an agent that ends like this was told to, or nobody will ever have it


def main(folder: str) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    with open(os.path.join(folder, "pilot.json"), encoding="utf-8") as file:
        told = json.load(file)
    if shutil.which(told["command"][0]) is None:  # before it counts as a life
        print(f"there is no command {told['command'][0]} on {socket.gethostname()}", flush=True)
        return 127
    if os.path.exists(os.path.join(folder, "ending")) or not begin(folder):
        print("this node has had its life", flush=True)
        return 0
    keeper = keep(folder)
    status = Pilot(folder, told).run()
    tree.kill(folder)
    say_ended(folder)
    os.write(keeper, b".")
    return status


def begin(folder: str) -> bool:
    """False: another job was this node already."""
    try:
        handle = os.open(os.path.join(folder, "began"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    said = {
        "job": os.environ.get("SLURM_JOB_ID", ""),
        "host": os.environ.get("SLURMD_NODENAME", ""),
        "at": time.time(),
    }
    with contextlib.suppress(OSError), open(handle, "w", encoding="utf-8") as file:  # a full disk
        json.dump(said, file)
    return True


def say_ended(folder: str) -> None:
    """The folder may have gone already."""
    with contextlib.suppress(OSError):
        os.close(os.open(os.path.join(folder, "ended"), os.O_WRONLY | os.O_CREAT, 0o600))


def boot_s() -> float:
    """Counts on while a machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def keep(folder: str) -> int:
    """Starts the keeper. It ends what is left when the pipe closes without a word."""
    read, write = os.pipe()
    child = os.fork()
    if child:
        os.close(read)
        os.waitpid(child, 0)
        return write
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.close(write)
        if not os.read(read, 1):
            tree.kill(folder)
            say_ended(folder)
    finally:
        os._exit(0)


class Pilot:
    def __init__(self, folder: str, told: dict[str, Any]) -> None:
        self.folder, self.told = folder, told
        self.agent = 0  # 0: none runs
        self.started = 0.0
        self.pause_s = REVIVE_S
        self.born = time.time()
        self.over = boot_s() + told["time_s"] + LATE_S

    def run(self) -> int:
        """Until the node is to end; the status of the job."""
        self._start()
        while not self._is_time_over():
            came = self._wait(LOOK_S if self.agent else self.pause_s)
            if came == signal.SIGUSR1:
                self._warned()
            elif came in (signal.SIGTERM, signal.SIGINT):
                if self._is_the_end():
                    return 0
            elif came == signal.SIGCHLD:
                status = self._reap()
                if status in GIVES_UP:
                    return status
            elif not self.agent:
                self._start()
        return 0

    def _wait(self, timeout_s: float) -> int:
        found = signal.sigtimedwait(SIGNALS, timeout_s)
        return found.si_signo if found else 0

    # the agent

    def _start(self) -> None:
        self.agent = tree.start(self.folder, self.told["command"])
        self.started = time.monotonic()

    def _reap(self) -> int:
        """The status of the agent if it ended, -1 if not, or if it crashed: then it is started again."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return -1
            if pid == 0:
                return -1
            if pid == self.agent:
                break
        code = os.waitstatus_to_exitcode(status)
        print(f"the agent ended with {code}", flush=True)
        self.agent = 0
        steady = time.monotonic() - self.started > STEADY_S
        self.pause_s = REVIVE_S if steady else min(2 * self.pause_s, REVIVE_MAX_S)
        return code if code in GIVES_UP else -1

    # what Slurm says

    def _is_time_over(self) -> bool:
        """The limit is kept by Slurm's controller, and whoever does not hear it keeps it alone. One that was
        put off is believed only if the controller says so."""
        if not self.told["time_s"] or boot_s() < self.over:
            return False
        ends_at = self._ends_at()
        if ends_at is None or ends_at <= time.time():
            return True
        self.over = boot_s() + (ends_at - time.time()) + LATE_S
        return False

    def _warned(self) -> None:
        """Of a limit that only the partition knows, the warning may come with the first breath: then it is no
        news yet."""
        now, ends_at = time.time(), self._ends_at()
        if ends_at is None:
            self._tell(now + self.told["notice_s"])
        elif self.told["time_s"] or ends_at - now <= (ends_at - self.born) / 4 + SHORT_S:
            self._tell(ends_at)

    def _is_the_end(self) -> bool:
        """False: we are told in time. True: nothing may run any more, and what can has saved its work."""
        if os.path.exists(os.path.join(self.folder, "ending")):
            return True
        ends_at = self._ends_at()
        if ends_at is not None and ends_at > time.time() + 1.0:
            self._tell(ends_at)
            return False
        print("Slurm ends this job", flush=True)
        self._ask_to_end()
        return True

    def _ask_to_end(self) -> None:
        """The agent stops what runs here and says goodbye. A second signal: no more patience."""
        process = tree.look(self.agent) if self.agent else None
        if process is None:
            return
        tree.send(process, signal.SIGTERM)
        until = time.monotonic() + PATIENCE_S
        while (left_s := until - time.monotonic()) > 0:
            came = self._wait(left_s)
            if came == signal.SIGCHLD:
                self._reap()
            if came in (signal.SIGTERM, signal.SIGINT) or not self.agent:
                return

    def _ends_at(self) -> float | None:
        """When this job ends, if it still runs and Slurm answers."""
        job = os.environ.get("SLURM_JOB_ID", "")
        command = [self.told["squeue"], "--noheader", f"--jobs={job}", "--format=%T %e"]
        try:
            said = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=ASK_S,
                check=False,
                env={**os.environ, "SLURM_TIME_FORMAT": "%s"},
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        state, _, ends = said.stdout.strip().partition(" ")
        return float(ends) if state == "RUNNING" and ends.isdecimal() else None

    def _tell(self, goes_at: float) -> None:
        path = os.path.join(self.folder, "agent", "notice")
        with contextlib.suppress(OSError):
            with open(path + ".new", "w", encoding="ascii") as file:
                file.write(f"{goes_at:.3f}\n")
            os.replace(path + ".new", path)
        print(f"this node ends in {goes_at - time.time():.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
