"""When is it worth another look? When something happened to what is waited for.

A stream of events says so, read on a thread: what it says is not read, only that it says something. It speaks
every few seconds also when nothing happens (`: still here`), which catches what is no line of history.
Where there is no stream, looks are some time apart, and nothing else changes.
"""

import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from holdfast.cli.client.http import Client

SILENT_S = 30.0
APART_S = 0.1  # much happens at once
WITHOUT_S = 0.5  # between two looks while there is no stream
AGAIN_S = 2.0


class Changes:
    def __init__(self, api: "Client", about: dict[str, str]) -> None:
        self._api, self._about = api, about
        self._streams = self._over = False
        self._changed = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._listen, daemon=True).start()  # it ends with the process at the latest
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._over = True

    def wait(self, most_s: float) -> None:
        """Until something happened, or so long."""
        began = time.monotonic()
        self._changed.wait(min(most_s, SILENT_S if self._streams else WITHOUT_S))
        time.sleep(max(0.0, min(APART_S, most_s) - (time.monotonic() - began)))
        self._changed.clear()

    def _listen(self) -> None:
        from holdfast.cli.client import http

        api = http.Client(self._api.server)  # a connection of its own: the other one asks meanwhile
        try:
            while not self._over:
                self._read(api)
                self._streams = False
                time.sleep(AGAIN_S)
        finally:
            api.close()

    def _read(self, api: "Client") -> None:
        import httpx

        from holdfast.cli.client import http

        try:
            headers = {"Accept": "text/event-stream"}
            with api.stream("/v1/events", headers, silent_s=SILENT_S, **self._about) as response:
                for line in response.iter_lines():
                    if self._over:
                        return
                    if line:
                        self._streams = True
                        self._changed.set()
        except (http.Unanswered, httpx.HTTPError):
            return  # whoever looks will be told what is wrong
