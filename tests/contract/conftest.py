"""What every contract suite shares: one event loop a test, so that an adapter may keep its connections."""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, Protocol, TypeVar

import pytest

from tests.postgres import Postgres, shared

T = TypeVar("T")


class Run(Protocol):
    """Awaits one call of a port."""

    def __call__(self, call: Coroutine[Any, Any, T], /) -> T: ...


@pytest.fixture
def run() -> Iterator[Run]:
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture(scope="session")
def server() -> Iterator[Postgres]:
    with shared() as running:
        yield running
