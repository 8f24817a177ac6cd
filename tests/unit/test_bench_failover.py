"""What the failover benchmark says of others' mistakes must not be mistakes of its own."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import failover
from bench.__main__ import main
from bench._failover_fleet import first_answer
from bench._failover_jobs import copies, overlaps
from bench._failover_rounds import summary
from bench._ray_cluster import free_port

PATIENCE_S = 30.0
BENCH = Path(failover.__file__).parent


@contextlib.contextmanager
def running(name: str, *words: str, **environment: str) -> Iterator[None]:
    child = subprocess.Popen([sys.executable, "-I", "-S", str(BENCH / name), *words], env=environment)
    try:
        yield
    finally:
        child.kill()
        child.wait()


def wait_for_moments(trace: Path, *epochs: int) -> None:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        found = {copy.epoch: copy for copy in copies(trace)} if trace.exists() else {}
        if all(epoch in found and found[epoch].moments for epoch in epochs):
            return
        time.sleep(0.01)
    raise AssertionError(f"not all of {epochs} left a trace")


def in_nanoseconds(line: str) -> str:
    what, epoch, at, *free = line.split()
    return " ".join((what, epoch, f"{at}000000000", *free))


def test_two_copies_that_run_at_once_are_found_out(tmp_path: Path) -> None:
    with running("_failover_job.py", str(tmp_path), HOLDFAST_EPOCH="1"):
        wait_for_moments(tmp_path / "trace", 1)
        with running("_failover_job.py", str(tmp_path), HOLDFAST_EPOCH="2"):
            wait_for_moments(tmp_path / "trace", 1, 2)
            seen = len(copies(tmp_path / "trace")[0].moments)
            while len(copies(tmp_path / "trace")[0].moments) < seen + 2:
                time.sleep(0.01)
    found = copies(tmp_path / "trace")
    assert [copy.free for copy in found] == [True, False]
    assert len(overlaps(found, {})) == 1


def test_a_copy_that_ended_before_its_heir_began_is_no_double(tmp_path: Path) -> None:
    for epoch in (1, 2):
        with running("_failover_job.py", str(tmp_path), HOLDFAST_EPOCH=str(epoch)):
            wait_for_moments(tmp_path / "trace", epoch)
    found = copies(tmp_path / "trace")
    assert [copy.free for copy in found] == [True, True]
    assert overlaps(found, {}) == []


def test_what_a_woken_copy_does_is_counted_apart(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    said = ("start 1 1 1", "runs 1 2", "start 2 9 0", "runs 1 12", "runs 2 13")
    trace.write_text("".join(f"{line}\n" for line in map(in_nanoseconds, said)))
    assert overlaps(copies(trace), {}) == [3.0]
    assert overlaps(copies(trace), {1: 11.0}) == []
    assert overlaps(copies(trace), {1: 12.5}) == [3.0]


def test_a_service_says_the_role_it_has_at_that_moment(tmp_path: Path) -> None:
    state, port = tmp_path / "state.json", free_port()
    state.write_text('{"role":"standby","epoch":1}')
    told = {"PORT": str(port), "HOLDFAST_STATE_FILE": str(state), "HOLDFAST_REPLICA": "web/0.1"}
    with running("_failover_service.py", **told):
        first_answer(port, "web/0.1 standby", PATIENCE_S)
        state.write_text('{"role":"active","epoch":1}')
        first_answer(port, "web/0.1 active", PATIENCE_S)


def test_below_a_hundred_rounds_the_99th_percentile_is_the_worst() -> None:
    assert summary([0.3, 0.1, 0.2]) == {"p50_s": 0.2, "p99_s": 0.3, "max_s": 0.3}
    assert summary(range(1, 201)) == {"p50_s": 100, "p99_s": 198, "max_s": 200}
    assert summary([]) == {}


@pytest.mark.parametrize("words", [["--parts", "servce"], ["--rounds", "0"]])
def test_what_cannot_be_measured_is_refused_before_anything_starts(words: list[str]) -> None:
    with pytest.raises(SystemExit, match="--parts takes some of service"):
        main(["failover", *words])
