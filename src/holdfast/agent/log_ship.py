"""The end of what running replicas write, sent as it is written: what is left of a log when its node is lost.

Every few seconds the end of each log that has grown, within the bytes a second that the control plane allows
this node. When more is written than that, all logs share it, and those that waited longest come first. A
whole log is not sent: a program may write gigabytes that nobody reads, and the control plane would have to
store them. What is sent replaces what was sent before.
"""

import asyncio
from collections.abc import Callable, Iterable

from holdfast.agent.tails import FAR, Logs, Outlet
from holdfast.wire.messages import LogEnds, Wrote

EVERY_S = 3.0
EACH_MAX = 16 << 10  # of one log
EACH_MIN = 1 << 10


class LogShipping:
    def __init__(self, logs: Logs, running: Callable[[], Iterable[str]]) -> None:
        self._logs, self._running = logs, running
        self._sent: dict[str, int] = {}  # of each log, up to where; those that waited longest first

    async def run(self, outlet: Outlet, bytes_per_s: int) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            await outlet.writable()
            if ends := self.grown(int(bytes_per_s * EVERY_S)):
                outlet.send(LogEnds(ends))

    def grown(self, budget: int) -> dict[str, Wrote]:
        """The ends of the logs that have grown since they were last sent, in so many bytes."""
        here = dict.fromkeys(self._running())
        self._sent = {name: at for name, at in self._sent.items() if name in here}
        order = [*(name for name in here if name not in self._sent), *self._sent]
        news = [name for name in order if self._end(name) > self._sent.get(name, 0)]
        each = min(EACH_MAX, max(EACH_MIN, budget // max(1, len(news))))
        found: dict[str, Wrote] = {}
        for name in news:
            size = min(each, budget)
            if size <= 0:
                break
            try:
                data, written = self._logs.read_log(name, -size, size)
            except OSError:
                continue
            budget -= len(data)
            self._sent.pop(name, None)
            self._sent[name] = written  # now the last in the order
            if data:
                found[name] = Wrote(data, written)
        return found

    def _end(self, name: str) -> int:
        try:
            return self._logs.read_log(name, FAR, 0)[1]
        except OSError:
            return 0
