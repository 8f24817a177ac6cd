"""A node's agent: keeps a link to whoever leads, and its hands at work.

Its end is not the end of what it started: the shims go on, and the next agent finds them. So it may crash, be
killed or be upgraded at any time. Only when it was told so at its start does it stop everything first, and
then it says goodbye.
"""

import asyncio
import contextlib
import os
import random
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from holdfast.agent import notice
from holdfast.agent.control_planes import ControlPlanes
from holdfast.agent.conversation import Conversation, Ending, Lost, Self
from holdfast.agent.hands import Hands, Machinery
from holdfast.agent.home import Home, Unusable
from holdfast.agent.lease import boot_id
from holdfast.agent.link import NoLink, connect
from holdfast.agent.neighbours import Neighbours
from holdfast.agent.say import Log
from holdfast.agent.settings import Settings, Url, join_token, read_urls
from holdfast.agent.trust import Trust
from holdfast.core.agent.machine import NodeMachine
from holdfast.model.resources import Resources
from holdfast.wire import pin
from holdfast.wire.address import read_address
from holdfast.wire.messages import FINAL, Moved, Refused, Welcome

RESOLVE_S = 2.0  # the name of --address
LEASE_LOOK_S = 1.0  # at least so often: a timer sleeps when the machine does, the lease does not
NOTICE_LOOK_S = 1.0
PROGRESS_LOOK_S = 15.0  # a report a job so often, at most
LEASE_WAIT_S = 0.2  # while there is none
LAST_WORDS_S = 3.0
STOP_SLACK_S = 5.0
LOOK_AGAIN_S = 0.02
REPEAT_EVERY = 20  # times that the same trouble is met before it is told again
TROUBLES_MAX = 100  # that are remembered


class Agent:
    def __init__(
        self,
        settings: Settings,
        home: Home,
        runtime: Machinery,
        neighbours: Neighbours,
        capacity: Resources,
        log: Log,
    ) -> None:
        self._settings, self._home, self._runtime, self._neighbours = settings, home, runtime, neighbours
        self._log = log
        self._trust = Trust(settings, home)
        self._me = Self(settings, home.key(), os.urandom(8).hex(), capacity, boot_id(), self._token)
        known = read_urls(home.read("control_planes"))
        self._planes = ControlPlanes(settings.join, known, random.random, insecure=settings.insecure)
        self._ending, self._hurry = asyncio.Event(), asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._hands = Hands(runtime, self._spawn, log)
        self._recall_obeyed()
        self._talk: Conversation | None = None
        self._was_welcomed = False  # ever, by anybody
        self._refused: Unusable | None = None
        self._met: set[Url] = set()  # control planes that spoke our language
        self._hopeless: set[Url] = set()  # where there seems to be none
        self._troubles: dict[str, int] = {}  # met since we were last welcomed, and how often

    @property
    def machine(self) -> NodeMachine:
        return self._hands.machine

    def end(self) -> None:
        """By a signal, for one. Twice: do not wait for anything."""
        if self._ending.is_set():
            self._hurry.set()
        self._ending.set()

    async def run(self) -> None:
        """Until `end`; raises Unusable when nobody will ever have us."""
        try:
            adopted = await self._hands.adopt()
        except OSError as error:
            why = f"what is kept in {self._home.path} cannot be taken over: {error.strerror or error}"
            raise Unusable(why, "is the disk full, or is something there not ours?") from None
        await self._neighbours.open()
        self._log.info("agent started", node=self._settings.name, pid=os.getpid(), adopted=adopted)
        try:
            async with asyncio.TaskGroup() as group:
                watched = (
                    self._keep_link(),
                    self._watch_lease(),
                    self._watch_notice(),
                    self._watch_progress(),
                )
                duties = [group.create_task(duty) for duty in watched]
                await self._ending.wait()
                if self._settings.stop_all_on_exit and self._refused is None:
                    await self._stop_all()
                for duty in duties:
                    duty.cancel()
        finally:
            await self._close()
        if self._refused is not None:
            raise self._refused
        self._log.info("agent ended", leaves=len(self._hands.machine.processes))

    async def _close(self) -> None:
        self._neighbours.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SLACK_S):
                while self._hands.busy:  # a start is not left half way
                    await asyncio.wait(set(self._tasks))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._runtime.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error  # a fault of ours: the loop reports it

    async def _watch_lease(self) -> None:
        while True:
            left_s = self._hands.lease_left_ms() / 1000
            await asyncio.sleep(min(left_s or LEASE_WAIT_S, LEASE_LOOK_S))
            self._hands.check_lease()

    async def _watch_notice(self) -> None:
        """Told once on every link, and again when it is to be earlier or later than was said."""
        told: tuple[Conversation, float] | None = None
        while True:
            talk, path = self._talk, self._home.path / "notice"
            goes_at, left_ms = notice.goes_at(path), notice.left_ms(path)
            if goes_at and left_ms and talk is not None and (talk, goes_at) != told and self._is_heard():
                told = (talk, goes_at)
                talk.say_taken(left_ms)
                self._log.warning("this machine will be taken away", left_ms=left_ms)
            await asyncio.sleep(NOTICE_LOOK_S)

    async def _watch_progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_LOOK_S)
            self._hands.look_at_progress()

    # the link

    async def _keep_link(self) -> None:
        while self._refused is None:
            url = self._planes.next()
            try:
                await self._meet(url)
            except NoLink as problem:
                self._no_link(url, problem)
            if self._refused is None:
                await asyncio.sleep(self._planes.wait_s())
        self._ending.set()

    async def _meet(self, url: Url) -> None:
        led, proof = self._led()
        me = msgspec.structs.replace(self._me, address=await self._address(), led=led, proof=proof)
        talk = Conversation(me, self._hands, self._runtime, self._neighbours, self._spawn, self._log)
        talk.welcomed = lambda welcome: self._welcomed(url, welcome)
        self._talk = talk
        try:
            await connect(url, await self._trust.to(url), talk)
            self._ended(url, talk, await talk.over)
        finally:
            self._talk = None
            await talk.close(at_once=not self._ending.is_set())

    async def _address(self) -> str:
        """Control planes believe addresses only, so a name is resolved here, anew for each link. Empty: it
        cannot be resolved now, and we are reached where the link leaves this machine."""
        name = self._settings.address
        if not name or read_address(name) is not None:
            return name
        try:
            async with asyncio.timeout(RESOLVE_S):
                found = await asyncio.get_running_loop().getaddrinfo(name, None, family=socket.AF_INET)
        except (TimeoutError, OSError, ValueError) as error:
            self._tell("address not resolved", name=name, why=getattr(error, "strerror", None) or "no answer")
            return ""
        return str(found[0][4][0])

    def _welcomed(self, url: Url, welcome: Welcome) -> None:
        self._log.info("welcomed", by=url, lease_ms=welcome.lease_ms, beat_ms=welcome.beat_ms)
        self._was_welcomed = True
        self._troubles.clear()
        self._planes.welcomed(url, read_urls(" ".join(welcome.control_planes)))
        self._remember()
        if welcome.proof and (kept := f"{welcome.generation} {welcome.proof.hex()}") != self._home.read(
            "led"
        ):
            self._home.keep("led", kept)
        if not self._home.read("joined"):
            self._home.keep("joined", str(url))

    def _ended(self, url: Url, talk: Conversation, ending: Ending) -> None:
        self._met.add(url)
        self._hopeless.discard(url)
        match ending:
            case Lost(why=why, deaf=deaf):
                self._tell("link lost", by=url, why=why)
                self._planes.lost(was_welcomed=talk.welcome is not None, deaf=deaf)
            case Moved(leader=leader, control_planes=others):
                self._tell("sent on", by=url, leader=leader or "nobody leads yet")
                known = read_urls(leader)
                self._planes.moved(known[0] if known else None, (*read_urls(" ".join(others)), *known))
                self._remember()
            case Refused(code=code, why=why, hint=hint):
                self._tell("refused", by=url, code=code, why=why, hint=hint)
                self._planes.refused(final=code in FINAL)
                if code == "token":  # they do not know our key any more: bring the token again
                    self._home.drop("joined")
                if code in FINAL and not self._was_welcomed:
                    self._refused = Unusable(f"{url} refuses this node: {why}", hint or "ask its operator")

    def _no_link(self, url: Url, problem: NoLink) -> None:
        self._tell("no link", by=url, why=problem)
        self._planes.lost(was_welcomed=False)
        if problem.hint and url not in self._met:
            self._hopeless.add(url)
        if not self._was_welcomed and self._hopeless >= set(self._planes.known):
            self._refused = Unusable(f"{url}: {problem}", problem.hint)

    def _tell(self, event: str, **words: object) -> None:
        """The same trouble again and again is told now and then, also if several take turns."""
        trouble = f"{event} {words}"
        if trouble not in self._troubles and len(self._troubles) >= TROUBLES_MAX:
            self._troubles.clear()
        times = self._troubles[trouble] = self._troubles.get(trouble, 0) + 1
        if times % REPEAT_EVERY == 1:
            self._log.warning(event, **words)

    def _recall_obeyed(self) -> None:
        """Whom we have obeyed outlasts us: an older leader is refused, and told so, by the next agent too."""
        machine, kept = self._hands.machine, self._home.read("obeyed").split()
        if len(kept) == 3 and all(number.isdecimal() and len(number) < 19 for number in kept):
            machine.leader, machine.generation, machine.epoch = map(int, kept)

        def keep() -> None:
            self._home.keep("obeyed", f"{machine.leader} {max(0, machine.generation)} {machine.epoch}")

        self._hands.obeyed = keep

    def _led(self) -> tuple[int, bytes]:
        """Who welcomed us last, and the proof of it: a leader on an older copy of the database needs both."""
        generation, _, proof = self._home.read("led").partition(" ")
        try:
            return int(generation), bytes.fromhex(proof)
        except ValueError:
            return 0, b""

    def _remember(self) -> None:
        urls = " ".join(map(str, self._planes.learned))
        if urls != self._home.read("control_planes"):
            self._home.keep("control_planes", urls)

    def _token(self) -> str:
        """It was there when we started. If it has gone since, we bring none and are told so."""
        secret, _ = pin.split(join_token(self._settings, joined=True))
        return "" if self._home.read("joined") else secret

    # the end

    async def _stop_all(self) -> None:
        """Everything is stopped and its end told, if anybody listens; then we say goodbye."""
        machine = self._hands.machine
        grace_ms = self._hands.stop_all()
        if self._talk is not None:
            self._talk.say_leaving(grace_ms)
        grace_s = grace_ms / 1000
        await self._wait_while(lambda: bool(machine.processes), grace_s + STOP_SLACK_S)
        await self._wait_while(lambda: bool(machine.reports) and self._is_heard(), LAST_WORDS_S)
        if self._talk is not None and not machine.processes:
            self._talk.say_goodbye()

    def _is_heard(self) -> bool:
        return self._talk is not None and self._talk.welcome is not None

    async def _wait_while(self, true: Callable[[], bool], longest_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                while true() and not self._hurry.is_set():
                    await asyncio.sleep(LOOK_AGAIN_S)
