"""Another account of the machine speaks to a control plane on loopback, and looks for its token."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live_fleet import PATIENT, running

NOBODY = 65_534
SHELL = "kind: job\nname: shell\ncommand: id > /tmp/owned\ncpus: 0.05\nmemory: 16MiB\n"
# Imports first: as another user it may not be able to read this interpreter's folders any more.
STRANGER = f"""
import json, os, sys, urllib.request, urllib.error, http.client, encodings.idna
url, folder = sys.argv[1:]
if os.geteuid() == 0:
    os.setgroups([]), os.setgid({NOBODY}), os.setuid({NOBODY})
def asked(method, path, body=None, **headers):
    request = urllib.request.Request(url + path, body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
paths = ("/healthz", "/readyz", "/v1/status", "/v1/tokens", "/metrics")
found = {{path: asked("GET", path) for path in paths}}
yaml = {{"Content-Type": "application/yaml"}}
found["apply"] = asked("POST", "/v1/apply", {SHELL.encode()!r}, **yaml)
json_ = {{"Content-Type": "application/json"}}
found["kill"] = asked("POST", "/v1/chaos/kill", b'{{"node": "local-1"}}', **json_)
found["guessed"] = asked("GET", "/v1/status", Authorization="Bearer hf_guessed")
found["uid"], found["read"] = os.geteuid(), []
for name in ("token", "holdfast.db", "nodes"):
    try:
        open(os.path.join(folder, name)).close()
    except (PermissionError, IsADirectoryError) as error:
        continue
    found["read"].append(name)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    folder = tmp_path_factory.mktemp("fleet") / "state"
    with running(folder, "up", "--nodes", "1", *PATIENT) as said:
        yield folder, said["url"]


@pytest.fixture(scope="module")
def stranger(fleet: tuple[Path, str]) -> Any:
    folder, url = fleet
    command = [sys.executable, "-c", STRANGER, url, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout)


def test_another_local_user_orders_and_reads_nothing(stranger: Any) -> None:
    refused = ("apply", "kill", "guessed", "/v1/status", "/v1/tokens", "/metrics")
    assert {what: stranger[what] for what in refused} == dict.fromkeys(refused, 401)
    assert (stranger["/healthz"], stranger["/readyz"]) == (200, 200)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_local_user_reads_neither_the_token_nor_the_database(
    stranger: Any, fleet: tuple[Path, str]
) -> None:
    assert stranger["uid"] == NOBODY
    assert stranger["read"] == []
    assert (fleet[0] / "token").stat().st_mode & 0o777 == 0o600


def test_who_runs_it_needs_no_word_about_a_token(fleet: tuple[Path, str]) -> None:
    holdfast = str(Path(sys.executable).parent / "holdfast")
    here = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    (fleet[0].parent / ".holdfast").symlink_to(fleet[0])
    done = subprocess.run([holdfast, "status"], cwd=fleet[0].parent, env=here, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
