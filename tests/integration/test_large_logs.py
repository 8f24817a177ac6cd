"""Large logs of real replicas, read slowly and quickly: every byte in order, or an error."""

import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli_rig import Holdfast
from tests.integration.test_cli_live import TINY, until, write
from tests.live_fleet import PATIENCE_S, PATIENT, running

LINES, WIDTH = 1_000_000, 30
ALL = range(1, LINES + 1)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("large") / "state"
    with running(folder, "up", "--nodes", "2", *PATIENT):
        yield folder


def big_log(holdfast: Holdfast, fleet: Path, folder: Path, name: str) -> None:
    """A replica NAME/0.1 that has written 30 MB and goes on running."""
    text = f"kind: job\nname: {name}\ncommand: seq -f %0{WIDTH - 1}.0f {LINES}; exec sleep 600\n{TINY}"
    assert holdfast(fleet, "apply", write(folder / f"{name}.yaml", text)).code == 0
    assert holdfast(fleet, "wait", name, "--for", "ready").code == 0
    last = f"{LINES:0{WIDTH - 1}}\n"
    until(lambda: holdfast(fleet, "logs", f"{name}/0.1", "--tail", "1").out == last)


def reading(fleet: Path, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "holdfast.cli.main", "logs", *words]
    environment = {**os.environ, "HOLDFAST_DIR": str(fleet)}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, bufsize=0
    )


def check(log: bytes) -> None:
    assert len(log) == LINES * WIDTH
    wrong = (at for at in range(LINES) if int(log[at * WIDTH : (at + 1) * WIDTH]) != at + 1)
    assert next(wrong, None) is None


def test_thirty_megabytes_reach_a_slow_reader_and_a_quick_one_whole(
    holdfast: Holdfast, fleet: Path, tmp_path: Path
) -> None:
    big_log(holdfast, fleet, tmp_path, "big")
    slow = reading(fleet, "big/0.1")
    assert slow.stdout is not None
    found = [slow.stdout.read(WIDTH)]  # it has begun, and takes no more
    quick = reading(fleet, "big/0.1")
    log, errors = quick.communicate(timeout=PATIENCE_S)
    assert (quick.returncode, errors) == (0, b"")
    check(log)
    time.sleep(1)  # every buffer on the way is full by now
    nodes = holdfast(fleet, "nodes", "--json").out
    assert {node["verdict"] for node in json.loads(nodes)} == {"alive"}
    while part := slow.stdout.read(1 << 16):
        found.append(part)
        if len(found) % 50 == 0:
            time.sleep(0.1)
    _, errors = slow.communicate(timeout=PATIENCE_S)
    assert (slow.returncode, errors) == (0, b"")
    check(b"".join(found))
    assert holdfast(fleet, "delete", "big", "--wait").code == 0


@pytest.mark.parametrize("options", [(), ("-f",)])
def test_a_log_whose_node_is_killed_in_the_middle_ends_with_an_error(
    holdfast: Holdfast, fleet: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    name = f"cut{len(options)}"
    big_log(holdfast, fleet, tmp_path, name)
    reader = reading(fleet, f"{name}/0.1", *options)
    assert reader.stdout is not None
    found = [reader.stdout.read(WIDTH)]
    (copy,) = holdfast(fleet, "replicas", "--workload", name, "--json").json
    assert holdfast(fleet, "chaos", "kill", copy["node"]).code == 0
    rest, errors = reader.communicate(timeout=PATIENCE_S)
    log = b"".join([*found, rest])
    assert reader.returncode == 1
    cut = re.search(rf"error: the log of {name}/0.1 is cut short after ([\d,]+) bytes: ", errors.decode())
    assert cut is not None, errors
    size, whole = int(cut[1].replace(",", "")), b"".join(b"%0*d\n" % (WIDTH - 1, at) for at in ALL)
    assert log[:size] == whole[:size]
    assert whole.endswith(log[size:]), "of what is followed, the end is kept"
    assert holdfast(fleet, "delete", name, "--wait").code == 0
    until(lambda: len(json.loads(holdfast(fleet, "nodes", "--json").out)) == 2)


def test_what_a_replica_wrote_on_a_node_that_was_killed_is_kept(
    holdfast: Holdfast, fleet: Path, tmp_path: Path
) -> None:
    text = f"kind: service\nname: talk\ncommand: seq 1000; exec sleep 600\n{TINY}"
    assert holdfast(fleet, "apply", write(tmp_path / "talk.yaml", text), "--wait").code == 0
    (copy,) = holdfast(fleet, "replicas", "--workload", "talk", "--json").json
    database = sqlite3.connect(f"file:{fleet / 'holdfast.db'}?mode=ro", uri=True)
    kept = "SELECT count(*) FROM tails WHERE replica = ?"
    until(lambda: database.execute(kept, (copy["id"],)).fetchone()[0] == 1)
    database.close()
    assert holdfast(fleet, "chaos", "kill", copy["node"]).code == 0
    until(lambda: copy["node"] not in {n["name"] for n in json.loads(holdfast(fleet, "nodes", "--json").out)})
    told = holdfast(fleet, "logs", copy["id"])
    assert (told.code, told.out) == (0, "".join(f"{number}\n" for number in range(1, 1001)))
    assert f"{copy['node']} is gone; this is all that it wrote up to some seconds before" in told.err
    followed = holdfast(fleet, "logs", copy["id"], "-f")
    assert (followed.code, followed.out) == (1, told.out)
    assert "is not known" in followed.err
    assert holdfast(fleet, "delete", "talk", "--wait").code == 0
