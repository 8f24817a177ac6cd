"""`holdfast --project`, `projects`, `audit` and tokens of a project, against a control plane of its own."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli_rig import Holdfast

WEB = "kind: service\nname: web\ncommand: [sleep, inf]\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of `holdfast serve`, in a process of its own, without nodes."""
    home: Path = tmp_path_factory.mktemp("served")
    command = [
        sys.executable,
        "-m",
        "holdfast.cli.main",
        "serve",
        "--leader-timeout",
        "60",
        "--port",
        "0",
        "--dir",
        str(home),
    ]
    process = subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        json.loads(process.stdout.readline())
        yield home
    finally:
        process.terminate()
        assert process.wait(60) == 0
        assert process.stdout is not None
        process.stdout.close()


def test_a_project_from_its_quota_to_its_audit_log(folder: Path, holdfast: Holdfast, tmp_path: Path) -> None:
    (tmp_path / "web.yaml").write_text(WEB)
    (tmp_path / "quota.yaml").write_text("kind: project\nname: vision\ngpus: 8\nmonth: 500\n")
    assert holdfast(folder, "apply", "quota.yaml").code == 0
    made = holdfast(folder, "token", "create", "--role", "operator", "--project", "vision", "--note", "ann")
    assert "project vision only" in made.err
    admin = holdfast(folder, "token", "create", "--role", "admin", "--project", "vision")
    assert (admin.code, admin.out) == (2, ""), "it would be of the whole fleet"
    assert "a token of the role admin is for the whole fleet, and not for project vision" in admin.err
    ann = ("--token", made.out.strip())
    assert holdfast(folder, "apply", "web.yaml", *ann).code == 0
    assert [one["project"] for one in holdfast(folder, "workloads", "--json").json] == ["vision"]
    assert holdfast(folder, "workloads", "--project", "sound", "--json").json == []
    refused = holdfast(folder, "spend", *ann)
    assert (refused.code, "of the whole fleet" in refused.err) == (2, True)
    listed = holdfast(folder, "projects").out.splitlines()
    heads = ["PROJECT", "WORKLOADS", "SLOTS", "NODES", "CPUS", "MEMORY", "GPUS", "A", "MONTH"]
    assert listed[0].split() == heads
    assert "1 of 1,000" in listed[1]
    assert "1 of 20,000" in listed[1]
    assert "0 of 8" in listed[1]
    assert "gpus none -> 8" in holdfast(folder, "events").out
    assert "$500.00" in listed[1]
    told = [(one["kind"], one["actor"], one["text"]) for one in holdfast(folder, "audit", "--json").json]
    assert ("order", "ann", "applied, version 1") in told
    assert any(kind == "denied" and who == "ann" for kind, who, _ in told)
    mine = holdfast(folder, "audit", "--actor", "ann", "--since", "1h").out
    assert "web: applied, version 1" in mine
    assert "127.0.0.1" in mine
    assert "quota of the project applied" not in mine
    assert holdfast(folder, "audit", *ann).code == 2
    assert (folder / "audit.log").stat().st_mode & 0o777 == 0o600
    assert "applied, version 1" in (folder / "audit.log").read_text()
