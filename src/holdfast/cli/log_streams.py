"""The output of several replicas as one stream of whole lines.

Each replica is read by a task of its own; lines never mix, and a slow terminal slows the reading down all the
way to the nodes. When the workload is followed, replicas that come later are read too, from their beginning:
a failover shows as one copy falling silent and the next one speaking.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from urllib.parse import quote, urljoin

import httpx
import msgspec

from holdfast.api.shapes import Replica, Workload
from holdfast.cli import client
from holdfast.cli.client import Client, Unanswered

LOOK_EVERY_S = 1.0
LAST_WORDS_S = 5.0  # of replicas that are being stopped
AT_ONCE = 64
BYTES_A_LINE = 300  # guessed, to find out where the last N lines begin
LINE_MAX = 64 * 1024  # a longer line is printed in pieces


class Reading:
    def __init__(self, api: Client, name: str, *, follow: bool, tail: int | None, json: bool) -> None:
        self.api, self.name = api, name
        self.follow, self.tail, self.json = follow, tail, json
        self.workload = name.partition("/")[0]
        self.only_one = "/" in name
        self.failed: list[Unanswered] = []
        self.begun: set[str] = set()  # those of which something was printed
        self.noted: set[str] = set()
        self.width = 0

    async def run(self) -> None:
        """Unanswered: why some could not be read."""
        found = await self._replicas()
        self.width = max((len(id) for id in found), default=0)
        if not found:
            print(f"{self.workload} has no replicas at the moment", file=sys.stderr)
        async with AsyncExitStack() as stack:
            self.http = await stack.enter_async_context(self._session())
            self.room = asyncio.Semaphore(AT_ONCE)
            if not self.follow:
                for id in found:
                    await self._read(id, self.tail)
            else:
                await self._follow(found)
        if self.failed:
            raise self._told()

    def _told(self) -> Unanswered:
        """Of one that was named, as it was answered; of several, that not all could be read."""
        hint = f"holdfast replicas --workload {self.workload}"
        if self.only_one:
            (error,) = self.failed
            return Unanswered(error.errors, error.hint or hint, error.status)
        return Unanswered([text for error in self.failed for text in error.errors], hint)

    def _session(self) -> httpx.AsyncClient:
        verify = client.trust(self.api.server, self.api.base)
        transport = httpx.AsyncHTTPTransport(verify=verify, socket_options=client.KEEP_ALIVE)
        return httpx.AsyncClient(transport=transport, trust_env=False)

    async def _replicas(self) -> list[str]:
        if self.only_one:
            return [self.name]
        path = f"/v1/workloads/{quote(self.workload, safe='')}"
        workload = client.read(await asyncio.to_thread(self.api.get, path), Workload)
        body = await asyncio.to_thread(self.api.get, "/v1/replicas", workload=self.workload)
        living = [replica.id for replica in client.read(body, list[Replica])]
        return living or [seat.last for seat in workload.seats if seat.last]  # what they said is still kept

    async def _follow(self, first: list[str]) -> None:
        found: list[str] | None = first
        async with asyncio.TaskGroup() as group:
            reading: dict[str, asyncio.Task[None]] = {}
            tail = self.tail
            while found is not None:
                for id in found:
                    if id not in reading or (reading[id].done() and not self.only_one):
                        # it may be cut off although it lives: then it is read again, from there on
                        reading[id] = group.create_task(self._read(id, 0 if id in self.begun else tail))
                tail = None  # those that come later are read from their beginning
                if self.only_one and reading[self.name].done():
                    return
                await asyncio.sleep(LOOK_EVERY_S)
                found = await self._looked(found)
            if reading:
                await asyncio.wait(reading.values(), timeout=LAST_WORDS_S)
            for task in reading.values():
                task.cancel()

    async def _looked(self, found: list[str]) -> list[str] | None:
        """The replicas there are now, or that there were; None: the workload is deleted."""
        try:
            return await self._replicas()
        except Unanswered as error:
            if error.may_pass:
                return found
            if error.status != 404:
                self.failed.append(error)
            return None

    async def _read(self, id: str, tail: int | None) -> None:
        try:
            async with self.room:
                lines = self._lines(id, await self._before_tail(id, tail))
                if tail is not None and not self.follow:  # more may have been written since we looked
                    lines = _last([line async for line in lines], tail)
                async for line in lines:
                    self.begun.add(id)
                    self._print(id, line)
        except Unanswered as error:
            if self.only_one or not self.follow:
                named = [text if id in text else f"{id}: {text}" for text in error.errors]
                self.failed.append(Unanswered(named, error.hint, error.status))

    async def _before_tail(self, id: str, tail: int | None) -> int | None:
        """So many bytes before the end is somewhere in the line before the tail; None: the tail is all there
        is. The end moves while we ask, so the tail's own beginning cannot be asked for."""
        if tail is None:
            return None
        guess = (tail + 1) * BYTES_A_LINE
        while True:
            body = b"".join([part async for part in self._parts(id, guess, follow=False)])
            lines = body.splitlines(keepends=True)
            if len(lines) > tail:
                return sum(len(line) for line in lines[-tail - 1 :])
            if len(body) < guess:
                return None
            guess *= 4

    async def _lines(self, id: str, start: int | None) -> AsyncIterator[bytes]:
        """Whole lines: what begins in the middle of one begins with the next."""
        rest, cut = b"", start is not None
        async for part in self._parts(id, start, follow=self.follow):
            if cut:
                _, newline, part = part.partition(b"\n")
                cut = not newline
            *whole, rest = (rest + part).split(b"\n")
            for line in whole:
                yield line
            if len(rest) > LINE_MAX:
                yield rest
                rest = b""
        if rest:
            yield rest

    async def _parts(self, id: str, start: int | None, *, follow: bool) -> AsyncIterator[bytes]:
        params = {"replica": id, "follow": str(follow).lower(), "tail_bytes": start}
        url = httpx.URL(self.api.base + "/v1/log", params={k: v for k, v in params.items() if v is not None})
        timeout = httpx.Timeout(client.ANSWER_S, connect=client.CONNECT_S, read=None if follow else 30)
        try:
            for _ in range(client.HOPS_MAX):
                headers = self.api.headers(str(url))
                async with self.http.stream("GET", url, headers=headers, timeout=timeout) as response:
                    if response.status_code == 200:
                        self._note(id, response.headers.get("holdfast-note", ""))
                        async for part in response.aiter_bytes():
                            yield part
                        return
                    location = response.headers.get("location", "")
                    if response.status_code not in (307, 308) or not location:
                        raise client.refused(response.status_code, await response.aread(), location)
                    url = httpx.URL(urljoin(str(url), location))
                    self.api.base = client.origin(str(url))
        except httpx.ConnectError as error:
            raise self.api.unreached(error) from None
        except httpx.HTTPError as error:
            raise client.lost(error) from None

    def _note(self, id: str, note: str) -> None:
        if note and id not in self.noted:
            self.noted.add(id)
            print(note, file=sys.stderr, flush=True)

    def _print(self, id: str, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip("\r")
        if self.json:
            print(msgspec.json.encode({"replica": id, "line": text}).decode(), flush=self.follow)
        elif self.only_one:
            print(text, flush=self.follow)
        else:
            print(f"{id:<{self.width}}  {text}", flush=self.follow)


async def _last(lines: list[bytes], count: int) -> AsyncIterator[bytes]:
    for line in lines[-count:] if count else ():
        yield line
