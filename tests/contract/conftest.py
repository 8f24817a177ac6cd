"""What every contract suite shares: one event loop a test, so that an adapter may keep its connections."""

from collections.abc import Iterator

import pytest

from holdfast.contract.provider import Run as Run
from holdfast.contract.provider import run as run
from tests.postgres import Postgres, shared


@pytest.fixture(scope="session")
def server() -> Iterator[Postgres]:
    with shared() as running:
        yield running
