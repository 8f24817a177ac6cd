"""Where the agents are connected: hello and welcome, beats, desired sets, reports, questions to peers, logs.

The hub decides nothing. It checks who somebody is, turns what they say into events, and says to each node
what the world wants of it. What it must keep, because the proofs of the core rest on it:

- a hello is welcomed after it is journalled; the welcome and the first set come from the same term;
- a beat is acknowledged (and so a lease renewed) only while we surely lead, by our own clock: a leader that
  was paused and woke up renews nothing;
- reports are acknowledged after they are journalled;
- the closing of a connection is news only if it is the one the node last said hello on;
- a set is the whole set, sent again until it is confirmed.
"""

import asyncio
from collections.abc import Iterator, Mapping

import structlog
from msgspec.structs import replace

from holdfast.control.claims import JUMP_MAX, Claims
from holdfast.control.enrol import Enrolment, Refusal
from holdfast.control.intake import Allowance, Rates
from holdfast.control.introduction import joined
from holdfast.control.inventory import Inventory
from holdfast.control.last_words import LastWords
from holdfast.control.log_reader import LogReader
from holdfast.control.metrics import Metrics
from holdfast.control.probe_answers import ProbeAnswers
from holdfast.control.session import Gone, Session
from holdfast.control.strangers import Strangers
from holdfast.control.term import Term
from holdfast.core.agent.desired_set import desired_set, events_of
from holdfast.model import event as ev
from holdfast.model.node import JOINED, Answer
from holdfast.model.units import MINUTE, NEVER, Instant
from holdfast.model.verdict import Level
from holdfast.model.world import World
from holdfast.ports.clock import Clock
from holdfast.ports.store import Tail
from holdfast.wire.messages import (
    Ask,
    Confirmed,
    Desired,
    Found,
    Goodbye,
    Hello,
    LogEnds,
    LogPart,
    Noted,
    Noticed,
    Probed,
    Reports,
    Used,
    Welcome,
    Wrote,
)

ANSWER_SLACK_MS = 400  # what a question to a peer may take on top of the probe itself
SET_AGAIN_S = 1.0
LOG_BYTES_PER_S = 1 << 20  # of what running replicas write, from all nodes together
LOG_BYTES_PER_S_MAX = 4 << 10  # from one node
LOG_BYTES_PER_S_MIN = 256
LOG_BURST_S = 10
LAST_BYTES_MAX = 64 << 10  # that are kept of a replica that ended
WRITTEN_MAX = 1 << 62  # more than any store can count is nonsense
BARRED_MS = 10 * MINUTE
SIZE_HINT = "its offer says less: if that is wrong, change the offer in the pool"
NAMED_MAX, NAMED_MOST = 128, 8  # characters, names
ADDRESS_MAX = 128  # of what is logged

log = structlog.get_logger("holdfast.hub")


class Hub:
    def __init__(self, clock: Clock, enrolment: Enrolment, metrics: Metrics, last_words: LastWords) -> None:
        self.clock, self.enrolment, self.metrics, self.last_words = clock, enrolment, metrics, last_words
        self.leads_until: Instant = 0  # by our own monotonic clock
        self.leader_url = ""  # of whoever leads
        self.control_planes: tuple[str, ...] = ()  # URLs of all; another tuple only when they change
        self.used: dict[str, Used] = {}
        self.answers = ProbeAnswers()
        self._inventory = Inventory()
        self._term: Term | None = None
        self.strangers = Strangers()
        self._rates: dict[str, Rates] = {}  # by node
        self._barred: dict[str, Instant] = {}  # nodes, until when
        self._later: list[tuple[Session, object]] = []  # came in while the world was not sound
        self._open: dict[Session, None] = {}
        self._sessions: dict[str, Session] = {}  # by node: the connection it last said hello on
        self._heard: dict[str, Instant] = {}
        self._reported: dict[str, int] = {}  # reports received, by number
        self._unconfirmed: dict[str, int] = {}  # node -> generation of the set it has not confirmed
        self._again: dict[str, asyncio.TimerHandle] = {}  # by node: when its set is sent again
        self._questions: dict[int, tuple[str, str, Session]] = {}  # number -> suspect, peer, who was asked
        self.readers: dict[int, LogReader] = {}
        self._number = 0
        self._checks: set[asyncio.Task[None]] = set()
        self._at_first: dict[str, int] = {}  # node -> sets it was sent before this term
        self._greeted: set[str] = set()  # nodes that have said hello in this term
        self.claims = Claims(enrolment.secret)
        self.outdone = asyncio.Event()  # a node has obeyed a later leader: see `claims`

    # terms

    def take_over(self, term: Term) -> None:
        self._term = term
        self._at_first = {name: node.generation for name, node in term.mind.world.nodes.items()}
        self._greeted.clear()
        self.enrolment.begin()
        self._rates = {name: rates for name, rates in self._rates.items() if name in self._at_first}

    def step_down(self) -> None:
        """Agents are sent on; they say hello to whoever leads."""
        self._term = None
        self.leads_until = 0
        for session in list(self._open):
            session.send_on(self.leader_url, self.control_planes)
        for memory in (self._sessions, self._heard, self._reported, self._unconfirmed, self._questions):
            memory.clear()
        self.used.clear()
        self._inventory.clear()
        self.answers.clear()
        self.metrics.links.set(0)

    def may_renew(self) -> bool:
        return self._term is not None and self.clock.monotonic() < self.leads_until

    # connections

    def accept(self) -> Session:
        return Session(self)

    def opened(self, session: Session) -> None:
        self._open[session] = None
        if not self.strangers.add(session):
            session.refuse("full", "too many connections from its address wait to be welcomed")

    def sweep(self) -> None:
        """Ends connections that said nothing for too long. Called about once a second."""
        self.strangers.sweep(self.clock.monotonic())

    def closed(self, session: Session) -> None:
        self.strangers.drop(session)
        self._open.pop(session, None)
        node = session.hello.node if session.hello is not None else ""
        for reader in self.readers.values():
            if reader.session is session:
                reader.end(f"the connection to {node} is closed")
        if self._sessions.get(node) is session:  # also if its hello is only being written
            del self._sessions[node]
            self.used.pop(node, None)
            self._inventory.drop(node)
            self.answers.drop(node)
            self.metrics.links.set(len(self._sessions))
            if self._term is not None:
                self._term.post(ev.LinkClosed(at=self._term.now, node=node))

    def connected(self, node: str) -> Session | None:
        session = self._sessions.get(node)
        return session if session is not None and session.open else None

    async def close(self) -> None:
        for session in list(self._open):
            session.close()
        for task in list(self._checks):
            task.cancel()
        await asyncio.gather(*self._checks, return_exceptions=True)

    # hello

    def greeted(self, session: Session, hello: Hello) -> None:
        if self._term is None or not self._term.open:
            session.send_on(self.leader_url, self.control_planes)
            return
        task = asyncio.get_running_loop().create_task(self._check(session, hello, self._term))
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    async def _check(self, session: Session, hello: Hello, term: Term) -> None:
        try:
            known = term.mind.world, self._other(hello)
            await self.enrolment.check(
                hello, session.nonce, *known, over_tls=session.over_tls, origin=session.ends[0]
            )
        except Refusal as refusal:
            session.refuse(refusal.code, refusal.why, refusal.hint)
            return
        if self._barred.get(hello.node, 0) > self.clock.monotonic():
            session.refuse("barred", f"{hello.node} reported what cannot be handled", "see our log")
            return
        rates = self._rates.setdefault(hello.node, Rates(self.clock.monotonic()))
        if rates.hellos.wait_ms(self.clock.monotonic()):
            session.refuse("often", f"{hello.node} says hello too often", "it will be tried again")
            return
        rates.hellos.take(1)
        session.intake.goes_by(rates)
        try:
            hello = await session.admit()
        except TimeoutError:
            session.close(at_once=True)
            return
        if not session.open or self._term is not term or not term.open:
            session.close()
            return
        if hello.obeyed > term.generation:
            self._outdone(session, hello, term)
            return
        self._joined(session, hello, term)

    def _outdone(self, session: Session, hello: Hello, term: Term) -> None:
        """The node refuses our sets. We lead on under a generation above the one that it has obeyed."""
        said = (
            f"{hello.node} has obeyed a leader of generation {hello.obeyed}, this one has {term.generation}"
        )
        if not self.claims.believed(hello.obeyed, hello.led, hello.proof):
            session.refuse("ahead", f"{said}, and does not prove it", "is it a node of another fleet?")
            return
        log.error("the journal is older than what agents obeyed: was it restored from a copy?", why=said)
        session.refuse("ahead", f"{said}; it leads on above that", "say hello again")
        self.outdone.set()

    def _behind(self, hello: Hello, term: Term) -> Iterator[ev.JournalBehind]:
        """Was the node told of what the journal does not know? Then that was restored from an older copy. It
        is believed once in a term, with its first hello: after that it was told by us."""
        why = self._unknown(hello, term.mind.world)
        if not why or hello.node in self._greeted:
            return
        log.error("the journal is older than what agents were told", node=hello.node, why=why)
        known_epochs = (slot.epoch for slot in term.mind.world.slots.values())
        most = max(known_epochs, default=0) + JUMP_MAX  # what a node says is believed within bounds
        yield ev.JournalBehind(at=term.now, why=why, node=hello.node, epoch=min(hello.epoch, most))

    def _unknown(self, hello: Hello, world: World) -> str:
        """What it knows and the journal does not; empty: nothing."""
        node = world.nodes.get(hello.node)
        sent = self._at_first.get(hello.node, node.generation if node is not None else 0)
        if node is not None and hello.told > sent:
            return f"it has taken set {hello.told}, the journal knows of {sent}"
        for name in hello.running:
            slot_id, _, epoch = name.rpartition(".")
            slot = world.slots.get(slot_id)
            later = slot is not None and name not in world.replicas and epoch.isdecimal()
            if later and slot is not None and int(epoch[:19]) > slot.epoch:
                return f"it runs {name[:NAMED_MAX]}, the journal knows of {slot.epoch} epochs of {slot_id}"
        return ""

    def _other(self, hello: Hello) -> str:
        """The instance of another agent that is connected under this name and was heard just now."""
        session = self.connected(hello.node)
        if session is None or session.hello is None or self._term is None:
            return ""
        beats = self._term.mind.senses.beats
        silent = self._term.now - beats.last_acked(hello.node)
        return session.hello.instance if silent < 3 * beats.policy.beat_ms else ""

    def _joined(self, session: Session, hello: Hello, term: Term) -> None:
        before = self._sessions.pop(hello.node, None)
        if before is not None:
            before.close(at_once=True)
        self._sessions[hello.node] = session
        self.metrics.links.set(len(self._sessions))
        self._reported.pop(hello.node, None)  # a new agent counts from its own beginning
        self._heard.pop(hello.node, None)
        behind = tuple(self._behind(hello, term))
        self._greeted.add(hello.node)
        term.post(
            *behind,
            joined(hello, session.ends, term.mind.world, term.now, session.intake.drop),
            done=lambda length: self._welcome(session, hello, term),
            failed=lambda error: session.close(),
            sender=hello.node,
        )

    def _welcome(self, session: Session, hello: Hello, term: Term) -> None:
        """It is journalled. The lease it gets now counts from its hello, which we heard before."""
        node = term.mind.world.nodes.get(hello.node)
        if node is None or node.state not in JOINED:
            session.refuse(
                "gone", f"{hello.node} is no node of ours any more", "give the machine another name"
            )
            return
        if self._sessions.get(hello.node) is not session or not self.may_renew():
            session.close()
            return
        session.node = hello.node
        self._promise(session, term)
        self.send_set(hello.node)

    def _promise(self, session: Session, term: Term) -> None:
        """How long its lease is, how often it beats, whom it may turn to. Said again when that changes,
        before the next beat is acknowledged: the lease it counts must be the one that we count."""
        policy = session.policy = term.policy
        session.planes = self.control_planes
        session.send(
            Welcome(
                term.generation,
                policy.leases.lease_ms,
                policy.detection.beat_ms,
                session.planes,
                self._allow_logs(session, term),
                self.claims.proof(term.generation),
            )
        )

    def _allow_logs(self, session: Session, term: Term) -> int:
        """Bytes a second of what running replicas write that this node may send: all nodes share a bound."""
        share = LOG_BYTES_PER_S // max(1, len(term.mind.world.nodes))
        per_s = max(LOG_BYTES_PER_S_MIN, min(LOG_BYTES_PER_S_MAX, share))
        session.log_allowance = Allowance(per_s, LOG_BURST_S * per_s, term.now)
        return per_s

    def _log_ends(self, session: Session, term: Term, message: LogEnds) -> None:
        allowance = session.log_allowance
        if allowance is None or allowance.wait_ms(term.now):
            return  # more than it was allowed; the next one replaces it
        allowance.take(sum(len(wrote.data) for wrote in message.tails.values()))
        found = _tails(term, session.node, message.tails)
        self.last_words.keep_running(replace(tail, ended=False) for tail in found)

    # what agents say

    def beat(self, session: Session) -> bool:
        """Notes that it was heard. False: it must not be acknowledged, because we do not surely lead, or
        because the node was called dead: we count its lease as running out, so it must say hello again."""
        term = self._term
        if term is None or not self.may_renew():
            return False
        if session.node not in term.mind.senses.beats.row:
            session.close()
            return False
        if term.policy is not term.mind.world.policy:
            return False  # by which policy would its lease count?
        if session.policy is not term.policy or session.planes is not self.control_planes:
            self._promise(session, term)
        self._heard[session.node] = term.now
        return True

    def uses(self, node: str, used: Used) -> None:
        """What the node uses, and so what it runs."""
        term = self._term
        self.used[node] = used
        if term is None or not term.open:
            return
        strays = self._inventory.heard(term.mind.world, node, used.replicas, term.now)
        if strays.new:
            self.metrics.strays.inc(len(strays.new))
            shown = [name[:NAMED_MAX] for name in strays.new[:NAMED_MOST]]
            log.warning("runs what it should not: ordered again to stop it", node=node, replicas=shown)
        if strays.order:
            self.send_set(node)
        if strays.event is not None:
            term.post(strays.event, sender=node)

    def heard(self) -> dict[str, Instant]:
        heard, self._heard = self._heard, {}
        self.metrics.beats.inc(len(heard))
        return heard

    def received(self, session: Session, message: object) -> None:
        term, node = self._term, session.node
        if term is None or self._sessions.get(node) is not session:
            return
        if not term.sound:
            self._later.append((session, message))
            return
        match message:
            case Reports():
                self._reports(session, term, message)
            case Confirmed(generation=generation):
                if self._unconfirmed.get(node, NEVER) <= generation:
                    self._unconfirmed.pop(node, None)
            case Probed(question=number, answer=answer):
                self._answered(number, session, answer)
            case Goodbye():
                term.post(ev.NodeSaidGoodbye(at=term.now, node=node), sender=node)
            case Noticed(left_ms=left, own=own):
                noticed = ev.SpotNoticed(at=term.now, node=node, deadline=term.now + left, own=own)
                term.post(noticed, sender=node)
            case Found(finding=finding):
                taken = session.intake.finding(term.mind.world, node, finding)
                if taken is not None:
                    found = ev.FindingRaised(at=term.now, finding=replace(taken, at=term.now))
                    term.post(found, sender=node)
            case LogEnds():
                self._log_ends(session, term, message)
            case LogPart(request=number):
                if self.waits_for(session, number):
                    self.readers[number].put(message)
            case _:
                pass

    def bar(self, node: str, why: str) -> None:
        """It is not heard for a while. What it runs counts as silent."""
        log.error("node barred: it reported what cannot be handled", node=node, why=why, for_ms=BARRED_MS)
        now = self.clock.monotonic()
        self._barred = {name: until for name, until in self._barred.items() if until > now}
        self._barred[node] = now + BARRED_MS
        session = self._sessions.get(node)
        if session is not None:
            session.close(at_once=True)

    def resume(self) -> None:
        """What came in while the world was not sound."""
        later, self._later = self._later, []
        for session, message in later:
            self.received(session, message)
        for node in list(self._unconfirmed):
            self._send_set(node)

    def _reports(self, session: Session, term: Term, message: Reports) -> None:
        now, node = term.now, session.node
        before = message.first + len(message.reports)
        known = self._reported.get(node, 0)
        self._reported[node] = max(known, before)
        fresh = message.reports[max(0, known - message.first) :]
        self.last_words.keep(_tails(term, node, message.tails))
        own = session.intake.own(term.mind.world, node, fresh)
        term.post(*events_of(own, node, now), done=lambda _: session.send(Noted(before)), sender=node)

    # desired sets

    def send_set(self, node: str) -> None:
        """Sends the whole set, and again until it is confirmed."""
        if self._term is not None and node in self._term.mind.world.nodes:
            self._unconfirmed[node] = self._term.mind.world.nodes[node].generation
            self._send_set(node)

    def _send_set(self, node: str) -> None:
        term, session = self._term, self.connected(node)
        if term is not None and not term.sound:
            return  # `resume` sends it
        known = term.mind.world.nodes.get(node) if term is not None else None
        unfit = known is None or known.state not in JOINED or known.verdict.level is Level.DEAD
        if term is None or unfit or session is None or not session.node:
            self._unconfirmed.pop(node, None)  # its next hello is answered with the set
            return
        of = self.enrolment
        found = desired_set(term.mind.world, node, term.now, of.gateway_secret, of.user_number)
        session.send(Desired(found))
        if node in self._again:  # one for each node, however often it is sent
            self._again[node].cancel()
        later = asyncio.get_running_loop().call_later
        self._again[node] = later(SET_AGAIN_S, self._send_again, node, self._unconfirmed[node], term)

    def _send_again(self, node: str, generation: int, term: Term) -> None:
        del self._again[node]
        if self._term is term and self._unconfirmed.get(node) == generation:
            self._send_set(node)

    # questions to peers

    def ask(self, suspect: str, peer: str) -> None:
        """Asks a peer to probe a node. There is always an answer in the end."""
        term = self._term
        if term is None:
            return
        session, node = self.connected(peer), term.mind.world.nodes.get(suspect)
        if session is None or node is None or not node.probe_port:
            term.post(ev.PeerAnswered(at=term.now, node=suspect, peer=peer, answer=Answer.FAILED))
            return
        timeout = term.mind.world.policy.detection.probe_ms
        self._number += 1
        self._questions[self._number] = (suspect, peer, session)
        session.send(Ask(self._number, node.address, node.probe_port, timeout))
        late = (timeout + ANSWER_SLACK_MS) / 1000
        asyncio.get_running_loop().call_later(late, self._answered, self._number, session, Answer.FAILED)

    def _answered(self, number: int, session: Session, answer: Answer) -> None:
        question = self._questions.get(number)
        if question is not None and question[2] is session and self._term is not None:
            del self._questions[number]
            suspect, peer, _ = question
            answered = ev.PeerAnswered(at=self._term.now, node=suspect, peer=peer, answer=answer)
            self._term.post(answered, sender=peer)

    # logs, chaos

    def read_log(self, node: str, replica: str, offset: int, *, follow: bool) -> LogReader:
        """To be closed. Gone: the node is not connected."""
        session = self.connected(node)
        if session is None:
            raise Gone(f"{node} is not connected")
        self._number += 1
        reader = LogReader(self._number, session, lambda: self._silenced(node), self.readers.pop)
        self.readers[self._number] = reader
        reader.ask(replica, offset, follow=follow)
        return reader

    def waits_for(self, session: Session, request: int) -> bool:
        """Was this part of a log asked for, and is there room for it?"""
        reader = self.readers.get(request)
        return reader is not None and reader.session is session and not reader.full

    def _silenced(self, node: str) -> str:
        """A machine that hangs keeps its connection, and sends nothing."""
        known = self._term.mind.world.nodes.get(node) if self._term is not None else None
        return f"{node} is dead" if known is not None and known.verdict.level is Level.DEAD else ""

    def may_be_silenced(self, node: str) -> Session:
        """Chaos: who can be cut off from us, and we from it."""
        session = self.connected(node)
        if session is None:
            raise Gone(f"{node} is not connected")
        if session.hello is None or not session.hello.chaos:
            raise PermissionError(f"{node} was started without --allow-chaos")
        return session


def _tails(term: Term, node: str, tails: Mapping[str, Wrote]) -> Iterator[Tail]:
    """Nobody speaks for the replica of another."""
    for name, wrote in tails.items():
        replica = term.mind.world.replicas.get(name)
        if replica is not None and replica.node == node:
            written = min(max(wrote.written, len(wrote.data)), WRITTEN_MAX)
            yield Tail(name, node, wrote.data[-LAST_BYTES_MAX:], written, term.now)
