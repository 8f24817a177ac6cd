"""What people mistype and what strangers send, to real processes: each gets a clear error or is dropped
within bounds; nothing crashes, nothing leaks, and nobody is shown a traceback."""

import contextlib
import http.client
import os
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from holdfast.wire import frame
from holdfast.wire.identity import Key
from holdfast.wire.messages import (
    PATH,
    PROTOCOL,
    PROTOCOL_OLDEST,
    UPGRADE,
    Challenge,
    Hello,
    Refused,
    ToAgent,
)
from tests.e2e.live import POOL, Ground, Started, processes, refusal, replicas, request, until

UPGRADING = f"GET {PATH} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: {UPGRADE}\r\n\r\n".encode()


@pytest.fixture(scope="module")
def shared_ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    found = Ground(tmp_path_factory.mktemp("bad"))
    try:
        yield found
    finally:
        found.close()


@pytest.fixture(scope="module")
def served(shared_ground: Ground) -> Started:
    """One control plane for all that cannot harm it. It wants tokens, and has one node."""
    plane = shared_ground.serve()
    shared_ground.fleet(plane, "n1")
    return plane


@pytest.fixture
def plane(served: Started) -> Iterator[Started]:
    files = open_files(served)
    yield served
    assert served.is_running
    until(lambda: served.nodes()["n1"]["verdict"] == "alive", "its node is well")
    until(lambda: open_files(served) <= files + 5, "it has closed what it opened")
    assert "Traceback" not in served.said


def open_files(plane: Started) -> int:
    return len(os.listdir(f"/proc/{plane.process.pid}/fd"))


# files


BAD_FILES = {
    "kind: service\n  name: [": "bad.yaml:2: expected YAML",
    "kind: servce\nname: web\ncommand: x": "service",
    "kind: service\nname: web\ncomand: x": "command",
    "kind: service\nname: web\nreplicas: many\ncommand: x": "replicas",
    "kind: job\nname: ../../etc\ncommand: x": "name",
    "": "empty",
    "[" * 5_000: "",
    "a: &a [x,x]\nb: &b [*a,*a,*a]\nc: &c [*b,*b,*b]\nkind: *c": "",
}


@pytest.mark.parametrize("text", BAD_FILES, ids=range(len(BAD_FILES)))
def test_a_file_that_makes_no_sense_is_refused_with_what_is_wrong(
    shared_ground: Ground, plane: Started, text: str
) -> None:
    file = shared_ground.folder / "bad.yaml"
    file.write_text(text)
    shared_ground.environment["HOLDFAST_TOKEN"] = plane.token
    done = shared_ground.cli("apply", str(file), url=plane.url)
    assert done.returncode != 0
    assert "bad.yaml" in done.stderr
    assert BAD_FILES[text] in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr) < 4_000
    assert plane.get("/v1/workloads") == []


def test_commands_say_what_is_wrong_in_a_few_lines(shared_ground: Ground, plane: Started) -> None:
    shared_ground.environment["HOLDFAST_TOKEN"] = plane.token
    missing = str(shared_ground.folder / "nowhere.yaml")
    nobody = "http://127.0.0.1:9"
    for words, url, said in (
        (("apply", missing), plane.url, "nowhere.yaml"),
        (("delete", "nothing"), plane.url, "nothing"),
        (("drain", "n2"), plane.url, "n1"),
        (("status",), nobody, "cannot connect"),
        (("status",), "ftp://x", "expected an address"),
    ):
        done = shared_ground.cli(*words, url=url)
        assert done.returncode != 0, words
        assert done.stderr.startswith("error: "), done.stderr
        assert said in done.stderr
        assert len(done.stderr.splitlines()) <= 4, done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--host 0.0.0.0 --own-ca --insecure", "two ways"),
        ("--host 0.0.0.0 --url http://cp1:7700", "is plain http, and it would listen with TLS"),
        ("--tls-cert nowhere.pem --tls-key nowhere.key", "nowhere"),
        ("--tls-cert nowhere.pem", "needs both"),
        ("--database mysql://x/y", "mysql"),
        ("--database postgresql://x@127.0.0.1:9/y", "database"),
        ("--database sqlite:///{folder}/broken.db", "database"),
        ("--database sqlite:///{folder}/nowhere/x.db", "database"),
    ],
)
def test_a_control_plane_that_cannot_start_says_why(ground: Ground, words: str, said: str) -> None:
    (ground.folder / "broken.db").write_bytes(os.urandom(100_000))
    given = words.format(folder=ground.folder).split()
    done = ground.cli("serve", "--port", "0", "--dir", str(ground.folder / "state"), *given)
    assert done.returncode != 0
    assert said in done.stderr
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 3, done.stderr


# what cannot run


def test_what_cannot_run_says_why_and_harms_nobody_else(ground: Ground) -> None:
    up = ground.up()
    up.apply(
        "{kind: service, name: absent, replicas: 1, command: [/does/not/exist], cpus: 0.1, memory: 32MiB}",
        "{kind: job, name: huge, command: sleep 1000, cpus: 1000, memory: 32MiB}",
        "{kind: service, name: fine, replicas: 2, command: sleep 1000, cpus: 0.1, memory: 32MiB}",
    )
    up.until_ready("fine", 2)
    absent = until(lambda: up.get("/v1/workloads/absent")["why"], "there is a reason")
    until(lambda: "no such command: /does/not/exist" in up.get("/v1/workloads/absent")["why"], absent)
    why = up.get("/v1/explain/workload?name=huge")
    assert any("too little cpu" in line for line in why["because"]), why
    assert why["would_help"] == ["lower cpus from 1000 to 4"]
    assert {name.partition("/")[0] for name in replicas(up.folder)} == {"fine"}
    assert all(node["verdict"] == "alive" for node in up.nodes().values())


# requests


def test_a_body_that_is_too_large_is_refused_before_it_is_read(plane: Started) -> None:
    where = urlsplit(plane.url)
    head = f"POST /v1/apply HTTP/1.1\r\nHost: {where.netloc}\r\nAuthorization: Bearer {plane.token}\r\n"
    with socket.create_connection((where.hostname, where.port), timeout=20) as line:
        line.sendall(
            head.encode() + b"Content-Type: application/yaml\r\nContent-Length: 1000000000000\r\n\r\n"
        )
        assert b" 413 " in line.recv(65_536)
    with socket.create_connection((where.hostname, where.port), timeout=20) as line:
        line.sendall(head.encode() + b"Content-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n")
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 200 << 20:
                line.sendall(b"100000\r\n" + bytes(1 << 20) + b"\r\n")
                sent += 1 << 20
        assert sent < 100 << 20, "it went on reading"


def test_a_token_that_is_wrong_expired_or_for_something_else_is_refused(plane: Started) -> None:
    made = plane.post("/v1/tokens", {"role": "read", "ttl_ms": 1})
    time.sleep(0.05)
    reader = plane.post("/v1/tokens", {"role": "read"})["token"]
    join = plane.post("/v1/tokens", {"role": "join", "pool": "fleet"})["token"]
    for token, status in (("", 401), ("hf_wrong", 401), (made["token"], 401), (join, 403), (reader, 200)):
        refused = refusal(lambda token=token: request(plane.url, "GET", "/v1/nodes", token=token))  # type: ignore[misc]
        assert (refused.status if refused else 200) == status, token
        assert refused is None or refused.problem["detail"]
    refused = refusal(lambda: request(plane.url, "POST", "/v1/apply", POOL, token=reader))
    assert refused is not None
    assert refused.status == 403


# agents


def test_a_join_token_is_good_for_one_machine(shared_ground: Ground, plane: Started) -> None:
    made = plane.post("/v1/tokens", {"role": "join", "pool": "fleet"})["token"]
    expired = plane.post("/v1/tokens", {"role": "join", "pool": "fleet", "ttl_ms": 1})["token"]
    first = shared_ground.agent("first", plane.url, made)
    until(lambda: "first" in plane.nodes(), "the first has joined")
    for name, token, said in (
        ("second", made, "was used by first"),
        ("third", expired, "has expired"),
        ("fourth", "nonsense", "is not known"),
        ("fifth", "", "brings no join token"),
    ):
        assert shared_ground.agent(name, plane.url, token).wait(60) == 2
        told = (shared_ground.folder / f"{name}.log").read_text()
        assert said in told
        assert "hint: " in told
        assert "Traceback" not in told
    assert plane.nodes()["first"]["verdict"] == "alive"
    first.terminate()
    assert first.wait(60) == 0
    until(lambda: not processes(shared_ground.folder / "first"), "it is gone")
    until(lambda: plane.nodes()["first"]["verdict"] != "alive", "it is missed")
    assert set(plane.nodes()) == {"n1", "first"}


@pytest.mark.parametrize(
    ("version", "who"), [(PROTOCOL_OLDEST - 1, "agent"), (PROTOCOL + 1, "control plane")]
)
def test_an_agent_of_another_version_is_told_who_must_be_upgraded(
    plane: Started, version: int, who: str
) -> None:
    key = Key(Ed25519PrivateKey.generate())
    with connected(plane) as line:
        line.sendall(UPGRADING)
        (challenge,) = messages(line, after=b"\r\n\r\n")
        assert isinstance(challenge, Challenge)
        signature = key.sign(challenge.nonce, "stranger", "i", None)
        line.sendall(frame.pack(Hello(version, "stranger", key.public, signature, "i")))
        (refused,) = messages(line)
        assert isinstance(refused, Refused)
        assert (refused.code, refused.hint) == ("protocol", f"upgrade the {who}")
        assert line.recv(1) == b"", "and the line is closed"


@contextlib.contextmanager
def connected(plane: Started) -> Iterator[socket.socket]:
    where = urlsplit(plane.url)
    with socket.create_connection((where.hostname, where.port), timeout=30) as line:
        yield line


def messages(line: socket.socket, after: bytes = b"") -> list[object]:
    """What comes next, at least one."""
    reader, text = frame.Reader(ToAgent, 1 << 20), b""
    while after and after not in text:
        text += line.recv(65_536)
    found = list(reader.feed(text.partition(after)[2] if after else text))
    while not found:
        part = line.recv(65_536)
        assert part, "the line was closed"
        found = list(reader.feed(part))
    return list(found)


GARBAGE = [
    os.urandom(4_096),
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 100_000,
    b"POST /v1/apply HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    UPGRADING + os.urandom(4_096),
    UPGRADING + b"\xff\xff\xff\xff",
    UPGRADING + frame.LENGTH.pack(3) + b"abc",
    UPGRADING.replace(b"holdfast-link", b"websocket"),
    UPGRADING[:-2] + b"X: y\r\n" * 10_000,
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_is_answered_or_dropped(plane: Started, garbage: bytes) -> None:
    with connected(plane) as line, contextlib.suppress(ConnectionError):
        line.sendall(garbage)
        while line.recv(65_536):
            pass  # until it is closed: the time-out of this line is the bound


def test_ten_thousand_connections_that_say_nothing_keep_nobody_out_and_are_dropped(plane: Started) -> None:
    with many_files(12_000) as limit:
        where = urlsplit(plane.url)
        before = open_files(plane)
        idle: list[socket.socket] = []
        try:
            for number in range(min(10_000, limit - 1_000)):
                line = socket.create_connection((where.hostname, where.port), timeout=30)
                idle.append(line)
                if number % 100 == 0:
                    line.sendall(UPGRADING)  # some begin as agents do
            asked = time.monotonic()
            assert plane.get("/v1/status")["leading"]
            print(f"answered in {time.monotonic() - asked:.2f} s beside them")
            assert plane.nodes()["n1"]["verdict"] == "alive"
            until(lambda: open_files(plane) <= before + 10, "they are dropped")
        finally:
            for line in idle:
                line.close()


@contextlib.contextmanager
def many_files(count: int) -> Iterator[int]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = max(soft, min(count, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield limit
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_slow_or_abandoned_request_is_dropped(plane: Started) -> None:
    with connected(plane) as line:
        line.sendall(b"GET /v1/status HTTP/1.1\r\nHost: x\r\n")
        assert line.recv(65_536) == b"", "closed, and nothing was said"
    with connected(plane) as line:
        line.sendall(b"GET /v1/events?follow=true HTTP/1.1\r\nHost: x\r\n\r\n")
    connection = http.client.HTTPConnection(urlsplit(plane.url).netloc, timeout=20)
    try:
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 200
    finally:
        connection.close()


def test_a_folder_of_a_node_that_is_in_use_or_damaged_is_told(shared_ground: Ground, plane: Started) -> None:
    root = Path(shared_ground.folder / "damaged")
    root.mkdir()
    (root / "key").write_bytes(b"not a key")
    assert shared_ground.agent("damaged", plane.url, "x").wait(60) == 2
    assert "is damaged" in (shared_ground.folder / "damaged.log").read_text()
    running = shared_ground.agents["n1"]
    try:
        assert shared_ground.agent("n1", plane.url, "x").wait(60) == 2
    finally:
        shared_ground.agents["n1"] = running
    assert "another agent" in (shared_ground.folder / "n1.log").read_text()
