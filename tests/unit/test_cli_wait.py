"""`holdfast wait`: what it waits for, and the exit codes that scripts go by."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import typer
from msgspec.structs import replace

from holdfast.api import shapes
from holdfast.cli import completion
from holdfast.cli.client import goals
from holdfast.cli.main import app
from tests.cli_rig import WEB, Answer, Holdfast, gives, listening, node, problem, replica, workload

STREAM = (200, {"Content-Type": "text/event-stream"}, b": what happens\n\n")


def seat(phase: str = "open", why: str = "") -> shapes.Seat:
    return shapes.Seat("count/0", "active", phase, "", "count/0.1", "", "pending", 0, None, why)


def failed_job(why: str) -> Any:
    seats = [seat("failed", why)]
    return workload("count", "job", failed=1, why=f"1 gave up ({why})", seats=seats)


def test_a_job_is_waited_for_until_it_is_done(holdfast: Holdfast) -> None:
    looks = itertools.count()

    def answer(method: str, path: str) -> Answer:
        if path.startswith("/v1/events"):
            return STREAM
        return gives(workload("count", "job", done=int(next(looks) > 3)))

    with listening(answer) as server:
        told = holdfast("wait", "count", "--timeout", "60s", "--url", server.url)
        assert (told.code, told.out) == (0, "count is done\n")
        as_json = holdfast("wait", "workload/count", "--json", "--url", server.url).json
        streams = [path for _, path, _, _ in server.asked if path.startswith("/v1/events")]
    assert as_json == [
        {"kind": "workload", "name": "count", "state": "done", "took_ms": as_json[0]["took_ms"]}
    ]
    assert streams[0] == "/v1/events?workload=count"


@pytest.mark.parametrize(
    ("why", "words", "code"),
    [
        ("exit code 7", (), 1),
        ("exit code 7", ("--exit-code",), 7),
        ("killed by signal 9", ("--exit-code",), 137),
        ("no such command: foo", ("--exit-code",), 1),
    ],
)
def test_a_job_that_failed_ends_the_wait_with_its_reason(
    holdfast: Holdfast, why: str, words: tuple[str, ...], code: int
) -> None:
    def answer(method: str, path: str) -> Answer:
        return STREAM if path.startswith("/v1/events") else gives(failed_job(why))

    with listening(answer) as server:
        told = holdfast("wait", "count", *words, "--url", server.url)
    assert told.code == code
    assert told.err == f"error: count has failed: 1 gave up ({why})\nhint: holdfast logs count\n"


def test_the_tasks_of_a_sweep_all_end_before_it_has_failed(holdfast: Holdfast) -> None:
    looks = itertools.count()

    def answer(method: str, path: str) -> Answer:
        if path.startswith("/v1/events"):
            return STREAM
        over = next(looks) > 2
        seats = [seat("failed", "exit code 3")]
        why = "1 gave up (exit code 3)"
        return gives(
            workload(
                "count",
                "sweep",
                wanted=3,
                ready=0 if over else 2,
                done=2 * over,
                failed=1,
                why=why,
                seats=seats,
            )
        )

    with listening(answer) as server:
        told = holdfast("wait", "count", "--exit-code", "--url", server.url)
    assert told.code == 3
    assert next(looks) > 3
    assert "count has failed: 1 gave up (exit code 3) (count/0)" in told.err


def test_the_end_of_the_time_has_a_code_of_its_own(holdfast: Holdfast) -> None:
    def answer(method: str, path: str) -> Answer:
        return STREAM if path.startswith("/v1/events") else gives(workload("count", "job", ready=1))

    with listening(answer) as server:
        told = holdfast("wait", "count", "--timeout", "300ms", "--url", server.url)
    assert told.code == 3
    assert "error: count: not done after 0.3 s: count: 1 running, 0 of 1 done" in told.err
    assert "hint: holdfast explain workload count" in told.err


def test_several_are_waited_for_and_what_is_deleted_meanwhile_is_told(holdfast: Holdfast) -> None:
    looks = itertools.count()

    def answer(method: str, path: str) -> Answer:
        if path.startswith("/v1/events"):
            return STREAM
        if path == "/v1/workloads/count":
            return gives(workload("count", "job", done=1))
        return gives(workload("other", "job")) if next(looks) < 3 else problem(404, "there is none")

    with listening(answer) as server:
        told = holdfast("wait", "count", "other", "--url", server.url)
    assert told.code == 1
    assert told.err.splitlines()[-1] == "error: other was deleted before it was done"


def test_a_service_is_ready_when_its_newest_version_stays_ready(holdfast: Holdfast) -> None:
    def answer(method: str, path: str) -> Answer:
        if path.startswith("/v1/events"):
            return STREAM
        return gives([replica()] if "replicas" in path else workload(ready=1))

    with listening(answer) as server:
        told = holdfast("wait", "web", "--url", server.url)
        wrong = holdfast("wait", "web", "--for", "done", "--url", server.url)
    assert (told.code, told.out) == (0, "web is ready\n")
    assert "watching that it stays so" in told.err
    assert (wrong.code, wrong.err) == (
        2,
        "error: web is a service: it is never done\nhint: holdfast wait web --for ready\n",
    )


def test_nodes_and_pools_can_be_waited_for(holdfast: Holdfast) -> None:
    def answer(method: str, path: str) -> Answer:
        match path:
            case "/v1/nodes/a":
                return gives(node("a", replicas=[]))
            case "/v1/nodes":
                return gives([node("a"), node("b", "dead")])
            case "/v1/pools":
                return gives([shapes.Pool("std", "local", 1, 3, 0, 2, "", [])])
            case path if path.startswith("/v1/events"):
                return STREAM
            case _:
                return problem(404, "there is none")

    with listening(answer) as server:
        assert holdfast("wait", "node/a", "--url", server.url).out == "a is ready\n"
        assert holdfast("wait", "node/a", "--for", "empty", "--url", server.url).out == "a is empty\n"
        assert holdfast("wait", "node/x", "--for", "gone", "--url", server.url).out == "x is gone\n"
        assert holdfast("wait", "pool/y", "--for", "gone", "--url", server.url).out == "y is gone\n"
        assert holdfast("wait", "x", "--for", "gone", "--url", server.url).out == "x is gone\n"
        never = holdfast("wait", "node/a", "--for", "done", "--url", server.url)
        unknown = holdfast("wait", "node/x", "--url", server.url)
        strange = holdfast("wait", "web/0", "--url", server.url)
    assert (never.code, never.err) == (2, "error: a node is never done\nhint: --for ready|empty|gone\n")
    assert (unknown.code, strange.code) == (2, 2)
    assert "error: expected workload, node, pool before the /, got web" in strange.err


def test_every_command_that_waits_shares_the_code_for_a_time_that_is_over(
    holdfast: Holdfast, tmp_path: Path
) -> None:
    with listening(lambda method, path: gives(node("a"))) as server:
        told = holdfast("drain", "a", "--wait", "--timeout", "100ms", "--url", server.url)
    assert told.code == 3


@pytest.mark.parametrize(
    ("why", "code"),
    [
        ("exit code 0", 0),
        ("exit code 134: a device fell off the bus", 134),
        ("signal 15", 143),
        ("lost", None),
    ],
)
def test_the_exit_code_is_read_from_the_words_of_an_end(why: str, code: int | None) -> None:
    assert goals.exit_code(why) == code


def test_completion_knows_what_can_be_waited_for() -> None:
    context = typer.Context(typer.main.get_command(app))
    with listening(lambda method, path: gives([{"name": path.removeprefix("/v1/")}])) as server:
        context.params = {"url": server.url}
        assert completion.waited(context, "") == ["workloads", "workload/", "node/", "pool/"]
        assert completion.waited(context, "node/") == ["node/nodes"]
        assert completion.waited(context, "pool/p") == ["pool/pools"]
        assert completion.waited(context, "planet/p") == []


@pytest.mark.parametrize("kind", ["job", "sweep"])
def test_apply_does_not_come_back_well_between_two_failures_of_a_job(
    holdfast: Holdfast, tmp_path: Path, kind: str
) -> None:
    """What the workload said and what its replicas said came from two moments: it ran in the one, and in the
    other nothing did, so nothing changed any more."""
    looks = 0
    seat = shapes.Seat("web/0", "active", "open", "", "web/0.1", "a", "pending", 3, None, "exit code 3")

    def answer(method: str, path: str) -> Answer:
        nonlocal looks
        if method == "POST":
            return gives([shapes.Applied("web", kind, "created", 1)])
        if path.startswith("/v1/replicas"):
            return gives([])
        looks += 1
        if looks > 4:
            failed = replace(seat, phase="failed")
            return gives(workload(kind=kind, failed=1, why="exit code 3", seats=[failed]))
        return gives(workload(kind=kind, ready=1, seats=[seat]))

    file = tmp_path / "web.yaml"
    file.write_text(WEB)
    with listening(answer) as server:
        told = holdfast("apply", file, "--wait", "--url", server.url)
    assert told.code == 1
    assert "web/0 has failed 3 times: exit code 3" in told.err
    assert "error: web has failed: exit code 3" in told.err


def test_apply_waits_for_the_end_of_a_job_and_not_for_its_first_seconds(
    holdfast: Holdfast, tmp_path: Path
) -> None:
    looks = 0

    def answer(method: str, path: str) -> Answer:
        nonlocal looks
        if method == "POST":
            return gives([shapes.Applied("web", "job", "created", 1)])
        looks += 1
        return gives(workload(kind="job", ready=1) if looks < 20 else workload(kind="job", done=1))

    file = tmp_path / "web.yaml"
    file.write_text(WEB)
    with listening(answer) as server:
        short = holdfast("apply", file, "--wait", "--timeout", "300ms", "--url", server.url)
        told = holdfast("apply", file, "--wait", "--url", server.url)
    assert (short.code, "error: web is not done after 0.3 s" in short.err) == (3, True)
    assert (told.code, looks >= 20) == (0, True)


def test_apply_does_not_wait_for_the_end_of_a_job_that_is_paused(holdfast: Holdfast, tmp_path: Path) -> None:
    def answer(method: str, path: str) -> Answer:
        if method == "POST":
            return gives([shapes.Applied("web", "job", "created", 1)])
        if path.startswith("/v1/replicas"):
            return gives([])
        return gives(workload(kind="job", paused=True))

    file = tmp_path / "web.yaml"
    file.write_text(WEB)
    with listening(answer) as server:
        assert holdfast("apply", file, "--wait", "--url", server.url).code == 0


def test_a_job_that_ran_for_a_moment_may_still_fail() -> None:
    seat = shapes.Seat("web/0", "active", "open", "", "web/0.1", "a", "pending", 1, None, "exit code 3")
    calm, failed = workload(kind="job", ready=1), workload(kind="job", ready=1, seats=[seat])
    service = workload(ready=1)
    patience = [goals._patience(each) for each in (service, calm, failed)]
    assert patience == sorted(patience)
    assert patience[2] >= 10 * patience[1]


def test_while_one_waits_only_changes_are_told_and_not_that_time_goes_by(
    holdfast: Holdfast, tmp_path: Path
) -> None:
    """190 lines, each with another number of seconds."""
    looks = 0

    def answer(method: str, path: str) -> Answer:
        nonlocal looks
        if method == "POST":
            return gives([shapes.Applied("web", "service", "created", 1)])
        if path.startswith("/v1/replicas"):
            return gives([replica()] if looks > 20 else [])
        looks += 1
        why = f"no room: 1 of 3 nodes is {'dead' if looks > 10 else 'full'} for {looks / 5:.1f} s, {looks} ms"
        return gives(workload(ready=int(looks > 20), why="" if looks > 20 else why))

    with listening(answer) as server:
        file = tmp_path / "web.yaml"
        file.write_text(WEB)
        told = holdfast("apply", file, "--wait", "--url", server.url)
    assert told.code == 0
    lines = told.err.splitlines()
    assert len([line for line in lines if "no room" in line]) == 2
    assert len(lines) <= 4


def test_a_training_that_ended_with_fewer_members_than_it_could_have_had_is_done(holdfast: Holdfast) -> None:
    looks = itertools.count()

    def answer(method: str, path: str) -> Answer:
        if path.startswith("/v1/events"):
            return STREAM
        runs = "count/1.1" if next(looks) < 3 else ""
        seats = [seat("done"), replace(seat("done" if not runs else "open"), replica=runs)]
        return gives(workload("count", "training", wanted=4, done=1 if runs else 2, seats=seats))

    with listening(answer) as server:
        told = holdfast("wait", "count", "--timeout", "60s", "--url", server.url)
    assert (told.code, told.out) == (0, "count is done\n")
    assert next(looks) > 3
