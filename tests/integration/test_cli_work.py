"""What people and CI do with work that ends, fails and changes, against a real control plane with real
nodes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli_rig import Holdfast
from tests.live_fleet import PATIENCE_S, PATIENT, running

TINY = "cpus: 0.05\nmemory: 16MiB\nstop_grace: 1s\nrestart: { limit: 1 }\n"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("fleet") / "state"
    with running(folder, "up", "--nodes", "2", *PATIENT):
        yield folder


def job(folder: Path, name: str, command: str) -> Path:
    file = folder / f"{name}.yaml"
    file.write_text(f"kind: job\nname: {name}\ncommand: {command}\n{TINY}")
    return file


def test_ci_waits_for_a_job_and_goes_by_its_end(holdfast: Holdfast, fleet: Path, tmp_path: Path) -> None:
    assert holdfast(fleet, "apply", job(tmp_path, "good", "sleep 0.5")).code == 0
    assert holdfast(fleet, "apply", job(tmp_path, "bad", "sleep 0.5; exit 7")).code == 0
    good = holdfast(fleet, "wait", "good", "--timeout", "60s")
    assert (good.code, good.out) == (0, "good is done\n")
    bad = holdfast(fleet, "wait", "bad", "--timeout", "60s")
    assert bad.code == 1
    assert "error: bad has failed: 1 gave up (its program failed 1 times in a row: exit code 7)" in bad.err
    assert holdfast(fleet, "wait", "bad", "--exit-code").code == 7
    assert holdfast(fleet, "delete", "good", "bad", "--wait").code == 0
    assert holdfast(fleet, "wait", "good", "bad", "--for", "gone", "--timeout", "60s").code == 0


def test_apply_waits_for_a_job_to_its_end(holdfast: Holdfast, fleet: Path, tmp_path: Path) -> None:
    """Its program fails later than anybody would watch it."""
    bad = holdfast(fleet, "apply", job(tmp_path, "late", "sleep 5; exit 3"), "--wait")
    assert bad.code == 1
    assert "error: late has failed: 1 gave up (its program failed 1 times in a row: exit code 3)" in bad.err
    good = holdfast(fleet, "apply", job(tmp_path, "fine", "sleep 1"), "--wait")
    assert (good.code, "1 of 1 done" in good.err) == (0, True)
    assert holdfast(fleet, "restart", "fine", "--yes", "--wait").code == 0
    assert holdfast(fleet, "delete", "late", "fine", "--wait").code == 0


def test_the_log_of_a_job_that_wrote_nothing_is_empty(
    holdfast: Holdfast, fleet: Path, tmp_path: Path
) -> None:
    assert holdfast(fleet, "apply", job(tmp_path, "quiet", "exit 0"), "--wait").code == 0
    for words in (("quiet",), ("quiet/0",), ("quiet/0.1",), ("quiet/0.1", "--tail", "3"), ("quiet", "-f")):
        told = holdfast(fleet, "logs", *words)
        assert (told.code, told.out) == (0, "")
        assert told.err.count("quiet/0.1 has written nothing") == 1
    assert holdfast(fleet, "delete", "quiet", "--wait").code == 0


def test_ctrl_c_ends_a_wait_at_once_and_leaves_the_job_alone(
    holdfast: Holdfast, fleet: Path, tmp_path: Path
) -> None:
    assert holdfast(fleet, "apply", job(tmp_path, "long", "sleep 600")).code == 0
    assert holdfast(fleet, "wait", "long", "--for", "ready").code == 0
    command = [sys.executable, "-m", "holdfast.cli.main", "wait", "long"]
    environment = {**os.environ, "HOLDFAST_DIR": str(fleet)}
    waits = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, cwd=tmp_path)
    assert waits.stderr is not None
    assert waits.stderr.readline() == "long: 1 running, 0 of 1 done\n"
    waits.send_signal(signal.SIGINT)
    _, errors = waits.communicate(timeout=PATIENCE_S)
    assert (waits.returncode, errors) == (130, "")
    assert holdfast(fleet, "wait", "long", "--timeout", "100ms").code == 3
    assert holdfast(fleet, "wait", "long", "--for", "ready", "--timeout", "60s").code == 0
    assert holdfast(fleet, "delete", "long", "--wait").code == 0


def test_what_failed_is_retried_and_runs_to_its_end(holdfast: Holdfast, fleet: Path, tmp_path: Path) -> None:
    flag = tmp_path / "mended"
    file = tmp_path / "grid.yaml"
    file.write_text(f"kind: sweep\nname: grid\ntasks: 3\ncommand: test -e {flag} || exit 5\n{TINY}")
    assert holdfast(fleet, "apply", file).code == 0
    failed = holdfast(fleet, "wait", "grid", "--exit-code", "--timeout", "60s")
    assert (failed.code, "grid has failed: 3 gave up" in failed.err) == (5, True)
    flag.touch()
    told = holdfast(fleet, "retry", "grid")
    assert (told.code, told.out) == (0, "grid: grid/0, grid/1, grid/2 start again\n")
    assert holdfast(fleet, "wait", "grid", "--timeout", "60s").code == 0
    again = holdfast(fleet, "retry", "grid")
    assert (again.code, again.err.splitlines()) == (
        2,
        ["error: nothing of grid has failed", "hint: to run it once more: holdfast restart grid"],
    )
    assert holdfast(fleet, "delete", "grid", "--wait").code == 0


def test_a_job_is_started_anew_only_when_that_is_confirmed(
    holdfast: Holdfast, fleet: Path, tmp_path: Path
) -> None:
    log = tmp_path / "ran"
    assert holdfast(fleet, "apply", job(tmp_path, "once", f"echo ran >> {log}")).code == 0
    assert holdfast(fleet, "wait", "once", "--timeout", "60s").code == 0
    asked = holdfast(fleet, "restart", "once")
    assert asked.code == 2
    assert asked.err.splitlines()[-1] == "hint: holdfast restart once --yes"
    told = holdfast(fleet, "restart", "once", "--yes")
    assert (told.code, told.out) == (0, "once: restarted (version 2)\n")
    assert holdfast(fleet, "wait", "once", "--timeout", "60s").code == 0
    assert log.read_text() == "ran\nran\n"
    assert holdfast(fleet, "delete", "once", "--wait").code == 0


def test_a_service_is_rolled_back_restarted_and_printed_as_it_is_applied(
    holdfast: Holdfast, fleet: Path, tmp_path: Path
) -> None:
    file = tmp_path / "web.yaml"
    text = "kind: service\nname: web\nreplicas: 2\ncommand: exec sleep 1001\nenv: { SECRET: 'a: b' }\n"
    file.write_text(text + TINY)
    assert holdfast(fleet, "apply", file, "--wait").code == 0
    file.write_text((text + TINY).replace("1001", "1002"))
    assert holdfast(fleet, "apply", file, "--wait").code == 0
    back = holdfast(fleet, "rollback", "web", "--wait")
    assert (back.code, back.out) == (0, "web: rolled back, command changed (version 3)\n")
    told = holdfast(fleet, "restart", "web", "--wait")
    assert (told.code, told.out) == (0, "web: restarted (version 4)\n")
    rows = holdfast(fleet, "rollback", "web", "--list").out.splitlines()
    assert [row.split()[0] for row in rows] == ["VERSION", "1", "2", "4"]
    assert "runs now" in rows[-1]
    printed = holdfast(fleet, "get", "web", "-o", "yaml").out
    (tmp_path / "again.yaml").write_text(printed)
    assert "command: exec sleep 1001" in printed
    assert holdfast(fleet, "apply", tmp_path / "again.yaml").out == "web  service  unchanged\n"
    fields = holdfast(fleet, "get", "web", "-o", "json").json
    assert (fields["name"], fields["env"], fields["replicas"]) == ("web", {"SECRET": "a: b"}, 2)
    assert holdfast(fleet, "delete", "web", "--wait").code == 0


def test_what_the_last_readiness_probe_answered_is_explained(
    holdfast: Holdfast, fleet: Path, tmp_path: Path
) -> None:
    file = tmp_path / "sick.yaml"
    serve = "command: exec python3 -m http.server $PORT\nready: { http: /nope, every: 100ms }\n"
    file.write_text(f"kind: service\nname: sick\n{serve}{TINY}")
    assert holdfast(fleet, "apply", file).code == 0

    def explained(kind: str, name: str) -> str:
        return holdfast(fleet, "explain", kind, name).out

    ends = time.monotonic() + PATIENCE_S
    answer = "readiness probe: HTTP status 404 from /nope, for"
    while answer not in explained("workload", "sick"):
        assert time.monotonic() < ends, explained("workload", "sick")
        time.sleep(0.1)
    assert answer in explained("replica", "sick/0")
    assert holdfast(fleet, "delete", "sick", "--wait").code == 0
