"""The output of several replicas as one stream of whole lines.

Each replica is read by a task of its own; lines never mix, and a slow terminal slows the reading down all the
way to the nodes. When a workload is followed, replicas that come later are read too, from their beginning: a
failover shows as one copy falling silent and the next one speaking. Following ends when nothing can come any
more: the job is done or has failed, or the workload is deleted.

Of one replica, or one seat, the bytes are printed as they are.
"""

import asyncio
import sys
from codecs import getincrementaldecoder
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import NamedTuple
from urllib.parse import quote

import httpx
import msgspec

from holdfast.api.shapes import Replica, Workload
from holdfast.cli import output
from holdfast.cli.client import http
from holdfast.cli.client.http import Client, Unanswered
from holdfast.cli.client.log_bytes import CUT, GONE, Log
from holdfast.cli.render.escape import for_output, is_terminal

LOOK_EVERY_S = 1.0
LAST_WORDS_S = 5.0  # of replicas that are being stopped
AT_ONCE = 64
BYTES_A_LINE = 300  # guessed, to find out where the last N lines begin
LINE_MAX = 64 * 1024  # a longer line is printed in pieces
ENDS = ("job", "training", "sweep")


class Found(NamedTuple):
    living: list[str]
    last: list[str]  # the last one of each seat; it may have ended
    over: bool = False  # nothing comes after these


class Reading:
    def __init__(self, api: Client, name: str, *, follow: bool, tail: int | None, json: bool) -> None:
        self.api, self.name = api, name
        self.follow, self.tail, self.json = follow, tail, json
        self.workload, _, self.seat = name.partition("/")
        self.one_replica = "." in self.seat  # web/0.3, and not the seat web/0
        self.failed: list[Unanswered] = []
        self.noted: set[str] = set()
        self.width = 0
        self._decoder = getincrementaldecoder("utf-8")("replace")

    async def run(self) -> None:
        """Unanswered: why some could not be read, or not to their end."""
        found = await self._find()
        first = found.living or found.last
        self.width = max((len(id) for id in first), default=0)
        if not first:
            print(f"{self.name} has no replicas at the moment", file=sys.stderr)
        async with AsyncExitStack() as stack:
            self.http = await stack.enter_async_context(self._session())
            self.room = asyncio.Semaphore(AT_ONCE)
            if self.follow:
                await self._follow(found, first)
            else:
                for id in first:
                    log = self._log(id)
                    await self._read(log, self.tail)
                    self._note_failure(log)
        if self.failed:
            raise self._told()

    def _told(self) -> Unanswered:
        """Of one that was named, as it was answered; of several, that not all could be read."""
        hint = f"holdfast replicas --workload {self.workload}"
        if self.one_replica:
            error = self.failed[-1]
            texts = [text for each in self.failed for text in each.errors]
            return Unanswered(texts, error.hint or hint, CUT if error.status == GONE else error.status)
        return Unanswered([text for error in self.failed for text in error.errors], hint)

    def _session(self) -> httpx.AsyncClient:
        verify = self.api.trust(self.api.base)
        transport = httpx.AsyncHTTPTransport(verify=verify, socket_options=http.KEEP_ALIVE)
        return httpx.AsyncClient(transport=transport, trust_env=False)

    def _log(self, id: str) -> Log:
        return Log(self.api, self.http, id, lambda note: self._note(id, note))

    async def _find(self) -> Found:
        if self.one_replica:
            return Found([self.name], [self.name], over=True)
        path = f"/v1/workloads/{quote(self.workload, safe='')}"
        workload = http.read(await asyncio.to_thread(self.api.get, path), Workload)
        seats = [seat for seat in workload.seats if not self.seat or seat.slot == self.name]
        if self.seat and not seats:
            there = ", ".join(seat.slot for seat in workload.seats[:5])
            raise Unanswered([f"{self.workload} has no slot {self.name}"], f"There is: {there}", 404)
        slots = {seat.slot for seat in seats}
        body = await asyncio.to_thread(self.api.get, "/v1/replicas", workload=self.workload)
        living = [replica.id for replica in http.read(body, list[Replica]) if replica.slot in slots]
        ended = workload.kind in ENDS and bool(seats) and all(seat.phase != "open" for seat in seats)
        if workload.kind == "sweep" and not self.seat:
            ended = ended and workload.done + workload.failed >= workload.wanted
        return Found(living, [seat.last for seat in seats if seat.last], over=ended and not living)

    # following

    async def _follow(self, found: Found, first: list[str]) -> None:
        before = set(found.last) - set(first)  # they ended before we came
        logs = {id: self._log(id) for id in first}
        async with asyncio.TaskGroup() as group:
            tasks: dict[str, asyncio.Task[None]] = {}
            now: Found | None = found
            while now is not None:
                for id in (*now.living, *(id for id in now.last if id not in before)):
                    logs.setdefault(id, self._log(id))
                for id, log in logs.items():
                    if self._begins(log, tasks.get(id), now):
                        tasks[id] = group.create_task(self._read(log, self.tail if id in first else None))
                if now.over and all(task.done() for task in tasks.values()):
                    break
                await self._wait(now, tasks)
                now = await self._looked(now)
            if now is None and tasks:  # the workload is deleted: what is being stopped has last words
                await asyncio.wait(tasks.values(), timeout=LAST_WORDS_S)
            for task in tasks.values():
                task.cancel()
        for log in logs.values():
            self._note_failure(log)

    def _begins(self, log: Log, task: asyncio.Task[None] | None, now: Found) -> bool:
        """Is it to be read, or to be read on? It may be cut off although it lives."""
        if task is None:
            return True
        if not task.done() or log.whole or log.error is None:
            return False
        if log.error.status == GONE:  # some of it is gone: that is an error, and the rest is read
            self._note_failure(log)
            log.rewind()
            return True
        if log.id in now.living and not self.one_replica:
            return True
        self._note_failure(log)
        return False

    async def _wait(self, now: Found, tasks: dict[str, asyncio.Task[None]]) -> None:
        """For the next look; where nothing can come later, for what is being read."""
        if now.over and tasks:
            await asyncio.wait(tasks.values())
        else:
            await asyncio.sleep(LOOK_EVERY_S)

    async def _looked(self, found: Found) -> Found | None:
        """What there is now, or was; None: the workload is deleted."""
        try:
            return await self._find()
        except Unanswered as error:
            if error.may_pass:
                return found
            if error.status != 404:
                self.failed.append(error)
            return None

    def _note_failure(self, log: Log) -> None:
        """A cut is an error. What was never there to read is one only to those who do not follow: a replica
        may have written nothing."""
        error, log.error = log.error, None
        if error is None or log.whole:
            return
        if log.rest:
            rest, log.rest = log.rest, b""
            self._print(log.id, rest)
        if self.follow and not self.one_replica and log.at is None and error.status != GONE:
            output.note("; ".join(error.errors))
            return
        if not self.one_replica and self.follow:
            output.note(f"error: {'; '.join(error.errors)}")
        self.failed.append(error)

    # reading

    async def _read(self, log: Log, tail: int | None) -> None:
        """To its end, or to `log.error`."""
        log.error = None
        try:
            async with self.room:
                if tail is not None and log.at is None:
                    await self._print_tail(log, tail)
                    if not self.follow:
                        self._read_all(log)
                        return
                if self.seat and not self.json:
                    await self._copy(log)
                else:
                    async for line in self._lines(log):
                        self._print(log.id, line)
                self._read_all(log)
        except Unanswered as error:
            log.error = error

    def _read_all(self, log: Log) -> None:
        log.whole = True
        if log.at == 0:
            self._note(log.id, f"{log.id} has written nothing")

    async def _print_tail(self, log: Log, tail: int) -> None:
        """Where the last lines begin is not known, so more is read, until there are enough. What follows is
        read from where this ends."""
        guess = (tail + 1) * BYTES_A_LINE
        while True:
            log.rewind()
            body = b"".join([part async for part in log.parts(last=guess, follow=False)])
            lines = body.splitlines(keepends=True)
            if len(lines) > tail or len(body) < guess:
                break
            guess *= 4
        kept = lines[-tail:] if tail else []
        if self.follow and log.at is not None and kept and not kept[-1].endswith(b"\n"):
            log.rest = kept.pop()
        for line in kept:
            self._print(log.id, line)

    async def _copy(self, log: Log) -> None:
        """Byte for byte, and quicker than by lines."""
        self._print(log.id, log.rest)
        log.rest = b""
        async for part in log.parts(follow=self.follow):
            self._print(log.id, part)

    async def _lines(self, log: Log) -> AsyncIterator[bytes]:
        """Whole lines, with their ends; the rest is kept for when the log is read on."""
        async for part in log.parts(follow=self.follow):
            *whole, log.rest = (log.rest + part).split(b"\n")
            for line in whole:
                yield line + b"\n"
            if len(log.rest) > LINE_MAX:
                rest, log.rest = log.rest, b""
                yield rest
        if log.rest:
            rest, log.rest = log.rest, b""
            yield rest

    def _note(self, id: str, note: str) -> None:
        if note and id not in self.noted:
            self.noted.add(id)
            output.note(note)

    def _print(self, id: str, line: bytes) -> None:
        if self.seat and not self.json:
            if is_terminal(sys.stdout):  # a character may have come in two parts
                print(for_output(self._decoder.decode(line)), end="", flush=self.follow)
                return
            sys.stdout.buffer.write(line)
            if self.follow:
                sys.stdout.buffer.flush()
            return
        text = line.decode("utf-8", "replace").removesuffix("\n").rstrip("\r")
        if self.json:
            text = msgspec.json.encode({"replica": id, "line": text}).decode()
            output.out(text, flush=self.follow)
        else:
            output.out(f"{id:<{self.width}}  {text}", flush=self.follow)
