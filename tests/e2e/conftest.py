"""What end-to-end tests share: a folder to run things in, and a PostgreSQL server that may be killed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.live import Ground
from tests.postgres import Postgres, private


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    found = Ground(tmp_path)
    try:
        yield found
    finally:
        found.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One for all tests of this process; whoever kills it starts it again."""
    with private() as server:
        yield server
