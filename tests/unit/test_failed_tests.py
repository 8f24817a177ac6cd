"""A test that fails is told with all that it left behind, and no other is blamed for it."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STORY = """
import socket


async def test_that_fails():
    left_open = socket.socket()
    assert left_open is None


def test_that_has_nothing_to_do_with_it():
    pass
"""


def test_what_a_failed_test_leaves_open_is_not_counted_against_the_next(tmp_path: Path) -> None:
    (tmp_path / "test_story.py").write_text(STORY)
    settings = ["-c", str(ROOT / "pyproject.toml"), "-p", "tests.conftest", "-p", "no:cacheprovider"]
    run = [sys.executable, "-m", "pytest", "-rA", *settings, str(tmp_path)]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert set(re.findall(r"^([A-Z]+) .*::test_that_(\w+)", done.stdout, re.M)) == {
        ("FAILED", "fails"),
        ("ERROR", "fails"),
        ("PASSED", "has_nothing_to_do_with_it"),
    }
    assert "unclosed <socket" in done.stdout
