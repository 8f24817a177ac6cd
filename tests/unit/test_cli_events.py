"""Events and logs: followed, cut to their tail, and asked for by names that nobody knows."""

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from holdfast.api import shapes
from holdfast.cli.client import log_bytes
from holdfast.cli.commands import events
from holdfast.cli.render import instants
from tests.cli_rig import (
    Answer,
    Holdfast,
    gives,
    line,
    listening,
    node,
    problem,
    workload,
)


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


def test_a_pool_without_a_name_is_asked_for(holdfast: Holdfast) -> None:
    with listening(lambda method, path: problem(404, "there is no workload called pool", "")) as server:
        told = holdfast("delete", "pool", "--url", server.url)
    assert (told.code, told.out) == (2, "")
    assert "expected the name of a pool" in told.err
    assert "hint: holdfast delete pool NAME" in told.err


@pytest.mark.parametrize("follow", [(), ("-f",), ("--tail", "3")])
def test_logs_of_what_nobody_knows_are_a_mistake_as_any_other(
    holdfast: Holdfast, follow: tuple[str, ...]
) -> None:
    """It ended as if something had gone wrong, and kept to itself what there is."""
    wrong = "there is no replica called web/9.1"
    with listening(lambda method, path: problem(404, wrong, "There is: web/0.1, web/1.1")) as server:
        told = holdfast("logs", "web/9.1", *follow, "--url", server.url)
    assert (told.code, told.out) == (2, "")
    assert told.err == f"error: {wrong}\nhint: There is: web/0.1, web/1.1\n"
    with listening(lambda method, path: problem(404, wrong, "")) as server:
        told = holdfast("logs", "web/9.1", *follow, "--url", server.url)
    assert told.err == f"error: {wrong}\nhint: holdfast replicas --workload web\n"


def test_logs_of_nobody_say_that_nobody_is_there(holdfast: Holdfast) -> None:
    told = holdfast("logs", "web/0.1", "--url", "http://127.0.0.1:1")
    assert told.code == 1
    assert "cannot connect to http://127.0.0.1:1" in told.err
    assert "start one with: holdfast up" in told.err


def test_logs_that_cannot_be_had_now_could_not_be_done(holdfast: Holdfast) -> None:
    with listening(lambda method, path: problem(503, "n1 does not answer", "its node is away")) as server:
        told = holdfast("logs", "web/0.1", "--url", server.url)
    assert (told.code, told.err) == (1, "error: web/0.1: n1 does not answer\nhint: its node is away\n")


def test_logs_for_which_the_token_is_not_good_say_where_to_give_one(holdfast: Holdfast) -> None:
    with listening(lambda method, path: problem(401, "a token is needed", "")) as server:
        told = holdfast("logs", "web/0.1", "--url", server.url)
    assert told.code == 2
    assert "hint: give one with --token TOKEN" in told.err


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


@pytest.mark.parametrize("words", [("web/0.1",), ("web/0.1", "-f"), ("web/0.1", "--json")])
def test_logs_that_are_cut_off_go_on_where_they_were(holdfast: Holdfast, words: tuple[str, ...]) -> None:
    log = b"".join(b"tick %d\r\n" % at for at in range(100))

    def answer(method: str, path: str) -> Answer:
        start = int(parse_qs(urlsplit(path).query).get("offset", ["0"])[0])
        promised = {"Holdfast-Log-Offset": str(start), "Content-Length": str(len(log) - start)}
        return 200, {**promised, "Connection": "close"}, log[start : start + 123]

    with listening(answer) as server:
        told = holdfast("logs", *words, "--url", server.url)
    assert told.code == 0, told.err
    if "--json" in words:
        lines = [json.loads(text)["line"] for text in told.out.splitlines()]
        assert lines == [f"tick {at}" for at in range(100)]
    else:
        assert told.out.replace("\r\n", "\n") == log.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("words", [("web/0.1",), ("web/0.1", "-f")])
def test_logs_that_stay_cut_off_are_an_error(
    holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(log_bytes, "RESUME_S", 0.5)
    for status in (503, 404) if "-f" in words else (503, 404, 410):

        def answer(method: str, path: str) -> Answer:
            if "offset=" in path:
                return problem(status, "n1 is gone")  # noqa: B023
            facts = {"Holdfast-Log-Offset": "7", "Content-Length": "99", "Connection": "close"}
            return 200, facts, b"one\ntw"

        with listening(answer) as server:
            told = holdfast("logs", *words, "--url", server.url)
        cut = "error: the log of web/0.1 is cut short after 13 bytes: n1 is gone"
        assert (told.out, told.err.splitlines()[0]) == ("one\ntw", cut)
        assert told.code == 1


@pytest.mark.parametrize(("tail", "lines"), [(0, 0), (1, 1), (2, 2), (9, 4)])
def test_the_tail_of_a_log_that_grows_meanwhile_has_whole_lines_only(
    holdfast: Holdfast, tail: int, lines: int
) -> None:
    log = b"tick 1\ntick 2\ntick 3\n"

    def answer(method: str, path: str) -> Answer:
        nonlocal log
        log += f"tick {log.count(b'tick') * 1000}\n".encode()
        asked = parse_qs(urlsplit(path).query)
        start = int(asked["offset"][0]) if "offset" in asked else 0
        start = max(0, len(log) - int(asked["tail_bytes"][0])) if "tail_bytes" in asked else start
        return 200, {"Holdfast-Log-Offset": str(start)}, log[start:]

    with listening(answer) as server:
        told = holdfast("logs", "web/0.1", "--tail", str(tail), "--url", server.url)
        followed = holdfast("logs", "web/0.1", "--tail", str(tail), "-f", "--url", server.url)
    assert len(told.out.splitlines()) == lines
    assert all(line.startswith("tick ") for line in (told.out + followed.out).splitlines())
    assert followed.out or not tail, "what comes after the tail is told when it is followed"


def seat(phase: str, slot: str = "grid/7", last: str = "grid/7.2") -> shapes.Seat:
    return shapes.Seat(slot, "active", phase, "", last, "a", "pending", 0, None, "")


def fleet_with(phase: str, logs: dict[str, bytes]) -> Callable[[str, str], Answer]:
    seats = [seat(phase, "grid/6", "grid/6.1"), seat(phase)]

    def answer(method: str, path: str) -> Answer:
        if path.startswith("/v1/replicas"):
            return gives([])
        if path.startswith("/v1/workloads/"):
            counts = {"done": 2} if phase == "done" else {"failed": 2}
            return gives(workload("grid", "sweep", wanted=2, seats=seats, **counts))
        name = parse_qs(urlsplit(path).query)["replica"][0]
        return 200, {"Holdfast-Log-Offset": "0"}, logs[name]

    return answer


@pytest.mark.parametrize("words", [(), ("-f",)])
def test_the_log_of_a_seat_is_that_of_the_last_replica_in_it(
    holdfast: Holdfast, words: tuple[str, ...]
) -> None:
    """`holdfast logs grid/7` of a sweep's seventh task."""
    with listening(fleet_with("done", {"grid/7.2": b"one\ntwo"})) as server:
        told = holdfast("logs", "grid/7", *words, "--url", server.url)
        wrong = holdfast("logs", "grid/9", *words, "--url", server.url)
    assert (told.code, told.out, told.err) == (0, "one\ntwo", "")
    assert wrong.code == 2
    assert wrong.err.splitlines() == ["error: grid has no slot grid/9", "hint: There is: grid/6, grid/7"]


@pytest.mark.parametrize("phase", ["done", "failed", "closed"])
def test_following_ends_with_what_is_followed(holdfast: Holdfast, phase: str) -> None:
    """`holdfast logs -f` of a finished job waited for ever."""
    with listening(fleet_with(phase, {"grid/6.1": b"six\n", "grid/7.2": b"seven\n"})) as server:
        told = holdfast("logs", "grid", "-f", "--url", server.url)
    assert told.code == 0
    assert sorted(told.out.splitlines()) == ["grid/6.1  six", "grid/7.2  seven"]


# ---- times

NOW_S = 1_800_000_000  # 2027-01-15 08:00 UTC


@pytest.mark.parametrize(
    ("text", "zone", "end", "expected"),
    [
        ("2h", "utc", False, "2027-01-15T06:00:00+00:00"),
        ("90s", "utc", True, "2027-01-15T07:58:30+00:00"),
        ("1h30m", "utc", False, "2027-01-15T06:30:00+00:00"),
        ("2026-11-18", "utc", False, "2026-11-18T00:00:00+00:00"),
        ("2026-11-18", "utc", True, "2026-11-19T00:00:00+00:00"),
        ("2026-11-18", "Europe/Berlin", False, "2026-11-17T23:00:00+00:00"),
        ("2026-07-18", "Europe/Berlin", False, "2026-07-17T22:00:00+00:00"),
        ("2026-10-25T02:30", "Europe/Berlin", False, "2026-10-25T00:30:00+00:00"),  # the first of two
        ("2026-11-18T10:00+02:00", "Europe/Berlin", False, "2026-11-18T08:00:00+00:00"),
        ("2026-11-18 10:00:30Z", "local", True, "2026-11-18T10:00:30+00:00"),
    ],
)
def test_instants_are_read_as_people_write_them(text: str, zone: str, end: bool, expected: str) -> None:
    found = instants.instant(text, "--since", instants.zone(zone), end=end, now=NOW_S)
    assert datetime.fromtimestamp(found / 1000, UTC).isoformat() == expected


def test_a_time_without_a_zone_is_local_and_the_zone_is_said(
    holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        with listening(lambda method, path: gives([line(3)])) as server:
            told = holdfast("events", "--since", "2025-06-15T10:00", "--url", server.url)
            there = holdfast("events", "--zone", "America/New_York", "--url", server.url)
            query = parse_qs(urlsplit(server.asked[0][1]).query)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert int(query["since_ms"][0]) == 1_749_961_800_000
    assert told.err == "times are in IST, UTC+05:30\n"
    assert told.out.startswith("2025-06-15 20:36:40")
    assert there.err == "times are in EDT, UTC-04:00\n"
    assert there.out.startswith("2025-06-15 11:06:40")


def test_a_span_of_time_is_read_whole_page_by_page(holdfast: Holdfast) -> None:
    def answer(method: str, path: str) -> Answer:
        query = parse_qs(urlsplit(path).query)
        before = int(query.get("before", ["2501"])[0])
        count = int(query["limit"][0])
        return gives([line(seq) for seq in range(max(1, before - count), before)])

    with listening(answer) as server:
        found = holdfast("events", "--since", "2h", "--json", "--url", server.url).json
        few = holdfast("events", "--since", "2h", "--limit", "7", "--json", "--url", server.url).json
    assert [one["seq"] for one in found] == list(range(1, 2501))
    assert [one["seq"] for one in few] == list(range(2494, 2501))


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--since", "yesterday"), "--since: expected a duration such as 2h (ago), a date, or a date and"),
        (("--until", "2026-13-01"), "--until: expected a duration"),
        (("--since", "2h", "--until", "3h"), "--until 3h is not after --since 2h"),
        (("-f", "--until", "2h"), "what is followed has no end"),
        (("--zone", "Mars/Olympus"), "there is no zone called Mars/Olympus"),
    ],
)
def test_times_that_cannot_be_are_refused(holdfast: Holdfast, words: tuple[str, ...], error: str) -> None:
    told = holdfast("events", *words, "--url", "http://127.0.0.1:1")
    assert told.code == 2
    assert error in told.err
    assert len(told.err.splitlines()) == 2
