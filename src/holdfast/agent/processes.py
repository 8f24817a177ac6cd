"""Replicas as processes of this machine: the live side of `ports.runtime`.

It decides nothing. It starts a shim for each replica and watches it through a process descriptor, which works
alike for shims it started and for those it found; what the shim left on disk (`replicas.py`) says the rest.
The agent may end at any line of this and the next one picks up: a folder is laid out before its shim starts,
an exit is kept until it is forgotten, and the shim does all that must not wait for us.

A shim that was killed has left no record. What is exclusive the kernel has then killed already (`init.py`),
and when the first process of its namespace is gone nothing is left. Of the rest what remains is killed from
here: all that can be found. An exclusive replica that ran without a namespace and without a control group may
have left what cannot be found, so its end is told as unproven.
"""

import asyncio
import contextlib
import os
import signal
import socket
import zlib
from collections.abc import Callable, Coroutine
from pathlib import Path

import msgspec

from holdfast.agent import below, cgroup, checkpoints, health, kernel, logs, procfs, remains, replicas, users
from holdfast.agent.allot import Ports
from holdfast.agent.become import Rights
from holdfast.agent.environment import PROBE_MARK, Folders, environ_of, shims
from holdfast.agent.gpus import Gpus
from holdfast.agent.lease import Lease, boot_id
from holdfast.agent.probes import ALIVE, READY
from holdfast.agent.replicas import Tree, quoted
from holdfast.agent.say import Log
from holdfast.agent.spawn import spawn_shim
from holdfast.agent.watch.limiter import Limiter
from holdfast.core.agent.machine import Wanted
from holdfast.model.event import Ended
from holdfast.model.node import Fencing, Isolation, LimitedBy
from holdfast.model.units import SECOND, Instant, Millis
from holdfast.ports.errors import Denied
from holdfast.ports.runtime import Adopted, Exit, Task, Usage
from holdfast.wire.address import REPLICA_PORTS

ESCALATE_MS: Millis = 5 * SECOND  # a shim has this long after a deadline before it is killed itself
TELL_AGAIN_S = 1.0
LOGS_KEPT = 20
LOG_BYTES_KEPT = 200 << 20
LOCK_S = 1.0
SHIM_STARTS_S = 5.0  # how long a shim that lives may take to say its process id
BURIAL_S = 2.0  # how long `adopt` waits for the last of a dead shim's tree
LOOK_AGAIN_S = 0.01


class Replica:
    """One that has not been forgotten."""

    def __init__(self, task: Task, folders: Folders, mark: str) -> None:
        self.task = task
        self.folders = folders
        self.mark = mark
        self.group = ""
        self.user = 0  # of its own; 0: the agent's
        self.shim = 0
        self.handle = -1  # process descriptor of the shim
        self.report = -1  # pipe from the shim, until the program runs
        self.begun = False  # we have heard that it runs
        self.ready = False
        self.exit: Exit | None = None
        self.verdict = ("", "")  # how it ends and why, if we make it end for a reason of its own
        self.probing: asyncio.Task[None] | None = None
        self.answer = ""  # of its last probe, while that is not well
        self.escalation: asyncio.TimerHandle | None = None

    @property
    def name(self) -> str:
        return self.task.wanted.replica

    @property
    def root(self) -> int:
        """The process below which there is nothing but its program's."""
        return replicas.first_process(self.folders.own)[0] or self.shim


class ProcessRuntime:
    def __init__(
        self,
        root: Path,
        *,
        probe_socket: socket.socket | None,
        environment: dict[str, str],
        checkpoint_root: Path,
        cgroup_root: Path | None,
        ports: tuple[int, int] = REPLICA_PORTS,
        log_bytes: int = logs.PIECE_BYTES,
        gpus: Gpus | None = None,
        contain: bool,
        users: users.Users | None = None,
        log: Log | None = None,
    ) -> None:
        """`contain`: run what is exclusive in a PID namespace, which must be possible. `users`: of whom each
        workload gets one; none: replicas run as the agent does."""
        self.ended: Callable[[Exit], None] = lambda exit: None
        self.ready: Callable[[str], None] = lambda replica: None
        self.overused: Callable[[str, int, int], None] = lambda replica, used_milli, asked_milli: None
        self._tree = Tree(os.path.abspath(root), os.path.abspath(checkpoint_root))
        self._listener = probe_socket
        self._environment = {**os.environ, **environment}
        self._cgroup_root = str(cgroup_root) if cgroup_root else ""
        self._log_bytes = log_bytes
        self._ports = Ports(*ports)
        self._replicas: dict[str, Replica] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._tidying: asyncio.Task[None] | None = None
        self._untidy = False
        self._log = log or Log()
        self._limiter = Limiter(
            self._replicas,
            self._end_with,
            lambda name, used, asked: self.overused(name, used, asked),
            gpus or Gpus(),
            self._log,
        )
        # Tells the groups of this root from those of another agent on this machine.
        self._tag = f"{zlib.crc32(self._tree.root.encode()):08x}"
        self._group = ""
        self._contain, self._users = contain, users
        self._given: dict[tuple[str, int], int] = {}  # users, by workload and its number
        self._starting = asyncio.Lock()
        self._lock = -1
        self._closed = False

    # starting and finding

    async def adopt(self) -> list[Adopted]:
        self._loop = asyncio.get_running_loop()
        self._tree.make(passage=self._users is not None)
        self._lock = await self._take_lock()
        self._lease = Lease(self._tree.lease)
        if self._cgroup_root:
            group = quoted(f"holdfast-{self._environment.get('HOLDFAST_NODE', 'node')}-{self._tag}")
            if cgroup.prepare(self._cgroup_root, group):
                self._group = f"{self._cgroup_root}/{group}"
        names = sorted(os.listdir(self._tree.replicas))
        if names:  # an agent of an older version ran probes itself
            left = await asyncio.to_thread(procfs.marked, f"{PROBE_MARK}={self._tag}-")
            procfs.kill(left, signal.SIGKILL)
        found = await asyncio.gather(*(self._adopt_one(f"{self._tree.replicas}/{name}") for name in names))
        if self.limits() is not LimitedBy.CGROUP:
            self._keep(self._limiter.watch_memory())
        self._keep(self._limiter.watch_disk(self._tree.root))
        self._keep(self._limiter.watch_disk(self._tree.checkpoints, unless=self._tree.root))
        self._tidy()
        return [adopted for adopted in found if adopted is not None]

    async def _take_lock(self) -> int:
        """What the last agent started may hold on to the lock until it has become another program."""
        deadline = self._loop.time() + LOCK_S
        while True:
            try:
                return self._tree.lock()
            except BlockingIOError:
                if self._loop.time() > deadline:
                    raise Denied(f"another agent runs in {self._tree.root}") from None
            await asyncio.sleep(LOOK_AGAIN_S)

    async def _adopt_one(self, folder: str) -> Adopted | None:
        task, spec = replicas.load_task(folder), dict(replicas.load_spec(folder))
        if task is None:  # half made, half deleted, or from a future that we do not understand
            await remains.clear(spec.get("mark", ""), spec.get("cgroup", ""))
            self._discard(folder)
            return None
        replica = Replica(task, self._tree.folders(task), spec.get("mark", ""))
        replica.group, replica.user = spec.get("cgroup", ""), int(spec.get("user", "0"))
        self._replicas[replica.name] = replica
        self._ports.keep(task.port)
        lives = await self._find_shim(replica)
        program = replicas.running(folder)[1]
        unasked = task.brief.program.ready is None and program > 0
        replica.ready = os.path.exists(f"{folder}/ready") or unasked
        if lives:
            self._watch(replica)
            self._go_on(replica)
            return Adopted(task, replica.ready)
        return Adopted(task, replica.ready, await self._exit_of_dead(replica))

    async def _find_shim(self, replica: Replica) -> bool:
        """The lock says that it lives, also before it has said who it is."""
        folder = replica.folders.own
        deadline = self._loop.time() + SHIM_STARTS_S
        while replicas.locked(folder) and self._loop.time() < deadline:
            pid, _ = replicas.running(folder)
            with contextlib.suppress(ProcessLookupError):
                handle = os.pidfd_open(pid) if pid else -1
                if handle >= 0 and replicas.locked(folder):  # so the id was its own when we opened it
                    replica.shim, replica.handle = pid, handle
                    return True
                if handle >= 0:
                    os.close(handle)
            await asyncio.sleep(LOOK_AGAIN_S)
        return False

    def _go_on(self, replica: Replica) -> None:
        """An agent before us may have asked it to stop and not lived to see it."""
        stop = replicas.read_stop(replica.folders.own)
        if stop:
            replica.verdict = (stop.get("how", ""), stop.get("why", ""))
            self._ask_to_end(replica, int(stop.get("deadline", "0")))
        else:
            self._probe(replica)

    async def _exit_of_dead(self, replica: Replica) -> Exit | None:
        """None: it will be told by `ended`, because something of it does not want to go."""
        _reap(replicas.running(replica.folders.own)[0])
        exit = replicas.read_exit(replica.folders.own, replica.name)
        if exit is None:
            try:
                async with asyncio.timeout(BURIAL_S):
                    exit = await self._bury(replica, by_session=False)
            except TimeoutError:
                self._keep(self._bury_and_tell(replica, by_session=False))
                return None
        replica.exit = exit
        self._ports.release(replica.task.port)
        return exit

    async def start(self, task: Task) -> None:
        """One at a time, with a breath between: a busy machine may take 30 ms to start a process, and fifty
        of those in a row would be silence on the link. An exclusive one runs under the lease of now, though
        there may be another when its turn has come."""
        term = self._lease.term
        async with self._starting:
            await asyncio.sleep(0)
            if not self._closed:
                self._start(task, term)

    def _start(self, task: Task, term: int) -> None:
        known = self._replicas.get(task.wanted.replica)
        again = known is not None and task.wanted.incarnation > known.task.wanted.incarnation
        if known is not None and known.exit is not None and again:  # it was stopped to be started anew
            self._discard(known.folders.own)
        elif known is not None:  # one name, one run: it is there, or it has ended and that is told again
            if task.port != known.task.port:
                self._ports.release(task.port)
            if known.exit is not None:
                self._loop.call_soon(self.ended, known.exit)
            return
        replica = Replica(task, self._tree.folders(task), f"{self._tag}-{os.urandom(8).hex()}")
        try:
            self._launch(replica, term)
        except (OSError, ValueError) as error:
            why = f"it could not be started: {error}"
            self._discard(replica.folders.own)
            if replica.group:
                cgroup.remove(replica.group)
            self._ports.release(task.port)
            self._loop.call_soon(self.ended, Exit(replica.name, Ended.FAILED, why))
            return
        self._replicas[replica.name] = replica

    def _launch(self, replica: Replica, term: int) -> None:
        task, needs = replica.task, replica.task.wanted.needs
        group = f"{self._group}/{quoted(replica.name)}" if self._group else ""
        if group and cgroup.make(group, needs.cpu_milli, needs.memory_mib):
            replica.group = group
        fields = [("mark", replica.mark), ("cgroup", replica.group), ("log_bytes", str(self._log_bytes))]
        if task.wanted.exclusive:
            fields += [("lease", self._tree.lease), ("term", str(term))]
            fields += [("contained", "1")] if self._contain else []
        rights = self._rights(replica)
        env = environ_of(task, self._environment, replica.folders, replica.mark, replica.user)
        replicas.lay_out(task, replica.folders, env, fields, rights)
        listener = self._listener.fileno() if self._listener else -1
        replica.shim, replica.report = spawn_shim(replica.folders.own, listener, shims(env))
        try:
            replica.handle = os.pidfd_open(replica.shim)
            self._watch(replica)
        except OSError:  # nobody would ever stop it
            self._let_go(replica)
            os.kill(replica.shim, signal.SIGKILL)
            os.waitpid(replica.shim, 0)
            raise

    def _rights(self, replica: Replica) -> Rights:
        task = replica.task
        if self._users is not None:
            replica.user = self._user_of(task, self._users)
        tmp = replica.folders.tmp if self._users is not None and self._users.own_tmp else ""
        return users.rights(replica.user, tmp, gpus=task.wanted.needs.gpu_milli > 0)

    def _user_of(self, task: Task, own: users.Users) -> int:
        """The same as before; the first time nothing that other workloads left may belong to it."""
        workload, number = task.workload, task.brief.user
        taken = {it.user for it in self._replicas.values() if it.task.workload != workload}
        user = self._given.get((workload, number), 0)
        if not user or user in taken:
            taken |= checkpoints.taken(self._tree.checkpoints, quoted(workload), number)
            user = self._given[workload, number] = own.of(workload, number, taken)
        return user

    # what the shims say

    def _watch(self, replica: Replica) -> None:
        self._loop.add_reader(replica.handle, self._shim_ended, replica)
        if replica.report >= 0:
            self._loop.add_reader(replica.report, self._reported, replica)

    def _reported(self, replica: Replica) -> None:
        """The program runs; or it never will, and the exit says why."""
        data = b""
        with contextlib.suppress(BlockingIOError):
            data = os.read(replica.report, 64)
        self._loop.remove_reader(replica.report)
        os.close(replica.report)
        replica.report = -1
        if data:
            replica.begun = True
            if replica.task.brief.program.ready is None:
                self._became_ready(replica)
            self._probe(replica)

    def _shim_ended(self, replica: Replica) -> None:
        if replica.report >= 0:
            self._reported(replica)
        self._let_go(replica)
        _reap(replica.shim)
        exit = replicas.read_exit(replica.folders.own, replica.name)
        if exit is None:
            self._keep(self._bury_and_tell(replica, by_session=True))
            return
        how, why = replica.verdict
        if how and exit.how is Ended.STOPPED:  # a full disk took no word to the shim of what for
            exit = msgspec.structs.replace(exit, how=Ended(how), why=why)
        self._end(replica, exit)

    def _let_go(self, replica: Replica) -> None:
        """Of everything that we hold for a replica that runs."""
        for handle in (replica.handle, replica.report):
            if handle >= 0:
                self._loop.remove_reader(handle)
                os.close(handle)
        replica.handle = replica.report = -1
        if replica.probing is not None:
            replica.probing.cancel()
        if replica.escalation is not None:
            replica.escalation.cancel()

    def _end(self, replica: Replica, exit: Exit) -> None:
        replica.exit = exit
        self._limiter.drop(replica.name)
        self._ports.release(replica.task.port)
        self.ended(exit)

    # a shim that left no record

    async def _bury_and_tell(self, replica: Replica, by_session: bool) -> None:
        self._end(replica, await self._bury(replica, by_session))

    async def _bury(self, replica: Replica, by_session: bool) -> Exit:
        folder = replica.folders.own
        session = replicas.running(folder)[1] if by_session else 0
        before_boot, proven = self._before_boot(replica), True
        if not before_boot and replicas.contained(folder):
            await remains.emptied(folder)
            await remains.clear("", replica.group)
        elif not before_boot:
            await remains.clear(replica.mark, replica.group, session)
            begun = replicas.running(folder)[0] > 0
            proven = not begun or bool(replica.group) or not replica.task.wanted.exclusive
        exit = msgspec.structs.replace(self._post_mortem(replica), proven=proven)
        with contextlib.suppress(OSError):  # no room: the next agent finds the same
            replicas.write_exit(folder, exit)
        return exit

    def _before_boot(self, replica: Replica) -> bool:
        return dict(replicas.load_spec(replica.folders.own)).get("boot", boot_id()) != boot_id()

    def _post_mortem(self, replica: Replica) -> Exit:
        """A shim that was killed counts as a failure of the program: it may have done it, again and again."""
        folder, how, why = replica.folders.own, Ended.FAILED, "its shim was killed"
        stop, complaint = replicas.read_stop(folder), replicas.complaint(folder)
        if replica.verdict[0]:  # which there was no room to write down
            how, why = Ended(replica.verdict[0]), replica.verdict[1]
        elif complaint:
            why = f"its shim failed: {complaint}"
        elif stop:
            how, why = Ended(stop.get("how", Ended.STOPPED)), stop.get("why", f"asked to stop: {why}")
        elif self._before_boot(replica):
            how, why = Ended.STOPPED, "the machine was restarted"
        elif not replica.shim and not replicas.running(folder)[0]:
            how, why = Ended.STOPPED, "its agent ended before it was started"
        return Exit(replica.name, how, why, replicas.progress(replica.folders))

    # health

    def _became_ready(self, replica: Replica) -> None:
        replica.ready = True
        with contextlib.suppress(OSError):  # no room: the next agent asks again
            open(f"{replica.folders.own}/ready", "wb").close()
        self.ready(replica.name)

    def _probe(self, replica: Replica) -> None:
        if not replica.ready or replica.task.brief.program.alive is not None:
            replica.probing = self._keep(self._look_after(replica))

    async def _look_after(self, replica: Replica) -> None:
        program = replica.task.brief.program
        patient = health.Patient(replica.task.port, replica.folders.own)
        if not replica.ready:
            await self._until_it_runs(replica)
            if program.ready is not None:
                probe = program.ready
                await health.until_ready(probe, lambda: health.noted(READY, probe, patient, replica))
            self._became_ready(replica)
        if program.alive is not None:
            alive = program.alive
            wrong = await health.while_alive(alive, lambda: health.noted(ALIVE, alive, patient, replica))
            self._end_with(replica, f"liveness probe failed: {wrong}")

    async def _until_it_runs(self, replica: Replica) -> None:
        """At once for those we started; a shim that we found may still be at it."""
        while not replica.begun and replicas.running(replica.folders.own)[1] == 0:
            await asyncio.sleep(LOOK_AGAIN_S)

    # orders

    def stop(self, replica: str, deadline: Instant) -> None:
        found = self._replicas.get(replica)
        if found is not None:
            self._ask_to_end(found, deadline)

    def kill(self, replica: str) -> None:
        self.stop(replica, kernel.boot_ms())

    def _ask_to_end(self, replica: Replica, deadline: Instant) -> None:
        if replica.handle < 0:
            return
        patience = max(0, deadline - kernel.boot_ms()) + ESCALATE_MS
        try:
            replicas.write_stop(replica.folders.own, deadline, *replica.verdict)
        except OSError:  # it cannot be told when: so we see to it ourselves
            patience -= ESCALATE_MS
        if replica.probing is not None and replica.probing is not asyncio.current_task(self._loop):
            replica.probing.cancel()  # a program that is on its way out may well fail its probes
        # A shim that somebody stopped must wake up to hear it.
        for number in (signal.SIGTERM, signal.SIGCONT):
            self._signal(replica, number)
        if replica.escalation is not None:
            replica.escalation.cancel()
        replica.escalation = self._loop.call_later(patience / 1000, self._signal, replica, signal.SIGKILL)

    def _signal(self, replica: Replica, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if replica.handle >= 0:
                signal.pidfd_send_signal(replica.handle, number)

    def tell(self, wanted: Wanted) -> None:
        replica = self._replicas.get(wanted.replica)
        if replica is None or replica.handle < 0:
            return
        replica.task = msgspec.structs.replace(replica.task, wanted=wanted)
        replica.folders = self._tree.folders(replica.task)  # it may have another seat now
        self._write_told(replica, wanted)

    def _write_told(self, replica: Replica, wanted: Wanted) -> None:
        if self._closed or replica.handle < 0 or replica.task.wanted is not wanted:
            return
        try:
            replicas.save_task(replica.task, replica.folders, replica.user)
        except OSError:  # no room: it must hear of it when there is some
            self._loop.call_later(TELL_AGAIN_S, self._write_told, replica, wanted)
            return
        if replica.task.brief.program.tell:
            self._signal(replica, signal.SIGUSR1)

    # the lease

    def renew(self, until: Instant) -> None:
        self._lease.renew(until)

    def lease_until(self) -> Instant:
        return self._lease.until

    # the rest

    def allot_port(self) -> int:
        """A port for a replica that is about to start. CapacityShort: there is none."""
        return self._ports.allot()

    def is_free(self, port: int) -> bool:
        return self._ports.is_free(port)

    def release_port(self, port: int) -> None:
        self._ports.release(port)

    def forget(self, replica: str) -> None:
        found = self._replicas.get(replica)
        if found is not None and found.exit is not None:
            del self._replicas[replica]
            self._discard(found.folders.own)

    def fencing(self) -> Fencing:
        """As far as all that is exclusive here goes: an agent before us may have started some otherwise."""
        exclusive = (r for r in self._replicas.values() if r.handle >= 0 and r.task.wanted.exclusive)
        contained = self._contain and all(replicas.contained(r.folders.own) for r in exclusive)
        return Fencing.KERNEL if contained else Fencing.NONE

    def limits(self) -> LimitedBy:
        return LimitedBy.CGROUP if self._group and cgroup.limits(self._group) else LimitedBy.WATCHDOG

    def isolation(self) -> Isolation:
        """As far as all that runs here goes, as with fencing."""
        own = all(replica.user for replica in self._replicas.values() if replica.handle >= 0)
        return Isolation.USER if self._users is not None and own else Isolation.NONE

    def usage(self) -> dict[str, Usage]:
        return self._limiter.usage(enforced=self.limits() is LimitedBy.CGROUP)

    def _end_with(self, replica: Replica, why: str) -> None:
        replica.verdict = (Ended.FAILED.value, why)
        self._ask_to_end(replica, kernel.boot_ms())

    def answers(self) -> dict[str, str]:
        return {r.name: r.answer for r in self._replicas.values() if r.answer and r.handle >= 0}

    def progress(self, replica: str) -> Millis:
        found = self._replicas.get(replica)
        return replicas.progress(found.folders) if found is not None else 0

    def read_log(self, replica: str, offset: int, size: int) -> tuple[bytes, int]:
        return logs.read(f"{self._tree.logs}/{quoted(replica)}", offset, size)

    def has_log(self, replica: str) -> bool:
        return os.path.isdir(f"{self._tree.logs}/{quoted(replica)}")

    async def close(self) -> None:
        if self._lock < 0 or self._closed:
            return
        self._closed = True
        for replica in self._replicas.values():
            self._let_go(replica)
        for task in self._tasks - {self._tidying}:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._limiter.close()
        if self._group:
            cgroup.remove_empty(self._group)
        self._ports.close()
        self._lease.close()
        os.close(self._lock)

    def _keep(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _discard(self, folder: str) -> None:
        """Out of the way at once; deleting it may take long if the program left much behind."""
        with contextlib.suppress(OSError):  # there is none, or its name is too long for one
            os.rename(folder, f"{self._tree.gone}/{os.urandom(8).hex()}")
        self._tidy()

    def _tidy(self) -> None:
        """One at a time, beside the loop."""
        self._untidy = True
        if self._tidying is None or self._tidying.done():
            self._tidying = self._keep(self._tidy_up())

    async def _tidy_up(self) -> None:
        while self._untidy:
            self._untidy = False
            live = {quoted(name) for name in self._replicas}
            deleting = asyncio.to_thread(_delete, self._tree, live)
            (failed,) = await asyncio.gather(deleting, return_exceptions=True)
            if failed is not None:
                self._log.warning("what replicas left could not be deleted", why=repr(failed))


def _delete(tree: Tree, live: set[str]) -> None:
    """Logs first: what programs left may be as large and as deep as they liked."""
    with contextlib.suppress(OSError):  # a disk that has other worries
        logs.prune(tree.logs, live, LOGS_KEPT, LOG_BYTES_KEPT)
    for name in os.listdir(tree.gone):
        below.remove(f"{tree.gone}/{name}")


def _reap(pid: int) -> None:
    """If it is our child; one that we found is somebody else's."""
    with contextlib.suppress(ChildProcessError):
        if pid:
            os.waitpid(pid, os.WNOHANG)
