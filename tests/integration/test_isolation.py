"""A control plane, an agent that is root, and jobs that would be the agent: all real."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli_rig import Holdfast
from tests.live_fleet import PATIENCE_S, joined, running

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give its rights away")
POOL = "{kind: pool, name: metal, provider: join}"
REFUSALS = ("denied", "not permitted", "No such process")
JOB = """
kind: job
name: {name}
command: ["sh", "-c", "{script}"]
cpus: 0.05
memory: 16MiB
"""


@pytest.fixture
def public() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-", dir="/var/lib"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def until(look: Callable[[], object]) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not look():
        assert time.monotonic() < ends, "it did not come true"
        time.sleep(0.05)


def test_what_a_job_could_do_to_its_node_it_cannot(holdfast: Holdfast, tmp_path: Path, public: Path) -> None:
    state, root = tmp_path / "state", public / "n1"
    (tmp_path / "pool.yaml").write_text(POOL)
    with running(state, "serve", "--leader-timeout", "60") as said:
        assert holdfast(state, "apply", tmp_path / "pool.yaml").code == 0
        token = holdfast(state, "token", "create", "--role", "join", "--pool", "metal").out.strip()
        with joined(root, said["url"], token, "--isolation", "user") as agent:
            until(lambda: [each["verdict"] for each in holdfast(state, "nodes", "--json").json] == ["alive"])
            explained = holdfast(state, "explain", "node", "n1").out
            assert "isolation: user: each workload runs as a user of its own" in " ".join(explained.split())
            assert [each["isolation"] for each in holdfast(state, "nodes", "--json").json] == ["user"]
            stop = f"kill -STOP {agent.pid}; kill -STOP $PPID"
            evil = f"id -u; cat {root}/key {root}/lease; (echo 9 > {root}/lease); {stop}; true"
            (tmp_path / "evil.yaml").write_text(JOB.format(name="evil", script=evil))
            assert holdfast(state, "apply", tmp_path / "evil.yaml", "--wait", "--timeout", "60s").code == 0
            log = holdfast(state, "logs", "evil").out
            uid, *rest = [line for line in log.splitlines() if line.split()[1:]]
            assert int(uid.split()[-1]) >= 0x7000_0000
            assert all(any(word in line for word in REFUSALS) for line in rest), log
            assert len(rest) >= 4
            assert [each["verdict"] for each in holdfast(state, "nodes", "--json").json] == ["alive"]


def test_an_agent_that_cannot_keep_them_apart_says_so_or_does_not_start(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(0o700)
    with joined(closed / "n1", "http://127.0.0.1:9", "x", "--isolation", "user") as agent:
        _, told = agent.communicate(timeout=PATIENCE_S)
    assert agent.returncode == 2
    assert "is closed to other users" in told
    assert "hint: " in told
    with joined(closed / "n1", "http://127.0.0.1:9", "x") as agent:
        assert agent.stderr is not None
        assert any("isolation none" in line and "closed to other users" in line for line in agent.stderr)
