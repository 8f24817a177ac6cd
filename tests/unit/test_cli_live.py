"""The commands that talk to a control plane, as far as they can be tried without one: where they look for it,
what they make of every kind of answer, and how the answers look. Here a little HTTP server answers as it is
told; the real one is in tests/integration/test_cli_live.py."""

import itertools
import json
import os
import pty
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
import typer
from msgspec.structs import replace
from rich.console import Console

from holdfast.api import shapes
from holdfast.cli import complete, demo, events, look, status_page, tables, tables_market, up, where
from holdfast.cli.apply import joined
from holdfast.cli.capacity import told as capacity_page
from holdfast.cli.client import Client, Unanswered, read
from holdfast.cli.main import app, main
from holdfast.cli.rows import Rows, facts
from holdfast.cli.where import BadAddress, Server
from holdfast.files.workload import documents
from holdfast.model import told as model_told

ROOT = Path(__file__).resolve().parents[2]
WEB = "kind: service\nname: web\ncommand: [serve]\n"
NOW = 1_750_000_000_000


class Told:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


Holdfast = Callable[..., Told]


@pytest.fixture
def holdfast(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Holdfast:
    """Runs a command in an empty folder, without what the environment may say."""
    for name in ("HOLDFAST_URL", "HOLDFAST_TOKEN", "HOLDFAST_CA", "HOLDFAST_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> Told:
        monkeypatch.setattr(sys, "argv", ["holdfast", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return Told(int(end.value.code or 0), out, err)

    return run


Answer = tuple[int, dict[str, str], bytes]


class Listening:
    """A server that answers as it is told, and remembers what it was asked."""

    def __init__(self, answer: Callable[[str, str], Answer]) -> None:
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.asked.append((self.command, self.path, dict(self.headers.items()), body))
                status, headers, content = answer(self.command, self.path)
                self.send_response(status)
                for name, value in {"Content-Length": str(len(content)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_DELETE = _any  # noqa: N815

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    @property
    def authorized(self) -> list[str]:
        return [headers.get("Authorization", "") for _, _, headers, _ in self.asked]


@contextmanager
def listening(answer: Callable[[str, str], Answer]) -> Iterator[Listening]:
    made = Listening(answer)
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        thread.join()
        made.server.server_close()


def gives(value: object, status: int = 200) -> Answer:
    return status, {"Content-Type": "application/json"}, msgspec.json.encode(value)


def problem(status: int, detail: str, hint: str = "", problems: list[str] | None = None) -> Answer:
    return gives(shapes.Problem("Title", status, detail, hint, problems or []), status)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


# ---- which control plane, and as whom


def note(folder: Path, url: str, token: str = "") -> None:
    (folder / ".holdfast").mkdir()
    (folder / ".holdfast" / "url").write_text(f"{url}\n")
    if token:
        (folder / ".holdfast" / "token").write_text(f"{token}\n")


def test_an_option_goes_before_the_environment_and_that_before_the_files(tmp_path: Path) -> None:
    note(tmp_path, "http://127.0.0.1:1111", "from-file")
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    env = {"HOLDFAST_URL": "http://127.0.0.1:2222", "HOLDFAST_TOKEN": "from-env"}
    assert where.server(folder=inside, environment={}) == Server(("http://127.0.0.1:1111",), "from-file")
    assert where.server(folder=inside, environment=env) == Server(("http://127.0.0.1:2222",), "from-env")
    given = where.server("127.0.0.1:3333/", "given", folder=inside, environment=env)
    assert given == Server(("http://127.0.0.1:3333",), "given")


def test_without_anything_it_is_the_usual_place_on_this_machine(tmp_path: Path) -> None:
    assert where.server(folder=tmp_path, environment={}) == Server((where.USUAL,))


def test_the_folder_of_a_control_plane_can_be_named(tmp_path: Path) -> None:
    note(tmp_path, "http://127.0.0.1:1111", "secret")
    env = {"HOLDFAST_DIR": str(tmp_path / ".holdfast")}
    assert where.server(folder=Path("/"), environment=env).token == "secret"


def test_the_token_of_a_folder_goes_to_no_other_machine(tmp_path: Path) -> None:
    note(tmp_path, "https://here.example:7700", "secret")
    assert where.server(folder=tmp_path, environment={}).token == "secret"
    assert where.server("https://there.example", folder=tmp_path, environment={}).token == ""
    both = "https://here.example:7700,https://there.example"
    assert where.server(both, folder=tmp_path, environment={}).token == ""
    assert where.server("http://localhost:1", folder=tmp_path, environment={}).token == "secret"


def test_files_of_somebody_else_are_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note(tmp_path, "http://evil.example", "x")
    theirs = os.geteuid() + 1
    for name in ("url", "token"):
        if os.geteuid() == 0:
            os.chown(tmp_path / ".holdfast" / name, theirs, -1)
    if os.geteuid() != 0:
        monkeypatch.setattr(os, "geteuid", lambda: theirs)
    assert where.server(folder=tmp_path, environment={}) == Server((where.USUAL,))


@pytest.mark.parametrize("url", ["ftp://a", "http://", "http://a:x", "http://[::1", "http://a:0", " , "])
def test_what_is_no_address_is_refused(url: str, holdfast: Holdfast) -> None:
    with pytest.raises(BadAddress):
        where.server(url, environment={})
    told = holdfast("status", "--url", url)
    assert told.code == 2
    assert told.err.startswith("error: expected ")
    assert f"hint: --url {where.USUAL}" in told.err


# ---- what can go wrong on the way


def test_nobody_there_is_said_with_what_to_do(holdfast: Holdfast) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    told = holdfast("status", "--url", url)
    assert told.code == 1
    assert told.err == f"error: cannot connect to {url}: connection refused\n" + (
        "hint: is it running? start one with: holdfast up\n"
    )


@pytest.mark.parametrize(
    ("answer", "code", "error", "hint"),
    [
        (problem(401, "a token is needed", "send it as: Authorization"), 2, "a token is needed", "--token"),
        (problem(401, "the token has expired"), 2, "the token has expired", "$HOLDFAST_TOKEN"),
        (problem(403, "it takes an operator"), 2, "it takes an operator", ""),
        (problem(404, "there is no node called x", "Did you mean: y"), 2, "no node called x", "y"),
        (problem(409, "it is a job"), 2, "it is a job", ""),
        (problem(422, "wrong", problems=["a: bad", "b: bad"]), 2, "a: bad\nerror: b: bad", ""),
        (problem(503, "nobody leads", "try again"), 1, "nobody leads", "try again"),
        (problem(507, "the disk is full"), 1, "the disk is full", ""),
        ((502, {}, b"<html>bad gateway"), 1, "what is there is no control plane", "--url"),
        ((301, {"Location": "http://x.example/"}, b""), 1, "it sends us to http://x.example/", "--url"),
        ((200, {}, b"<html>hello"), 1, "the answer cannot be read", "another version"),
        ((200, {}, b'{"leader": 3}'), 1, "the answer cannot be read", "another version"),
    ],
)
def test_every_bad_answer_is_an_error_and_a_hint(
    holdfast: Holdfast, answer: Answer, code: int, error: str, hint: str
) -> None:
    with listening(lambda method, path: answer) as server:
        told = holdfast("status", "--url", server.url)
    assert (told.code, told.out) == (code, "")
    assert f"error: {error}" in told.err or error in told.err
    assert hint in told.err
    assert "Authorization" not in told.err


def test_a_connection_that_breaks_is_no_traceback(holdfast: Holdfast) -> None:
    with listening(lambda method, path: (200, {"Content-Length": "100"}, b"{")) as server:
        told = holdfast("nodes", "--url", server.url)
    assert told.code == 1
    assert told.err.startswith("error: the connection broke")


def test_a_server_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        api = Client(Server((f"http://127.0.0.1:{silent.getsockname()[1]}",)), answer_s=0.2)
        with pytest.raises(Unanswered, match="took too long") as caught:
            api.get("/v1/status")
        api.close()
    assert caught.value.may_pass


def test_an_order_follows_to_the_leader_with_the_token_and_stays_there() -> None:
    with (
        listening(lambda method, path: gives({"done": path})) as leader,
        listening(lambda method, path: (307, {"Location": f"{leader.url}{path}"}, b"")) as other,
    ):
        api = Client(Server((other.url,), "secret"))
        body = api.post("/v1/workloads/web/scale", {"count": 3})
        api.get("/v1/status", limit=1)
        api.close()
    assert json.loads(body) == {"done": "/v1/workloads/web/scale"}
    assert [asked[:2] for asked in leader.asked] == [
        ("POST", "/v1/workloads/web/scale"),
        ("GET", "/v1/status?limit=1"),
    ]
    assert leader.asked[0][3] == b'{"count":3}'
    assert leader.authorized == ["Bearer secret"] * 2
    assert len(other.asked) == 1


def test_a_query_is_not_doubled_on_the_way_to_the_leader() -> None:
    with (
        listening(lambda method, path: gives([])) as leader,
        listening(lambda method, path: (307, {"Location": f"{leader.url}{path}"}, b"")) as other,
    ):
        api = Client(Server((other.url,)))
        api.get("/v1/replicas", workload="a b", node="")
        api.close()
    assert [asked[1] for asked in leader.asked] == ["/v1/replicas?workload=a+b"]


def test_control_planes_that_send_us_in_a_circle_are_told() -> None:
    with listening(lambda method, path: (307, {"Location": path}, b"")) as server:
        api = Client(Server((server.url,)), order_s=0)
        with pytest.raises(Unanswered, match="in a circle"):
            api.post("/v1/workloads/web/pause")
        api.close()
        assert len(server.asked) == 4


def test_an_order_waits_for_the_next_leader_and_a_question_does_not(holdfast: Holdfast) -> None:
    asked = 0

    def answer(method: str, path: str) -> Answer:
        nonlocal asked
        asked += 1
        return gives(shapes.Done("x")) if method == "POST" and asked == 3 else problem(503, "nobody leads")

    with listening(answer) as server:
        told = holdfast("pause", "web", "--url", server.url)
        assert (told.code, told.out, asked) == (0, "web is paused\n", 3)
        assert holdfast("nodes", "--url", server.url).code == 1
        assert asked == 4


@pytest.mark.parametrize("words", [("chaos", "kill", "a"), ("token", "create", "--role", "read")])
def test_what_would_be_done_twice_is_not_repeated(holdfast: Holdfast, words: tuple[str, ...]) -> None:
    with listening(lambda method, path: problem(503, "it took too long")) as server:
        assert holdfast(*words, "--url", server.url).code == 1
        assert len(server.asked) == 1


def test_a_token_does_not_go_from_https_to_plain_http() -> None:
    api = Client(Server(("https://a.example",), "secret"))
    assert api.headers("https://b.example/v1/status") == {"Authorization": "Bearer secret"}
    assert api.headers("http://b.example/v1/status") == {}
    api.close()


def test_the_next_of_several_control_planes_is_asked_when_one_is_away() -> None:
    away = f"http://127.0.0.1:{free_port()}"
    with listening(lambda method, path: gives([])) as server:
        api = Client(Server((away, server.url)))
        assert api.get("/v1/nodes") == b"[]"
        assert api.base == server.url
        api.close()
    api = Client(Server((away, server.url)))
    with pytest.raises(Unanswered, match="cannot connect"):
        api.get("/v1/nodes")
    api.close()


def test_certificates_that_cannot_be_read_are_told(holdfast: Holdfast, tmp_path: Path) -> None:
    told = holdfast("status", "--url", "https://127.0.0.1:1", "--ca", tmp_path / "none.pem")
    assert told.code == 2
    assert "none.pem: expected certificates, got: No such file" in told.err


# ---- files


def test_a_wrong_file_never_leaves_the_machine(holdfast: Holdfast, tmp_path: Path) -> None:
    good, bad, worse = tmp_path / "good.yaml", tmp_path / "bad.yaml", tmp_path / "worse.yaml"
    good.write_text(WEB)
    bad.write_text(WEB + "replicas: -1\n")
    worse.write_bytes(b"\xff")
    with listening(lambda method, path: gives([])) as server:
        told = holdfast("apply", good, bad, worse, tmp_path / "none.yaml", "--url", server.url)
        as_json = holdfast("plan", bad, "--json", "--url", server.url)
        assert server.asked == []
    assert told.code == 2
    assert f"error: {bad}:4: replicas: expected a whole number" in told.err
    assert f"error: {worse}: expected text in UTF-8" in told.err
    assert "none.yaml: expected a file, got nothing" in told.err
    assert "hint: every field is in docs/reference/workload-file.md" in told.err
    (found,) = json.loads(as_json.out.splitlines()[-1])
    assert (found["problems"][0]["path"], found["problems"][0]["line"]) == ("replicas", 4)


def test_several_files_go_in_one_request(holdfast: Holdfast, tmp_path: Path) -> None:
    files = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    files[0].write_text(WEB.rstrip())
    files[1].write_text("%YAML 1.1\n---\n" + WEB.replace("web", "api"))
    applied = [
        shapes.Applied("web", "service", "changed", 2, ["replicas 2 -> 3"]),
        shapes.Applied("api", "service", "created", 1),
    ]
    with listening(lambda method, path: gives(applied)) as server:
        told = holdfast("apply", *files, "--url", server.url)
        as_json = holdfast("apply", *files, "--url", server.url, "--json")
        method, path, headers, body = server.asked[0]
    assert (method, path, headers["Content-Type"]) == ("POST", "/v1/apply", "application/yaml")
    assert len(documents(body.decode(), "sent")) == 2
    assert told.out == "web  service  changed  replicas 2 -> 3\napi  service  created\n"
    assert json.loads(as_json.out) == msgspec.to_builtins(applied)


@pytest.mark.parametrize("first", [WEB, f"---\n{WEB}", f"{WEB}...\n", f"%YAML 1.1\n---\n{WEB}"])
@pytest.mark.parametrize("second", [WEB, f"---\n{WEB}", f"# hi\n---\n{WEB}", f"%YAML 1.1\n---\n{WEB}"])
def test_files_can_be_joined_however_they_begin_and_end(first: str, second: str) -> None:
    whole = joined([first.replace("web", "a"), second.replace("web", "b")])
    assert len(documents(whole, "both")) == 2


def test_stdin_is_a_file_too(tmp_path: Path) -> None:
    with listening(lambda method, path: gives([shapes.Applied("web", "service", "created", 1)])) as server:
        command = [sys.executable, "-m", "holdfast.cli.main", "apply", "-", "--url", server.url]
        done = subprocess.run(command, input=WEB, capture_output=True, text=True, timeout=60, cwd=tmp_path)
        bad = subprocess.run(
            command, input="kind: x", capture_output=True, text=True, timeout=60, cwd=tmp_path
        )
        bytes_ = subprocess.run(command, input=b"\xff\xfe", capture_output=True, timeout=60, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "web  service  created\n", "")
    assert (bad.returncode, bad.stderr.split(":")[:2]) == (2, ["error", " stdin"])
    assert (bytes_.returncode, b"not text" in bytes_.stderr) == (2, True)


# ---- what commands ask for


@pytest.mark.parametrize(
    ("words", "method", "path", "body"),
    [
        (("drain", "a", "--deadline", "5m"), "POST", "/v1/nodes/a/drain", {"deadline_ms": 300_000}),
        (("drain", "a"), "POST", "/v1/nodes/a/drain", {"deadline_ms": None}),
        (("cordon", "a"), "POST", "/v1/nodes/a/cordon", None),
        (("uncordon", "a"), "POST", "/v1/nodes/a/uncordon", None),
        (("scale", "web", "3"), "POST", "/v1/workloads/web/scale", {"count": 3}),
        (("pause", "web"), "POST", "/v1/workloads/web/pause", None),
        (("resume", "web"), "POST", "/v1/workloads/web/resume", None),
        (("delete", "web"), "DELETE", "/v1/workloads/web", None),
        (("delete", "../x?y"), "DELETE", "/v1/workloads/..%2Fx%3Fy", None),
        (("delete", "pool"), "DELETE", "/v1/workloads/pool", None),
        (("delete", "pool", "a"), "DELETE", "/v1/pools/a", None),
        (("release-brake",), "POST", "/v1/brake/release", None),
        (("chaos", "kill", "a"), "POST", "/v1/chaos/kill", {"node": "a", "for_ms": 30_000}),
        (
            ("chaos", "partition", "a", "--for", "1m"),
            "POST",
            "/v1/chaos/partition",
            {"node": "a", "for_ms": 60_000},
        ),
        (("chaos", "notice", "a"), "POST", "/v1/chaos/notice", {"node": "a", "for_ms": 120_000}),
        (
            ("chaos", "notice", "a", "--left", "20s"),
            "POST",
            "/v1/chaos/notice",
            {"node": "a", "for_ms": 20_000},
        ),
        (
            ("chaos", "sell-out", "p"),
            "POST",
            "/v1/chaos/sell-out",
            {"pool": "p", "offer": "", "for_ms": 60_000},
        ),
        (
            ("chaos", "sell-out", "p", "o", "--for", "5m"),
            "POST",
            "/v1/chaos/sell-out",
            {"pool": "p", "offer": "o", "for_ms": 300_000},
        ),
        (("token", "revoke", "x"), "DELETE", "/v1/tokens/x", None),
    ],
)
def test_an_order_is_one_request_and_one_line(
    holdfast: Holdfast, words: tuple[str, ...], method: str, path: str, body: object
) -> None:
    with listening(lambda method, path: gives(shapes.Done("so it is"))) as server:
        told = holdfast(*words, "--url", server.url, "--token", "t")
        as_json = holdfast(*words, "--url", server.url, "--json")
        assert [asked[:2] for asked in server.asked] == [(method, path)] * 2
        sent = server.asked[0][3]
        assert server.authorized[0] == "Bearer t"
    assert json.loads(sent) == body if body else sent == b""
    assert (told.code, told.err, len(told.out.splitlines())) == (0, "", 1)
    assert "so it is" in as_json.out
    assert json.loads(as_json.out)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("drain", "a", "--deadline", "soon"), "--deadline: expected a duration"),
        (("drain", "a", "--deadline", "0s"), "--deadline: expected a duration longer than nothing"),
        (("chaos", "explode", "a"), "explode"),
        (("chaos", "kill"), "NODE"),
        (("chaos", "kill", "a", "b"), "kill takes a node and nothing else, got b"),
        (("chaos", "notice", "a", "--left", "soon"), "--left: expected a duration"),
        (("chaos", "notice", "a", "--for", "30m"), "notice takes --left, and no --for"),
        (("chaos", "partition", "a", "--left", "30m"), "partition takes --for, and no --left"),
        (("chaos", "kill", "a", "--for", "30m"), "kill takes no --for"),
        (("chaos", "sell-out", "p", "--for", "soon"), "--for: expected a duration"),
        (("scale", "web", "-1"), "No such option"),
        (("scale", "web", "x"), "'N'"),
        (("explain", "planet", "x"), "planet"),
        (("token", "create"), "--role"),
        (("token", "create", "--role", "king"), "king"),
        (("token", "create", "--role", "read", "--ttl", "x"), "--ttl: expected a duration"),
        (("events", "--limit", "0"), "--limit"),
        (("apply",), "FILE"),
        (("logs",), "REPLICA|WORKLOAD"),
    ],
)
def test_wrong_words_are_refused_before_anybody_is_asked(
    holdfast: Holdfast, words: tuple[str, ...], error: str
) -> None:
    with listening(lambda method, path: gives({})) as server:
        told = holdfast(*words, "--url", server.url)
        assert server.asked == []
    assert told.code == 2
    assert error in told.err
    assert len(told.err.splitlines()) == 2
    assert "hint: " in told.err
    assert "Value error" not in told.err
    assert "Input should be" not in told.err


def test_a_new_token_stands_alone_on_stdout(holdfast: Holdfast) -> None:
    with listening(lambda method, path: gives(shapes.TokenMade("1a", "hf_secret", "join"))) as server:
        told = holdfast(
            "token", "create", "--role", "join", "--pool", "p", "--ttl", "1h", "--url", server.url
        )
        sent = json.loads(server.asked[0][3])
    assert told.out == "hf_secret\n"
    assert "not shown again" in told.err
    assert sent == {"role": "join", "note": "", "pool": "p", "node": "", "ttl_ms": 3_600_000}


# ---- waiting


def replica(state: str = "ready", version: int = 1) -> shapes.Replica:
    return shapes.Replica(
        "web/0.1", "web", "web/0", "a", 1, "active", state, NOW, version, "127.0.0.1:80", [], 0, None
    )


def workload(name: str = "web", kind: str = "service", ready: int = 0, wanted: int = 1, **other: Any) -> Any:
    needs = shapes.Resources(100, 64)
    facts = {"done": 0, "failed": 0, "paused": False, "version": 1, "why": "", "seats": [], **other}
    return shapes.Workload(
        name=name,
        kind=kind,
        priority=0,
        wanted=wanted,
        ready=ready,
        standby=0,
        needs=needs,
        command=["serve"],
        availability=None,
        **facts,
    )


def test_apply_waits_for_the_newest_version_and_through_a_change_of_leaders(
    holdfast: Holdfast, tmp_path: Path
) -> None:
    (tmp_path / "web.yaml").write_text(WEB)
    looks = 0

    def answer(method: str, path: str) -> Answer:
        nonlocal looks
        if method == "POST":
            return gives([shapes.Applied("web", "service", "changed", 2)])
        if path == "/v1/workloads/web":
            looks += 1
            return problem(503, "nobody leads") if looks == 2 else gives(workload(ready=1, version=2))
        return gives([replica(version=1 if looks < 4 else 2)])

    with listening(answer) as server:
        told = holdfast("apply", "web.yaml", "--wait", "--url", server.url)
    assert told.code == 0
    assert told.err.splitlines() == [
        "web: 1 serving, 0 of 1 new",
        "nobody leads",
        "web: 1 serving, 0 of 1 new",
        "web: 1 of 1 ready, watching that it stays so",
        "web: 1 of 1 ready",
    ]


def test_what_crashes_and_is_started_again_is_not_called_ready(holdfast: Holdfast, tmp_path: Path) -> None:
    """Without a probe it is ready for a moment each time."""
    (tmp_path / "web.yaml").write_text(WEB)
    epochs = itertools.count(1)

    def answer(method: str, path: str) -> Answer:
        if method == "POST":
            return gives([shapes.Applied("web", "service", "created", 1)])
        if "replicas" in path:
            return gives([replace(replica(), id=f"web/0.{next(epochs)}")])
        return gives(workload(ready=1))

    with listening(answer) as server:
        told = holdfast("apply", "web.yaml", "--wait", "--timeout", "2s", "--url", server.url)
    assert told.code == 1
    assert "error: web is not ready after 2 s" in told.err


def test_an_answer_that_is_no_text_at_all_is_told_as_such() -> None:
    with pytest.raises(Unanswered, match="the answer cannot be read"):
        read(b'{"title": "\xff"}', shapes.Problem)


def test_waiting_ends_with_the_reason_when_the_time_is_over(holdfast: Holdfast, tmp_path: Path) -> None:
    (tmp_path / "web.yaml").write_text(WEB)

    def answer(method: str, path: str) -> Answer:
        if method == "POST":
            return gives([shapes.Applied("web", "service", "created", 1)])
        return gives([] if "replicas" in path else workload(why="no node has 4 cpus"))

    with listening(answer) as server:
        told = holdfast("apply", "web.yaml", "--wait", "--timeout", "300ms", "--url", server.url)
    assert told.code == 1
    assert "error: web is not ready after 0.3 s: web: 0 of 1 ready: no node has 4 cpus" in told.err
    assert "hint: holdfast explain workload web" in told.err


def test_a_workload_that_failed_is_not_waited_for(holdfast: Holdfast, tmp_path: Path) -> None:
    (tmp_path / "web.yaml").write_text(WEB)

    def answer(method: str, path: str) -> Answer:
        if method == "POST":
            return gives([shapes.Applied("web", "service", "created", 1)])
        return gives([] if "replicas" in path else workload(failed=1, why="exit code 1"))

    with listening(answer) as server:
        told = holdfast("apply", "web.yaml", "--wait", "--url", server.url)
    assert told.code == 1
    assert "error: web has failed: exit code 1" in told.err
    assert "hint: holdfast logs web" in told.err


def test_delete_waits_until_nothing_is_left(holdfast: Holdfast) -> None:
    looks = 0

    def answer(method: str, path: str) -> Answer:
        nonlocal looks
        if method == "DELETE":
            return gives(shapes.Done("x"))
        looks += 1
        return gives([replica("stopping")] if looks < 3 else [])

    with listening(answer) as server:
        told = holdfast("delete", "web", "--wait", "--url", server.url)
    assert (told.code, told.out, looks) == (0, "web is deleted\n", 3)
    assert told.err == "web: web/0.1 still there\n", "that it is gone is said once"


def test_deleting_a_pool_says_what_happens_and_waits_until_it_is_forgotten(holdfast: Holdfast) -> None:
    looks = 0

    def answer(method: str, path: str) -> Answer:
        nonlocal looks
        if method == "DELETE":
            return gives(shapes.Applied("std", "pool", "deleted", 0))
        looks += 1
        left = shapes.Pool("std", "ec2", 0, 0, 0, 2, "it is being deleted, 2 nodes left", [], deleted=True)
        return gives([left] if looks < 3 else [])

    with listening(answer) as server:
        told = holdfast("delete", "pool", "std", "--url", server.url)
        assert (told.code, told.out) == (0, "std is being deleted: its nodes are emptied and let go\n")
        told = holdfast("delete", "pool", "std", "--wait", "--url", server.url)
    assert (told.code, told.out, looks) == (0, "std is deleted\n", 3)
    assert told.err == "std: it is being deleted, 2 nodes left\n"


@pytest.mark.parametrize("leaves", [False, True])
def test_drain_waits_until_nothing_is_left_and_says_so_once(holdfast: Holdfast, leaves: bool) -> None:
    looks = 0

    def answer(method: str, path: str) -> Answer:
        nonlocal looks
        if method == "POST":
            return gives(node("a", state="draining"))
        looks += 1
        if looks == 1:
            return gives(node("a", state="draining"))
        return problem(404, "there is no node called a") if leaves else gives(node("a", replicas=[]))

    with listening(answer) as server:
        told = holdfast("drain", "a", "--wait", "--url", server.url)
    assert (told.code, told.out) == (0, "a has left\n" if leaves else "a is empty\n")
    assert told.err == "a still runs web/0.1\n"


# ---- events


def line(seq: int, text: str = "happened") -> shapes.Line:
    return shapes.Line(seq, NOW, "event", "web/0.1", text, "a", "web")


def test_server_sent_events_are_read_whole_or_not_at_all() -> None:
    text = ": hi\n\nid: 5.1\nevent: x\ndata: {\ndata: }\n\n: still here\n\nid: 6\ndata:1\n\nid: 7\ndata: 2"
    assert list(events.parsed(iter(text.split("\n")))) == [("5.1", b"{\n}"), ("6", b"1")]


def test_following_goes_on_after_a_break_without_losing_or_doubling_a_line(holdfast: Holdfast) -> None:
    def sse(id: str, seq: int) -> bytes:
        return b"id: %b\nevent: event\ndata: %b\n\n" % (id.encode(), msgspec.json.encode(line(seq)))

    answers = [
        (200, {}, sse("4.1", 4)),
        problem(503, "nobody leads"),
        (200, {}, sse("4", 4) + sse("5", 5)),
        problem(401, "the token has expired"),
    ]
    seen: list[Answer] = []

    def answer(method: str, path: str) -> Answer:
        if path.startswith("/v1/events?limit"):
            return gives([line(3)])
        seen.append(answers[len(seen)])
        return seen[-1]

    with listening(answer) as server:
        told = holdfast("events", "-f", "--json", "--limit", "9", "--url", server.url)
        ids = [headers.get("Last-Event-ID") for _, _, headers, _ in server.asked[1:]]
    assert [json.loads(one)["seq"] for one in told.out.splitlines()] == [3, 4, 4, 5]
    assert ids == ["3", "4.1", "4.1", "5"]
    assert told.code == 2
    assert told.err.splitlines()[-2] == "error: the token has expired"


def test_no_more_lines_are_told_than_were_asked_for(holdfast: Holdfast) -> None:
    """A store gives whole entries, and the last of them may have more lines than fit."""
    with listening(lambda method, path: gives([line(3, "a"), line(3, "b"), line(4, "c")])) as server:
        told = holdfast("events", "--limit", "2", "--url", server.url)
        as_json = holdfast("events", "--limit", "2", "--json", "--url", server.url)
    assert [text.split()[-1] for text in told.out.splitlines()] == ["b", "c"]
    assert [one["text"] for one in json.loads(as_json.out)] == ["b", "c"]


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("events", "--node", "nope"), "node"),
        (("events", "--workload", "nope"), "workload"),
        (("events", "-f", "--node", "nope"), "node"),
        (("replicas", "--node", "nope"), "node"),
        (("replicas", "--workload", "nope", "--json"), "workload"),
    ],
)
def test_nothing_about_a_name_that_nobody_knows_is_a_mistake(
    holdfast: Holdfast, words: tuple[str, ...], kind: str
) -> None:
    def answer(method: str, path: str) -> Answer:
        if path.startswith(("/v1/events", "/v1/replicas")):
            return gives([])
        return problem(404, f"there is no {kind} called nope", "There is: a, b")

    with listening(answer) as server:
        told = holdfast(*words, "--url", server.url)
    assert (told.code, told.out) == (2, "")
    assert told.err == f"error: there is no {kind} called nope\nhint: There is: a, b\n"


def test_nothing_about_a_name_that_is_known_is_an_answer(holdfast: Holdfast) -> None:
    about = shapes.Explanation("node", "a", "is gone", [], [], [])

    def answer(method: str, path: str) -> Answer:
        return gives(about if "explain" in path else node("a") if path == "/v1/nodes/a" else [])

    with listening(answer) as server:
        told = holdfast("events", "--node", "a", "--workload", "web", "--url", server.url)
        assert (told.code, told.out) == (0, "nothing has happened\n")
        assert holdfast("replicas", "--node", "a", "--url", server.url).out == "no replicas\n"


def test_logs_as_json_are_one_object_a_line_followed_or_not(holdfast: Holdfast) -> None:
    with listening(lambda method, path: (200, {}, b"one\ntwo\n")) as server:
        told = holdfast("logs", "web/0.1", "--json", "--url", server.url)
        followed = holdfast("logs", "web/0.1", "--json", "-f", "--url", server.url)
    assert [json.loads(text) for text in told.out.splitlines()] == [
        {"replica": "web/0.1", "line": "one"},
        {"replica": "web/0.1", "line": "two"},
    ]
    assert (followed.code, followed.out) == (0, told.out)


@pytest.mark.parametrize(("tail", "lines"), [(0, 0), (1, 1), (2, 2), (9, 5)])
def test_the_tail_of_a_log_that_grows_meanwhile_has_whole_lines_only(
    holdfast: Holdfast, tail: int, lines: int
) -> None:
    log = b"tick 1\ntick 2\ntick 3\n"

    def answer(method: str, path: str) -> Answer:
        nonlocal log
        log += f"tick {log.count(b'tick') * 1000}\n".encode()
        asked = parse_qs(urlsplit(path).query).get("tail_bytes")
        return 200, {}, log[-int(asked[0]) :] if asked else log

    with listening(answer) as server:
        told = holdfast("logs", "web/0.1", "--tail", str(tail), "--url", server.url)
        followed = holdfast("logs", "web/0.1", "--tail", str(tail), "-f", "--url", server.url)
    assert len(told.out.splitlines()) == lines
    assert all(line.startswith("tick ") for line in (told.out + followed.out).splitlines())
    assert followed.out or not tail, "what comes after the tail is told when it is followed"


# ---- completion


def names(found: Callable[[typer.Context, str], list[str]], url: str, incomplete: str) -> list[str]:
    context = typer.Context(typer.main.get_command(app))
    context.params = {"url": url, "token": None}
    return found(context, incomplete)


def test_completion_knows_the_names_of_the_fleet() -> None:
    with listening(lambda method, path: gives([{"name": "std-a", "id": "web/0.1"}])) as server:
        assert names(complete.nodes, server.url, "s") == ["std-a"]
        assert names(complete.workloads, server.url, "x") == []
        assert names(complete.replicas, server.url, "web") == ["web/0.1"]
        assert names(complete.offers, server.url, "") == ["std-a"]


def test_completion_knows_what_can_be_deleted() -> None:
    def answer(method: str, path: str) -> Answer:
        return gives([{"name": "std" if "pools" in path else "web"}])

    def completed(url: str, *typed: str) -> list[str]:
        context = typer.Context(typer.main.get_command(app))
        context.params = {"url": url, "names": list(typed)}
        return complete.deleted(context, "")

    with listening(answer) as server:
        assert completed(server.url) == ["pool", "web"]
        assert completed(server.url, "web") == ["web"]
        assert completed(server.url, "pool") == ["std"]


@pytest.mark.parametrize(("deed", "path"), [("kill", "/v1/nodes"), ("sell-out", "/v1/pools")])
def test_completion_knows_what_a_deed_is_done_to(deed: str, path: str) -> None:
    with listening(lambda method, path: gives([{"name": "x"}])) as server:
        context = typer.Context(typer.main.get_command(app))
        context.params = {"url": server.url, "token": None, "deed": deed}
        assert complete.harmed(context, "") == ["x"]
        assert [asked[1] for asked in server.asked] == [path]


@pytest.mark.parametrize(
    "answer", [problem(401, "no"), (200, {}, b"{}"), (200, {}, b"[1]"), (200, {}, b"<html>"), (500, {}, b"")]
)
def test_completion_is_silent_about_everything_that_goes_wrong(
    answer: Answer, capfd: pytest.CaptureFixture[str]
) -> None:
    with listening(lambda method, path: answer) as server:
        assert names(complete.nodes, server.url, "") == []
    assert names(complete.nodes, f"http://127.0.0.1:{free_port()}", "") == []
    assert names(complete.nodes, "nonsense://", "") == []
    assert capfd.readouterr() == ("", "")


def test_completion_does_not_wait_for_a_server_that_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        begun = time.monotonic()
        assert names(complete.nodes, f"http://127.0.0.1:{silent.getsockname()[1]}", "") == []
        assert time.monotonic() - begun < 20


def test_workload_files_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").mkdir()
    for name in ("a.yaml", "b.yml", "c.toml", "examples/d.yaml"):
        (tmp_path / name).touch()
    assert complete.workload_files("") == ["a.yaml", "b.yml", "examples/d.yaml", "examples/"]


# ---- how it looks


def node(name: str, verdict: str = "alive", state: str = "ready", **other: Any) -> shapes.Node:
    facts: dict[str, Any] = {
        "pool": "std",
        "offer": "a",
        "place": shapes.Place("local", "r", "a", "-"),
        "rule": "" if verdict == "alive" else "silent, and its provider says it stopped",
        "evidence": "silent 4.0 s",
        "verdict_since_ms": NOW,
        "state_since_ms": NOW,
        "silent_ms": 100,
        "capacity": shapes.Resources(4000, 4096),
        "free": shapes.Resources(1000, 4096),
        "used": shapes.Resources(500, 1024),
        "price_micro_usd": 0,
        "spot": False,
        "standby": False,
        "deadline_ms": None,
        "address": "127.0.0.1",
        "labels": {},
        "taints": [],
        "replicas": ["web/0.1"],
        "findings": [],
        **other,
    }
    return shapes.Node(name=name, verdict=verdict, state=state, **facts)


def fleet(nodes: list[shapes.Node], workloads: list[shapes.Workload], **other: Any) -> shapes.Status:
    facts: dict[str, Any] = {"leader": "cp-1", "brakes": [], **other}
    return shapes.Status(
        leader_url="",
        generation=1,
        leading=True,
        now_ms=NOW,
        journal=1,
        nodes=nodes,
        workloads=workloads,
        **facts,
    )


def test_the_page_says_what_is_wrong_first() -> None:
    seats = [
        shapes.Seat(f"web/{n}", "active", "open", "", "", "", state, 0, None, "")
        for n, state in enumerate(("ready", "starting", "pending"))
    ]
    told = look.plain(
        status_page.page(
            fleet(
                [node("std-a"), node("std-b", "dead"), node("std-c", state="launching")],
                [workload("api", ready=1), workload(wanted=3, ready=1, why="no room", seats=seats)],
                brakes=[shapes.Brake("fleet", NOW - 40_000, "2 of 3 in doubt")],
            ),
            [line(1)],
            bars=False,
        )
    )
    assert "1 of 2 nodes alive, 1 coming" in told
    assert "1 of 2 workloads as wanted" in told
    assert "BRAKE  fleet for 40s: 2 of 3 in doubt  (holdfast release-brake)" in told
    assert told.index("web ") < told.index("api ")
    assert told.index("std-b") < told.index("std-c") < told.index("std-a")
    assert "✕ dead" in told
    assert "silent, and its provider says it stopped" in told
    assert "●◐○" in told
    assert "no room" in told
    assert "3/4" in told
    assert "happened" in told


def test_what_is_paused_is_shown_as_paused_and_not_as_lost() -> None:
    states = ("lost", "pending", "stopping")
    seats = [
        shapes.Seat(f"web/{n}", "active", "open", "", "", "", state, 0, None, "asked to stop")
        for n, state in enumerate(states)
    ]
    paused = workload(wanted=3, paused=True, seats=seats)
    assert "‖‖◐" in look.plain(tables.workloads([paused]))
    told = look.plain(tables.seat_rows(paused))
    assert (told.count("‖ paused"), told.count("asked to stop")) == (2, 1)
    assert "✕○◐" in look.plain(tables.workloads([workload(wanted=3, seats=seats)]))


def test_a_dead_node_looks_neither_ready_nor_busy() -> None:
    dead = node("std-a", "dead", replicas=["web/0.1", "web/1.1"])
    (row,) = look.plain(tables.nodes([dead], bars=False)).splitlines()[1:]
    assert "ready" not in row
    assert "2 lost" in row
    assert "lost, was ready" in look.plain(tables.node_facts(dead))
    assert "0 lost" not in look.plain(tables.nodes([node("std-a", "dead", replicas=[])], bars=False))


def test_names_with_numbers_are_sorted_as_people_count(holdfast: Holdfast) -> None:
    found = [node("local-10"), node("local-9"), node("a"), node("local-2")]
    assert sorted(["a10b", "a9b", "9", "a", "b1", ""], key=look.natural) == [
        "",
        "9",
        "a",
        "a9b",
        "a10b",
        "b1",
    ]
    told = look.plain(status_page.page(fleet(found, []), [], bars=False))
    assert told.index("local-2") < told.index("local-9") < told.index("local-10")
    with listening(lambda method, path: gives(found)) as server:
        rows = holdfast("nodes", "--url", server.url).out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["a", "local-2", "local-9", "local-10"]


def test_a_long_line_goes_on_below_its_own_text() -> None:
    assert look.hanging("12:00  web  ", "one two three four five six", 34) == (
        "12:00  web  one two three four\n            five six"
    )
    assert look.hanging("", "short", 80) == "short"
    assert look.hanging("a long beginning ", "and-a-word-that-cannot-be-cut", 20).count("\n") == 0


@pytest.mark.parametrize(
    ("fields", "well"),
    [
        ({"ready": 1}, True),
        ({}, False),
        ({"paused": True}, True),
        ({"ready": 1, "failed": 1}, False),
        ({"kind": "job", "done": 1}, True),
        ({"kind": "sweep", "wanted": 9, "ready": 2, "done": 3}, True),
        ({"kind": "sweep", "wanted": 9, "done": 3}, False),
        ({"kind": "sweep", "wanted": 9, "done": 9}, True),
    ],
)
def test_what_counts_as_wanted(fields: dict[str, Any], well: bool) -> None:
    assert tables.as_wanted(workload(**fields)) is well


def test_an_empty_fleet_says_what_to_do() -> None:
    told = look.plain(status_page.page(fleet([], [], leader=""), [], bars=False))
    assert "nobody leads" in told
    assert "no workloads: holdfast apply" in told
    assert "no nodes" in told


def test_a_large_fleet_is_cut_to_what_fits_and_says_so() -> None:
    nodes = [node(f"n-{number}") for number in range(500)] + [node("sick", "suspect")]
    told = look.plain(status_page.page(fleet(nodes, [workload(ready=1)]), [], bars=False, rows=30))
    assert len(told.splitlines()) <= 30
    assert "sick" in told
    assert "nodes more" in told


@pytest.mark.parametrize("width", [20, 60, 80, 100, 200])
def test_no_width_breaks_the_page(width: int) -> None:
    page = status_page.page(
        fleet([node("a-long-name-of-a-node", "dead")], [workload(why="a reason " * 10)]), [], bars=True
    )
    lines = look.plain(page, width).splitlines()
    assert max(len(text) for text in lines) <= width
    assert "a reason" in "\n".join(lines)


def test_a_remark_that_does_not_fit_beside_its_row_stands_below_it() -> None:
    rows = Rows("A", "B")
    rows.add("x", "y", remark="why " * 5)
    assert look.plain(rows, 80) == "A  B\nx  y  why why why why why"
    assert look.plain(rows, 20) == "A  B\nx  y\n    why why why why\n    why"


def test_columns_that_can_be_spared_make_room() -> None:
    rows = Rows("LONG", "SPARE", "LAST", spare=("SPARE",))
    rows.add("a" * 10, "b" * 10, "c" * 10)
    assert "SPARE" in look.plain(rows, 40)
    assert look.plain(rows, 30) == "LONG        LAST\naaaaaaaaaa  cccccccccc"


def test_facts_leave_out_what_is_empty() -> None:
    assert look.plain(facts(("a", "1"), ("b", ""), ("long", "2"))) == "a     1\nlong  2"


def test_a_bar_shows_what_is_used_and_what_is_promised() -> None:
    assert [look.bar(used, promised).plain for used, promised in ((0, 0), (0.5, 1), (2, 0), (-1, 0.5))] == [
        "░░░░░░",
        "███▓▓▓",
        "██████",
        "▓▓▓░░░",
    ]


def capacity() -> shapes.Capacity:
    hit = shapes.Hit("web", 0, 2, 1, 0, 1, 0, 1, 0, 0.999, "for as long as it is gone")
    return shapes.Capacity(
        now_ms=NOW,
        level="zone",
        told=["2 of 3 nodes open, with 12 cpus free", "5 h100 are free, but no node has 4 together " * 2],
        cpu_milli=12_000,
        cpu_milli_unusable=0,
        gpu_milli_unusable=0,
        free=[shapes.Free("std", "p/r/a", "h100", 3, 2, 12_000, 4_096, 5, 500, 1, 0, 0)],
        gpus=[shapes.FreeGpus("h100", 5, 500, 3, {"1": 5, "2": 2, "4": 0, "8": 0}, 1_500)],
        fits=[shapes.Fits("web", 0, 1), *(shapes.Fits(f"w{n}", 100, 0) for n in range(30))],
        losses=[shapes.Loss("zone", f"p/r/{z}", "", 3, 2, 1, [hit], {}) for z in "abcdefghijk"],
    )


def test_the_capacity_fits_on_a_terminal_of_eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "width", lambda: 80)
    for one in (False, True):
        lines = look.plain(capacity_page(capacity(), one=one), 80).splitlines()
        assert max(map(len, lines)) <= 80
        assert not any("…" in line for line in lines)
    assert "and 3 more; --json shows all" in look.plain(capacity_page(capacity(), one=False), 80)
    assert "and 11 that fit as often or more" in look.plain(capacity_page(capacity(), one=False), 80)


def test_zones_are_completed_by_their_last_part_or_their_path() -> None:
    answers: list[object] = [node("n1"), node("n2"), {"name": "strange"}]
    with listening(lambda method, path: gives(answers)) as server:
        assert names(complete.zones, server.url, "") == ["a", "local/r/a"]
        assert names(complete.zones, server.url, "lo") == ["local/r/a"]


def listed(**other: Any) -> shapes.OfferListed:
    facts: dict[str, Any] = {
        "key": "std/a",
        "name": "a",
        "pool": "std",
        "place": shapes.Place("aws", "us-east-1", "us-east-1a", "-"),
        "capacity": shapes.Resources(192_000, 2_097_152, 8000, "h100"),
        "price_micro_usd": 500_000,
        "spot": True,
        "prices": [shapes.Price(NOW - 2, 400_000), shapes.Price(NOW - 1, 500_000)],
        "chance": 0.129,
        "ready_ms": 185_000,
        "lasts_a_day": 0.999,
        "cost_micro_usd": 612_000,
        "asked": 3.0,
        "came_up": 1.0,
        "refused": 1.99,
        "failed": 0.01,
        "lost": 0.5,
        "retry_ms": NOW,
        "refusal": "asked again in 20 s: failed once: sold out",
    }
    return shapes.OfferListed(**{**facts, **other})


def spending() -> shapes.Spending:
    limits = shapes.Budget(3_000_000, 9_000_000)
    fleet = shapes.Spend("", 3, 1_500_000, 2_000_000, 12_345_678_900, limits, 18_000_000, 2_000_000)
    pool = shapes.Spend("a-pool-with-a-long-name", 3, 1_500_000, 0, 0, shapes.Budget(), None, None)
    return shapes.Spending(NOW, NOW + 1, fleet, [pool], ["it may cost $3.00/h and costs $1.50/h"])


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_offers_and_money_fit_on_a_terminal(width: int) -> None:
    long = listed(key="a-pool-with-a-long-name/p5.48xlarge", capacity=shapes.Resources(500, 512), refusal="")
    for made in (tables_market.offers([listed(), long]), tables_market.spend(spending())):
        told = look.plain(made, width)
        assert max(map(len, told.splitlines())) <= width
        assert "a-pool-with-a-lo" in told
    if width >= 80:
        assert "12%" in told or "THIS MONTH" in told


def test_a_service_that_scales_shows_its_bounds() -> None:
    bounds = shapes.Bounds(1, 8, ["in_flight", "queue"])
    shown = workload(ready=2, wanted=3, scale=bounds)
    assert tables.progress(shown).plain == "2/3 (1-8)"
    assert "1 to 8, by in_flight, queue" in look.plain(tables.workload_facts(shown))


def test_what_a_pool_costs_is_shown_only_if_it_costs_something() -> None:
    free = shapes.Pool("mine", "join", 0, 9, 0, 1, "", [])
    paid = shapes.Pool("std", "aws", 0, 9, 0, 1, "", [], 500_000, None, shapes.Budget(None, 90_000_000))
    assert "COSTS" not in look.plain(tables.pools([free]))
    told = look.plain(tables.pools([free, paid]))
    assert "$0.50/h  $90.00 a month" in told
    assert max(map(len, look.plain(tables.pools([free, paid]), 80).splitlines())) <= 80


def test_signals_are_posted_as_they_were_typed(holdfast: Holdfast) -> None:
    with listening(lambda method, path: gives(shapes.Done("heard in_flight, queue of web"))) as server:
        told = holdfast("signal", "web", "in_flight=12", "queue=1e2", "--source", "g", "--url", server.url)
        assert (told.code, told.out) == (0, "heard in_flight, queue of web\n")
        ((method, path, _, body),) = server.asked
        assert (method, path) == ("POST", "/v1/workloads/web/signals")
        assert json.loads(body) == {"source": "g", "signals": {"in_flight": 12.0, "queue": 100.0}}


@pytest.mark.parametrize(
    ("word", "error", "hint"),
    [
        ("in_fligth=3", "there is no signal called in_fligth", "Did you mean: in_flight"),
        ("in_flight", "expected NAME=VALUE, got in_flight", "in_flight=12"),
        ("in_flight=", "in_flight: expected a number, got nothing", "in_flight=12"),
        ("in_flight=many", "in_flight: expected a number, got many", "in_flight=12"),
        ("in_flight=nan", "in_flight: expected a number from 0 to 1e+12, got nan", "in_flight=12"),
        ("in_flight=-1", "in_flight: expected a number from 0 to 1e+12, got -1", "in_flight=12"),
        ("in_flight=1e13", "in_flight: expected a number from 0 to 1e+12, got 1e13", "in_flight=12"),
    ],
)
def test_a_signal_that_cannot_be_is_refused_with_a_hint(
    holdfast: Holdfast, word: str, error: str, hint: str
) -> None:
    told = holdfast("signal", "web", word, "--url", "http://127.0.0.1:1")
    assert told.code == 2
    assert told.err == f"error: {error}\nhint: {hint}\n"


def test_completion_knows_what_scales_and_by_which_signals() -> None:
    answers = [{"name": "web", "scale": {"signals": ["in_flight", "queue"]}}, {"name": "db", "scale": None}]
    with listening(lambda method, path: gives(answers)) as server:
        assert names(complete.scaling, server.url, "") == ["web"]
        context = typer.Context(typer.main.get_command(app))
        context.params = {"url": server.url, "token": None, "workload": "web", "said": ["queue=3"]}
        assert complete.signals(context, "") == ["in_flight="]
        assert complete.signals(context, "in_flight=1") == []
        context.params = {"url": server.url, "token": None, "workload": "db", "said": None}
        assert "tokens_per_s=" in complete.signals(context, "t")


def test_offers_of_a_pool_that_does_not_exist_are_a_mistake(holdfast: Holdfast) -> None:
    pools = [shapes.Pool("mine", "join", 0, 9, 0, 1, "", [])]
    with listening(lambda method, path: gives(pools if path == "/v1/pools" else [])) as server:
        assert holdfast("offers", "mine", "--url", server.url).out == "no offers\n"
        told = holdfast("offers", "mime", "--url", server.url)
        assert (told.code, told.err.splitlines()[-1]) == (2, "hint: Did you mean: mine")


def test_lists_and_details_can_be_shown(holdfast: Holdfast) -> None:
    offer = shapes.Offer(
        "a", "std", shapes.Place("local", "r", "a", "-"), shapes.Resources(1000, 64), 0, False
    )
    answers: dict[str, object] = {
        "/v1/nodes": [node("std-a", capacity=shapes.Resources(1, 1, 2000, "h100"))],
        "/v1/nodes/std-a": node("std-a", labels={"disk": "ssd"}),
        "/v1/workloads": [workload(ready=1), workload("count", "job", done=1)],
        "/v1/workloads/web": workload(
            ready=1, seats=[shapes.Seat("web/0", "active", "open", "r", "r", "n", "ready", 0, 5, "")]
        ),
        "/v1/replicas": [replica()],
        "/v1/pools": [shapes.Pool("std", "local", 1, 3, 0, 1, "sold out", [offer])],
        "/v1/capacity": capacity(),
        "/v1/offers": [listed()],
        "/v1/spend": spending(),
        "/v1/tokens": [shapes.TokenShown("1a", "join", "for me", "std", "", NOW, None, "")],
        "/v1/explain/node": shapes.Explanation(
            "node", "a", "is well", ["it is heard"], ["nothing"], [line(1)]
        ),
    }
    shown = {
        ("nodes",): ["std-a", "● alive", "h100"],
        ("nodes", "std-a"): ["disk=ssd", "local / r / a / -"],
        ("workloads",): ["web", "1/1", "1 done"],
        ("workloads", "web"): ["web/0", "● ready", "serve"],
        ("replicas",): ["web/0.1", "127.0.0.1:80"],
        ("pools",): ["std", "sold out", "1 offer"],
        ("capacity",): ["- 2 of 3 nodes open", "5 h100", "FIT x4", "100 more or above", "IF ZONE GOES"],
        ("capacity", "--if-zone", "a"): ["if zone p/r/a goes", "99.9000% broken for as long as it is gone"],
        ("offers",): [
            "std/a",
            "0.50 spot",
            "0.61",
            "12%",
            "3m",
            "sold out",
            "lately 2 refused, 0.5 lost of 3",
        ],
        ("offers", "std"): ["std/a", "was $0.40"],
        ("spend",): ["fleet", "$1.50/h", "$2.00/h", "$3.00/h, $9.00 a month", "lasts 5.0 h", "- it may cost"],
        ("token", "list"): ["1a", "never", "for me"],
        ("explain", "node", "a"): ["is well", "because", "- it is heard", "would help", "- nothing"],
    }
    with listening(lambda method, path: gives(answers[path.partition("?")[0]])) as server:
        for words, expected in shown.items():
            told = holdfast(*words, "--url", server.url)
            assert (told.code, told.err) == (0, "")
            assert [text for text in expected if text not in told.out] == []
            assert "\x1b" not in told.out
            as_json = holdfast(*words, "--url", server.url, "--json")
            assert json.loads(as_json.out)


def test_nothing_is_said_in_words_too(holdfast: Holdfast) -> None:
    with listening(lambda method, path: gives([])) as server:
        for words in (("nodes",), ("workloads",), ("replicas",), ("pools",), ("token", "list"), ("events",)):
            assert len(holdfast(*words, "--url", server.url).out.split()) > 1


def test_an_answer_of_a_newer_server_is_read_all_the_same() -> None:
    body = msgspec.json.encode({**msgspec.to_builtins(node("a")), "mood": "fine"})
    assert read(body, shapes.Node).name == "a"


# ---- up and demo


def test_the_demo_counts_from_the_fault_in_its_lines_and_in_its_figures() -> None:
    lines = [
        shapes.Line(6, NOW + 60, "event", "a", "its link closed", "a", ""),
        shapes.Line(7, NOW + 90, "verdict", "a", "dead: gone", "a", ""),
        shapes.Line(8, NOW + 1_500, "event", "web/0.2", "ready on b", "b", "web"),
    ]
    answers = {"/v1/status": {"journal": 5}, "/v1/chaos/kill": {"done": "kill a"}, "/v1/events": lines}
    paper = StringIO()
    with listening(lambda method, path: gives(answers[path.partition("?")[0]])) as server:
        story = demo.Story(server.url, Console(file=paper, width=200))
        begun = time.time()
        assert story.chaos("kill", "a") == 5
        assert begun <= story.struck_at <= time.time()
        story.struck_at = NOW / 1000
        story.tell(5)
        assert story.times(5, "a") == pytest.approx((0.09, 1.5))
        story.client.close()
    assert [text.split()[0] for text in paper.getvalue().splitlines()] == ["0.06", "0.09", "1.50"]


def test_up_says_how_to_come_by_the_command_where_it_is_not_at_hand(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / ".venv" / "bin" / "activate"
    script.parent.mkdir(parents=True)
    script.touch()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr(sys, "executable", str(script.parent / "python"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert up.way_in() == [". .venv/bin/activate"]
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert up.way_in() == [f". {script}"]
    script.unlink()
    assert up.way_in() == []


def test_a_line_of_up_fits_the_terminal() -> None:
    told = model_told.Told(1, NOW, "verdict", "local-1", "dead: " + "silent and nobody reached it, " * 4)
    assert max(len(text) for text in up.line(told, 80).splitlines()) <= 80
    assert len(up.line(told, 1000).splitlines()) == 1


# ---- on a terminal


def on_terminal(words: list[str], keys: bytes, folder: Path, until: bytes = b"") -> tuple[int, bytes]:
    """Runs a command on a terminal of its own; presses keys when `until` is on the screen."""
    pid, screen = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.environ.update(TERM="xterm-256color", COLUMNS="100", LINES="30")
        os.execv(sys.executable, [sys.executable, "-m", "holdfast.cli.main", *words])
    seen, pressed, ends = b"", False, time.monotonic() + 60
    try:
        while time.monotonic() < ends:
            try:
                part = os.read(screen, 65536)
            except OSError:
                break
            seen += part
            if not part:
                break
            if not pressed and until and until in seen:
                os.write(screen, keys)
                pressed = True
    finally:
        os.close(screen)
        _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), seen


@pytest.mark.parametrize(("keys", "code"), [(b"q", 0), (b"\x03", 130)])
def test_watching_ends_with_q_and_with_ctrl_c_and_leaves_the_terminal_as_it_was(
    keys: bytes, code: int, tmp_path: Path
) -> None:
    state = fleet([node("std-a")], [workload(ready=1)])

    def answer(method: str, path: str) -> Answer:
        return gives([line(1)] if "events" in path else state)

    with listening(answer) as server:
        ended, seen = on_terminal(["status", "-w", "--url", server.url], keys, tmp_path, b"std-a")
    assert ended == code
    assert b"Traceback" not in seen
    assert b"\x1b[?1049h" in seen  # another screen, so that the shell's own is kept
    assert b"\x1b[?1049l" in seen
    assert b"\x1b[?25h" in seen  # and the cursor


def test_a_terminal_gets_colours_and_bars(tmp_path: Path) -> None:
    state = fleet([node("std-a")], [workload(ready=1)])

    def answer(method: str, path: str) -> Answer:
        return gives([line(1)] if "events" in path else state)

    with listening(answer) as server:
        code, seen = on_terminal(["status", "--url", server.url], b"", tmp_path)
    assert code == 0
    assert b"\x1b[32m" in seen
    assert "█▓▓▓".encode() in seen or "█".encode() in seen


def test_watching_without_a_terminal_is_refused(holdfast: Holdfast) -> None:
    with listening(lambda method, path: gives([])) as server:
        told = holdfast("status", "-w", "--url", server.url)
    assert told.code == 2
    assert "needs a terminal" in told.err


def test_help_of_every_command_loads_nothing_heavy() -> None:
    heavy = "{'numpy', 'pydantic', 'msgspec', 'httpx', 'rich', 'yaml', 'structlog', 'asyncio'}"
    code = f"import sys, holdfast.cli.main; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
