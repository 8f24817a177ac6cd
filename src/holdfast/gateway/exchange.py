"""One request from its arrival to its end: let in, held, asked of a replica, answered, booked exactly once.

    admit ── let in ── (held) ── asked ──┬── answered ── booked
                │                        └── failed before any content: asked of another
                └── refused              └── failed after: told in the stream

Nothing of an answer is sent before its first content, so until then another replica may give it. A `Try` is
the request at one replica; there is one at a time, two while a late one is hedged. Whatever ends it, `_end`
is reached once: it gives back what was reserved, lets go of the replicas, and counts.
"""

import zlib
from typing import TYPE_CHECKING

from holdfast.core.gateway.purse import PurseChain, PurseTaken
from holdfast.core.gateway.replicas import Replica
from holdfast.core.gateway.zombie import Seen
from holdfast.gateway import ask as asks
from holdfast.gateway import heads, replies
from holdfast.gateway.admit import take
from holdfast.gateway.attempt import Try
from holdfast.gateway.glance import look
from holdfast.gateway.replies import Answer
from holdfast.gateway.sse import Usage, text_of, usage_at_end, usage_in
from holdfast.gateway.up import Up, idle_connection
from holdfast.model.gateway import Key

if TYPE_CHECKING:
    from holdfast.gateway.down import Down
    from holdfast.gateway.service import Service
    from holdfast.gateway.worker import Worker

FREED_MAX = 2
BREATH_S = 0.3  # whoever has just failed it may still be going: a process takes a moment to die
LEARN_ALL = 1_000  # of the first answers all are learned from, then
LEARN_EVERY = 8
TAIL = 4_096  # of a long answer: its usage is there
ANYBODY = Key("", b"")


class Exchange:
    """Most requests change few of these: as defaults of the class they cost nothing to begin with."""

    key: Key = ANYBODY
    service: "Service | None" = None
    model = ""
    chain: PurseChain | None = None
    taken: PurseTaken | None = None
    short = 0  # how often quota had to be borrowed
    tokens = 0  # reserved
    cost = 0  # for the balance between replicas
    prompt_bytes = 0
    pieces = 0  # pictures and sounds
    most: int | None = None  # tokens of one answer
    outputs = 1
    prefix: tuple[int, ...] | None = None
    excluded: set[str] | None = None  # replicas that have failed it
    tried = 0
    winner: Try | None = None
    streams = False  # it was asked to
    strip = False  # its usage was not asked for
    asked = False  # a replica has seen it
    freed = 0  # how often it was asked again because its replica was gone
    left_early = False
    to_chunk = False
    over = False
    first_at = 0.0
    held_since = 0.0
    not_before = 0.0  # it is not asked again
    sent_body = 0
    status = 0
    text = ""  # what was said so far, if it may have to be continued
    head = b""
    id = b""

    def __init__(self, worker: "Worker", down: "Down") -> None:
        self.worker, self.down = worker, down
        self.started = self.last_at = worker.now()
        self.body = down.body
        self.tries: list[Try] = []

    def lent(self) -> None:
        """The broker has answered: try again."""
        if not self.over:
            take(self)

    # asked of a replica

    def dispatch(self) -> None:
        service = self.service
        assert service is not None
        now = self.worker.now()
        replica = None
        if not service.waiting or self.held_since or self.tried:
            replica = service.pick(self, now)
        if replica is not None:
            self._ask(replica, now)
        elif not self._hold(now):
            self._no_capacity(service)

    def _hold(self, now: float) -> bool:
        """It waits until somebody can take it."""
        service = self.service
        assert service is not None
        since = self.held_since or now  # patience is for the whole of it
        if service.held(self, since):
            self.held_since = since
            return True
        return False

    def _no_capacity(self, service: "Service") -> None:
        if service.empty:
            text = f"{service.name} has no replica at the moment"
            answer = Answer(503, "model_warming", text, "server_error", wait_s=5.0)
        else:
            text = f"every replica of {service.name} is busy or failing"
            answer = Answer(503, "no_capacity", text, "server_error", wait_s=1.0)
        self.answer(answer)

    def wake(self) -> bool:
        """There may be room now. False: there is not, and it should go on waiting."""
        service = self.service
        assert service is not None
        now = self.worker.now()
        if now < self.not_before:
            return False
        replica = service.pick(self, now, patient=True)
        if replica is None:
            return False
        service.waits.note(now - self.held_since)
        self._ask(replica, now)
        return True

    def gave_up_waiting(self) -> None:
        service = self.service
        assert service is not None
        self._no_capacity(service)

    def _ask(self, replica: Replica, now: float) -> None:
        service = self.service
        assert service is not None
        service.pool.dispatch(replica, self.cost)
        if self.worker.siblings is not None:
            self.worker.siblings.note(self, replica)
        attempt = Try(self, replica, now)
        self.tries.append(attempt)
        self.tried += 1
        self._connect(attempt)

    def _connect(self, attempt: Try) -> None:
        up = idle_connection(attempt.replica)
        if up is not None:
            self._send(attempt, up)
        else:
            self.worker.connect(attempt)

    def connected(self, attempt: Try, up: Up) -> None:
        if self.over or attempt.over:
            up.let_go()
        elif up.transport.is_closing():  # it went before it was asked anything
            attempt.failed(None, "it closed the connection at once")
        else:
            self._send(attempt, up)

    def _send(self, attempt: Try, up: Up) -> None:
        service = self.service
        assert service is not None
        self.asked = True
        attempt.up = up
        target = service.targets[attempt.replica.id]
        up.ask(attempt, heads.request(self, target), is_head=self.down.method == b"HEAD")
        if self.down.paused:
            up.transport.pause_reading()

    def ask_again(self, attempt: Try) -> None:
        """The same replica, by another connection."""
        attempt.up, attempt.known = None, False
        attempt.held.clear()
        self._connect(attempt)

    def request_id(self) -> bytes:
        if not self.id:
            self.id = self.down.request_id or self.worker.next_id()
        return self.id

    # answered

    def win(self, attempt: Try, up: Up) -> None:
        """It has content: what it says goes to the client, and nothing else."""
        service, worker, down = self.service, self.worker, self.down
        assert service is not None
        now = worker.now()
        self.winner = attempt
        service.answered(attempt.replica, up.status, now)
        if len(self.tries) > 1:
            self._drop_others(attempt)
        data = attempt.held[0] if len(attempt.held) == 1 else b"".join(attempt.held)
        attempt.held.clear()
        if self.head:  # it goes on where another was cut
            if up.status < 300 and attempt.events is not None:
                self.forward(attempt, data)
            else:
                text = f"{attempt.replica.id} does not go on with what was begun: its status is {up.status}"
                self.answer(Answer(502, "upstream_lost", text, "server_error"))
            return
        self.first_at = self.last_at = now
        self.status = up.status
        whole = up.complete and attempt.events is None
        if attempt.events is not None:
            service.began(now - self.started)
            if service.settings.continues:
                self.text += text_of(data)
        elif whole:
            attempt.tail = data
        else:
            attempt.tail = data[-TAIL:]
        self.head = head = heads.answer(self, attempt, up, len(data) if whole else -1)
        self.sent_body += len(data)
        if whole:
            down.transport.write(head + data if not up.is_head else head)
            self._complete(attempt, up)
        elif self.to_chunk:
            end = b"0\r\n\r\n" if up.complete else b""
            piece = b"%x\r\n%s\r\n" % (len(data), data) if data else b""
            down.transport.write(head + piece + end)
            if up.complete:
                self._complete(attempt, up)
        else:
            down.transport.write(head + data)
            if up.complete:
                self._complete(attempt, up)

    def forward(self, attempt: Try, data: bytes, chunk: bytes = b"") -> None:
        """More of an answer that has begun. `chunk`: the same in the frame it came in."""
        up = attempt.up
        assert up is not None
        transport = self.down.transport
        if attempt.events is not None:
            if data:
                service = self.service
                assert service is not None
                now = self.worker.now()
                service.went_on(now - self.last_at)
                self.last_at = now
                if service.settings.continues:
                    self.text += text_of(data)
        else:
            self.last_at = self.worker.now()
            attempt.tail = (attempt.tail + data)[-TAIL:]
        self.sent_body += len(data)
        if not up.complete:
            if data:
                if self.to_chunk:
                    data = chunk or b"%x\r\n%s\r\n" % (len(data), data)
                transport.write(data)
            return
        if self.to_chunk:
            piece = b"%x\r\n%s\r\n" % (len(data), data) if data else b""
            transport.write(piece + b"0\r\n\r\n")
        elif data:
            transport.write(data)
        self._complete(attempt, up)

    def _complete(self, attempt: Try, up: Up) -> None:
        if up.status >= 300:
            self._end(0)
            return
        usage = attempt.events.usage if attempt.events is not None else self._usage(attempt)
        self._end_with(usage, attempt)

    def _usage(self, attempt: Try) -> Usage | None:
        if not self.model:
            return None
        if len(attempt.tail) < self.sent_body:
            return usage_at_end(attempt.tail)
        return usage_in(attempt.tail)

    # failed

    def turned_down(self, attempt: Try, up: Up) -> None:
        """429 or 5xx: another may take it; if none can, this is the answer."""
        service = self.service
        assert service is not None
        now = self.worker.now()
        service.turned_down(attempt.replica, up, now)
        others = [each for each in self.tries if each is not attempt]
        if others:  # the other one of a hedge may still answer
            self._drop(attempt)
        elif not (self._may_try_again(now) and self._try_another(attempt, now, hold=up.status == 429)):
            self.win(attempt, up)

    def failed(self, attempt: Try, why: str, kind: str) -> None:
        service = self.service
        assert service is not None
        now = self.worker.now()
        service.failed(attempt.replica, kind, now)
        if self.winner is attempt:
            self._cut(attempt, why)
        elif len(self.tries) > 1:
            self._drop(attempt)
        elif not (self._may_try_again(now, kind) and self._try_another(attempt, now, hold=kind != "error")):
            self._drop(attempt)
            text = f"{attempt.replica.id} of {service.name} did not answer: {why}"
            self.answer(Answer(502, "upstream_failed", text, "server_error", wait_s=1.0))

    def _may_try_again(self, now: float, kind: str = "") -> bool:
        """Where no connection was made nobody was asked: that is no try. A replica that is gone has left its
        requests undone: to ask another is no more load than was meant. Twice, for several may go together,
        and not more often, for the request itself may be what ends them. All else is paid from the budget, so
        that nobody's trouble becomes everybody's."""
        service = self.service
        assert service is not None
        if kind == "connect":
            self.tried -= 1
        elif self.tried >= service.settings.tries:
            return False
        elif kind != "lost" or self.freed >= FREED_MAX:
            return service.may_retry(now)
        else:
            self.freed += 1
        service.retries += 1
        return True

    def _try_another(self, attempt: Try, now: float, *, hold: bool) -> bool:
        """False: there is no other. Then it may wait until one comes, or this one can again."""
        service = self.service
        assert service is not None
        self.excluded = {*(self.excluded or ()), attempt.replica.id}
        replica = service.pick(self, now)
        if replica is None:
            self.excluded = None
            self.not_before = now + BREATH_S
            if not (hold and self._hold(now)):
                return False
        self._drop(attempt)
        if replica is not None:
            self._ask(replica, now)
        return True

    def _cut(self, attempt: Try, why: str) -> None:
        """After its first content an answer cannot be had again: go on elsewhere if that is asked for, or say
        what happened and end without [DONE]."""
        service = self.service
        assert service is not None
        if attempt.events is not None and self._continue(attempt):
            return
        usage = attempt.events.usage if attempt.events is not None else None
        self.down.keep_alive = False
        if attempt.events is not None and not attempt.events.ended:
            text = f"{attempt.replica.id} of {service.name} was lost in the middle of its answer: {why}"
            self._tell(Answer(502, "upstream_lost", text, "server_error"))
            self._end_with(usage, attempt)
        else:
            self._end_with(usage, attempt, finish=False)
            self.down.transport.abort()  # so that nobody takes half of it for the whole

    def _tell(self, answer: Answer) -> None:
        """In a stream, as its end."""
        event = answer.event()
        if self.to_chunk:
            event = b"%x\r\n%s\r\n0\r\n\r\n" % (len(event), event)
        if not self.down.transport.is_closing():
            self.down.transport.write(event)

    def _continue(self, attempt: Try) -> bool:
        service = self.service
        assert service is not None
        now = self.worker.now()
        if not (service.settings.continues and self.text) or now - self.started > service.settings.total_s:
            return False
        if not self._may_try_again(now):
            return False
        body = asks.continued(self.down.body, self.text)
        if body is None:
            return False
        self.excluded = {*(self.excluded or ()), attempt.replica.id}
        replica = service.pick(self, now)
        if replica is None:
            return False
        self.body, self.winner = body, None
        service.continued += 1
        self._drop(attempt)
        self._ask(replica, now)
        return True

    def _ask_another_too(self, service: "Service", now: float) -> bool:
        """Whoever answers first wins. False: there is no other."""
        excluded = self.excluded
        self.excluded = {*(excluded or ()), *(each.replica.id for each in self.tries)}
        replica = service.pick(self, now)
        if replica is None:
            self.excluded = excluded
            return False
        self._ask(replica, now)
        return True

    def look(self, now: float) -> None:
        """Is it late? Asked a few times a second."""
        service = self.service
        if self.over or service is None or not self.tries:
            return
        settings = service.settings
        if now - self.started > settings.total_s:
            self._too_late("it took longer than it may")
        elif self.winner is not None:
            if not self.down.paused and now - self.last_at > service.stall_s:
                attempt = self.winner
                self._release_up(attempt)
                self.failed(attempt, f"nothing came for {now - self.last_at:.0f} s", "timeout")
        elif self.streams and now - self.tries[-1].started > settings.first_byte_s:
            attempt = self.tries[-1]  # what is no stream begins when it is whole
            self._release_up(attempt)
            self.failed(attempt, f"nothing came for {settings.first_byte_s:.0f} s", "timeout")
        elif len(self.tries) == 1:
            if self.tries[0].replica.lost:
                if self.tried < settings.tries and self._ask_another_too(service, now):
                    service.retries += 1
            elif settings.hedge and service.may_hedge(now - self.started, now):
                service.hedged += self._ask_another_too(service, now)

    def _too_late(self, why: str) -> None:
        attempt = self.winner or self.tries[-1]
        self._release_up(attempt)
        if self.winner is not None:
            self._cut(attempt, why)
        else:
            self.answer(Answer(504, "upstream_timeout", why, "server_error"))

    def _release_up(self, attempt: Try) -> None:
        up, attempt.up = attempt.up, None
        if up is not None:
            if self.down.paused:
                up.transport.resume_reading()
            up.let_go()

    # its end

    def _drop_others(self, winner: Try) -> None:
        for attempt in self.tries[:]:
            if attempt is not winner:
                self._drop(attempt)

    def _drop(self, attempt: Try) -> None:
        """It is not asked there any more."""
        if attempt.over:
            return
        attempt.over = True
        self.tries.remove(attempt)
        service = self.service
        assert service is not None
        service.pool.release(attempt.replica, self.cost)
        self._release_up(attempt)
        if service.waiting:
            self.worker.pump_soon(service)

    def left(self) -> None:
        """The client has gone: upstream shall stop, and what is not known is not given back."""
        if self.over:
            return
        self.left_early = True
        attempt = self.winner
        usage = attempt.events.usage if attempt is not None and attempt.events is not None else None
        if attempt is not None:
            self._end_with(usage, attempt)
        else:
            self._end(None if self.asked else 0)

    def answer(self, answer: Answer) -> None:
        """Our own answer, when there is none from a replica; in its stream, if one has begun it and no other
        goes on."""
        if self.head:
            self.down.keep_alive = False
            answer.code = "upstream_lost"
            self._tell(answer)
            self._end(None)
            return
        self.status = answer.status
        self.down.keep_alive = self.down.keep_alive and not answer.close
        self.reply(answer.status, answer.body(), answer.more())

    def reply(self, status: int, body: bytes, more: bytes = b"") -> None:
        self.status = status
        down = self.down
        if self.chain is not None:
            more += replies.standing(self.worker.purse.standing(self.chain, self.worker.now()))
        more += b"x-request-id: %s\r\n" % self.request_id()
        if not down.transport.is_closing():
            is_head = down.method == b"HEAD"
            said = replies.whole(status, b"" if is_head else body, more, close=not down.keep_alive)
            down.transport.write(said)
        self._end(0)

    def _end_with(self, usage: Usage | None, attempt: Try, *, finish: bool = True) -> None:
        total = usage.total if usage is not None else 0
        if usage is None or not total:
            seen = attempt.events.count if attempt.events is not None else 0
            least = seen + self.worker.estimator.prompt(self.model, self.prompt_bytes, self.pieces)
            self._end(least if self.model and least > self.tokens else None, attempt, finish=finish)
            return
        if not self.left_early and attempt.up is not None and attempt.up.complete:
            self._learn(attempt, usage)
        self._end(total, attempt, usage, finish=finish)

    def _learn(self, attempt: Try, usage: Usage) -> None:
        """From an answer that came whole: how much text a token is, how long answers are, and how fast. Some
        of them are enough, once many were seen."""
        worker = self.worker
        worker.learned += 1
        if worker.learned > LEARN_ALL and worker.learned % LEARN_EVERY:
            return
        worker.estimator.learn(
            self.model,
            self.key.id,
            self.prompt_bytes,
            self.pieces,
            usage.prompt,
            usage.completion,
            self.outputs,
        )
        if attempt.events is not None and self.service is not None:
            took = self.last_at - self.first_at
            self.service.pool.learn_speed(attempt.replica, usage.completion - 1, took, self.last_at)

    def _end(
        self,
        actual: int | None,
        attempt: Try | None = None,
        usage: Usage | None = None,
        *,
        finish: bool = True,
    ) -> None:
        if self.over:
            return
        self.over = True
        worker = self.worker
        if self.taken is not None:
            now = worker.now()
            if self.asked:
                worker.purse.settle(self.taken, actual, now)
            else:
                worker.purse.refund(self.taken, now)
        service = self.service
        if service is not None:
            for each in self.tries[:]:
                self._drop(each)
            if self.held_since:
                service.unheld(self)
            service.count(self, usage)
        if service is None:
            worker.counts.refused(self.status)
        if self.key.id and self.model:
            self._note(attempt, usage)
        self.winner = None  # no circle is left: it is gone when nobody holds it any more
        if finish and not self.left_early:
            self.down.finished()

    def _note(self, attempt: Try | None, usage: Usage | None) -> None:
        """For the one who looks for keys that work for nobody."""
        assert self.service is not None
        made = usage.completion if usage is not None else 0
        events = attempt.events if attempt is not None else None
        if not made and events is not None:
            made = events.count
        said, asks_tool, brings_result = look(self, attempt)
        seen = Seen(
            prompt_hash=zlib.crc32(self.down.body),
            status=499 if self.left_early else self.status,
            reserved=self.tokens,
            prompt_tokens=usage.prompt if usage is not None else 0,
            completion_tokens=made,
            undelivered_tokens=made if self.left_early else 0,
            hit_max_tokens=self.most is not None and made >= self.most > 0,
            finish_length=events is not None and events.length,
            source_hash=self.down.peer_hash,
            agent_hash=self.down.agent_hash,
            model_hash=self.service.hash,
            answer_hash=said,
            asks_tool=asks_tool,
            brings_result=brings_result,
        )
        self.worker.saw((self.key.id, self.worker.now(), seen))

    def pause(self) -> None:
        if self.winner is not None and self.winner.up is not None:
            self.winner.up.transport.pause_reading()

    def resume(self) -> None:
        self.last_at = self.worker.now()  # the replica was not late: nobody read what it said
        for attempt in self.tries:
            if attempt.up is not None:
                attempt.up.transport.resume_reading()
