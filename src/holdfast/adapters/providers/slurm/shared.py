"""The folder that control planes and compute nodes share: a disk of somebody else's, far away.

It may be slow, and when its server is gone it does not fail: whoever touches it stands still, and nobody can
end that. So it is touched in threads, a few at a time and for so long; the control plane goes on, and says
that the folder does not answer. A thread that stands still keeps its place, so that a dead disk takes a few
threads and not all of them. They are threads of our own: the event loop waits for those of its pool before
it ends, and whoever stops a control plane would wait for the disk.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from holdfast.adapters.providers.local.folders import Folders
from holdfast.adapters.providers.slurm.submit import fleet_of
from holdfast.ports.errors import Denied, PortError, Unreachable

P = ParamSpec("P")
T = TypeVar("T")

AT_ONCE = 4
ANSWER_S = 10.0  # for one touch, and for its turn


def _begun(call: Callable[[], T]) -> "Future[T]":
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except (OSError, PortError, ValueError) as error:
            outcome.set_exception(error)
        finally:
            if not outcome.done():
                outcome.set_exception(RuntimeError("a thread failed: its traceback is in the log"))

    threading.Thread(target=run, name="shared folder", daemon=True).start()
    return outcome


class Shared:
    def __init__(self, root: str, answer_s: float = ANSWER_S) -> None:
        self.root, self._answer_s = root, answer_s
        self._gate = asyncio.Semaphore(AT_ONCE)

    async def __call__(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """In a thread. Unreachable: it does not answer; what was begun may still be done, or not. It is
        waited for also when we are cancelled: half-done work must not go on behind a lock that was given
        back."""
        try:
            async with asyncio.timeout(self._answer_s):
                await self._gate.acquire()
        except TimeoutError:
            raise self._silent() from None
        work = asyncio.wrap_future(_begun(partial(function, *args, **kwargs)))
        work.add_done_callback(self._done)
        try:
            await asyncio.wait({work}, timeout=self._answer_s)
        except asyncio.CancelledError:
            await asyncio.wait({work}, timeout=self._answer_s)
            raise
        if not work.done():
            raise self._silent()
        return work.result()

    def _done(self, work: "asyncio.Future[T]") -> None:
        self._gate.release()
        if not work.cancelled():
            work.exception()  # looked at, so that nobody complains

    def _silent(self) -> Unreachable:
        return Unreachable(f"the shared folder {self.root} has not answered for {self._answer_s:g} s")

    async def opened(self) -> tuple[Folders, str]:
        """The nodes' folders, and the name of all who share them."""
        return await self(self._open)

    def _open(self) -> tuple[Folders, str]:
        try:
            folders = Folders(Path(self.root), self)
            return folders, fleet_of(folders.root)
        except OSError as error:
            why = f"{self.root} cannot be used: {error.strerror}"
            raise Denied(f"{why}; `root` is a folder that is shared with the compute nodes") from error
