"""The small process beside each replica. It starts the program, outlives the agent, and sees the program out.

Because of it an agent's crash or upgrade is no crash of the work, and a lease is worth something: when that
of an exclusive replica is over the shim kills the whole tree, agent or no agent, and that comes first
whenever it wakes. It ends only after nothing of the program is left (it is the reaper of all that descends
from it, whatever forked twice or began a session of its own), and leaves an exit record.

`spawn.py` starts it, with the replica's folder and three file descriptors. The folder holds what agent and
shim tell each other (`records.py`): `spec` and `stop` come from the agent, `running` and `exit` from here.
The lock is the folder, locked for as long as this process lives: that is how another agent knows. The report
is a pipe that says at once when the program runs. The listener is the node's probe socket, or -1.

One thread and one epoll. It imports next to nothing, because there is one of it for each replica: no enum, no
signal, no socket, no json, no pathlib, no typing.
"""

import os
import select

from holdfast.agent import become, cgroup, init, kernel, lease, logs, procfs, records
from holdfast.agent.answers import PATIENCE_MS, Answers
from holdfast.agent.probes import Probes, checks_of

CHUNK = 1 << 16
CHUNKS_A_TURN = 16
NICE = -10  # the programs of a busy machine must not keep their own executioner waiting
KILL_AGAIN_MS = 5
KILL_AGAIN_MAX_MS = 500


class Spec:
    def __init__(self, fields: records.Fields) -> None:
        one = dict(fields)
        self.log = one["log"]
        self.log_bytes = int(one["log_bytes"])
        self.lease = one.get("lease", "")  # of an exclusive replica: the file with the lease's end
        self.term = int(one.get("term", "0"))  # it may run in this one only
        self.cgroup = one.get("cgroup", "")
        self.contained = "contained" in one  # all that it starts must end with its shim, by any signal
        self.grace_ms = int(one["grace_ms"])
        self.tell = int(one.get("tell", "0"))
        self.progress = one["progress"]
        command = [value for name, value in fields if name == "arg"]
        env = dict(value.split("=", 1) for name, value in fields if name == "env")
        rights = become.rights_of(fields)
        self.start = become.Start(command, env, one["workdir"], self.cgroup, rights)
        self.checks = checks_of(fields, self.start)


class Shim:
    def __init__(self, spec: Spec, report: int, listener: int) -> None:
        self.spec = spec
        self.report = report
        self.epoll = select.epoll()
        self.signals = kernel.signal_fd(
            (kernel.SIGCHLD, kernel.SIGTERM, kernel.SIGUSR1, kernel.SIGHUP, kernel.SIGINT)
        )
        self.timer = kernel.timer_fd()
        self.timer_at = 0
        for handle in (self.signals, self.timer):
            self.epoll.register(handle, select.EPOLLIN)
        self.answers = Answers(listener, self.epoll) if listener >= 0 else None
        self.log = logs.LogWriter(spec.log, spec.log_bytes)
        self.boot = lease.boot_id()
        self.lease = os.open(spec.lease, os.O_RDONLY | os.O_CLOEXEC) if spec.lease else -1
        self.nice = os.getpriority(os.PRIO_PROCESS, 0)  # as the program shall have it
        self.output = self.began = -1
        self.probes: Probes | None = None  # that are commands, if they are ours to run
        self.init: init.Init | None = None  # between us and the program, if it is to be contained
        self.program = 0  # once that is known
        self.status: int | None = None  # of the program, once it has been reaped
        self.refused = ""  # why the program could not be started
        self.fenced = False
        self.deadline = 0  # of a stop; 0: nobody asked
        self.stop: dict[str, str] = {}
        self.killing = False
        self.killed_at = 0
        self.pause_ms = KILL_AGAIN_MS
        self.childless = False

    # the loop

    def run(self) -> None:
        kernel.adopt_orphans()
        become.be_quick(NICE)
        if self._lease_over(kernel.boot_ms()):
            self.fenced = True
            return
        self._start()
        self._set_timer()
        while not (self.killing and self._nothing_left()):
            self._turn(self.epoll.poll(self._patience()))

    def _patience(self) -> float | None:
        if self.killing:
            return self.pause_ms / 1000
        if self.answers and self.answers.waiting:
            return PATIENCE_MS / 1000
        return None

    def _turn(self, events: list[tuple[int, int]]) -> None:
        now = kernel.boot_ms()
        if self._lease_over(now):
            self._fence(now)
        for handle, _ in events:
            self._handle(handle, now)
        if self.deadline and now >= self.deadline:
            self.killing = True
        if self.status is not None and not self._is_in_grace():
            self.killing = True  # whatever it left behind
        if self.killing:
            self._probe_no_more()
            self._reap()
            if now - self.killed_at >= self.pause_ms and not self._nothing_left():
                self._kill(now)
                self.pause_ms = min(2 * self.pause_ms, KILL_AGAIN_MAX_MS)
        if self.answers:
            self.answers.drop_slow(now)
        self._set_timer()

    def _handle(self, handle: int, now: int) -> None:
        if handle == self.output:
            self._copy_output()
        elif handle == self.signals:
            self._take_signals(now)
        elif handle == self.began:
            self._hear_of_start()
        elif self.init and handle == self.init.handle:
            self._read_news()
        elif self.probes and handle == self.probes.handle:
            self.probes.take()
        elif self.answers:
            self.answers.handle(handle, now)

    def _set_timer(self) -> None:
        """For the end of the lease, and for the end of patience with a program that was asked to stop."""
        ends = [self.deadline] if self.deadline else []
        if self.lease >= 0:
            ends.append(max(1, self._lease_end()))
        at = 0 if self.killing or not ends else min(ends)
        if at != self.timer_at:
            kernel.set_timer(self.timer, at)
            self.timer_at = at

    # the lease

    def _lease_over(self, now: int) -> bool:
        return self.lease >= 0 and not self.fenced and now >= self._lease_end()

    def _lease_end(self) -> int:
        """A lease that lapsed and was given anew is another one, however late we come to look."""
        end, term = lease.read(self.lease, self.boot)
        return end if term == self.spec.term else 0

    def _fence(self, now: int) -> None:
        if self.status is None:
            self.fenced = True
        self.killing = True
        self._kill(now)

    # starting

    def _start(self) -> None:
        self.began, began = os.pipe()
        self.output, output = os.pipe()
        for handle in (self.began, self.output):
            os.set_blocking(handle, False)
            self.epoll.register(handle, select.EPOLLIN)
        if self.spec.checks:
            self.probes = Probes(self.spec.checks, self.nice)
            self.epoll.register(self.probes.handle, select.EPOLLIN)
        if self.spec.contained:
            self._start_contained(began, output)
            self._probe_no_more()
        else:
            self.program = become.fork_program(self.spec.start, self.nice, began, output)
        os.close(began)
        os.close(output)

    def _start_contained(self, began: int, output: int) -> None:
        """Before the program begins it is on record what must be gone for it to be gone."""

        probes = self.probes
        asked = (probes.handle,) if probes else ()

        def live(news: init.News) -> None:
            init.own_proc()
            program = become.fork_program(self.spec.start, self.nice, began, output, news.began)
            os.close(began)
            os.close(output)
            init.oversee(news, program, self.signals, self._lease_end, probes)

        try:
            self.init = init.Init((began, output, self.signals, self.lease, *asked), live)
            self.epoll.register(self.init.handle, select.EPOLLIN)
            _write_running(0, self.init.pid)
            self.init.go()
        except OSError as error:
            self.refused = f"it could not be contained: {error.strerror or error}"
            self.killing = True

    def _probe_no_more(self) -> None:
        """Here: what is contained is asked where it is."""
        if self.probes:
            self.epoll.unregister(self.probes.handle)
            self.probes.close()
            self.probes = None

    def _read_news(self) -> None:
        """Of the namespace's first process, and once of what becomes the program."""
        for pid, text in self.init.messages() if self.init else ():
            if text == b"began":
                self.program = pid
                if self.deadline:  # it was asked to stop before it could be asked
                    self._signal(kernel.SIGTERM)
            else:
                self.status = int(text[6:])

    def _hear_of_start(self) -> None:
        """The pipe closes when the program is executed; if it cannot be, the reason comes first."""
        try:
            why = os.read(self.began, CHUNK).decode("utf-8", "replace")
        except BlockingIOError:
            return
        self._read_news()
        self.epoll.unregister(self.began)
        os.close(self.began)
        self.began = -1
        self.refused = self.refused or why
        if not self.refused:
            _say_running(self.program, self.init.pid if self.init else 0)
            _tell(self.report, b"running\n")
        os.close(self.report)

    # signals

    def _take_signals(self, now: int) -> None:
        came = kernel.signals_of(self.signals)
        if kernel.SIGCHLD in came:
            self._reap()
        if kernel.SIGTERM in came and (self.status is None or self.deadline):  # else it has ended by itself
            self._stop(now)
        if kernel.SIGUSR1 in came and self.spec.tell and self.status is None and self.program:
            procfs.kill([self.program], self.spec.tell)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.childless = True
                return
            if pid == 0:
                return
            self._read_news()
            if self.probes:
                self.probes.ended(pid)
            if pid == self.program or (self.init and pid == self.init.pid and self.status is None):
                self.status = status  # the latter: it was killed, and the kernel killed the program with it

    def _stop(self, now: int) -> None:
        """Asked by the agent, with a deadline; or by somebody else, with the workload's own grace."""
        try:
            self.stop = dict(records.read("stop"))
            self.deadline = int(self.stop["deadline"])
        except (OSError, KeyError, ValueError):
            self.deadline = self.deadline or now + self.spec.grace_ms
        self.deadline = max(1, self.deadline)
        if now < self.deadline and self.status is None:
            self._signal(kernel.SIGTERM)
            self._signal(kernel.SIGCONT)

    def _is_in_grace(self) -> bool:
        """Others of its group heard the request too and still work on it: a shell ends at once, what it
        started may have something to save. Whoever left the group heard nothing and needs no time."""
        if not self.deadline or not self.program:
            return False
        try:
            os.killpg(self.program, 0)
        except OSError:
            return False
        return True

    def _signal(self, number: int) -> None:
        """To the program and its group. It has not been reaped, so its number is still its own. One that has
        taken another user's rights does not hear us: it is waited for."""
        if not self.program:
            return
        try:
            os.killpg(self.program, number)
        except OSError:  # it has no group yet
            procfs.kill([self.program], number)

    # ending

    def _kill(self, now: int) -> None:
        """First what costs nothing: many shims may be at it in one instant, and a pass over /proc is dear.
        What is in a control group cannot fork away from it; without one, stragglers are looked for."""
        first, self.killed_at = not self.killed_at, now
        if self.spec.cgroup:
            cgroup.kill(self.spec.cgroup)
        if self.init:  # and the kernel kills all the rest
            procfs.kill([] if self.childless else [self.init.pid], kernel.SIGKILL)
            return
        if first and self.status is None:
            self._signal(kernel.SIGKILL)
            return
        self._reap()
        if not self.childless:
            seen = procfs.scan()
            procfs.kill(procfs.descendants(os.getpid(), seen, procfs.families(seen)), kernel.SIGKILL)

    def _nothing_left(self) -> bool:
        return self.childless and (not self.spec.cgroup or cgroup.empty(self.spec.cgroup))

    def _copy_output(self) -> bool:
        """False: there is no more."""
        for _ in range(CHUNKS_A_TURN):
            try:
                data = os.read(self.output, CHUNK)
            except BlockingIOError:
                return False
            if not data:
                self.epoll.unregister(self.output)
                os.close(self.output)
                self.output = -1
                return False
            self.log.write(data)
        return True

    def finish(self) -> None:
        while self.output >= 0 and self._copy_output():
            pass
        self.log.close()
        how, why = self._ending()
        fields = [
            ("how", how),
            ("why", records.cut(why)),
            ("progress", str(records.read_number(self.spec.progress))),
        ]
        records.write_reserved("exit", records.encode([*fields, ("finished", str(kernel.boot_ms()))]))
        if self.spec.cgroup:
            cgroup.remove(self.spec.cgroup)

    def _ending(self) -> tuple[str, str]:
        if self.fenced:
            return "fenced", "the lease ran out"
        if self.refused:
            return "failed", self.refused
        status = self.status or 0
        why = f"exit code {os.WEXITSTATUS(status)}"
        if os.WIFSIGNALED(status):
            why = f"killed by signal {os.WTERMSIG(status)}"
            if self.spec.cgroup and cgroup.ran_out_of_memory(self.spec.cgroup):
                why += ": out of memory"
        if self.deadline:
            return self.stop.get("how", "stopped"), self.stop.get("why", f"asked to stop: {why}")
        return ("done" if status == 0 else "failed"), why


def _say_running(program: int, first: int = 0) -> None:
    try:
        _write_running(program, first)
    except OSError:  # a full disk; the pipe tells it too
        return


def _write_running(program: int, first: int) -> None:
    fields = [("shim", str(os.getpid()))]
    if program:
        fields.append(("program", str(program)))
    seen = procfs.look(first) if first else None
    if seen:
        fields += [("init", str(first)), ("init_start", str(seen.start))]
    records.write("running", records.encode(fields))


def _tell(pipe: int, data: bytes) -> None:
    try:
        os.write(pipe, data)
    except OSError:  # the agent has gone: the next one reads `running`
        return


def main(folder: str, lock: int, report: int, listener: int) -> None:
    # What the agent inherited and never closed must not be held open for as long as a replica lives.
    kernel.close_others({0, 1, 2, lock, report, listener})
    for handle in (lock, report, listener):
        if handle >= 0:
            os.set_inheritable(handle, False)
    os.chdir(folder)
    _say_running(0)
    records.reserve("exit")
    shim = Shim(Spec(records.read("spec")), report, listener)
    shim.run()
    shim.finish()
