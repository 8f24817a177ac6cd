"""What integration tests share: a PostgreSQL server, started for the first test that asks for it."""

from collections.abc import Iterator

import pytest

from tests.postgres import Postgres, shared


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """Leave it running: a test that stops or kills a server takes one of its own (`private`)."""
    with shared() as server:
        yield server
