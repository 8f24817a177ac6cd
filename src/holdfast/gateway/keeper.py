"""The process that keeps a gateway: it starts the workers, lends them quota, and tells them what changes.

The authority over what may be admitted is here and not in a worker, so that a worker may die at any moment
without anybody getting more than they may. A worker that dies is started again; what it had borrowed and not
yet reported counts as spent.
"""

import asyncio
import contextlib
import secrets
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import structlog

from holdfast.adapters.clock import HostClock
from holdfast.core.gateway.quota.broker import Ask, Broker
from holdfast.core.gateway.quota.leader_broker import CLAMP_SHARE
from holdfast.core.gateway.quota.lent import LAPSE_S as QUIET_S
from holdfast.gateway import log_lines, messages, settings, socket_file
from holdfast.gateway.budgets import Budgets
from holdfast.gateway.counts import Counted, of_the_ended
from holdfast.gateway.keyring import Keyring
from holdfast.gateway.link import Link
from holdfast.gateway.watch_keys import KeyWatch
from holdfast.model.gateway import Grade, Key, Limits, key_of, scope_of_key
from holdfast.model.units import SECOND
from holdfast.ports.clock import HeldWall

READY_WITHIN_S = 60.0
AGAIN_S = (0.1, 0.5, 1.0, 2.0, 5.0)
STEADY_S = 30.0  # one that ran for so long starts anew at once
CLOSE_WITHIN_S = 30.0
LAPSE_S = 0.5
BETTER_S = 10.0
LAST_WORDS_S = 1.0

log = structlog.get_logger("holdfast.gateway")


class CannotListen(Exception):
    """The address is taken, or what is needed to serve there cannot be used."""

    def __init__(self, why: str, hint: str = "try another --port or --admin-port") -> None:
        super().__init__(why)
        self.hint = hint


class CannotStart(Exception):
    """No worker came up."""


class Seat:
    """A worker's place: who sits there, and what it last said."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.worker = ""  # its name, which no other ever had
        self.link: Link | None = None
        self.pid = 0
        self.ready = False
        self.counted: Counted | None = None
        self.loads: dict[str, messages.Sharing] = {}  # what it has in flight, by service
        self.restarts = 0


class Keeper:
    def __init__(self, wanted: settings.Gateway, control: str = "") -> None:
        """`control`: the control plane whose keys, limits and services these are; empty: they are ours."""
        self.wanted, self.control = wanted, control
        self.now = time.monotonic
        self.wall = HeldWall(HostClock())
        self._jumped = False
        self.ring = Keyring(None if control else wanted.state / "keys.json", wanted.keys)
        self.limits: dict[str, Limits] = dict(wanted.limits)
        self.services = wanted.services
        self.budgets = Budgets(wanted.state / "budgets.json")
        now = self.now()
        self.broker = Broker(
            self.limits,
            now,
            secrets.token_hex(4),
            self.budgets.drawn,
            resumed=self.budgets.crashed,
            levels=self.budgets.levels,
            tranches=self.budgets.tranches,
            since=now - self.budgets.ended_s_ago(self.wall()),
        )
        for key in self.ring.all():
            self.broker.set_limits(scope_of_key(key.id), key.limits, self.now())
        self.broker.succeed({key.id: key.replaced_by for key in self.ring.all() if key.replaced_by})
        self.clamps: dict[str, float] = {}
        self.watch = KeyWatch(self)
        for key in self.ring.own.values():
            if key.grade is Grade.CLAMP and not wanted.shadow:
                self.clamps[key.id] = CLAMP_SHARE
                self.broker.set_clamp(key.id, CLAMP_SHARE, self.now())
        self.seats = [Seat(f"w{n}") for n in range(wanted.workers)]
        self.port = wanted.port
        self.wanting: dict[str, float] = {}
        self.closing = False
        self.borrow: Callable[[Link, Ask], None] | None = None  # none: from our own broker
        self.on_wanting: Callable[[str], None] = lambda service: None
        self.ended = Counted()  # what workers counted that are no more
        self._failing: frozenset[str] = frozenset()  # services of which every replica fails
        self._ejected: frozenset[tuple[str, str]] = frozenset()  # replicas that some worker leaves out
        self._by_pid: dict[int, Seat] = {}

    # what changes

    def tell_all(self, message: messages.ToWorker, but: Seat | None = None) -> None:
        for seat in self.seats:
            if seat.link is not None and seat is not but:
                seat.link.send(message)

    def put_key(self, key: Key) -> None:
        self.broker.set_limits(scope_of_key(key.id), key.limits, self.now())
        if key.replaced_by:
            self.broker.succeed({key.id: key.replaced_by})
        self.tell_all(messages.KeyPut(key))

    def drop_key(self, id: str) -> None:
        self.clamps.pop(id, None)
        self.limits = {scope: found for scope, found in self.limits.items() if key_of(scope) != id}
        self.broker.forget_key(id, self.now())
        self.tell_all(messages.KeyGone(id))
        try:
            self.budgets.forget(id)
            self.budgets.draw(self.broker.drawn())  # of which its successor may have had a part
        except OSError as error:  # the next time something is written it is forgotten too
            log.error("what is drawn of budgets cannot be kept", why=error.strerror)

    def put_limits(self, scope: str, limits: Limits) -> None:
        self.limits[scope] = limits
        if limits == Limits():
            del self.limits[scope]
        self.broker.set_limits(scope, limits, self.now())
        self.tell_all(messages.LimitsPut(scope, limits))

    def reset(self, scope: str) -> None:
        """What was used of it is forgotten. OSError: for as long as this runs, as it cannot be written."""
        self.broker.reset(scope, self.now())
        self.budgets.begin_anew(self.broker.drawn())

    def clamp(self, key: str, share: float) -> None:
        self.clamps[key] = share
        if share >= 1.0:
            del self.clamps[key]
        self.broker.set_clamp(key, share, self.now())
        self.tell_all(messages.Clamped(key, share))

    def put_services(self, services: tuple[settings.Service, ...]) -> None:
        self.services = services
        self.tell_all(messages.ServicesPut(services))

    @property
    def in_flight(self) -> int:
        """Requests, as workers last said."""
        counted = [seat.counted for seat in self.seats if seat.counted is not None]
        return sum(service.in_flight + service.queue for each in counted for service in each.services)

    # the workers

    def greet(self, link: Link, hello: messages.Hello) -> None:
        seat = self._by_pid.get(hello.pid)
        if seat is None:
            link.abort()  # nobody we started
            return
        seat.link = link
        seat.worker = f"{seat.name}.{hello.pid}.{seat.restarts}"
        wanted = self.wanted
        link.send(
            messages.Start(
                name=seat.worker,
                host=wanted.host,
                port=self.port,
                body_max=wanted.body_max,
                connections=wanted.connections,
                head_within_s=wanted.head_within_s,
                body_within_s=wanted.body_within_s,
                idle_s=wanted.idle_s,
                open=wanted.open,
                fail_open=wanted.fail_open,
                close_within_s=CLOSE_WITHIN_S,
                siblings=len(self.seats) - 1,
                certificate=str(wanted.certificate or ""),
                key=str(wanted.key or ""),
                upstream_ca=str(wanted.upstream_ca or ""),
                buffers=wanted.buffers,
                buffers_per_key=wanted.buffers_per_key,
                buffers_per_address=wanted.buffers_per_address,
                connections_per_address=wanted.connections_per_address,
                trusted_proxies=wanted.trusted_proxies,
                wall=self.wall(),
                log_json=log_lines.are_json(),
            )
        )
        for scope, limits in self.limits.items():
            link.send(messages.LimitsPut(scope, limits))
        for key in self.ring.all():
            link.send(messages.KeyPut(key))
        for id, share in self.clamps.items():
            link.send(messages.Clamped(id, share))
        link.send(messages.ServicesPut(self.services))
        for other in self.seats:
            if other.loads and other is not seat:  # it will hear of nothing but changes
                link.send(messages.Shared(other.worker, other.loads))

        def heard(message: messages.ToKeeper) -> None:
            if seat.link is link:  # what one said that has ended would be taken for its successor's
                self.heard(seat, message)

        link.on_message = heard

    def heard(self, seat: Seat, message: messages.ToKeeper) -> None:
        now = self.now()
        match message:
            case messages.Asked(ask=ask):
                assert seat.link is not None
                self._lend(seat.link, ask, now)
            case messages.Ready():
                seat.ready = True
            case messages.CountedNow(counted=counted):
                seat.counted = counted
                self._notice()
            case messages.Wanting(service=service):
                self.wanting[service] = now
                self.on_wanting(service)
            case messages.Saw(requests=requests):
                self.watch.saw(requests)
            case messages.Shared(services=services):
                for name, sharing in services.items():
                    seat.loads[name] = messages.Sharing([], sharing.loads)
                self.tell_all(message, but=seat)
            case messages.Hello():
                pass

    def _notice(self) -> None:
        """Whoever runs this hears when nobody is left to answer: those who ask only wait."""
        states: dict[str, dict[str, set[str]]] = {}  # of services, of their replicas, as workers see them
        for seat in self.seats:
            for service in seat.counted.services if seat.counted is not None else ():
                found = states.setdefault(service.name, {})
                for each in service.replicas:
                    if not each.draining:
                        found.setdefault(each.id, set()).add(each.state)
        self._notice_replicas(states)
        failing = frozenset(
            name for name, found in states.items() if found and set().union(*found.values()) == {"ejected"}
        )
        for name in sorted(failing - self._failing):
            log.warning("every replica of a service fails: requests wait", service=name)
        for name in sorted(self._failing - failing):
            if states.get(name):
                log.info("a service answers again", service=name)
            else:
                log.info("a service that failed has no replicas any more", service=name)
        self._failing = failing

    def _notice_replicas(self, states: dict[str, dict[str, set[str]]]) -> None:
        ejected = frozenset(
            (name, id) for name, found in states.items() for id, seen in found.items() if "ejected" in seen
        )
        for name, id in sorted(ejected - self._ejected):
            log.warning("a replica fails, and is left out", service=name, replica=id)
        for name, id in sorted(self._ejected - ejected):
            if id in states.get(name, ()):
                log.info("a replica is asked again", service=name, replica=id)
        self._ejected = ejected

    def left(self, seat: Seat) -> None:
        """Its worker has ended."""
        if seat.counted is not None:
            self.ended = of_the_ended(self.ended, seat.counted)
        seat.link, seat.ready, seat.counted, seat.loads = None, False, None, {}
        self.tell_all(messages.SiblingGone(seat.worker))

    def _lend(self, link: Link, ask: Ask, now: float) -> None:
        if self.borrow is not None:
            self.borrow(link, ask)
            return
        grants = self.broker.ask(ask, now)
        try:
            self.budgets.draw(self.broker.drawn(), self.broker.due(now))
        except OSError as error:  # what is not written down is not lent: the worker hears nothing
            log.error("what is drawn of budgets cannot be kept", why=error.strerror)
            return
        link.send(messages.Granted(grants))

    async def _keep(self, seat: Seat, path: Path) -> None:
        """A worker in this place, always."""
        failures = 0
        while True:
            started = self.now()
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "holdfast.gateway.process",
                str(path),
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for us alone: workers end what they have begun
            )
            seat.pid = process.pid
            self._by_pid[process.pid] = seat
            try:
                code = await process.wait()
                if seat.link is not None:  # its last words are still to be read
                    await asyncio.wait([seat.link.lost], timeout=LAST_WORDS_S)
            except asyncio.CancelledError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
                raise
            finally:
                self._by_pid.pop(process.pid, None)
                self.left(seat)
            if self.closing:
                return
            seat.restarts += 1
            failures = 0 if self.now() - started > STEADY_S else failures + 1
            wait = AGAIN_S[min(failures, len(AGAIN_S)) - 1] if failures else 0.0
            log.warning("a worker ended", worker=seat.name, code=code, again_s=wait)
            await asyncio.sleep(wait)

    async def _lapse(self) -> None:
        bettered_at = self.now()
        while True:
            await asyncio.sleep(LAPSE_S)
            now = self.now()
            self._look_at_clock()
            self.broker.lapse(now)
            if now - bettered_at >= BETTER_S and not self.control:
                bettered_at = now
                self._better(now)

    def _look_at_clock(self) -> None:
        """Whoever mends a clock hears that we did not follow it."""
        self.wall()
        by_s = round(self.wall.jump_ms / SECOND)
        if by_s and not self._jumped:
            log.error(
                "the wall clock jumped: whether keys have expired is told by the time before that",
                by_s=by_s,
                hint="set the clock right (NTP); if it is right now, start this gateway anew",
            )
        elif self._jumped and not by_s:
            log.info("the wall clock is back where it should be")
        self._jumped = bool(by_s)

    def _better(self, now: float) -> None:
        """What there is more of than was written down is written down."""
        try:
            self.budgets.better(*self.broker.better(now))
        except OSError as error:
            log.error("what is lent of limits cannot be kept", why=error.strerror)

    @contextlib.asynccontextmanager
    async def running(self, hurry: asyncio.Event | None = None) -> AsyncIterator["Keeper"]:
        """Workers serve, until the block ends; then they finish what they have begun, unless there is a
        `hurry`."""
        self.wanted.state.mkdir(parents=True, exist_ok=True)
        if self.budgets.crashed and not self.control:
            log.warning(
                "the last gateway here did not end by itself: limits a minute go on with what it surely left,"
                " and those on requests at a time are held until its leases are over",
                wait_s=QUIET_S,
            )
        async with self._reachable() as path:
            self.budgets.begin(self.broker.begins(self.now()))
            try:
                async with asyncio.TaskGroup() as group:
                    keeping = [group.create_task(self._keep(seat, path)) for seat in self.seats]
                    others = [group.create_task(self._lapse()), group.create_task(self.watch.run())]
                    try:
                        ready = await self._all_ready()
                        if ready:
                            yield self
                    finally:
                        self.closing = True
                        self.tell_all(messages.Close())
                        for task in others:
                            task.cancel()
                        await _ended(keeping, hurry or asyncio.Event())
                        for task in keeping:
                            task.cancel()
                if not ready:  # said here: a group of tasks would wrap it
                    raise CannotStart(f"its workers did not come up within {READY_WITHIN_S:.0f} s")
            finally:
                self.watch.save()
                self.budgets.end(self.broker.drawn(), self.broker.levels(self.now()), self.wall())

    @contextlib.asynccontextmanager
    async def _reachable(self) -> AsyncIterator[Path]:
        """The address is ours, and workers find us at this place."""
        loop = asyncio.get_running_loop()
        try:
            with contextlib.closing(self._hold_port()), socket_file.kept(self.wanted.state) as path:
                server = await loop.create_unix_server(self._welcome, str(path))
                with contextlib.closing(server):
                    path.chmod(0o600)
                    yield path
        except socket_file.Taken as taken:
            raise CannotListen(str(taken), "stop it, or give this one another --dir") from None

    def _welcome(self) -> Link:
        link = Link(messages.ToKeeper)

        def first(done: "asyncio.Future[messages.Hello]") -> None:
            if not done.cancelled() and isinstance(done.result(), messages.Hello):
                self.greet(link, done.result())

        link.first.add_done_callback(first)
        return link

    def _hold_port(self) -> socket.socket:
        """The address is ours before any worker listens there. It takes no connections itself."""
        family = socket.AF_INET6 if ":" in self.wanted.host else socket.AF_INET
        held = socket.socket(family, socket.SOCK_STREAM)
        try:
            if self.wanted.port:
                # without SO_REUSEPORT: one who shares the address with us is no worker of ours
                alone = socket.socket(family, socket.SOCK_STREAM)
                alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                with contextlib.closing(alone):
                    alone.bind((self.wanted.host, self.wanted.port))
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind((self.wanted.host, self.wanted.port))
        except OSError as error:
            held.close()
            where = f"{self.wanted.host}:{self.wanted.port}"
            raise CannotListen(f"cannot listen on {where}: {error.strerror}") from None
        self.port = held.getsockname()[1]
        return held

    async def _all_ready(self) -> bool:
        ends = self.now() + READY_WITHIN_S
        while not all(seat.ready for seat in self.seats):
            if self.now() > ends:
                return False
            await asyncio.sleep(0.02)
        return True


async def _ended(keeping: list["asyncio.Task[None]"], hurry: asyncio.Event) -> None:
    ended = asyncio.ensure_future(asyncio.wait(keeping, timeout=CLOSE_WITHIN_S + 5))
    hurried = asyncio.ensure_future(hurry.wait())
    await asyncio.wait([ended, hurried], return_when=asyncio.FIRST_COMPLETED)
    ended.cancel()
    hurried.cancel()
