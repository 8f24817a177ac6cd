"""What commands that change something send, and what they wait for."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.api import shapes
from holdfast.cli.client.http import Unanswered, read
from holdfast.cli.commands.apply import joined
from holdfast.files.workload.workload_file import documents
from tests.cli_rig import (
    WEB,
    Answer,
    Holdfast,
    gives,
    listening,
    node,
    problem,
    replica,
    workload,
)

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
        (("logs",), "REPLICA|SLOT|WORKLOAD"),
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


def test_a_join_token_for_several_nodes_has_a_count_and_an_expiry(holdfast: Holdfast) -> None:
    shown = shapes.TokenShown("1a", "join", "rack 7", "p", "", 0, None, "n5", 20, 5)

    def answer(method: str, path: str) -> Answer:
        return gives(shapes.TokenMade("1a", "hf_secret", "join") if method == "POST" else [shown])

    with listening(answer) as server:
        words = ("--uses", "20", "--expires", "24h", "--url", server.url)
        assert holdfast("token", "create", "--role", "join", *words).code == 0
        sent = json.loads(server.asked[0][3])
        listed = holdfast("token", "list", "--url", server.url).out
    assert (sent["uses"], sent["ttl_ms"]) == (20, 86_400_000)
    assert "15 of 20" in listed


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


# ---- waiting


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
    assert told.code == 3
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
    assert told.code == 3
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
        if path == "/v1/workloads/web":
            return problem(404, "there is no workload called web")
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


# ---- all names are known, or nothing is done


@pytest.mark.parametrize(("kind", "words"), [("workload", ()), ("pool", ("pool",))])
def test_nothing_is_deleted_if_one_of_the_names_is_unknown(
    holdfast: Holdfast, kind: str, words: tuple[str, ...]
) -> None:
    """It deleted the first, and said only that there was no second."""
    pool = shapes.Pool("web", "ec2", 0, 0, 0, 0, "", [])

    def answer(method: str, path: str) -> Answer:
        assert method == "GET"
        return gives([pool] if path == "/v1/pools" else [workload("web")])

    with listening(answer) as server:
        told = holdfast("delete", *words, "web", "wbe", "nonesuch", "--url", server.url)
        assert all(method == "GET" for method, *_ in server.asked)
    assert (told.code, told.out) == (2, "")
    assert told.err.splitlines() == [
        f"error: there is no {kind} called wbe",
        f"error: there is no {kind} called nonesuch",
        "error: nothing was deleted",
        "hint: Did you mean: web",
    ]


def test_what_was_deleted_before_something_failed_is_told(holdfast: Holdfast) -> None:
    def answer(method: str, path: str) -> Answer:
        if method == "GET":
            return gives([workload(name) for name in ("a", "b", "c")])
        if path.endswith("/b"):
            return problem(409, "not possible as things are")
        return gives(shapes.Applied("a", "job", "deleted", 1))

    with listening(answer) as server:
        told = holdfast("delete", "a", "b", "c", "--url", server.url)
    assert told.code == 2
    assert told.err.splitlines()[:2] == ["error: not possible as things are", "error: deleted before that: a"]
