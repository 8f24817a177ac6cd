"""What integration tests share: a PostgreSQL server, started for the first test that asks for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli_rig import Holdfast, Told, called, without_environment
from tests.postgres import Postgres, shared


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """Leave it running: a test that stops or kills a server takes one of its own (`private`)."""
    with shared() as server:
        yield server


@pytest.fixture
def holdfast(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Holdfast:
    """The command, called in this process, of a control plane with this folder."""
    without_environment(monkeypatch)
    monkeypatch.chdir(tmp_path)

    def run(folder: Path, *words: object) -> Told:
        monkeypatch.setenv("HOLDFAST_DIR", str(folder))
        return called(capsys, monkeypatch, *words)

    return run
