"""One request from its arrival to its end, in bytes: what is sent to a replica, and what to the client.

When what is done, and what happens when something fails, is `core.gateway.request.lifecycle`. A `Try` is the
request at one replica. Whatever ends it, `_end` is reached once: it closes the course, and counts.
"""

import zlib
from typing import TYPE_CHECKING

from holdfast.core.gateway.key_audit.audit import Seen
from holdfast.core.gateway.quota.limits import Refusal
from holdfast.core.gateway.quota.local_quota import Short
from holdfast.core.gateway.request.lifecycle import Course
from holdfast.core.gateway.request.token_estimate import LEARN_ALL, LEARN_EVERY
from holdfast.core.gateway.routing.endpoints import Replica
from holdfast.gateway import ask as asks
from holdfast.gateway import heads, replies
from holdfast.gateway.attempt import Try
from holdfast.gateway.continued import Before, Rest, same_in_all, too_long
from holdfast.gateway.glance import look
from holdfast.gateway.replies import Answer
from holdfast.gateway.shapes import Usage
from holdfast.gateway.sse import Events, said_in, usage_at_end, usage_in
from holdfast.gateway.up import Up, idle_connection
from holdfast.model.gateway import Key

if TYPE_CHECKING:
    from holdfast.gateway.down import Down
    from holdfast.gateway.service import OfModel, Service  # noqa: F401, it is in the head of the class
    from holdfast.gateway.worker import Worker

TAIL = 4_096  # of a long answer: its usage is there
CHAT = b"/v1/chat/completions"
LAST = b"data: [DONE]\n\n"
ANYBODY = Key("", b"")


class Exchange(Course[Try, "Service"]):
    """Most requests change few of these: as defaults of the class they cost nothing to begin with."""

    of: "OfModel | None" = None  # where it is counted
    prompt_bytes = 0
    pieces = 0  # pictures and sounds
    most: int | None = None  # tokens of one answer
    outputs = 1
    prefix: tuple[int, ...] | None = None
    strip = False  # its usage was not asked for
    left_early = False
    to_chunk = False
    first_at = 0.0
    sent_body = 0
    status = 0
    keeps_text = False  # it may have to be continued: all of it was kept, whatever the service wants now
    text = ""  # what was said so far
    only_text = True  # and nothing else
    parts = 0  # in so many events of the replica that says it now
    begun = b""  # the first of it
    first_body = b""  # if it had to be continued
    before: Before | None = None  # what the replicas said from which it was continued
    cut_short: Before | None = None  # the same with the one that says it now, should another be asked
    head = b""
    id = b""

    def __init__(self, worker: "Worker", down: "Down") -> None:
        self.worker, self.down = worker, down
        self.started = self.last_at = worker.now()
        self.key, self.winner = ANYBODY, None
        self.body = down.body
        self.tries = []

    def lent(self) -> None:
        """The broker has answered: try again."""
        if not self.over:
            self.take(self.worker.purse, self.worker.now())

    def borrow(self, short: Short) -> None:
        self.worker.borrow(self, short)

    def postpone(self) -> bool:
        return self.worker.postpone(self)

    def refused(self, refusal: Refusal) -> None:
        self.answer(replies.refused(refusal, self.model or "this path"))

    # asked of a replica

    def no_capacity(self) -> None:
        service = self.service
        assert service is not None
        if service.empty:
            text = f"{service.name} has no replica at the moment{self._fate()}"
            answer = Answer(503, "model_warming", text, "server_error", wait_s=5.0)
        else:
            text = f"every replica of {service.name} is busy or failing{self._fate()}"
            answer = Answer(503, "no_capacity", text, "server_error", wait_s=1.0)
        self.answer(answer)

    def _fate(self) -> str:
        """Of a request without an answer: may its client send it again?"""
        if not self.asked:
            return "; nothing of the request was sent, so it was not carried out"
        return "; the request was sent, and may have been carried out" if self.once else ""

    def attempt(self, replica: Replica, now: float) -> Try:
        if self.worker.siblings is not None:
            self.worker.siblings.note(self, replica)
        attempt = Try(self, replica, now)
        if self.cut_short is not None:
            self.before, self.cut_short, self.parts = self.cut_short, None, 0
        if self.before is not None:
            attempt.rest = Rest(self.before, same_in_all(self.begun))
        return attempt

    def connect(self, attempt: Try) -> None:
        up = idle_connection(attempt.replica, surely=self.once)
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
        """The same replica, by a new connection: one that fails too was not closed while it was idle."""
        attempt.up, attempt.known, attempt.sent = None, False, True
        attempt.held.clear()
        self.worker.connect(attempt)

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
        self.chosen(attempt)
        service.answered(attempt.replica, up.status, now)
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
            assert self.of is not None
            service.began(self.of, now - self.started)
            if service.settings.continues:
                self.keeps_text, self.begun = True, data
                self._keep(data)
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
            attempt.passes = attempt.events is not None and not self.keeps_text
            end = b"0\r\n\r\n" if up.complete else b""
            piece = b"%x\r\n%s\r\n" % (len(data), data) if data else b""
            down.transport.write(head + piece + end)
            if up.complete:
                self._complete(attempt, up)
        else:
            down.transport.write(head + data)
            if up.complete:
                self._complete(attempt, up)

    def passed(self, size: int, chunk: bytes) -> None:
        """One more event of a stream, of so many bytes, in the chunk it came in. As little as can be is done
        here: nothing is done more often."""
        self._went_on()
        self.sent_body += size
        self.down.transport.write(chunk)

    def _went_on(self) -> None:
        service, of = self.service, self.of
        assert service is not None
        assert of is not None
        now = self.worker.now()
        service.went_on(of, now - self.last_at)
        self.last_at = now

    def forward(self, attempt: Try, data: bytes, chunk: bytes = b"") -> None:
        """More of an answer that has begun. `chunk`: the same in the frame it came in."""
        up = attempt.up
        assert up is not None
        transport = self.down.transport
        if attempt.events is not None:
            if data and attempt.rest is not None:
                data, chunk = attempt.rest.mended(data), b""
            if data:
                self._went_on()
                if self.keeps_text:
                    self._keep(data)
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

    def _keep(self, data: bytes) -> None:
        text, parts, more = said_in(data)
        self.text += text
        self.parts += parts
        if more:
            self.only_text = False

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
        self.passed_over(attempt, retry_after_s(up) if up.status == 429 else None, self.worker.now())

    def answer_as_turned_down(self, attempt: Try) -> None:
        assert attempt.up is not None
        self.win(attempt, attempt.up)

    def answer_as_failed(self, attempt: Try, why: str) -> None:
        assert self.service is not None
        text = f"{attempt.replica.id} of {self.service.name} did not answer: {why}{self._fate()}"
        if self.once and self.asked:
            self.answer(Answer(502, "outcome_unknown", text, "server_error"))
        else:
            self.answer(Answer(502, "upstream_failed", text, "server_error", wait_s=1.0))

    def answer_as_late(self, attempt: Try) -> None:
        text = f"it took longer than it may{self._fate()}"
        self.answer(Answer(504, "upstream_timeout", text, "server_error"))

    def cut(self, attempt: Try, why: str) -> None:
        """Say what happened, and end without [DONE]; but what has said all ends as it would have."""
        service, events = self.service, attempt.events
        assert service is not None
        usage = events.usage if events is not None else None
        lacks = self._lacks(attempt)
        if events is not None and lacks is not None:
            events.length = events.length or not (events.finished or events.ended)
            self._write_end(lacks)
            self._end_with(usage, attempt)
            return
        self.down.keep_alive = False
        if events is not None:
            text = f"{attempt.replica.id} of {service.name} was lost in the middle of its answer: {why}"
            self._tell(Answer(502, "upstream_lost", text, "server_error"))
            self._end_with(usage, attempt)
        else:
            self._end_with(usage, attempt, finish=False)
            self.down.transport.abort()  # so that nobody takes half of it for the whole

    def _tell(self, answer: Answer) -> None:
        """In a stream, as its end."""
        self._write_end(answer.event())

    def _write_end(self, data: bytes) -> None:
        if self.to_chunk:
            data = (b"%x\r\n%s\r\n" % (len(data), data) if data else b"") + b"0\r\n\r\n"
        if data and not self.down.transport.is_closing():
            self.down.transport.write(data)

    def _lacks(self, attempt: Try) -> bytes | None:
        """What is missing of a stream that has said all it had to say; None: it had more to say."""
        events = attempt.events
        if events is None:
            return None
        if events.ended:
            return b""
        if self.outputs > 1 or self.down.path != CHAT:  # one of several may have finished
            return None
        if events.finished:
            return LAST
        if self.keeps_text:
            left = asks.left(self.first_body or self.body, self._so_far(events).made)
            if left is not None and left <= 0:
                return too_long(self.begun) + LAST
        return None

    def _so_far(self, events: Events) -> Before:
        return (self.before or Before()).and_then(events.usage, self.parts)

    def goes_on(self, attempt: Try) -> bool:
        if attempt.events is None or not self.text or not self.only_text or self._lacks(attempt) is not None:
            return False
        self.first_body = self.first_body or self.body  # which asks for the usage, as the client may not
        known = self._so_far(attempt.events)
        body = asks.continued(self.first_body, self.text, known.made)
        if body is None:
            return False
        self.body, self.cut_short = body, known
        return True

    def silent_s(self, now: float) -> float:
        return 0.0 if self.down.paused else now - self.last_at

    def let_go(self, attempt: Try) -> None:
        attempt.over = True
        up, attempt.up = attempt.up, None
        if up is not None:
            if self.down.paused:
                up.transport.resume_reading()
            up.let_go()

    # its end

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
            self._end(self._least(0) if self.asked else 0)

    def revoke(self, why: str) -> None:
        """Its key is not good any more: what runs by it ends here."""
        if self.over:
            return
        self.down.keep_alive = False
        self.untold = self.untold or self.asked
        answer = Answer(401, "key_revoked", why, "permission_error", close=True)
        attempt = self.winner
        if attempt is None and not self.head:
            self.answer(answer)
        elif attempt is None or attempt.events is not None:
            usage = attempt.events.usage if attempt is not None and attempt.events is not None else None
            self._tell(answer)
            if attempt is not None:
                self._end_with(usage, attempt)
            else:
                self._end(self._least(0))
        else:
            self._end_with(None, attempt, finish=False)
            self.down.transport.abort()  # so that nobody takes half of it for the whole

    def answer(self, answer: Answer) -> None:
        """Our own answer, when there is none from a replica; in its stream, if one has begun it and no other
        goes on."""
        if self.head:
            self.down.keep_alive = False
            answer.code = "upstream_lost"
            self._tell(answer)
            self._end(self._least(0))
            return
        self.status = answer.status
        self.down.keep_alive = self.down.keep_alive and not answer.close
        self.reply(answer.status, answer.body(), answer.more())

    def reply(self, status: int, body: bytes, more: bytes = b"") -> None:
        self.status = status
        down = self.down
        if self.chain is not None:
            more += heads.standing(self.worker.purse.standing(self.chain, self.worker.now()))
        more += b"x-request-id: %s\r\n" % self.request_id()
        if not down.transport.is_closing():
            is_head = down.method == b"HEAD"
            said = replies.whole(status, b"" if is_head else body, more, close=not down.keep_alive)
            down.transport.write(said)
        self._end(self._least(0) if self.untold else 0)

    def _end_with(self, usage: Usage | None, attempt: Try, *, finish: bool = True) -> None:
        total = usage.total if usage is not None else 0
        if usage is None or not total:
            seen = attempt.events.count if attempt.events is not None else 0
            self._end(self._least(seen), attempt, finish=finish)
            return
        if self.before is not None:
            usage = self.before.whole(usage)
            total = max(total, usage.total, self.before.used)
        if not usage.prompt and self.down.path not in asks.SHAPES:  # of other APIs the end may tell no more
            total += self.worker.estimator.prompt(self.model, self.prompt_bytes, self.pieces)
        if not self.left_early and attempt.up is not None and attempt.up.complete:
            self._learn(attempt, usage)
        self._end(total, attempt, usage, finish=finish)

    def _least(self, seen: int) -> int | None:
        """Of a use that nobody tells: what was seen of it, if that is more than was reserved."""
        if not self.model:
            return None
        least = seen + self.worker.estimator.prompt(self.model, self.prompt_bytes, self.pieces)
        if self.before is not None:
            least = max(least + self.before.made, self.before.used)
        return least if least > self.tokens else None

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
        if attempt.events is not None and attempt.rest is None and self.service is not None:
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
        worker, service = self.worker, self.service
        self.close(worker.purse, actual, worker.now())
        if worker.purse.hurries:
            worker.report()
        if service is not None:
            service.count(self, usage)
        if service is None and self.status >= 400:  # else it was answered here: a list of models
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


def retry_after_s(up: Up) -> float:
    try:
        return max(0.0, float(up.retry_after))
    except ValueError:  # it does not say, or says a date
        return 0.0
