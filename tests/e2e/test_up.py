"""`holdfast up` as a person uses it: Ctrl-C, a second time, a crash, and every order to a workload."""

import contextlib
import http.client
import json
import os
import pty
import signal
import subprocess
import sys
import time

import pytest

from tests.e2e.live import (
    HOLDFAST,
    WEB,
    Ground,
    Unanswered,
    alone,
    is_alive,
    lives,
    processes,
    replicas,
    request,
    until,
)


def test_an_interrupt_leaves_no_process_and_the_next_start_brings_everything_back(ground: Ground) -> None:
    up = ground.up()
    up.apply(WEB, alone(up.folder))
    up.until_ready("web", 3)
    up.until_ready("job")
    before = set(up.nodes())
    assert len(processes(ground.folder)) >= 1 + 3 + 2 * 4
    assert up.stop(signal.SIGINT) == 0
    assert processes(ground.folder) == {}
    assert "Traceback" not in up.said
    again = ground.up()
    again.until_ready("web", 3)
    again.until_ready("job")
    assert not before & set(again.nodes()), "names of nodes are not used twice"
    assert [life.epoch for life in lives(up.folder)] == [1, 2]
    assert again.stop(signal.SIGTERM) == 0
    assert processes(ground.folder) == {}


def test_an_interrupt_while_it_starts_leaves_no_process(ground: Ground) -> None:
    up = ground.begin("up", "--port", "0", name="up")
    until(lambda: processes(up.folder / "nodes"), "the first agents are started")
    assert up.stop() == 0
    assert processes(ground.folder) == {}
    assert "Traceback" not in up.said


TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""
STUBBORN = f"""
kind: service
name: stubborn
replicas: 3
command: exec {sys.executable} -c "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
cpus: 0.1
memory: 64MiB
stop_grace: 60s
"""


@pytest.mark.parametrize(
    ("numbers", "apart_s"),
    [
        ((signal.SIGTERM,) * 4, 0.02),  # all pass it on: a terminal, `timeout`, whoever started it
        ((signal.SIGTERM, signal.SIGINT), 1.0),
        ((signal.SIGHUP,), 0.0),  # its terminal was closed
    ],
    ids=["together", "twice", "hang up"],
)
def test_whoever_ends_it_and_how_often_leaves_no_process(
    ground: Ground, numbers: tuple[int, ...], apart_s: float
) -> None:
    """At the third signal it was gone at once, and its nodes went on; so they did without a terminal."""
    up = ground.up()
    up.apply(STUBBORN)
    up.until_ready("stubborn", 3)
    for number in numbers:
        up.process.send_signal(number)
        time.sleep(apart_s)
    assert up.ended() == 0
    assert processes(ground.folder) == {}
    assert "Traceback" not in up.said


def test_signals_while_it_starts_leave_no_process(ground: Ground) -> None:
    up = ground.begin("up", "--port", "0", name="up")
    until(lambda: processes(up.folder / "nodes"), "the first agents are started")
    for _ in range(4):
        up.process.send_signal(signal.SIGTERM)
        time.sleep(0.02)
    assert up.ended() == 0
    assert processes(ground.folder) == {}
    assert "Traceback" not in up.said


def test_it_ends_as_it_should_also_when_whoever_read_it_is_gone(ground: Ground) -> None:
    command = [*HOLDFAST, "up", "--port", "0", "--dir", str(ground.folder / "up"), "--quiet"]
    up = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ground.environment)
    assert up.stdout is not None
    assert up.stderr is not None
    try:
        assert b"serving" in up.stdout.readline()
        up.stdout.close()
        up.stderr.close()
        up.send_signal(signal.SIGTERM)
        assert up.wait(60) == 0
        assert processes(ground.folder) == {}
    finally:
        up.kill()
        up.wait(60)


def test_when_nobody_reads_what_it_tells_any_more_it_ends_as_if_interrupted(ground: Ground) -> None:
    """`holdfast up | head`."""
    command = [*HOLDFAST, "up", "--port", "0", "--dir", str(ground.folder / "up")]
    up = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ground.environment)
    assert up.stdout is not None
    assert up.stderr is not None
    try:
        url = next(word for word in up.stdout.readline().decode().replace(",", " ").split() if "http" in word)
        up.stdout.close()

        def has_ended() -> bool:
            with contextlib.suppress(OSError, Unanswered, http.client.HTTPException):
                token = (ground.folder / "up" / "token").read_text().strip()
                request(url, "POST", "/v1/apply", WEB, token=token)  # something to tell of
            return up.poll() is not None

        until(has_ended, "it ends")
        assert b"Traceback" not in up.stderr.read()
        assert processes(ground.folder) == {}
    finally:
        up.kill()
        up.wait(60)
        up.stderr.close()


def test_a_closed_terminal_ends_it_as_an_interrupt_does(ground: Ground) -> None:
    """Whatever it still tells goes nowhere, which is an error of its own."""
    person, terminal = pty.openpty()
    command = [*HOLDFAST, "up", "--port", "0", "--dir", str(ground.folder / "up")]
    up = subprocess.Popen(
        [sys.executable, "-c", TAKE_TERMINAL, *command],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        env=ground.environment,
    )
    os.close(terminal)
    try:
        seen = b""
        while b"try:" not in seen:
            seen += os.read(person, 65_536)
        os.close(person)
        assert up.wait(60) == 0
        assert processes(ground.folder) == {}
    finally:
        up.kill()
        up.wait(60)


def test_under_nohup_a_closed_terminal_does_not_end_it(ground: Ground) -> None:
    command = ["nohup", *HOLDFAST, "up", "--port", "0", "--dir", str(ground.folder / "up"), "--json"]
    up = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=ground.environment)
    assert up.stdout is not None
    try:
        url = json.loads(up.stdout.readline())["url"]
        up.send_signal(signal.SIGHUP)
        token = (ground.folder / "up" / "token").read_text().strip()
        request(url, "POST", "/v1/apply", WEB, token=token)
        until(lambda: len(replicas(ground.folder / "up")) == 3, "it starts what it is given")
        up.send_signal(signal.SIGINT)
        assert up.wait(60) == 0
        assert processes(ground.folder) == {}
    finally:
        up.kill()
        up.wait(60)
        up.stdout.close()


def test_when_it_is_killed_its_nodes_go_on_and_the_next_one_adopts_them(ground: Ground) -> None:
    up = ground.up()
    up.apply(WEB, alone(up.folder))
    placed = up.until_ready("web", 3)
    up.until_ready("job")
    nodes, before = set(up.nodes()), replicas(up.folder)
    agents = {pid for pid, words in processes(up.folder).items() if "-m holdfast.agent" in words}
    up.kill()
    time.sleep(1)
    assert replicas(up.folder) == before
    again = ground.up()
    again.until_alive(3)
    assert set(again.nodes()) == nodes
    assert again.until_ready("web", 3) == placed
    assert replicas(up.folder) == before
    assert all(map(is_alive, agents)), "the agents too"
    assert len(lives(up.folder)) == 1
    assert again.stop() == 0
    assert processes(ground.folder) == {}, "what it adopted ends with it"


def test_a_second_one_in_the_same_folder_or_on_the_same_port_is_refused(ground: Ground) -> None:
    up = ground.up()
    port = up.url.rpartition(":")[2]
    folder = ground.cli("up", "--port", "0", "--dir", str(up.folder))
    taken = ground.cli("up", "--port", port, "--dir", str(ground.folder / "other"))
    for refused, why in ((folder, "another `holdfast up` uses"), (taken, "cannot listen on")):
        assert refused.returncode == 2
        assert why in refused.stderr
        assert "hint: " in refused.stderr
        assert len(refused.stderr.splitlines()) == 2, "no traceback"
    up.until_alive(3)


def test_an_update_takes_one_copy_after_the_other(ground: Ground) -> None:
    up = ground.up()
    up.apply(WEB)
    up.until_ready("web", 3)
    seen: list[int] = []

    def updated() -> bool:
        found = up.replicas("web").values()
        seen.append(sum(each["state"] == "ready" for each in found))
        return len(found) == 3 and all(each["version"] == 2 and each["state"] == "ready" for each in found)

    (changed,) = up.apply(WEB + "env: { COLOUR: blue }\n")
    assert (changed["outcome"], changed["version"]) == ("changed", 2)
    until(updated, "all run the new version")
    assert min(seen) >= 2, "at most one is away"
    assert len(replicas(up.folder)) == 3


def test_a_service_is_scaled_paused_resumed_and_deleted(ground: Ground) -> None:
    up = ground.up()
    up.apply(WEB)
    first = up.until_ready("web", 3)
    up.post("/v1/workloads/web/scale", {"count": 5})
    more = up.until_ready("web", 5)
    assert first.items() <= more.items(), "those that run go on"
    up.post("/v1/workloads/web/scale", {"count": 1})
    up.until_ready("web", 1)
    until(lambda: len(replicas(up.folder)) == 1, "the others have ended")
    up.post("/v1/workloads/web/pause")
    until(lambda: not replicas(up.folder) and not up.replicas("web"), "nothing runs")
    up.post("/v1/workloads/web/resume")
    up.until_ready("web", 1)
    up.delete("/v1/workloads/web")
    until(lambda: not replicas(up.folder), "nothing runs")
    assert up.get("/v1/workloads") == []


def test_a_node_is_drained_without_a_gap_and_used_again(ground: Ground) -> None:
    up = ground.up()
    up.apply(WEB, alone(up.folder))
    up.until_ready("web", 3)
    node = next(iter(up.until_ready("job").values()))
    seen: list[int] = []
    up.post(f"/v1/nodes/{node}/drain", {"deadline_ms": 60_000})

    def empty() -> bool:
        seen.append(len(up.ready("web")))
        return not replicas(up.folder / "nodes" / node)

    until(empty, "nothing runs there")
    assert min(seen) >= 3, "each copy was followed before it ended"
    assert node not in up.until_ready("web", 3).values()
    assert len(lives(up.folder)) == 2, "the job moved, and never ran twice"
    assert up.nodes()[node]["state"] != "ready"
    up.post(f"/v1/nodes/{node}/uncordon")
    until(lambda: up.nodes()[node]["state"] == "ready", "it is used again")


def test_a_crash_loop_is_held_back_and_harms_nobody_else(ground: Ground) -> None:
    up = ground.up()
    up.apply(WEB, "{kind: service, name: bad, replicas: 1, command: exit 3, cpus: 0.1, memory: 32MiB}")
    up.until_ready("web", 3)
    until(lambda: up.get("/v1/workloads/bad")["seats"][0]["failures"] >= 2, "it has failed twice")
    starts = sum("started" in line for line in up.history(workload="bad"))
    time.sleep(2)
    assert sum("started" in line for line in up.history(workload="bad")) <= starts + 2, "ever more seldom"
    assert "exit code 3" in " ".join(up.history(workload="bad"))
    up.until_alive(3)


def test_a_folder_that_cannot_be_used_is_told_in_two_lines(ground: Ground) -> None:
    file = ground.folder / "file"
    file.write_text("not a folder")
    refused = ground.cli("up", "--port", "0", "--dir", str(file))
    assert refused.returncode == 2
    assert refused.stderr.splitlines() == [
        f"error: {file} cannot be used: File exists",
        "hint: give another --dir",
    ]
