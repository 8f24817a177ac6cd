"""The commands against a real control plane with real nodes: what a user types, and what comes of it."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import certificates
from tests.cli_rig import Holdfast
from tests.live_fleet import PATIENCE_S, PATIENT, running

TINY = "cpus: 0.05\nmemory: 16MiB\nstop_grace: 1s\n"
WEB = f"kind: service\nname: web\nreplicas: 2\nready: {{ http: / }}\n{TINY}"
WEB += "command: exec python3 -m http.server $PORT\n"
TICK = "i=0; while true; do i=$((i+1)); echo tick $i $HOLDFAST_REPLICA; sleep 0.2; done"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("fleet") / "state"
    with running(folder, "up", "--nodes", "3", *PATIENT) as said:
        assert len(said["nodes"]) == 3
        yield folder


def until(look: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not look():
        assert time.monotonic() < ends, "it did not come true"
        time.sleep(0.1)


def test_a_service_that_scales_is_told_grows_and_is_explained(
    holdfast: Holdfast, fleet: Path, tmp_path: Path
) -> None:
    text = WEB.replace("name: web", "name: api").replace("replicas: 2", "replicas: 1")
    scale = "scale: { min: 1, max: 3, per_replica: { in_flight: 4 } }\n"
    file = write(tmp_path / "api.yaml", text + scale)
    assert holdfast(fleet, "apply", file, "--wait").code == 0
    assert "1/1 (1-3)" in holdfast(fleet, "workloads").out

    def told() -> bool:
        assert holdfast(fleet, "signal", "api", "in_flight=30", "--source", "test").code == 0
        return "3/3 (1-3)" in holdfast(fleet, "workloads").out

    until(told)
    why = holdfast(fleet, "explain", "workload", "api")
    assert "3 replicas wanted for" in why.out
    assert "signals: in_flight 30 at 4 a replica" in why.out
    wrong = holdfast(fleet, "signal", "ape", "in_flight=1")
    assert (wrong.code, wrong.err) == (2, "error: there is no workload called ape\nhint: Did you mean: api\n")
    assert holdfast(fleet, "signal", "api", "in_flight=1", "--json").json == {
        "done": "heard in_flight of api"
    }
    assert holdfast(fleet, "delete", "api", "--wait").code == 0


def test_offers_and_spending_of_a_real_fleet_are_shown(holdfast: Holdfast, fleet: Path) -> None:
    offers = holdfast(fleet, "offers", "--json").json
    assert {offer["pool"] for offer in offers} == {"local"}
    table = holdfast(fleet, "offers", "local").out
    assert all(offer["key"] in table for offer in offers)
    assert sum(offer["came_up"] for offer in offers) >= 2.9, "three nodes came up"
    assert "it may be launched" in holdfast(fleet, "explain", "offer", offers[0]["key"]).out
    wrong = holdfast(fleet, "explain", "offer", "local/nowhere")
    assert (wrong.code, wrong.err.startswith("error: there is no offer called local/nowhere")) == (2, True)
    spent = holdfast(fleet, "spend", "--json").json
    assert spent["fleet"]["nodes"] == sum(pool["nodes"] for pool in spent["pools"]) >= 3
    assert holdfast(fleet, "spend").out.splitlines()[1].startswith("fleet")


def write(file: Path, text: str) -> Path:
    file.write_text(text)
    return file


def test_a_service_from_the_first_wish_to_its_end(holdfast: Holdfast, fleet: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "web.yaml", WEB)
    plan = holdfast(fleet, "plan", file)
    assert plan.code == 0
    assert plan.out.startswith("service web: would be created\n")
    assert plan.out.count("PlaceReplica") == 2
    assert holdfast(fleet, "workloads").out == "no workloads\n"

    told = holdfast(fleet, "apply", file, "--wait", "--timeout", "60s")
    assert (told.code, told.out) == (0, "web  service  created\n")
    assert told.err.splitlines()[-1] == "web: 2 of 2 ready"
    assert holdfast(fleet, "apply", file).out == "web  service  unchanged\n"
    more = write(tmp_path / "more.yaml", WEB.replace("replicas: 2", "replicas: 3"))
    assert "replicas 2 -> 3" in holdfast(fleet, "apply", more, "--wait").out

    assert "3/3" in holdfast(fleet, "status").out
    assert holdfast(fleet, "workloads", "web").out.count("● ready") == 3
    replicas = holdfast(fleet, "replicas", "--workload", "web", "--json").json
    assert len({replica["node"] for replica in replicas}) == 3
    assert "Serving HTTP" in holdfast(fleet, "logs", replicas[0]["id"]).out
    assert "ready" in holdfast(fleet, "explain", "workload", "web").out
    assert "ready on" in holdfast(fleet, "events", "--workload", "web").out

    assert holdfast(fleet, "scale", "web", "1").code == 0
    until(lambda: len(holdfast(fleet, "replicas", "--workload", "web", "--json").json) == 1)
    assert holdfast(fleet, "pause", "web").code == 0
    assert "paused" in holdfast(fleet, "workloads", "web").out
    until(lambda: "‖" in holdfast(fleet, "status").out)
    told = holdfast(fleet, "events", "--workload", "web", "--limit", "4")
    assert len(told.out.splitlines()) == 4
    assert "web            paused, version 1" in told.out
    assert re.search(r"web/\d\.1 +stopped on \S+ \(SIGTERM\)", told.out)
    assert holdfast(fleet, "resume", "web").code == 0
    told = holdfast(fleet, "delete", "web", "--wait")
    assert (told.code, told.out) == (0, "web is deleted\n")
    assert holdfast(fleet, "replicas", "--json").json == []
    assert "deleted" in holdfast(fleet, "events", "--workload", "web").out, "it is still in the history"


def test_a_node_is_cordoned_drained_and_taken_back(holdfast: Holdfast, fleet: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "tick.yaml", f"kind: service\nname: tick\nreplicas: 2\ncommand: {TICK}\n{TINY}")
    assert holdfast(fleet, "apply", file, "--wait").code == 0
    node = holdfast(fleet, "replicas", "--workload", "tick", "--json").json[0]["node"]
    assert holdfast(fleet, "cordon", node).out == f"{node} is cordoned\n"
    assert holdfast(fleet, "nodes", node, "--json").json["state"] == "cordoned"
    told = holdfast(fleet, "drain", node, "--deadline", "30s", "--wait", "--timeout", "60s")
    assert (told.code, told.out) == (0, f"{node} is empty\n")
    assert "is empty" not in told.err
    assert all(r["node"] != node for r in holdfast(fleet, "replicas", "--workload", "tick", "--json").json)
    assert "draining" in holdfast(fleet, "explain", "node", node).out
    holdfast(fleet, "uncordon", node)
    assert holdfast(fleet, "delete", "tick", "--wait").code == 0


def test_logs_go_on_with_the_next_copy_when_a_node_is_killed(
    holdfast: Holdfast, fleet: Path, tmp_path: Path
) -> None:
    file = write(tmp_path / "talk.yaml", f"kind: service\nname: talk\ncommand: {TICK}\n{TINY}")
    assert holdfast(fleet, "apply", file, "--wait").code == 0
    tail = holdfast(fleet, "logs", "talk", "--tail", "1")
    assert len(tail.out.splitlines()) == 1
    command = [sys.executable, "-m", "holdfast.cli.main", "logs", "talk", "-f", "--tail", "1"]
    environment = {**os.environ, "HOLDFAST_DIR": str(fleet)}
    following = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True, cwd=tmp_path)
    watchdog = threading.Timer(PATIENCE_S, following.kill)
    watchdog.start()
    try:
        assert following.stdout is not None
        assert following.stdout.readline().startswith("talk/0.1  tick ")
        node = holdfast(fleet, "replicas", "--workload", "talk", "--json").json[0]["node"]
        assert "killed" in holdfast(fleet, "chaos", "kill", node).out
        lines = iter(following.stdout.readline, "")
        assert next(line for line in lines if line.startswith("talk/0.2 ")) == "talk/0.2  tick 1 talk/0.2\n"
        following.send_signal(signal.SIGINT)
        assert following.wait(PATIENCE_S) == 130
    finally:
        watchdog.cancel()
        following.kill()
        following.communicate()
    assert f"verdict  {node}" in holdfast(fleet, "events", "--node", node).out
    assert holdfast(fleet, "delete", "talk", "--wait").code == 0


def test_what_a_job_said_is_still_there_when_its_node_is_gone(
    holdfast: Holdfast, fleet: Path, tmp_path: Path
) -> None:
    file = write(tmp_path / "say.yaml", f"kind: job\nname: say\ncommand: seq 3\n{TINY}")
    assert holdfast(fleet, "apply", file, "--wait").code == 0
    node = next(
        line["node"] for line in holdfast(fleet, "events", "--workload", "say", "--json").json if line["node"]
    )
    assert "killed" in holdfast(fleet, "chaos", "kill", node).out
    until(lambda: all(each["name"] != node for each in holdfast(fleet, "nodes", "--json").json))
    told = holdfast(fleet, "logs", "say")
    assert (told.code, told.out) == (0, "say/0.1  1\nsay/0.1  2\nsay/0.1  3\n")
    assert told.err == f"say/0.1 has ended and {node} is gone; this is all that it wrote\n"
    assert holdfast(fleet, "logs", "say/0.1", "--tail", "1").out == "3\n"
    assert holdfast(fleet, "delete", "say", "--wait").code == 0


def test_events_are_followed_as_they_happen(holdfast: Holdfast, fleet: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast.cli.main", "events", "-f", "--limit", "1", "--json"]
    environment = {**os.environ, "HOLDFAST_DIR": str(fleet)}
    following = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True, cwd=tmp_path)
    watchdog = threading.Timer(PATIENCE_S, following.kill)
    watchdog.start()
    try:
        assert following.stdout is not None
        first = json.loads(following.stdout.readline())
        file = write(tmp_path / "once.yaml", f"kind: job\nname: once\ncommand: [echo, hi]\n{TINY}")
        assert holdfast(fleet, "apply", file, "--wait").code == 0
        seen = [first]
        while "done" not in seen[-1]["text"]:
            seen.append(json.loads(following.stdout.readline()))
    finally:
        watchdog.cancel()
        following.kill()
        following.communicate()
    assert [line["seq"] for line in seen] == sorted(line["seq"] for line in seen)
    assert any(line["workload"] == "once" and "PlaceReplica" in line["text"] for line in seen)
    assert "1 done" in holdfast(fleet, "workloads").out
    assert holdfast(fleet, "delete", "once", "--wait").code == 0


def test_names_that_do_not_exist_get_the_nearest(holdfast: Holdfast, fleet: Path) -> None:
    for words in (
        ("nodes", "locl-1"),
        ("drain", "locl-1"),
        ("explain", "node", "locl-1"),
        ("cordon", "locl-1"),
    ):
        told = holdfast(fleet, *words)
        assert told.code == 2
        assert "error: there is no node called locl-1" in told.err
        assert "hint: Did you mean: local-" in told.err
    for words in (("pause", "nobody"), ("delete", "nobody"), ("scale", "nobody", "2"), ("logs", "nobody")):
        told = holdfast(fleet, *words)
        assert told.code == 2
        assert "error: there is no workload called nobody" in told.err
    told = holdfast(fleet, "logs", "nobody/0.1")
    assert (told.code, told.err.splitlines()[0]) == (2, "error: there is no replica called nobody/0.1")
    assert told.err.splitlines()[1].startswith("hint: ")
    for command in ("replicas", "events"):
        for option, known in (("--workload", ""), ("--node", "hint: There is: local-")):
            told = holdfast(fleet, command, option, "nope", "--json")
            assert (told.code, told.out) == (2, "")
            assert f"error: there is no {option.strip('-')} called nope" in told.err
            assert known in told.err


def test_the_shell_completes_names_of_the_fleet(fleet: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "HOLDFAST_DIR": str(fleet), "_HOLDFAST_COMPLETE": "complete_bash"}
    found = {}
    for words, place in (("holdfast drain l", 2), ("holdfast explain node l", 3), ("holdfast explain po", 2)):
        done = subprocess.run(
            [Path(sys.executable).parent / "holdfast"],
            env={**environment, "COMP_WORDS": words, "COMP_CWORD": str(place)},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            cwd=tmp_path,
        )
        assert done.stderr == ""
        found[words] = done.stdout.split()
    assert len(found["holdfast drain l"]) >= 3
    assert all(name.startswith("local-") for name in found["holdfast drain l"])
    assert found["holdfast explain node l"] == found["holdfast drain l"]
    assert found["holdfast explain po"] == ["pool"]


def test_what_cannot_be_is_said_by_the_control_plane(holdfast: Holdfast, fleet: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "a.yaml", f"kind: job\nname: a\ncommand: [sleep, 1000]\n{TINY}")
    assert holdfast(fleet, "apply", file).code == 0
    file.write_text(file.read_text().replace("kind: job", "kind: service"))
    told = holdfast(fleet, "apply", file)
    assert told.code == 2
    assert "delete it first" in told.err
    assert holdfast(fleet, "scale", "a", "3").code == 2
    assert holdfast(fleet, "delete", "a", "--wait").code == 0


def test_a_workload_that_fits_nowhere_is_explained(holdfast: Holdfast, fleet: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "big.yaml", "kind: service\nname: big\ncpus: 64\ncommand: [serve]\n")
    assert "would wait: " in holdfast(fleet, "plan", file).out
    told = holdfast(fleet, "apply", file, "--wait", "--timeout", "500ms")
    assert told.code == 3
    assert "error: big is not ready after 0.5 s" in told.err
    assert "hint: holdfast explain workload big" in told.err
    assert "cpu" in holdfast(fleet, "explain", "workload", "big").out
    assert holdfast(fleet, "delete", "big", "--wait").code == 0


def test_up_says_when_it_serves_and_when_it_has_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast.cli.main", "up", "--nodes", "1", "--port", "0"]
    up = subprocess.Popen(
        [*command, "--dir", str(tmp_path / "state")], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    watchdog = threading.Timer(PATIENCE_S, up.kill)
    watchdog.start()
    try:
        assert up.stdout is not None
        assert up.stdout.readline().startswith("serving http://127.0.0.1:")
        assert up.stdout.readline().startswith("try: ")
        up.send_signal(signal.SIGINT)
        rest, _ = up.communicate()
        assert (up.returncode, rest.splitlines()[-1]) == (0, "stopped")
    finally:
        watchdog.cancel()
        up.kill()
        up.wait()


@pytest.mark.parametrize(
    "words",
    [("serve", "--port", "0", "--dir", "state"), ("gateway", "--port", "0", "--admin-port", "0")],
    ids=["serve", "gateway"],
)
def test_ctrl_c_is_the_usual_end_of_what_runs_until_it_is_told_to_end(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "gateway.yaml").write_text("services: []\nopen: true\n")
    command = [sys.executable, "-m", "holdfast.cli.main", *words, "--json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    watchdog = threading.Timer(PATIENCE_S, server.kill)
    watchdog.start()
    try:
        assert server.stdout is not None
        assert "http://127.0.0.1:" in server.stdout.readline()
        server.send_signal(signal.SIGINT)
        server.communicate()
        assert server.returncode == 0
    finally:
        watchdog.cancel()
        server.kill()
        server.wait()


# ---- tokens and TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One that signed itself, for 127.0.0.1, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    files = folder / "cert.pem", folder / "key.pem"
    certificates.write(files, certificates.self_signed("control plane"))
    return folder / "cert.pem", folder / "key.pem"


def test_tokens_and_certificates_are_asked_for_and_explained(
    holdfast: Holdfast, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "state"
    tls = ("--tls-cert", str(certificate[0]), "--tls-key", str(certificate[1]))
    with running(folder, "serve", *tls) as said:
        assert said["url"].startswith("https://")
        trusting = ("--ca", certificate[0])
        assert holdfast(folder, "status").code == 0, "by the authority in its folder"
        (folder / "ca" / "ca.pem").unlink()
        told = holdfast(folder, "status")
        assert (told.code, "hint: give --ca FILE" in told.err) == (2, True)
        assert "not signed by anybody we trust" in told.err
        assert holdfast(folder, "status", *trusting).code == 0
        assert holdfast(folder, "status", "--insecure").code == 0
        told = holdfast(folder, "status", *trusting, "--token", "wrong")
        assert told.code == 2
        assert told.err.startswith("error: ")
        assert "hint: give one with --token TOKEN or in $HOLDFAST_TOKEN" in told.err

        reader = holdfast(folder, "token", "create", "--role", "read", "--note", "for me", *trusting)
        secret = reader.out.strip()
        assert holdfast(folder, "nodes", *trusting, "--token", secret).out == "no nodes\n"
        denied = holdfast(folder, "release-brake", *trusting, "--token", secret)
        assert (denied.code, denied.err.startswith("error: ")) == (2, True)
        assert (
            "token create --role operator"
            in holdfast(folder, "pause", "web", *trusting, "--token", secret).err
        )
        (listed,) = [
            t for t in holdfast(folder, "token", "list", "--json", *trusting).json if t["note"] == "for me"
        ]
        assert holdfast(folder, "token", "revoke", listed["id"], *trusting).code == 0
        assert holdfast(folder, "nodes", *trusting, "--token", secret).code == 2
