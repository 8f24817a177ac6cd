"""The lines of an agent."""

import io
import json
import os
from pathlib import Path

import pytest

from holdfast.agent import own_log
from holdfast.agent.own_log import keep_short
from holdfast.agent.say import Log


def test_a_line_is_for_eyes_and_stays_one_line() -> None:
    out = io.StringIO()
    Log(to=out).info("link lost", by="http://a:1", why='it said "no"\nand left', empty="")
    stamp, rest = out.getvalue().split(" ", 1)
    assert stamp.endswith("Z")
    assert rest == 'info    link lost by=http://a:1 why="it said \\"no\\"\\nand left" empty=""\n'


def test_a_line_can_be_json() -> None:
    out = io.StringIO()
    Log(as_json=True, to=out).warning("refused", code="token", times=3)
    said = json.loads(out.getvalue())
    assert (said["level"], said["event"], said["code"], said["times"]) == ("warning", "refused", "token", 3)


def test_a_reader_that_went_away_stops_nobody() -> None:
    out = io.StringIO()
    out.close()
    Log(to=out).info("still here")
    assert out.closed


def appending(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def test_a_log_that_grows_while_the_agent_runs_is_put_aside_and_stays_short(tmp_path: Path) -> None:
    path = tmp_path / own_log.NAME
    handle, other = appending(path), appending(path)
    try:
        for number in range(100):
            os.write(handle, b"%03d agent\n" % number)
            os.write(other, b"%03d shell\n" % number)
            keep_short(handle, 200)
            assert path.stat().st_size <= 200
    finally:
        os.close(handle)
        os.close(other)
    kept = (tmp_path / "agent.log.1").read_text() + path.read_text()
    assert kept.endswith("098 agent\n098 shell\n099 agent\n099 shell\n")
    assert len(kept) <= 2 * 220
    assert (tmp_path / "agent.log.1").stat().st_mode & 0o077 == 0


def test_what_somebody_else_made_of_our_output_is_left_alone(tmp_path: Path) -> None:
    theirs = appending(tmp_path / "my.log")
    not_appending = os.open(tmp_path / own_log.NAME, os.O_WRONLY | os.O_CREAT, 0o600)
    reader, writer = os.pipe()
    try:
        for handle in (theirs, not_appending):
            os.write(handle, b"x" * 100)
            assert not keep_short(handle, 10)
            assert os.fstat(handle).st_size == 100
        assert not keep_short(writer, 10)
    finally:
        for handle in (theirs, not_appending, reader, writer):
            os.close(handle)


def test_a_link_that_was_put_in_the_way_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("keep me")
    (tmp_path / "agent.log.1").symlink_to(precious)
    handle = appending(tmp_path / own_log.NAME)
    try:
        os.write(handle, b"x" * 100)
        assert keep_short(handle, 10)
    finally:
        os.close(handle)
    assert precious.read_text() == "keep me"


def test_every_line_of_an_agent_looks_at_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    monkeypatch.setattr(own_log, "keep_short", lambda: looked.append(1))
    Log().info("one")
    Log(to=io.StringIO()).info("two")
    assert len(looked) == 1
