"""One replica's log as bytes: all of them, in order, each once.

An answer that is cut short (its connection breaks, its control plane changes) is asked for again from the
byte where it ended. If that does not work within a while the cut is an error: what came is never taken for
all.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from urllib.parse import urljoin

import httpx

from holdfast.cli.client import http as client
from holdfast.cli.client.http import Client, Unanswered

RESUME_S = 10.0
AGAIN_S = 0.3
CUT = 500  # the status of what is missing for good
GONE = 410  # and of what begins later now


class Log:
    def __init__(self, api: Client, http: httpx.AsyncClient, id: str, note: Callable[[str], None]) -> None:
        self.id, self.at = id, None  # type: str, int | None
        self.whole = False  # it was read to its end
        self.rest = b""  # of a line that is not whole yet
        self.error: Unanswered | None = None  # why the last reading ended
        self._api, self._http, self._note = api, http, note

    async def parts(self, *, last: int | None = None, follow: bool) -> AsyncGenerator[bytes]:
        """From where it was left or, at first, from its beginning, or the `last` bytes. Unanswered: that is
        not all of it."""
        give_up = 0.0
        while True:
            params = {"replica": self.id, "follow": str(follow).lower()}
            if self.at is not None:
                params["offset"] = str(self.at)
            elif last is not None:
                params["tail_bytes"] = str(last)
            try:
                async with aclosing(self._answer(params, follow)) as answer:
                    async for part in answer:
                        give_up = 0.0
                        yield part
                return
            except Unanswered as error:
                give_up = give_up or time.monotonic() + RESUME_S
                if self.at is None or not error.may_pass or time.monotonic() > give_up:
                    raise self._told(error) from None
                self._api.base = self._next_base() if not error.status else self._api.base
            await asyncio.sleep(AGAIN_S)

    def rewind(self) -> None:
        """To be read as if for the first time."""
        self.at = None

    def _told(self, error: Unanswered) -> Unanswered:
        if self.at is None:
            named = [text if self.id in text else f"{self.id}: {text}" for text in error.errors]
            return Unanswered(named, error.hint, error.status)
        why = "; ".join(error.errors)
        status = error.status if error.status == GONE else CUT
        return Unanswered([f"the log of {self.id} is cut short after {self.at:,} bytes: {why}"], "", status)

    def _next_base(self) -> str:
        urls = [client.origin(url) for url in self._api.server.urls]
        at = urls.index(self._api.base) if self._api.base in urls else -1
        return urls[(at + 1) % len(urls)]

    async def _answer(self, params: dict[str, str], follow: bool) -> AsyncGenerator[bytes]:
        url = httpx.URL(self._api.base + "/v1/log", params=params)
        timeout = httpx.Timeout(client.ANSWER_S, connect=client.CONNECT_S, read=None if follow else 30)
        try:
            for _ in range(client.HOPS_MAX):
                headers = self._api.headers(str(url))
                async with self._http.stream("GET", url, headers=headers, timeout=timeout) as response:
                    if response.status_code == 200:
                        self._note(response.headers.get("holdfast-note", ""))
                        start = response.headers.get("holdfast-log-offset", "")
                        self.at = int(start) if start.isdecimal() else None
                        async for part in response.aiter_bytes():
                            self.at = self.at + len(part) if self.at is not None else None
                            yield part
                        return
                    location = response.headers.get("location", "")
                    if response.status_code not in (307, 308) or not location:
                        raise client.refused(response.status_code, await response.aread(), location)
                    url = httpx.URL(urljoin(str(url), location))
                    self._api.base = client.origin(str(url))
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise self._api.unreached(error) from None
        except httpx.HTTPError as error:
            raise client.lost(error) from None
        raise Unanswered(["no control plane leads: they send us in a circle"], "try again in a moment", 503)
