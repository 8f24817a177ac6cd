"""For how long did a request hold the loop, on which everybody else waits?

Only the steps of the request itself are counted, in time of the processor: not what it waited for, not what
others did meanwhile, and not what it left to a thread. So a busy machine makes nobody's requests dearer.
"""

import time
from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class LoopTime(Generic[T]):
    """Await it in place of the coroutine; `seconds` is what it took by then."""

    def __init__(self, of: Coroutine[Any, Any, T]) -> None:
        self._of, self.seconds = of, 0.0

    def __await__(self) -> Generator[Any, Any, T]:
        step, given = self._of.send, None
        while True:
            began = time.thread_time()
            try:
                waits_for = step(given)
            except StopIteration as done:
                found: T = done.value
                return found
            finally:
                self.seconds += time.thread_time() - began
            try:
                given = yield waits_for
                step = self._of.send
            except GeneratorExit:
                self._of.close()
                raise
            except BaseException as error:  # it is told to the coroutine, as if nobody stood between
                step, given = self._of.throw, error
