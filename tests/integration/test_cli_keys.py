"""`holdfast keys` and `holdfast limits` against a real gateway that works alone."""

import functools
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer

from holdfast.cli import completion
from holdfast.cli.client import address
from holdfast.cli.main import app
from tests.cli_rig import Holdfast, called, without_environment
from tests.gateways import CHAT, chat

FILE = """
listen: "127.0.0.1:0"
admin: "127.0.0.1:0"
services:
  - name: toy
    upstreams: ["http://127.0.0.1:1"]
    hold: { requests: 0 }
limits:
  teams:
    red: { tokens_per_min: 6000, models: { toy: { concurrent: 2 } } }
keys:
  - { id: fixed, sha256: "%s", owner: ops }
""" % ("ab" * 32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where a gateway works, in a process of its own."""
    home: Path = tmp_path_factory.mktemp("gateway")
    (home / "gateway.yaml").write_text(FILE)
    command = [sys.executable, "-m", "holdfast.cli.main", "gateway", "--json"]
    with (home / "err").open("wb") as errors:
        process = subprocess.Popen(command, cwd=home, stdout=subprocess.PIPE, stderr=errors, text=True)
    watchdog = threading.Timer(100, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first, (home / "err").read_text()
        (home / "urls.json").write_text(first)
        yield home
    finally:
        watchdog.cancel()
        process.terminate()
        assert process.wait(60) == 0
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def holdfast(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Holdfast:
    """Runs a command in the folder of the gateway."""
    without_environment(monkeypatch)
    monkeypatch.chdir(folder)
    return functools.partial(called, capsys, monkeypatch)


def asked(folder: Path, secret: str) -> tuple[int, str]:
    """What whoever has this key gets: nobody is where the only replica should be, which is
    only found out for whoever is let in."""
    url = json.loads((folder / "urls.json").read_text())["url"]
    found = httpx.post(f"{url}{CHAT}", json=chat(), headers={"authorization": f"Bearer {secret}"})
    code = found.json()["error"]["code"]
    return LET_IN if code in ("upstream_failed", "no_capacity") else (found.status_code, code)


LET_IN = (502, "upstream_failed")


def test_a_key_lives_from_its_making_to_its_end(folder: Path, holdfast: Holdfast) -> None:
    words = ("--id", "ci", "--owner", "ann", "--team", "blue", "--new-team", "--note", "nightly")
    made = holdfast("keys", "create", *words)
    assert made.code == 0
    secret = made.out.strip()
    assert re.fullmatch(r"sk-hf-[\w-]{43}", secret), "the secret alone is on stdout"
    assert made.err.splitlines()[1:] == ["key ci: keep it, it is not shown again", "limits: none"]
    assert asked(folder, secret) == LET_IN

    row = next(line for line in holdfast("keys", "list").out.splitlines() if line.startswith("ci "))
    assert row.split()[:4] == ["ci", "good", "ann", "blue"]
    assert row.endswith("nightly; limits: none")
    assert secret not in row

    assert holdfast("keys", "suspend", "ci", "--why", "it was leaked").code == 0
    assert asked(folder, secret) == (403, "key_suspended")
    assert re.search(r"^ci +suspended .*it was leaked; limits: none$", holdfast("keys", "list").out, re.M)
    assert holdfast("keys", "restore", "ci").out == "key ci is good again\n"
    assert asked(folder, secret) == LET_IN

    rotated = holdfast("keys", "rotate", "ci", "--grace", "1h", "--json")
    assert asked(folder, secret) == LET_IN, "the old one is good for its grace"
    assert asked(folder, rotated.json["secret"]) == LET_IN
    assert re.search(r"^ci +replaced", holdfast("keys", "list").out, re.M)

    for id in ("ci", rotated.json["key"]["id"]):
        assert holdfast("keys", "delete", id).code == 0
    assert asked(folder, secret) == asked(folder, rotated.json["secret"]) == (401, "invalid_api_key")
    assert not re.search(r"^ci ", holdfast("keys", "list").out, re.M)


def test_a_key_that_is_rotated_without_grace_ends_at_once(folder: Path, holdfast: Holdfast) -> None:
    secret = holdfast("keys", "create", "--id", "leaked").out.strip()
    assert asked(folder, secret) == LET_IN
    rotated = holdfast("keys", "rotate", "leaked", "--grace", "0s")
    assert rotated.code == 0, rotated.err
    assert asked(folder, secret) == (401, "invalid_api_key")
    assert asked(folder, rotated.out.strip()) == LET_IN
    restored = holdfast("keys", "restore", "leaked")
    assert restored.out == "key leaked is no longer held back, but it has expired\n"


def test_limits_of_a_key_and_of_a_team_are_said_and_shown(folder: Path, holdfast: Holdfast) -> None:
    words = (
        "--tokens-per-min",
        9000,
        "--concurrent",
        3,
        "--model",
        "toy",
        "--model",
        "llama-*",
        "--new-model",
        "--ttl",
        "2h",
    )
    made = holdfast("keys", "create", "--id", "small", *words, "--json")
    assert made.json["key"]["limits"] == {"tokens_per_min": 9000, "concurrent": 3}
    assert made.json["key"]["expires_ms"] - made.json["key"]["created_ms"] == 7_200_000
    row = next(line for line in holdfast("keys", "list").out.splitlines() if line.startswith("small "))
    assert "toy, llama-*" in row
    assert "9,000 tokens/min, 3 at a time" in row

    assert holdfast("limits", "list").out.splitlines()[1:] == [
        "team:red            6,000 tokens/min",
        "team:red/model:toy  2 at a time",
    ]
    told = holdfast("limits", "set", "team:red", "--requests-per-min", 30)
    assert told.out == "team:red: 30 requests/min\n"
    assert "until the gateway starts anew" in told.err
    assert holdfast("limits", "list", "--json").json["team:red"] == {"requests_per_min": 30}
    again = holdfast("limits", "reset", "team:red")
    assert (again.code, again.out) == (0, "team:red: what was used of it is forgotten\n"), again
    assert holdfast("limits", "reset", "team:rde").code == 2
    misspelt = holdfast("limits", "set", "team:rde", "--requests-per-min", 30)
    assert "note: " in misspelt.err
    assert holdfast("limits", "set", "team:rde", "--unlimited").code == 0
    assert holdfast("limits", "set", "team:red", "--unlimited").out == "team:red: not limited\n"


def test_the_report_has_a_line_for_every_key(holdfast: Holdfast) -> None:
    lines = holdfast("keys", "report").out.splitlines()
    assert lines[0].split()[:3] == ["KEY", "GRADE", "SCORE"]
    assert re.search(r"^fixed +fine +0\.00 +ops .* never$", "\n".join(lines), re.M)
    assert [row["key"] for row in holdfast("keys", "report", "--json").json]


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        (("keys", "delete", "nobody"), "there is no key nobody", "holdfast keys list"),
        (("keys", "delete", "fixed"), "the key fixed stands in the configuration", "change it there"),
        (("keys", "create", "--id", "fixed"), "there is a key fixed already", "rotate it"),
        (("keys", "create", "--ttl", "soon"), "--ttl: expected a duration", "--ttl 90s"),
        (("keys", "create", "--team", "rde"), "there is no team called rde", "--new-team"),
        (("keys", "create", "--model", "llama-*"), "no service answers for a model", "--new-model"),
        (("limits", "set", "team:red"), "expected limits, or --unlimited", "--tokens-per-min"),
        (("limits", "set", "team:red", "--concurrent", "2", "--unlimited"), "expected limits, or", "set"),
        (("limits", "set", "teams:red", "--concurrent", "2"), "teams:red is no scope", "team:NAME"),
        (("keys", "create", "--id", "a/b"), "expected an id of at most 63 letters, digits, - and _", ""),
    ],
)
def test_a_mistake_is_told_with_what_helps(
    words: tuple[str, ...], error: str, hint: str, holdfast: Holdfast
) -> None:
    told = holdfast(*words)
    assert told.code == 2
    assert told.out == ""
    assert f"error: {error}" in told.err
    assert bool(hint) is bool(re.search(rf"^hint: .*{re.escape(hint)}", told.err, re.M))


def test_a_gateway_that_is_away_is_told_from_a_control_plane(holdfast: Holdfast) -> None:
    told = holdfast("keys", "list", "--gateway", "http://127.0.0.1:1")
    assert told.code == 1
    assert "hint: is it running? start it with: holdfast gateway" in told.err
    told = holdfast("keys", "list", "--url", "http://127.0.0.1:1")
    assert "hint: is it running? start one with: holdfast up" in told.err


def test_keys_and_scopes_complete(holdfast: Holdfast, folder: Path) -> None:
    group: Any = typer.main.get_command(app)
    command = group.commands["keys"].commands["delete"]
    with command.make_context("delete", [], resilient_parsing=True) as context:
        assert completion.key_ids(context, "fi") == ["fixed"]
    command = group.commands["limits"].commands["set"]
    with command.make_context("set", [], resilient_parsing=True) as context:
        assert "team:red/model:toy" in completion.scopes(context, "team:")
        assert completion.scopes(context, "gl") == ["global"]


def test_the_token_of_a_gateway_goes_to_nobody_else(tmp_path: Path) -> None:
    home = tmp_path / ".holdfast-gateway"
    home.mkdir()
    (home / "admin-url").write_text("http://10.0.0.1:8081\n")
    (home / "admin-token").touch(0o600)
    (home / "admin-token").write_text("hfg_x\n")
    empty: dict[str, str] = {}
    found = address.keeper_of_keys(folder=tmp_path, environment=empty)
    assert found._replace(because="") == address.Server(("http://10.0.0.1:8081",), "hfg_x", is_gateway=True)
    assert address.keeper_of_keys("https://10.0.0.2:1", folder=tmp_path, environment=empty).token == ""
    other = {"HOLDFAST_URL": "https://10.0.0.3:1", "HOLDFAST_TOKEN": "t"}
    assert address.keeper_of_keys(folder=tmp_path, environment=other) == address.Server(
        ("https://10.0.0.3:1",), "t"
    )
    assert address.keeper_of_keys(folder=tmp_path / "none", environment=other).is_gateway is False
    elsewhere = {"HOLDFAST_GATEWAY_DIR": str(home)}
    found = address.keeper_of_keys(folder=tmp_path / "none", environment=elsewhere)
    assert (found.urls, found.token) == (("http://10.0.0.1:8081",), "hfg_x")
