"""Our detector, the real one, listening to a history.

A mind with a world of so many nodes and no work; `core.turn` judges, asks and folds as it does in life. Here
are its ears (beats as they arrive) and the world's answers to what it asks: peers that probe (and whose
messages may be lost, late or cut off themselves), and a provider. Turns come when something is heard or due,
at most one in 10 ms.

One contract of the host loop is relied on: after a pause of our own, `Senses.listened` is called before
anything that waited is read. The other way round every node would be believed to have been silent itself, and
be given more patience for half an hour.
"""

import heapq
import random
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bench._rivals import Gaps, Score
from bench._truth import BEAT_MS, BEGIN, CHUNK, GIVE_UP_LINK_MS, RACK, Failure, Ints, Pause, Truth
from holdfast.core.turn import Append, Mind, Perform, turn
from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.node import Answer
from holdfast.model.place import Place
from holdfast.model.policy import Policy, RepairPolicy
from holdfast.model.pool import Pool
from holdfast.model.resources import Resources
from holdfast.model.units import NEVER, Instant
from holdfast.model.verdict import Level, Word
from holdfast.model.world import World

TURN_MS: Final = 10
TICK_MS: Final = 100  # a loop that looks so often notices a pause of its own from there on
PROVIDER_MS: Final = (150, 450)
ZONES: Final = 4
# Repairs of flapping nodes are another matter: they would take nodes out of the measurement.
POLICY: Final = Policy(repair=RepairPolicy(flaps_max=1_000_000))


class Listening:
    def __init__(self, truth: Truth, seed: int) -> None:
        self.truth = truth
        self.dice = random.Random(seed)
        self.names = [f"n{number}" for number in range(truth.nodes)]
        self.number = {name: number for number, name in enumerate(self.names)}
        self.score, self.rivals = Score(), Gaps(truth, BEGIN)
        self.levels: dict[str, int] = {}  # verdicts given
        self.wrongly: list[str] = []  # the evidence on which a node that lived was called dead
        self.slowly: list[str] = []
        self.called_dead: dict[int, Instant] = {}  # since when, until it is back
        self.mail: list[tuple[Instant, int, ev.Event]] = []
        self.mails = 0
        self.mind = Mind(World())
        self.known = np.full(truth.nodes, -1, np.int64)  # a node's row in the table of beats
        self.queued: NDArray[np.bool_] = np.zeros(truth.nodes, np.bool_)  # heard while we stood still
        self.endings = sorted(truth.failures, key=lambda failure: failure.end)
        self.ended = 0
        self._begin()

    def _begin(self) -> None:
        pool = Pool(
            "p", "bench", (), max=self.truth.nodes, can_launch=False, can_terminate=False, can_reset=False
        )
        inbox: list[ev.Event] = [
            ev.PolicyApplied(at=BEGIN, policy=POLICY),
            ev.LeaderChanged(at=BEGIN, leader="bench", generation=1),
            ev.PoolApplied(at=BEGIN, pool=pool),
        ]
        for number, name in enumerate(self.names):
            place = Place("bench", "one", f"z{number // RACK % ZONES}", f"r{number // RACK}")
            inbox.append(
                ev.NodeJoined(at=BEGIN, node=name, pool="p", place=place, capacity=Resources(1_000, 1_024))
            )
        self._turn(BEGIN, inbox)
        for failure in self.truth.failures:
            if failure.kind == "kill" and not self.truth.is_cut(failure.node, failure.start):
                closed = failure.start + self._travel(failure.node)
                self._post(closed, ev.LinkClosed(at=closed, node=self.names[failure.node]))
            self._post_hello(failure.node, failure.end)
        for cut in self.truth.cuts:
            for node, at in cut.hello_at.items():
                self._post_hello(node, at)

    # the whole history

    def run(self) -> None:
        pauses = iter(self.truth.pauses)
        pause = next(pauses, None)
        for chunk in range(-(-self.truth.rounds // CHUNK)):
            for row, arrives in enumerate(self.truth.arrivals(chunk)):
                begins = BEGIN + (chunk * CHUNK + row) * BEAT_MS
                if pause is not None and begins >= pause.end:
                    self._wake(pause)
                    pause = next(pauses, None)
                if pause is not None and begins >= pause.start:
                    self.queued |= arrives < NEVER
                else:
                    self._round(begins, arrives)
        for failure in self.endings[self.ended :]:
            self._conclude(failure)

    def _round(self, begins: Instant, arrives: Ints) -> None:
        ends = begins + BEAT_MS
        while self.ended < len(self.endings) and self.endings[self.ended].end < ends:
            self._conclude(self.endings[self.ended])
            self.ended += 1
        beats, now = self.mind.senses.beats, begins
        while True:
            soonest = min(self._due(now), int(beats.look_at.min()))
            if soonest >= ends and not beats.grade.any():
                break
            now = max(now, -(-self._next(arrives, now) // TURN_MS) * TURN_MS)
            if now >= ends:
                break
            self._hear(arrives, now)
            self._turn(now, self._read(now))
        self._hear(arrives, ends)

    def _due(self, now: Instant) -> Instant:
        agenda = self.mind.world.agenda
        if any(agenda.changed.values()) or agenda.room_freed:
            return now + 1
        return min(agenda.next_due(), self.mail[0][0] if self.mail else NEVER)

    def _next(self, arrives: Ints, now: Instant) -> Instant:
        """When something is due, somebody falls silent further, or somebody silent is heard."""
        beats = self.mind.senses.beats
        heard = self.known >= 0
        rows, coming = self.known[heard], arrives[heard]
        look = beats.look_at[rows]
        late = look[look < coming]
        back = coming[beats.grade[rows] > 0]
        found = [self._due(now)] + [int(times.min()) for times in (late, back) if len(times)]
        return min(found)

    def _hear(self, arrives: Ints, now: Instant) -> None:
        """Takes what has arrived by now out of the round."""
        nodes = np.flatnonzero(arrives <= now)
        if len(nodes):
            at = arrives[nodes]
            arrives[nodes] = NEVER
            self.rivals.hear(nodes, at)
            self._beat(nodes, at)

    def _beat(self, nodes: Ints, at: Ints) -> None:
        rows = self.known[nodes]
        if self.called_dead:
            rows, at = rows[rows >= 0], at[rows >= 0]
        self.mind.senses.beats.beat(rows, at)

    def _read(self, now: Instant) -> list[ev.Event]:
        inbox = []
        while self.mail and self.mail[0][0] <= now:
            event = heapq.heappop(self.mail)[2]
            if not isinstance(event, ev.NodeJoined) or self._can_say_hello(event.node, now):
                inbox.append(event)
        return inbox

    def _wake(self, pause: Pause) -> None:
        """We stood still. Everything that was sent meanwhile is waiting, and timers are due."""
        now, senses = pause.end, self.mind.senses
        while self.ended < len(self.endings) and self.endings[self.ended].end < now:
            self._conclude(self.endings[self.ended])
            self.ended += 1
        senses.listened(now, pause.start + TICK_MS)
        if pause.timers_first:
            self._turn(now, [])
        nodes = np.flatnonzero(self.queued)
        self.queued[:] = False
        at = np.full(len(nodes), now, np.int64)
        self.rivals.hear(nodes, at, looked=now if pause.timers_first else pause.start)
        if pause.end - pause.start > GIVE_UP_LINK_MS:  # all agents have given up and connected anew
            for node in nodes.tolist():
                self._post_hello(node, now)
        else:
            self._beat(nodes, at)
        self._turn(now, self._read(now))

    # what ours thinks and does

    def _turn(self, now: Instant, inbox: list[ev.Event]) -> None:
        self.mind.senses.listened(now, now)
        for step in turn(self.mind, inbox, now):
            match step:
                case Append(entries=entries):
                    for entry in entries:
                        if isinstance(entry, ev.NodeJudged):
                            self._judged(entry)
                        elif isinstance(entry, ev.NodeJoined):
                            self._joined(self.number[entry.node], now)
                case Perform(action=do.AskPeers(node=node, peers=peers)):
                    for peer in peers:
                        self._probe(self.number[node], self.number[peer], now)
                case Perform(action=do.AskProvider(node=node)):
                    self._ask_provider(self.number[node], now)
                case _:
                    pass

    def _joined(self, node: int, now: Instant) -> None:
        self.called_dead.pop(node, None)
        self.known[node] = self.mind.senses.beats.row[self.names[node]]
        if now > self.rivals.last[node]:
            self.rivals.hear(np.array([node]), np.array([now]))

    def _judged(self, judged: ev.NodeJudged) -> None:
        level = judged.verdict.level
        self.levels[level] = self.levels.get(level, 0) + 1
        if level is not Level.DEAD:
            return
        node, now = self.number[judged.node], judged.at
        self.known[node] = -1
        self.called_dead[node] = now
        failure = self.truth.failure_at(node, now)
        if failure is None:
            silent_since = now - judged.verdict.evidence.silent_ms
            self.score.wrong(self.truth.cause(node, silent_since, now))
            self.wrongly.append(f"{judged.verdict.rule} ({judged.verdict.evidence})")
            self._post_hello(node, now + self.dice.randint(500, 2_000))
            return
        took = now - failure.start
        self.score.took_ms.append((failure.kind, took))
        if took > 4_000:
            around = self.truth.cause(node, failure.start - 1, now)
            self.slowly.append(f"{took / 1000:.1f} s, {failure.kind}, {around}: {judged.verdict.evidence}")

    def _conclude(self, failure: Failure) -> None:
        self.rivals.conclude(failure)
        called = self.called_dead.get(failure.node)
        if called is None:
            self.score.missed += 1
        elif called < failure.start:
            self.score.took_ms.append((failure.kind, 0))

    # how the world answers

    def _post(self, at: Instant, event: ev.Event) -> None:
        self.mails += 1
        heapq.heappush(self.mail, (at, self.mails, event))

    def _post_hello(self, node: int, at: Instant) -> None:
        self._post(at, ev.NodeJoined(at=at, node=self.names[node]))

    def _can_say_hello(self, name: str, now: Instant) -> bool:
        node = self.number[name]
        return self.truth.failure_at(node, now) is None and not self.truth.is_cut(node, now)

    def _travel(self, node: int) -> int:
        return int(self.truth.delay[node] + self.dice.expovariate(1) * self.truth.tail[node])

    def _lost(self, node: int) -> bool:
        return self.dice.random() < float(self.truth.loss[node])

    def _speaks_with_us(self, node: int, at: Instant) -> bool:
        return not (self._lost(node) or self.truth.is_cut(node, at))

    def _probe(self, node: int, peer: int, now: Instant) -> None:
        """We ask the peer, it tries the node, and answers us; each step can fail."""
        tries = now + self._travel(peer)
        if not self._speaks_with_us(peer, now) or self.truth.failure_at(peer, tries):
            return
        if stalled := self.truth.stall_at(peer, tries):
            tries = stalled.end
        answer, took = self._meets(node, peer, tries)
        limit = POLICY.detection.probe_ms
        if took > limit:
            answer, took = Answer.TIMEOUT, limit
        at = tries + took + self._travel(peer)
        if self._speaks_with_us(peer, tries + took) and not self.truth.failure_at(peer, tries + took):
            self._post(
                at, ev.PeerAnswered(at=at, node=self.names[node], peer=self.names[peer], answer=answer)
            )

    def _meets(self, node: int, peer: int, at: Instant) -> tuple[Answer, int]:
        there = self._travel(node)
        failure, stall = self.truth.failure_at(node, at + there), self.truth.stall_at(node, at + there)
        silent = failure is not None and failure.kind != "kill"
        if silent or any(self._lost(end) for end in (node, node, peer, peer)):
            return Answer.TIMEOUT, NEVER
        waits = stall.end - (at + there) if stall is not None and stall.whole else 0
        return Answer.REFUSED if failure else Answer.REACHED, there + waits + self._travel(node)

    def _ask_provider(self, node: int, now: Instant) -> None:
        at = now + self.dice.randint(*PROVIDER_MS)
        failure = self.truth.failure_at(node, at)
        stopped = failure is not None and failure.known_at <= at
        word = Word.STOPPED if stopped else Word.RUNNING
        self._post(at, ev.ProviderAnswered(at=at, node=self.names[node], word=word))
