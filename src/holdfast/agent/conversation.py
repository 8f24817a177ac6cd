"""What is said over one link, from the challenge to its end.

It decides nothing. Beats go out on a steady schedule; an answer to one renews the lease, counted from when
that beat was sent and not from when the answer came. Whatever has not been acknowledged is said again on the
next link, so a message that was lost with this one needs no care here.
"""

import asyncio
import contextlib
from collections.abc import Callable
from itertools import islice
from typing import assert_never, cast

import msgspec

from holdfast import __version__
from holdfast.agent.hands import Hands, Spawn
from holdfast.agent.kernel import boot_ms
from holdfast.agent.link import Link
from holdfast.agent.log_ship import LogShipping
from holdfast.agent.neighbours import Neighbours
from holdfast.agent.say import Log
from holdfast.agent.settings import Settings
from holdfast.agent.tails import Logs, Tails, last_words
from holdfast.model.resources import Resources
from holdfast.model.units import SECOND, Instant, seconds
from holdfast.wire.frame import BadFrame
from holdfast.wire.identity import Key
from holdfast.wire.messages import (
    BOUND,
    PROTOCOL,
    PROTOCOL_OLDEST,
    Ack,
    AlsoRunning,
    Ask,
    Beat,
    Challenge,
    Confirmed,
    Desired,
    Goodbye,
    Hello,
    LogTaken,
    Moved,
    Noted,
    Noticed,
    Probed,
    ReadLog,
    Refused,
    Reports,
    Silence,
    StopLog,
    ToAgent,
    Used,
    Welcome,
)

WELCOME_S = 5.0
CLOSE_S = 1.0
BEAT_MS_MIN = 10
PATIENCE_BEATS = 5
PATIENCE_MS_MIN = 3 * SECOND
USED_EVERY = 5  # beats
ANSWERS_AT_ONCE, ANSWER_LENGTH_MAX = 32, 200  # of probes, in one beat
REPORTS_AT_ONCE = 256  # keeps a message well below the largest that is taken
HELLO_BYTES = 16 << 10  # of a hello, at most, besides the names of what runs
NAME_BYTES = 5  # around each name
NAMES_BYTES_MIN = 4 << 10
SILENCE_MS_MAX = 3_600 * SECOND


def batches(names: tuple[str, ...], bytes_max: int) -> list[tuple[str, ...]]:
    """So that none of the frames that name them is larger; 0: whatever there is goes into one."""
    most = max(NAMES_BYTES_MIN, bytes_max - HELLO_BYTES)
    found: list[list[str]] = [[]]
    filled = 0
    for name in names:
        size = len(name.encode()) + NAME_BYTES
        if bytes_max and filled and filled + size > most:
            found.append([])
            filled = 0
        found[-1].append(name)
        filled += size
    return [tuple(batch) for batch in found]


class Lost(msgspec.Struct, frozen=True):
    """The link ended by itself."""

    why: str
    deaf: bool = False  # nothing was heard for too long


Ending = Lost | Refused | Moved


class Self(msgspec.Struct, frozen=True):
    """Who we are, for as long as this agent runs."""

    settings: Settings
    key: Key
    instance: str
    capacity: Resources
    boot: str  # of this machine: another one after each restart
    token: Callable[[], str]  # empty: we have been here before, and our key is enough
    led: int = 0  # the generation of the leader that welcomed us last
    proof: bytes = b""  # of that
    address: str = ""  # where peers and clients reach us; empty: where the link leaves this machine


class Conversation:
    def __init__(
        self, me: Self, hands: Hands, logs: Logs, neighbours: Neighbours, spawn: Spawn, log: Log
    ) -> None:
        self.me, self.hands, self.neighbours, self._spawn, self._log = me, hands, neighbours, spawn, log
        self._loop = asyncio.get_running_loop()
        self.over: asyncio.Future[Ending] = self._loop.create_future()
        self.welcomed: Callable[[Welcome], None] = lambda welcome: None
        self.welcome: Welcome | None = None
        self._logs = logs
        self._link: Link | None = None
        self._tails: Tails | None = None
        self._shipping: asyncio.Task[None] | None = None
        self._hello_at: Instant | None = None
        self._sent: dict[int, Instant] = {}  # beats that were not answered yet
        self._number = self._heard = 0
        self._answers: dict[str, str] = {}  # of probes, as they were told on this link
        self._heard_at = 0.0  # by the loop's clock, as all that follows
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._told = 0  # reports below this number went out on this link
        self._confirmed = -1
        self._flushing = False

    # what the link calls

    def opened(self, link: Link) -> None:
        self._link = link
        self._tails = Tails(self._logs, link, lambda replica: replica in self.hands.machine.processes)
        self._timer = self._loop.call_later(WELCOME_S, self._give_up, f"no welcome within {WELCOME_S:g} s")

    def closed(self, why: str) -> None:
        self._end(Lost(why))

    def receive(self, message: msgspec.Struct) -> None:
        said = cast(ToAgent, message)
        match said:
            case Challenge():
                self._introduce(said)
            case Refused() | Moved():
                self._end(said)
            case Welcome():
                self._begin(said)
            case _ if self.welcome is None:
                raise BadFrame(f"{type(said).__name__} before the welcome")
            case Ack(number=number):
                self._acknowledged(number)
            case Desired(desired=desired):
                if self.hands.wants(desired):
                    self._confirmed = -1  # they ask, so they have not heard it
            case Noted(before=before):
                self.hands.noted(before)
            case Ask():
                self._spawn(self._probe(said))
            case ReadLog():
                self._logs_of().begin(said)
            case LogTaken(request=request, taken=taken):
                self._logs_of().taken(request, taken)
            case StopLog(request=request):
                self._logs_of().end(request)
            case Silence(for_ms=for_ms):
                self._fall_silent(for_ms)
            case _:
                assert_never(said)

    # hello and welcome

    def _introduce(self, challenge: Challenge) -> None:
        if self._hello_at is not None:
            raise BadFrame("a second challenge")
        if challenge.oldest > PROTOCOL or challenge.protocol < PROTOCOL_OLDEST:
            why = f"the control plane speaks protocol {challenge.oldest} to {challenge.protocol}"
            side = "agent" if challenge.oldest > PROTOCOL else "control plane"
            why += f", this agent {PROTOCOL_OLDEST} to {PROTOCOL}"
            self._end(Refused("protocol", why, f"upgrade the {side}"))
            return
        me, settings, link = self.me, self.me.settings, self._linked()
        self._hello_at = boot_ms()
        running, *rest = batches(self.hands.running(), challenge.hello_max)
        channel = link.channel
        # One in between could claim that the control plane is old, to have a hello that is bound to nothing.
        protocol = PROTOCOL if channel else min(PROTOCOL, challenge.protocol)
        signs = channel if protocol >= BOUND else None
        link.send(
            Hello(
                protocol=protocol,
                node=settings.name,
                key=me.key.public,
                signature=me.key.sign(challenge.nonce, settings.name, me.instance, signs),
                instance=me.instance,
                token=me.token(),
                running=running,
                pool=settings.pool,
                offer=settings.offer,
                place=settings.place,
                capacity=me.capacity,
                address=me.address or link.address,
                probe_port=self.neighbours.port,
                version=__version__,
                chaos=settings.allow_chaos,
                fencing=self.hands.fencing().value,
                boot=me.boot,
                limits=self.hands.limits().value,
                isolation=self.hands.isolation().value,
                obeyed=self.hands.machine.leader,
                told=max(0, self.hands.machine.generation),
                epoch=self.hands.machine.epoch,
                more=len(rest),
                led=me.led,
                proof=me.proof,
                channel=channel,
            )
        )
        for names in rest:
            link.send(AlsoRunning(names))

    def _begin(self, welcome: Welcome) -> None:
        """Said again, it changes how long leases are and how often we beat, from the next answer on."""
        if self._hello_at is None:
            raise BadFrame("a welcome that nobody waits for")
        again, self.welcome = self.welcome is not None, welcome
        self.hands.machine.lease_ms = welcome.lease_ms
        if again:
            self.welcomed(welcome)
            return
        self.hands.welcomed(self._hello_at)
        self._told = self.hands.machine.first_report
        self.hands.news = self._news
        if welcome.log_bytes_per_s > 0:
            shipping = LogShipping(self._logs, lambda: list(self.hands.machine.processes))
            self._shipping = self._loop.create_task(shipping.run(self._linked(), welcome.log_bytes_per_s))
        self._heard_at = self._due = self._loop.time()
        self._beat_later()
        self.welcomed(welcome)
        self._news()

    # beats

    def _every_s(self) -> float:
        assert self.welcome is not None
        return max(self.welcome.beat_ms, BEAT_MS_MIN) / 1000

    def _beat_later(self) -> None:
        """On a steady schedule; beats that we slept through are not made up for."""
        if self._timer is not None:
            self._timer.cancel()
        every, now = self._every_s(), self._loop.time()
        self._due += every * (1 + max(0, int((now - self._due) / every)))
        self._timer = self._loop.call_at(self._due, self._beat)

    def _beat(self) -> None:
        self._beat_later()
        link = self._linked()
        if link.hushed:
            self._heard_at = self._loop.time()
            return
        patience = max(PATIENCE_BEATS * self._every_s(), PATIENCE_MS_MIN / 1000)
        if self._loop.time() - self._heard_at > patience:
            self._give_up(f"no answer for {seconds(round(patience * 1000))}")
            return
        self._number += 1
        self._sent[self._number] = boot_ms()
        used = self._used() if self._number % USED_EVERY == 0 else None
        link.send(Beat(self._number, self._heard, used, self._changed_answers() or None))

    def _changed_answers(self) -> dict[str, str]:
        """Of probes, since the last beat on this link: some at a time, and no text of any length."""
        now = {name: answer[:ANSWER_LENGTH_MAX] for name, answer in self.hands.answers().items()}
        names = dict.fromkeys((*now, *self._answers))
        changed = (name for name in names if now.get(name, "") != self._answers.get(name, ""))
        news = {name: now.get(name, "") for name in islice(changed, ANSWERS_AT_ONCE)}
        self._answers = {name: answer for name, answer in (self._answers | news).items() if answer}
        return news

    def _used(self) -> Used:
        usage = self.hands.usage()
        each = {name: (use.cpu_milli, use.memory_mib) for name, use in usage.items()}
        gpus = {name: use.gpu_milli for name, use in usage.items() if use.gpu_milli is not None}
        return Used(sum(cpu for cpu, _ in each.values()), sum(mib for _, mib in each.values()), each, gpus)

    def _acknowledged(self, number: int) -> None:
        sent_at = self._sent.get(number)
        if sent_at is None:  # twice, or never sent
            return
        self._heard, self._heard_at = max(self._heard, number), self._loop.time()
        self._sent = {later: at for later, at in self._sent.items() if later > number}
        self.hands.renew(sent_at)

    def _fall_silent(self, for_ms: int) -> None:
        if not self.me.settings.allow_chaos:
            self._log.warning("silence refused", hint="the agent was started without --allow-chaos")
            return
        for_ms = min(max(for_ms, 0), SILENCE_MS_MAX)
        self._log.warning("silent for a while, as told", for_ms=for_ms)
        self._linked().hush(for_ms / 1000, then=self._news)  # what happened meanwhile

    # news

    def _news(self) -> None:
        """What happens at the same moment goes out together."""
        if not self._flushing and not self.over.done():
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        link, machine = self._linked(), self.hands.machine
        if self.over.done() or link.hushed:
            return
        skip = max(0, self._told - machine.first_report)
        said = last_words(self._logs, machine.reports[skip:])
        for at in range(skip, len(machine.reports), REPORTS_AT_ONCE):
            batch = tuple(machine.reports[at : at + REPORTS_AT_ONCE])
            tails = {report.replica: said[report.replica] for report in batch if report.replica in said}
            link.send(Reports(machine.first_report + at, batch, tails))
        self._told = machine.first_report + len(machine.reports)
        if self.hands.confirmed == machine.generation != self._confirmed:
            self._confirmed = machine.generation
            link.send(Confirmed(machine.generation))

    async def _probe(self, ask: Ask) -> None:
        answer = await self.neighbours.ask(ask.address, ask.port, ask.timeout_ms)
        if not self.over.done():
            self._linked().send(Probed(ask.question, answer))

    # the end

    def say_leaving(self, left_ms: int) -> None:
        """Nothing new is to be started here: it would be lost with us, and waited for."""
        if self.welcome is not None and not self.over.done():
            self._linked().send(Noticed(max(1, left_ms), own=True))

    def say_taken(self, left_ms: int) -> None:
        """The machine goes, whatever we do."""
        if self.welcome is not None and not self.over.done():
            self._linked().send(Noticed(left_ms))

    def say_goodbye(self) -> None:
        if self.welcome is not None and not self.over.done():
            self._linked().send(Goodbye())

    def _give_up(self, why: str) -> None:
        self._end(Lost(why, deaf=True))

    def _end(self, ending: Ending) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.over.done():
            self.over.set_result(ending)

    async def close(self, *, at_once: bool = True) -> None:
        """Leaves the link. Unless at once, what was said last still goes out."""
        self._end(Lost("the agent left it"))
        if self.hands.news == self._news:
            self.hands.news = lambda: None
        if self._shipping is not None:
            self._shipping.cancel()
        if self._tails is not None:
            await self._tails.close()
        if self._link is not None:
            self._link.close("the agent left it", at_once=at_once)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self._link.gone.wait()
            self._link.close("the agent left it", at_once=True)

    def _linked(self) -> Link:
        assert self._link is not None
        return self._link

    def _logs_of(self) -> Tails:
        assert self._tails is not None
        return self._tails
