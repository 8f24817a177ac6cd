"""One server for many tests: made when the first asks, removed when the last is done."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar


class Server(Protocol):
    def start(self) -> None: ...

    def remove(self) -> None: ...


S = TypeVar("S", bound=Server)


class Shared(Generic[S]):
    """The same server for all fixtures that ask while one of them holds it."""

    def __init__(self, make: Callable[[], S]) -> None:
        self._make = make
        self._made: list[S] = []
        self._users = 0

    @contextlib.contextmanager
    def __call__(self) -> Iterator[S]:
        if not self._made:
            server = self._make()
            try:
                server.start()
            except BaseException:
                server.remove()
                raise
            self._made.append(server)
        self._users += 1
        try:
            yield self._made[0]
        finally:
            self._users -= 1
            if not self._users:
                self._made.pop().remove()
