"""The agent's own judgement: what a node runs, and when it stops something by itself.

The same machine drives the real agent and the simulated one. Inputs come in (`wanted`, `renewed`, `ended`,
`passed`, ...), instructions and reports go out; it does no IO and reads no clock.

The rules. The control plane sends the whole desired set with a number; an older number, or one from an older
leader, is refused. What is in the set and does not run is started; what runs and is not in the set is
stopped. An exclusive replica runs only under the node's lease, which counts from the *sending* of the last
heartbeat that was acknowledged; when it is over the exclusive ones are killed, agent or no agent (in real
life a shim beside each replica does that). A new epoch of an exclusive seat starts only after the old one is
dead; of any other it starts beside it, because the old one serves until the new one is ready. An agent that
restarts adopts what its shims still run. Replicas that are not exclusive are left alone when nobody answers:
the data path does not need the control plane.

A member of a gang starts in two steps: its port is allotted and reported, and its program starts when the set
names the ports of all members. When the incarnation of a replica rises, its program is stopped, and its next
port is allotted only after that has ended. Together: before a program of a new generation starts, all those
of older ones have ended, on every node.
"""

import enum

import msgspec

from holdfast.model.event import Ended
from holdfast.model.lease import ends_at_agent
from holdfast.model.program import Program
from holdfast.model.replica import Role
from holdfast.model.resources import Resources
from holdfast.model.units import Instant, Millis


class Peer(msgspec.Struct, frozen=True):
    """A member of the same gang, and where it listens."""

    replica: str
    address: str
    port: int


class Wanted(msgspec.Struct, frozen=True):
    """One replica of the desired set."""

    replica: str
    slot: str
    epoch: int
    exclusive: bool
    role: Role = Role.ACTIVE
    gang: int = 0
    resume_ms: Millis = 0
    peers: tuple[Peer, ...] = ()  # of its gang, itself included, by rank; none until all ports are known
    needs: Resources = Resources()
    devices: tuple[int, ...] = ()  # which GPUs of its node
    incarnation: int = 0  # a higher one: its program is to be started anew
    grace_ms: Millis = 0  # for which it is first asked to stop

    @property
    def in_gang(self) -> bool:
        return self.gang > 0 and self.role is Role.ACTIVE


class Brief(msgspec.Struct, frozen=True):
    """What the replicas of a workload have in common."""

    program: Program
    grace_ms: Millis  # from being asked to stop to being killed, when nobody says otherwise
    user: int = 0  # a number of this workload alone, of which a node makes a user id; 0: none was made


class Stopping(msgspec.Struct, frozen=True):
    replica: str
    grace_ms: Millis  # a duration, because the node's clock is not ours


class DesiredSet(msgspec.Struct, frozen=True):
    leader: int  # generation of the leader that sends it
    generation: int
    wanted: tuple[Wanted, ...] = ()
    stopping: tuple[Stopping, ...] = ()
    briefs: dict[str, Brief] = {}  # by workload


class Do(enum.StrEnum):
    ALLOT = "allot"  # a port, to a member of a gang that does not start yet
    START = "start"
    STOP = "stop"  # ask it to end, kill it at the deadline
    KILL = "kill"
    TELL = "tell"  # role, epoch or gang changed: tell the program


class Instruction(msgspec.Struct, frozen=True):
    do: Do
    wanted: Wanted
    deadline: Instant = 0


class Process(msgspec.Struct, frozen=True):
    wanted: Wanted
    ready: bool = False
    stopping: bool = False
    fenced: bool = False
    saved_ms: Millis = 0  # as was told last
    begun: bool = True  # its program runs; otherwise it has a port and waits for those of its peers
    restarting: bool = False  # stopping, to be started again


class Report(msgspec.Struct, frozen=True):
    """What the control plane is told of one replica, again and again until it is acknowledged."""

    replica: str
    what: str  # started | ready | saved | ended
    how: Ended | None = None
    progress_ms: Millis = 0
    why: str = ""
    port: int = 0
    proven: bool = True  # ended: nothing of it can run any more
    incarnation: int = 0


class NodeMachine:
    def __init__(self, lease_ms: Millis) -> None:
        self.lease_ms = lease_ms
        self.lease_until: Instant = 0
        self.leader = 0
        self.generation = -1
        self.epoch = 0  # the highest that it was ever told of
        self.desired: dict[str, Wanted] = {}
        self.processes: dict[str, Process] = {}
        self.reports: list[Report] = []  # not yet acknowledged
        self.first_report = 0  # the number of the first of them
        self.finished: dict[
            str, None
        ] = {}  # ended here; not to be started again though the set still names them

    # what the control plane says

    def renewed(self, sent_at: Instant) -> None:
        """A heartbeat sent at `sent_at` was acknowledged."""
        self.lease_until = max(self.lease_until, ends_at_agent(sent_at, self.lease_ms))

    def linked(self, now: Instant) -> None:
        """A link was lost, and there is another. If the lease ran out in between, what is exclusive and did
        not start under it may have been started elsewhere: the set that follows says whether we shall."""
        if now >= self.lease_until:
            self.desired = {
                name: wanted
                for name, wanted in self.desired.items()
                if name in self.processes or not wanted.exclusive
            }

    def wants(self, new: DesiredSet, now: Instant) -> list[Instruction]:
        if (new.leader, new.generation) < (self.leader, self.generation):
            return []
        self.leader, self.generation = new.leader, new.generation
        self.epoch = max(self.epoch, *(wanted.epoch for wanted in new.wanted), 0)
        self.desired = {wanted.replica: wanted for wanted in new.wanted}
        self.finished = {name: None for name in self.finished if name in self.desired}
        instructions = self._stop_unwanted(new, now)
        for wanted in new.wanted:
            process = self.processes.get(wanted.replica)
            if process is not None and process.begun and not process.stopping:
                instructions += self._update(process, wanted, now)
        return instructions + self.start_what_can(now)

    def _update(self, process: Process, wanted: Wanted, now: Instant) -> list[Instruction]:
        """Of a program that runs. The members of a gang are notified when all ports are known again."""
        if process.wanted.incarnation != wanted.incarnation:
            self.processes[wanted.replica] = msgspec.structs.replace(process, stopping=True, restarting=True)
            return [Instruction(Do.STOP, process.wanted, now + wanted.grace_ms)]
        if process.wanted == wanted or (wanted.in_gang and not wanted.peers):
            return []
        self.processes[wanted.replica] = msgspec.structs.replace(process, wanted=wanted)
        return [Instruction(Do.TELL, wanted)] if _visible(process.wanted) != _visible(wanted) else []

    def _stop_unwanted(self, new: DesiredSet, now: Instant) -> list[Instruction]:
        graces = {item.replica: item.grace_ms for item in new.stopping}
        instructions = []
        for name, process in list(self.processes.items()):
            if name not in self.desired and not process.begun:
                del self.processes[name]
                self._report(Report(name, "ended", Ended.STOPPED, why="it had not begun"))
            elif name not in self.desired and not process.stopping:
                self.processes[name] = msgspec.structs.replace(process, stopping=True)
                instructions.append(Instruction(Do.STOP, process.wanted, now + graces.get(name, 0)))
        for name in graces:
            if name not in self.processes and not self._reported_end(name):
                self._report(Report(name, "ended", Ended.STOPPED, why="it was not running"))
        return instructions

    def start_what_can(self, now: Instant) -> list[Instruction]:
        """Starts what is wanted, unless it needs a lease that we do not hold or its seat is still taken."""
        instructions = []
        taken = {p.wanted.slot for p in self.processes.values() if p.wanted.exclusive and p.begun}
        for wanted in self.desired.values():
            known = self.processes.get(wanted.replica)
            if (known is not None and known.begun) or wanted.replica in self.finished or wanted.slot in taken:
                continue
            if wanted.exclusive and now >= self.lease_until:
                continue
            if wanted.exclusive:
                taken.add(wanted.slot)
            if wanted.in_gang:
                instructions += self._start_member(known, wanted)
            else:
                instructions.append(self._start(Do.START, wanted))
        return instructions

    def _start_member(self, known: Process | None, wanted: Wanted) -> list[Instruction]:
        """In two steps: a port first, and the program when the ports of all members are known."""
        if known is None or known.wanted.incarnation != wanted.incarnation:
            return [self._start(Do.ALLOT, wanted)]
        if not wanted.peers:
            return []
        self.processes[wanted.replica] = Process(wanted)
        return [Instruction(Do.START, wanted)]

    def _start(self, do: Do, wanted: Wanted) -> Instruction:
        self.processes[wanted.replica] = Process(wanted, begun=do is Do.START)
        self._report(Report(wanted.replica, "started", incarnation=wanted.incarnation))
        return Instruction(do, wanted)

    # what the processes do

    def given_port(self, replica: str, port: int) -> None:
        """Its port is told together with its start, which nobody has heard of yet."""
        incarnation = self.incarnation(replica)
        for number, report in enumerate(self.reports):
            if (report.replica, report.what, report.incarnation) == (replica, "started", incarnation):
                self.reports[number] = msgspec.structs.replace(report, port=port)

    def became_ready(self, replica: str) -> None:
        process = self.processes.get(replica)
        if process is not None and not process.ready:
            self.processes[replica] = msgspec.structs.replace(process, ready=True)
            self._report(Report(replica, "ready", incarnation=process.wanted.incarnation))

    def saved(self, replica: str, progress_ms: Millis) -> None:
        """Its last checkpoint holds so much work. Only what is more than was told is told."""
        process = self.processes.get(replica)
        if process is not None and progress_ms > process.saved_ms:
            self.processes[replica] = msgspec.structs.replace(process, saved_ms=progress_ms)
            self._report(Report(replica, "saved", progress_ms=progress_ms))

    def ended(
        self,
        replica: str,
        how: Ended,
        progress_ms: Millis,
        why: str,
        now: Instant,
        *,
        proven: bool = True,
    ) -> list[Instruction]:
        process = self.processes.pop(replica, None)
        if process is None:
            return []
        again = process.restarting and not process.fenced and proven and replica in self.desired
        if again and how is not Ended.DONE:
            if progress_ms > process.saved_ms:
                self._report(Report(replica, "saved", progress_ms=progress_ms))
            return self.start_what_can(now)
        if process.fenced and proven:
            how, why = Ended.FENCED, "the lease ran out"
        elif process.stopping:
            how = how if how is Ended.DONE else Ended.STOPPED
        self.finished[replica] = None
        self._report(Report(replica, "ended", how, progress_ms, why, proven=proven))
        return self.start_what_can(now)

    # what time does

    def lease_ran_out(self, now: Instant) -> list[Instruction]:
        """Kills every exclusive replica, if the lease is over."""
        if now < self.lease_until:
            return []
        instructions = []
        for name, process in list(self.processes.items()):
            if process.wanted.exclusive and process.begun and not process.fenced:
                self.processes[name] = msgspec.structs.replace(process, stopping=True, fenced=True)
                instructions.append(Instruction(Do.KILL, process.wanted, now))
        return instructions

    def restarted(self) -> "NodeMachine":
        """A new agent that adopts what the shims of the old one still run. The lease is the shims', and goes
        on."""
        heir = NodeMachine(self.lease_ms)
        heir.lease_until = self.lease_until
        heir.leader, heir.generation, heir.epoch = self.leader, self.generation, self.epoch
        heir.processes = {
            name: msgspec.structs.replace(process, restarting=False)
            for name, process in self.processes.items()
            if process.begun
        }
        heir.finished = dict(self.finished)
        heir.first_report = self.first_report
        heir.reports = list(self.reports)  # exits are kept on disk by the shims
        return heir

    def incarnation(self, replica: str) -> int:
        process = self.processes.get(replica)
        return process.wanted.incarnation if process is not None else 0

    # reports

    def _reported_end(self, replica: str) -> bool:
        return any(report.replica == replica and report.what == "ended" for report in self.reports)

    def _report(self, report: Report) -> None:
        self.reports.append(report)

    def acknowledged(self, before: int) -> None:
        """All reports numbered below `before` have been journalled."""
        arrived = before - self.first_report
        if arrived > 0:
            del self.reports[:arrived]
            self.first_report = before

    def running(self) -> tuple[str, ...]:
        """What a hello names. Also what has ended and could not be reported yet: left out, it would count as
        vanished, and a job that was done would be run again."""
        ended = (report.replica for report in self.reports if report.what == "ended")
        return tuple(dict.fromkeys((*self.processes, *ended)))


def _visible(wanted: Wanted) -> tuple[object, ...]:
    """What a program can see of it."""
    return wanted.role, wanted.epoch, wanted.slot, wanted.gang, wanted.peers
