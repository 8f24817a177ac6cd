"""All simulated machines, and everything that happens on them.

The agents are the real thing (`core.agent.machine.NodeMachine`); here are only their hands: starting and
stopping simulated processes, sending messages that may be lost, and dying.
"""

import random
from collections.abc import Callable

import numpy as np

from holdfast.core.agent.machine import (
    DesiredSet,
    Do,
    Instruction,
    NodeMachine,
)
from holdfast.model.action import LaunchNode
from holdfast.model.event import Ended
from holdfast.model.node import Answer, Fencing
from holdfast.model.place import Level
from holdfast.model.replica import Role
from holdfast.model.units import MINUTE, NEVER, SECOND, Instant, Millis
from holdfast.model.workload import Training, Workload
from holdfast.sim.event_queue import Kernel
from holdfast.sim.scenario.scenario import Program
from holdfast.sim.twins.heartbeats import BeatWire
from holdfast.sim.twins.host import Host
from holdfast.sim.twins.network import Network
from holdfast.sim.twins.programs import (
    Process,
    Storage,
    done_at,
    progress_of,
)
from holdfast.wire.address import REPLICA_PORTS

SLOW_DELAY_MS = 400
SLOW_SPEED = 0.4
GRAY_FAILS_AFTER_MS = 3 * SECOND
RETRY_MS = 1 * SECOND
GIVE_UP_LINK_MS = 5 * SECOND  # an agent that hears nothing for so long connects anew


class Fleet:
    def __init__(self, kernel: Kernel, network: Network, wire: BeatWire, lease_ms: Millis, seed: str) -> None:
        self.kernel, self.network, self.wire, self.lease_ms = kernel, network, wire, lease_ms
        self.random = random.Random(f"fleet/{seed}")
        self.hosts: dict[str, Host] = {}
        self.by_row: list[Host | None] = []
        self.workloads: dict[str, Workload] = {}
        self.programs: dict[str, Program] = {}
        self.storage = Storage()
        self.active: dict[
            str, dict[str, list[Process]]
        ] = {}  # workload -> slot -> processes in the active role
        self.started = self.allotted = 0
        self.fencing: dict[str, Fencing] = {}  # by pool
        # the control side listens here
        self.hello: Callable[[Host], None] = lambda host: None
        self.link_closed: Callable[[Host], None] = lambda host: None
        self.reports_sent: Callable[[Host], None] = lambda host: None
        self.on_start: Callable[[Process], None] = lambda process: None
        self.on_silence: Callable[[], None] = lambda: None
        self.on_fenced: Callable[[str], None] = lambda node: None
        self.deliver: Callable[[], None] = lambda: None  # hands over the beats that have arrived
        self.finished: dict[str, None] = {}  # workloads of which something ran to its end
        self.on_change: Callable[[str], None] = lambda workload: None  # readiness of a workload changed

    # machines

    def boot(self, request: LaunchNode, *, seek: bool = True) -> None:
        """A machine is up and its agent starts (or starts again after a reset)."""
        host = self.hosts.get(request.node)
        if host is None:
            row = self.wire.add()
            host = Host(request, NodeMachine(self.lease_ms), row, self.kernel.now)
            host.fencing = self.fencing.get(request.pool, Fencing.KERNEL)
            host.contains = host.fencing is Fencing.KERNEL
            self.hosts[host.id] = host
            self.by_row.append(host)
        else:
            host.machine = NodeMachine(self.lease_ms)
            host.powered = host.agent_up = host.shims = True
            host.gray_at = self.kernel.now if host.gray else host.gray_at
            host.frozen = host.gray = host.slow = False
            host.well_since = self.kernel.now
            self.wire.extra[host.row] = 0
        self._refresh(host)
        self.wire.up[host.row] = self.wire.down[host.row] = True
        if seek:
            self.seek_leader(host, self.random.randint(0, 500))

    def remove(self, node: str) -> None:
        """The provider took the machine away."""
        host = self.hosts.pop(node, None)
        if host is not None:
            self.power_off(host)
            self.by_row[host.row] = None

    def power_off(self, host: Host) -> None:
        host.powered = host.agent_up = False
        self.wire.lease_until[host.row] = 0  # there is nothing left that could hold it
        self._drop_processes(host)
        self._fall_silent(host)

    def kill(self, host: Host) -> None:
        """Every process of the node dies, shims too; its host lives and says so to whoever asks."""
        host.agent_up = False
        host.machine.processes.clear()  # an agent that starts again finds nobody to adopt
        self._drop_processes(host)
        self._fall_silent(host)
        self.link_closed(host)

    def kill_agent_and_shims(self, host: Host) -> None:
        """Only them: where the kernel does not contain it, what they started lives on, and no lease ends
        it."""
        if host.contains:
            self.kill(host)
            return
        host.shims = False
        self.stop_agent(host)

    def freeze(self, host: Host) -> None:
        host.frozen = True
        for process in host.processes.values():
            self._pause(process)
            self._break_up(process)
            self.on_change(process.workload)
        self._fall_silent(host)

    def thaw(self, host: Host) -> None:
        if not host.frozen or host.id not in self.hosts:
            return
        host.frozen = False
        host.well_since = self.kernel.now
        self.check_lease(host)  # the shims wake first
        for process in host.processes.values():
            self._work(host, process)
            self._go_on(process)
            self.on_change(process.workload)
        self._refresh(host)
        self.seek_leader(host, 0)

    def stop_agent(self, host: Host) -> None:
        host.agent_up = False
        self._fall_silent(host)
        self.link_closed(host)

    def start_agent(self, host: Host) -> None:
        if host.powered and not host.agent_up and host.id in self.hosts:
            lease = int(self.wire.lease_until[host.row])
            host.machine = host.machine.restarted()
            host.machine.lease_until = lease
            host.agent_up = True
            host.well_since = self.kernel.now
            self._refresh(host)
            self.seek_leader(host, self.random.randint(0, 200))

    def slow_down(self, host: Host, slow: bool) -> None:
        host.slow = slow
        self.wire.extra[host.row] = SLOW_DELAY_MS if slow else 0

    def _fall_silent(self, host: Host) -> None:
        self.deliver()  # what it said before was heard
        host.connected = False
        self.wire.silence(host.row, self.kernel.now)
        self._refresh(host)
        self.wire.known[host.row] = -1
        self.wire.try_at[host.row] = NEVER
        self.on_silence()

    def _refresh(self, host: Host) -> None:
        self.wire.speaks[host.row] = host.speaks

    # the link to the leader

    def seek_leader(self, host: Host, delay: Millis) -> None:
        """The agent will say hello, again and again until somebody answers."""
        self.wire.try_at[host.row] = self.kernel.now + delay
        self.kernel.after(delay, self._say_hello, host, self.wire.try_at[host.row])

    def _say_hello(self, host: Host, planned: Instant) -> None:
        if host.speaks and self.hosts.get(host.id) is host and self.wire.try_at[host.row] == planned:
            self.seek_leader(host, self.random.randint(RETRY_MS, 2 * RETRY_MS))
            self.hello(host)

    def connected(self, host: Host, leader: str, known: int, sent_at: Instant) -> None:
        """The leader answered our hello: from now on it counts our beats, and the hello renewed our lease."""
        host.connected, host.follows = True, leader
        self.wire.lease_until[host.row] = max(int(self.wire.lease_until[host.row]), sent_at + self.lease_ms)
        self.wire.try_at[host.row] = NEVER
        self.wire.known[host.row] = known
        self.wire.last_ack[host.row] = self.kernel.now

    def disconnect(self, host: Host) -> None:
        """The leader is gone, or no longer counts us: find it again."""
        host.connected = False
        self.wire.known[host.row] = -1
        if host.speaks:
            self.seek_leader(host, self.random.randint(0, RETRY_MS))

    def unanswered(self, host: Host) -> None:
        """Whom it follows leads no more, and cannot tell it: it will find out by itself."""
        self.wire.known[host.row] = -1
        patience = int(self.wire.last_ack[host.row]) + GIVE_UP_LINK_MS
        self.kernel.at(patience, self._give_up_link, host, host.session)

    def _give_up_link(self, host: Host, session: int) -> None:
        if host.connected and host.session == session and self.hosts.get(host.id) is host:
            self.disconnect(host)

    def find_the_cut_off(self) -> None:
        """Agents that have not been answered for long connect anew. Once a round, all at once."""
        n, now = self.wire.size, self.kernel.now
        deaf = (
            self.wire.speaks[:n]
            & (self.wire.known[:n] >= 0)
            & (self.wire.last_ack[:n] < now - GIVE_UP_LINK_MS)
        )
        for row in np.flatnonzero(deaf):
            host = self.by_row[int(row)]
            if host is not None:
                self.disconnect(host)

    # leases

    def lease_dues(self, until: Instant) -> list[Host]:
        """Machines that run something and whose lease ends by then."""
        n = self.wire.size
        rows = np.flatnonzero((self.wire.lease_until[:n] <= until) & (self.wire.lease_until[:n] > 0))
        found = (self.by_row[int(row)] for row in rows)
        return [host for host in found if host is not None and host.processes]

    def check_lease(self, host: Host) -> None:
        """The shims' watch over the lease; they do it without the agent too."""
        if host.powered and not host.frozen and host.shims:
            host.machine.lease_until = int(self.wire.lease_until[host.row])
            over = host.machine.lease_ran_out(self.kernel.now)
            if over:
                self.on_fenced(host.id)
            self.carry_out(host, over)

    # the desired set and the reports

    def receive_set(self, host: Host, desired: DesiredSet) -> None:
        host.machine.lease_until = int(self.wire.lease_until[host.row])
        self.carry_out(host, host.machine.wants(desired, self.kernel.now))
        self.report_soon(host)

    def report_soon(self, host: Host) -> None:
        if not host.machine.reports:
            return
        if not host.sending:  # what happens at the same instant goes out together
            host.sending = True
            self.kernel.after(0, self._send_reports, host)
        if not host.reporting:
            host.reporting, host.reporting_since = True, self.kernel.now
            self.kernel.after(RETRY_MS, self._report_again, host)

    def _send_reports(self, host: Host) -> None:
        host.sending = False
        if self.hosts.get(host.id) is host and host.speaks and host.connected and host.machine.reports:
            self.reports_sent(host)

    def _report_again(self, host: Host) -> None:
        if self.hosts.get(host.id) is not host or not host.machine.reports:
            host.reporting = False
            return
        self._send_reports(host)
        self.kernel.after(RETRY_MS, self._report_again, host)

    def reports_arrived(self, host: Host, before: int) -> None:
        if host.speaks:
            host.machine.acknowledged(before)

    def probe(self, host: Host) -> Answer:
        return host.answers_probe()

    # processes

    def carry_out(self, host: Host, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            wanted = instruction.wanted
            match instruction.do:
                case Do.START:
                    self._start(host, instruction)
                case Do.STOP:
                    stop_ms = self.programs[self._workload_of(wanted.slot)].stop_ms
                    end = min(self.kernel.now + stop_ms, instruction.deadline)
                    self.kernel.at(
                        end, self._stopped, host, wanted.replica, self._number(host, wanted.replica)
                    )
                case Do.KILL:
                    self._stopped(host, wanted.replica, self._number(host, wanted.replica))
                case Do.TELL:
                    self._tell(host, instruction)
                case Do.ALLOT:
                    self.allotted += 1
                    first, last = REPLICA_PORTS
                    host.machine.given_port(wanted.replica, first + self.allotted % (last - first))
                    self.report_soon(host)

    def _workload_of(self, slot: str) -> str:
        return slot.rsplit("/", 1)[0]

    def _number(self, host: Host, replica: str) -> int:
        process = host.processes.get(replica)
        return process.number if process else 0

    def _start(self, host: Host, instruction: Instruction) -> None:
        wanted = instruction.wanted
        self.started += 1
        process = Process(wanted, self._workload_of(wanted.slot), host.id, self.kernel.now, self.started)
        host.processes[wanted.replica] = process
        self._enter_role(process)
        program = self.programs[process.workload]
        slowness = 1 / SLOW_SPEED if host.slow else 1
        if host.gray or program.fails_at_start:
            after = min(GRAY_FAILS_AFTER_MS, int(program.start_ms * slowness) + 1)
            why = "exit code 1" if program.fails_at_start else "exit code 134: a device fell off the bus"
            self.kernel.after(after, self.fail, host, wanted.replica, process.number, why)
        else:
            self.kernel.after(
                int(program.start_ms * slowness), self._ready, host, wanted.replica, process.number
            )
        self.report_soon(host)

    def _enter_role(self, process: Process) -> None:
        if process.wanted.role is Role.ACTIVE:
            self.active_in(process).append(process)
            self.on_start(process)

    def _leave_role(self, process: Process) -> None:
        running = self.active_in(process)
        if process in running:
            running.remove(process)

    def active_in(self, process: Process) -> list[Process]:
        """The active processes of the same slot."""
        return self.active.setdefault(process.workload, {}).setdefault(process.wanted.slot, [])

    def _current(self, host: Host, replica: str, number: int) -> Process | None:
        process = host.processes.get(replica)
        return process if process is not None and process.number == number else None

    def _ready(self, host: Host, replica: str, number: int) -> None:
        process = self._current(host, replica, number)
        if process is None:
            return
        if host.frozen:
            self.kernel.after(RETRY_MS, self._ready, host, replica, number)
            return
        process.ready = True
        host.machine.became_ready(replica)
        workload = self.workloads[process.workload]
        process.resumed_ms = self.storage.load(workload, process.wanted.slot)
        self._work(host, process)
        self._meet(process)
        self.on_change(process.workload)
        self.report_soon(host)

    def _meet(self, process: Process) -> None:
        """A gang works only as long as its whole generation is ready; when it changes, all go back to the
        checkpoint."""
        workload = self.workloads[process.workload]
        if not isinstance(workload.shape, Training):
            return
        for each in self._actives(workload.name):
            self._pause(each)
            each.resumed_ms = self.storage.load(workload, each.wanted.slot)
        self._go_on(process)

    def _go_on(self, process: Process) -> None:
        """Those of its gang that stand still work on, if all of them can."""
        if not isinstance(self.workloads[process.workload].shape, Training):
            return
        for member in self.members(process.workload):
            host = self.hosts.get(member.node)
            if host is not None and not member.work_since:
                self._work(host, member)

    def _break_up(self, process: Process) -> None:
        """A member is missing: the others wait for it. A standby or a stray is missed by nobody."""
        if not isinstance(self.workloads[process.workload].shape, Training):
            return
        members = self.members(process.workload)
        newest = max((member.wanted.gang for member in members), default=0)
        if process.wanted.role is Role.ACTIVE and process.wanted.gang >= newest:
            for member in members:
                self._pause(member)

    def _actives(self, workload: str) -> list[Process]:
        return [process for processes in self.active.get(workload, {}).values() for process in processes]

    def members(self, workload: str) -> list[Process]:
        """Those of its newest generation. Older ones are strays, or have not been told yet."""
        actives = self._actives(workload)
        newest = max((process.wanted.gang for process in actives), default=0)
        return [process for process in actives if process.wanted.gang == newest]

    def _speed(self, host: Host, process: Process) -> float:
        """A gang works only when it is whole, and as fast as its slowest member."""
        workload = self.workloads[process.workload]
        if not isinstance(workload.shape, Training):
            return SLOW_SPEED if host.slow else 1.0
        members = self.members(workload.name)
        homes = [self.hosts.get(member.node) for member in members]
        whole = process in members and all(member.ready for member in members)
        whole = whole and len(members) == len(process.wanted.peers)
        awake = all(home is not None and not home.frozen for home in homes)
        if not (whole and awake) or len(members) < workload.shape.nodes_min:
            return 0.0
        slowest = SLOW_SPEED if any(home is not None and home.slow for home in homes) else 1.0
        return slowest * len(members) / workload.shape.nodes_max

    def _work(self, host: Host, process: Process) -> None:
        """(Re)starts the clock of its work and foresees its end."""
        program = self.programs[process.workload]
        if not process.ready or process.wanted.role is not Role.ACTIVE or host.frozen:
            return
        speed = self._speed(host, process)
        if speed <= 0:
            return
        process.work_since, process.speed = self.kernel.now, speed
        if program.run_ms:
            end = done_at(process, program)
            self.kernel.at(end, self._done, host, process.wanted.replica, process.number, process.work_since)
        if program.crash_every_ms:
            after = int(self.random.expovariate(1 / program.crash_every_ms))
            replica, number = process.wanted.replica, process.number
            self.kernel.after(after, self.fail, host, replica, number, "exit code 1", process.work_since)
        if program.fails and self.random.random() < program.fails:
            after = int(self.random.random() * (program.run_ms or MINUTE))
            replica, number = process.wanted.replica, process.number
            self.kernel.after(after, self.fail, host, replica, number, "exit code 3", process.work_since)

    def _pause(self, process: Process) -> None:
        """Stops the clock of its work, keeping what a checkpoint holds and what memory holds."""
        if process.work_since:
            progress = progress_of(process, self.kernel.now)
            self.storage.save(self.workloads[process.workload], process.wanted.slot, progress)
            process.resumed_ms, process.work_since = progress, 0

    def _tell(self, host: Host, instruction: Instruction) -> None:
        process = host.processes.get(instruction.wanted.replica)
        if process is None:
            return
        was = process.wanted
        if (was.role, was.slot) != (instruction.wanted.role, instruction.wanted.slot):
            self._leave_role(process)
            process.wanted = instruction.wanted
            self._enter_role(process)
            process.resumed_ms = self.storage.load(self.workloads[process.workload], process.wanted.slot)
            self._work(host, process)
        process.wanted = instruction.wanted
        self._meet(process)
        self.on_change(process.workload)

    # ends

    def _done(self, host: Host, replica: str, number: int, work_since: Instant) -> None:
        process = self._current(host, replica, number)
        if process is not None and process.work_since == work_since and not host.frozen:
            self._end(host, process, Ended.DONE, "exit code 0")

    def fail(self, host: Host, replica: str, number: int, why: str, work_since: Instant = 0) -> None:
        process = self._current(host, replica, number)
        if process is None or (work_since and process.work_since != work_since):
            return
        if host.frozen:
            self.kernel.after(RETRY_MS, self.fail, host, replica, number, why, work_since)
            return
        self._end(host, process, Ended.FAILED, why)

    def _stopped(self, host: Host, replica: str, number: int) -> None:
        process = self._current(host, replica, number)
        if process is None:
            return
        if host.frozen:
            self.kernel.after(RETRY_MS, self._stopped, host, replica, number)
            return
        if self.workloads[process.workload].checkpoint_ms and process.work_since:
            progress = progress_of(process, self.kernel.now)
            key = self.storage.key(self.workloads[process.workload], process.wanted.slot)
            self.storage.saved[key] = max(
                self.storage.saved.get(key, 0), progress
            )  # asked to stop, it saved everything
        self._end(host, process, Ended.STOPPED, "stopped")

    def _end(self, host: Host, process: Process, how: Ended, why: str) -> None:
        self._pause(process)
        self._leave_role(process)
        del host.processes[process.wanted.replica]
        workload = self.workloads[process.workload]
        if how is Ended.DONE:
            self.finished[workload.name] = None
        progress = self.storage.load(workload, process.wanted.slot)
        if how is not Ended.DONE:
            self._break_up(process)
        self.on_change(process.workload)
        self.carry_out(host, host.machine.ended(process.wanted.replica, how, progress, why, self.kernel.now))
        self.report_soon(host)

    def _drop_processes(self, host: Host) -> None:
        """They vanish with the machine; only what their checkpoints hold is left."""
        gone = list(host.processes.values())
        host.processes.clear()
        for process in gone:
            self._pause(process)
            self._leave_role(process)
        for process in gone:
            self._break_up(process)
            self.on_change(process.workload)

    # names

    def named(self, names: tuple[str, ...]) -> list[Host]:
        """Hosts by id, by domain (`zone:a`, `rack:r1`), by workload (`runs:web`), or all of them (`*`)."""
        found: dict[str, Host] = {}
        for name in names:
            kind, _, value = name.partition(":")
            for host in self.hosts.values():
                place = host.request.place
                if (
                    name == "*"
                    or host.id == name
                    or (kind in ("provider", "region", "zone", "rack") and getattr(place, kind) == value)
                    or (kind == "runs" and any(p.workload == value for p in host.processes.values()))
                    or (kind == "domain" and place.domain(Level.ZONE) == value)
                ):
                    found[host.id] = host
        return list(found.values())
