"""What tests of the command line share. A module that calls it otherwise has a fixture of its own."""

import functools
from pathlib import Path

import pytest

from tests.cli_rig import Holdfast, called, without_environment


@pytest.fixture
def holdfast(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Holdfast:
    """Runs a command in an empty folder, without what the environment may say."""
    without_environment(monkeypatch)
    monkeypatch.chdir(tmp_path)
    return functools.partial(called, capsys, monkeypatch)
