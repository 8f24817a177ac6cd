"""Does what the node's own judgement says, and tells it what came of it.

All judgement is in `core.agent.machine.NodeMachine`; here are its hands, as in the simulator, with real
processes. Two things are kept that it rests on. Instructions about one replica are carried out in their
order, though a start takes a while. And a lease that ran out has ended what it covered before it can be
renewed: an agent that was stopped and wakes up with an answer in its buffer must not keep alive what has been
started elsewhere by now.
"""

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from holdfast.agent import records
from holdfast.agent.kernel import boot_ms
from holdfast.agent.say import Log
from holdfast.core.agent.machine import (
    Brief,
    DesiredSet,
    Do,
    Instruction,
    NodeMachine,
    Process,
    Report,
    Stopping,
    Wanted,
)
from holdfast.model.event import Ended
from holdfast.model.node import Fencing, Isolation, LimitedBy
from holdfast.model.units import SECOND, Instant, Millis
from holdfast.ports.errors import CapacityShort
from holdfast.ports.runtime import Exit, Runtime, Task, Usage

GRACE_MS = 10 * SECOND  # for what runs without a brief that we know of

Spawn = Callable[[Coroutine[Any, Any, None]], object]


class Machinery(Runtime, Protocol):
    """A runtime on one machine: it also knows which ports are free there."""

    def allot_port(self) -> int:
        """CapacityShort: none is free."""

    def is_free(self, port: int) -> bool:
        """Has nobody else bound a port that was allotted?"""

    def release_port(self, port: int) -> None:
        """One that was allotted is not needed after all."""


class Hands:
    def __init__(self, runtime: Machinery, spawn: Spawn, log: Log) -> None:
        self.machine = NodeMachine(lease_ms=0)
        self.news: Callable[[], None] = lambda: None  # there are reports, or a set was carried out
        self.obeyed: Callable[[], None] = lambda: None  # another set was taken
        self.confirmed = -1  # the last set that was carried out
        self._runtime, self._spawn, self._log = runtime, spawn, log
        self._briefs: dict[str, Brief] = {}
        self._tasks: dict[str, Task] = {}  # of what runs
        self._starting: dict[str, list[Instruction]] = {}  # and what to do with it then
        self._allotted: dict[str, int] = {}  # ports of members of gangs that do not run yet
        self._leaving = False  # nothing is begun any more
        runtime.ended, runtime.ready, runtime.overused = self._ended, self._ready, self._overused

    # an agent begins

    async def adopt(self) -> int:
        """Takes over what an earlier agent started; says everything about it again, because nobody knows what
        has been heard. How many still run."""
        machine, found = self.machine, await self._runtime.adopt()
        machine.lease_until = self._runtime.lease_until()
        for each in found:
            replica = each.task.wanted.replica
            machine.processes[replica] = Process(each.task.wanted)
            self._tasks[replica] = each.task
            number = each.task.wanted.incarnation
            machine.reports.append(Report(replica, "started", port=each.task.port, incarnation=number))
        for each in found:
            if each.exit is not None:
                self._ended(each.exit)
            elif each.ready:
                machine.became_ready(each.task.wanted.replica)
        self.check_lease()
        return len(machine.processes)

    # what the control plane says

    def welcomed(self, hello_at: Instant) -> None:
        """The lease begins anew with each link."""
        self.machine.linked(boot_ms())
        self.renew(hello_at)

    def renew(self, sent_at: Instant) -> None:
        """What we sent then was answered."""
        self.check_lease()
        now = boot_ms()
        lapsed = now >= self.machine.lease_until
        self.machine.renewed(sent_at)
        self._runtime.renew(self.machine.lease_until)
        if lapsed:
            self._carry_out(self.machine.start_what_can(now))

    def wants(self, desired: DesiredSet) -> bool:
        """False: it is older than what we know, and refused."""
        if self._leaving:
            return False
        return self._take(desired)

    def _take(self, desired: DesiredSet) -> bool:
        machine = self.machine
        instructions = machine.wants(desired, boot_ms())
        if (machine.leader, machine.generation) != (desired.leader, desired.generation):
            self._log.warning(
                "set refused: it is older than the one obeyed",
                leader=desired.leader,
                generation=desired.generation,
                obeyed=f"{machine.leader}/{machine.generation}",
            )
            return False
        self.obeyed()
        self._briefs = desired.briefs
        for replica in [name for name in self._allotted if name not in machine.processes]:
            self._runtime.release_port(self._allotted.pop(replica))
        self._carry_out(instructions)
        self._say_if_carried_out()
        return True

    def noted(self, before: int) -> None:
        """Reports below this number will not be forgotten by others, so we may."""
        machine = self.machine
        count = min(before - machine.first_report, len(machine.reports))
        ends = [report.replica for report in machine.reports[: max(0, count)] if report.what == "ended"]
        machine.acknowledged(machine.first_report + count)
        for replica in ends:
            if replica not in machine.processes:
                self._runtime.forget(replica)

    def running(self) -> tuple[str, ...]:
        return self.machine.running()

    def stop_all(self) -> Millis:
        """Asks everything to end, as an empty set would. How long that may take."""
        graces = {name: self._grace(name) for name in self.machine.processes}
        stopping = tuple(Stopping(name, grace) for name, grace in graces.items())
        self._leaving = True
        self._take(DesiredSet(self.machine.leader, self.machine.generation, stopping=stopping))
        return max(graces.values(), default=0)

    def _grace(self, replica: str) -> Millis:
        task = self._tasks.get(replica)
        return task.brief.grace_ms if task is not None else GRACE_MS

    def fencing(self) -> Fencing:
        return self._runtime.fencing()

    def limits(self) -> LimitedBy:
        return self._runtime.limits()

    def isolation(self) -> Isolation:
        return self._runtime.isolation()

    def usage(self) -> dict[str, Usage]:
        return self._runtime.usage()

    def answers(self) -> dict[str, str]:
        return self._runtime.answers()

    # what time does

    def check_lease(self) -> None:
        over = self.machine.lease_ran_out(boot_ms())
        if over:
            self._log.warning("lease ran out", kills=",".join(each.wanted.replica for each in over))
            self._carry_out(over)

    def look_at_progress(self) -> None:
        """What is exclusive may have to go on elsewhere: how much of it is saved decides what that costs."""
        before = len(self.machine.reports)
        for name, process in list(self.machine.processes.items()):
            if process.wanted.exclusive:
                self.machine.saved(name, self._runtime.progress(name))
        if len(self.machine.reports) > before:
            self.news()

    def lease_left_ms(self) -> Millis:
        return max(0, self.machine.lease_until - boot_ms())

    # what the processes do

    def _ready(self, replica: str) -> None:
        self.machine.became_ready(replica)
        self.news()

    def _ended(self, gone: Exit) -> None:
        self._tasks.pop(gone.replica, None)
        why = records.cut(gone.why)
        self._log.info("replica ended", replica=gone.replica, how=gone.how, why=why)
        more = self.machine.ended(
            gone.replica, gone.how, gone.progress_ms, why, boot_ms(), proven=gone.proven
        )
        self.news()
        self._carry_out(more)

    def _overused(self, replica: str, used_milli: int, asked_milli: int) -> None:
        used, asked = f"{used_milli / 1000:g}", f"{asked_milli / 1000:g}"
        self._log.warning("replica uses more cpus than it asked for", replica=replica, used=used, asked=asked)

    # instructions

    def _carry_out(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            later = self._starting.get(instruction.wanted.replica)
            if instruction.do is Do.START:
                self._begin(instruction)
            elif instruction.do is Do.ALLOT:
                self._allot(instruction.wanted)
            elif later is not None:
                later.append(instruction)
            else:
                self._do(instruction)
        if instructions:
            self.news()

    def _do(self, instruction: Instruction) -> None:
        replica = instruction.wanted.replica
        if replica not in self.machine.processes:
            return
        self._log.info("replica " + instruction.do, replica=replica)
        match instruction.do:
            case Do.STOP:
                self._runtime.stop(replica, instruction.deadline)
            case Do.KILL:
                self._runtime.kill(replica)
            case Do.TELL:
                self._runtime.tell(instruction.wanted)
            case Do.START:
                self._begin(instruction)
            case Do.ALLOT:
                self._allot(instruction.wanted)

    def _allot(self, wanted: Wanted) -> int:
        """0: there is no port, and so no start."""
        replica = wanted.replica
        try:
            port = self._allotted.pop(replica, 0) or self._runtime.allot_port()
        except (CapacityShort, OSError) as error:  # the latter: no file is left to hold one with
            self._ended(Exit(replica, Ended.FAILED, str(error)))
            return 0
        self._allotted[replica] = port
        self.machine.given_port(replica, port)
        return port

    def _begin(self, instruction: Instruction) -> None:
        wanted = instruction.wanted
        workload = wanted.slot.rsplit("/", 1)[0]
        brief = self._briefs.get(workload)
        if brief is None:
            self._ended(
                Exit(wanted.replica, Ended.FAILED, "no program: the workload has none that we know of")
            )
            return
        known = wanted.replica in self._allotted
        port = self._allot(wanted)
        if not port:
            return
        del self._allotted[wanted.replica]
        if known and not self._runtime.is_free(port):  # its peers know this one, and no other
            self._runtime.release_port(port)
            self._ended(Exit(wanted.replica, Ended.STOPPED, f"port {port} was taken before it could start"))
            return
        self._log.info("replica start", replica=wanted.replica, port=port)
        self._starting[wanted.replica] = []
        self._spawn(self._start(Task(wanted, workload, brief, port)))

    async def _start(self, task: Task) -> None:
        replica = task.wanted.replica
        self._tasks[replica] = task
        try:
            await self._runtime.start(task)
        except OSError as error:
            self._ended(Exit(replica, Ended.FAILED, f"could not be started: {error.strerror or error}"))
        finally:
            for instruction in self._starting.pop(replica):
                self._do(instruction)
            self._say_if_carried_out()

    def _say_if_carried_out(self) -> None:
        """A set counts as carried out when nothing is being started any more."""
        if not self._starting:
            self.confirmed = self.machine.generation
            self.news()

    @property
    def busy(self) -> bool:
        return bool(self._starting)
