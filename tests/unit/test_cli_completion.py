"""What the shell offers when somebody presses the tab key."""

import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from holdfast.cli import completion
from holdfast.cli.main import app
from tests.cli_rig import Answer, gives, listening, node, problem
from tests.ports import free_port


def names(found: Callable[[typer.Context, str], list[str]], url: str, incomplete: str) -> list[str]:
    context = typer.Context(typer.main.get_command(app))
    context.params = {"url": url, "token": None}
    return found(context, incomplete)


def test_completion_knows_the_names_of_the_fleet() -> None:
    with listening(lambda method, path: gives([{"name": "std-a", "id": "web/0.1"}])) as server:
        assert names(completion.nodes, server.url, "s") == ["std-a"]
        assert names(completion.workloads, server.url, "x") == []
        assert names(completion.replicas, server.url, "web") == ["web/0.1"]
        assert names(completion.offers, server.url, "") == ["std-a"]


def test_completion_knows_what_can_be_deleted() -> None:
    def answer(method: str, path: str) -> Answer:
        return gives([{"name": "std" if "pools" in path else "web"}])

    def completed(url: str, *typed: str) -> list[str]:
        context = typer.Context(typer.main.get_command(app))
        context.params = {"url": url, "names": list(typed)}
        return completion.deleted(context, "")

    with listening(answer) as server:
        assert completed(server.url) == ["pool", "web"]
        assert completed(server.url, "web") == ["web"]
        assert completed(server.url, "pool") == ["std"]


@pytest.mark.parametrize(("deed", "path"), [("kill", "/v1/nodes"), ("sell-out", "/v1/pools")])
def test_completion_knows_what_a_deed_is_done_to(deed: str, path: str) -> None:
    with listening(lambda method, path: gives([{"name": "x"}])) as server:
        context = typer.Context(typer.main.get_command(app))
        context.params = {"url": server.url, "token": None, "deed": deed}
        assert completion.harmed(context, "") == ["x"]
        assert [asked[1] for asked in server.asked] == [path]


@pytest.mark.parametrize(
    "answer", [problem(401, "no"), (200, {}, b"{}"), (200, {}, b"[1]"), (200, {}, b"<html>"), (500, {}, b"")]
)
def test_completion_is_silent_about_everything_that_goes_wrong(
    answer: Answer, capfd: pytest.CaptureFixture[str]
) -> None:
    with listening(lambda method, path: answer) as server:
        assert names(completion.nodes, server.url, "") == []
    assert names(completion.nodes, f"http://127.0.0.1:{free_port()}", "") == []
    assert names(completion.nodes, "nonsense://", "") == []
    assert capfd.readouterr() == ("", "")


def test_completion_does_not_wait_for_a_server_that_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        begun = time.monotonic()
        assert names(completion.nodes, f"http://127.0.0.1:{silent.getsockname()[1]}", "") == []
        assert time.monotonic() - begun < 20


def test_workload_files_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").mkdir()
    for name in ("a.yaml", "b.yml", "c.toml", "examples/d.yaml"):
        (tmp_path / name).touch()
    assert completion.workload_files("") == ["a.yaml", "b.yml", "examples/d.yaml", "examples/"]


def test_zones_are_completed_by_their_last_part_or_their_path() -> None:
    answers: list[object] = [node("n1"), node("n2"), {"name": "strange"}]
    with listening(lambda method, path: gives(answers)) as server:
        assert names(completion.zones, server.url, "") == ["a", "local/r/a"]
        assert names(completion.zones, server.url, "lo") == ["local/r/a"]


def test_completion_knows_what_scales_and_by_which_signals() -> None:
    answers = [{"name": "web", "scale": {"signals": ["in_flight", "queue"]}}, {"name": "db", "scale": None}]
    with listening(lambda method, path: gives(answers)) as server:
        assert names(completion.scaling, server.url, "") == ["web"]
        context = typer.Context(typer.main.get_command(app))
        context.params = {"url": server.url, "token": None, "workload": "web", "said": ["queue=3"]}
        assert completion.signals(context, "") == ["in_flight="]
        assert completion.signals(context, "in_flight=1") == []
        context.params = {"url": server.url, "token": None, "workload": "db", "said": None}
        assert "tokens_per_s=" in completion.signals(context, "t")


def test_variables_that_may_be_passed_on_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRB5CCNAME", "x")
    monkeypatch.setenv("KRB5_TRACE", "x")
    monkeypatch.setenv("HOLDFAST_TOKEN", "x")
    assert completion.variables("KRB5") == ["KRB5CCNAME", "KRB5_TRACE"]
    assert completion.variables("HOLDFAST_") == []
