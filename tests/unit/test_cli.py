"""The command line as a user meets it: what it prints, how it exits, and that it never shows a traceback."""

import functools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from holdfast import __version__
from holdfast.cli import completion
from holdfast.cli.commands.sim import sweep as sim_sweep
from holdfast.cli.main import app
from holdfast.cli.render import plot, progress
from holdfast.sim.random import sweep
from tests.cli_rig import Holdfast, called

ROOT = Path(__file__).resolve().parents[2]
STORY = ROOT / "scenarios" / "one-node-dies.toml"
SHORT = 'title = "Short"\nlasts = "2m"\nsettle = "10s"\n[[pools]]\nname = "std"\nnodes = 3\nprice = 1\n'
SHORT += '[[workloads]]\nname = "web"\nreplicas = 2\n'
GONE = SHORT + '[[workloads]]\nname = "once"\nkind = "job"\nprogram = { run = "10s" }\n'


@pytest.fixture
def holdfast(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Holdfast:
    """Where the tests are run, for the files of this repository."""
    return functools.partial(called, capsys, monkeypatch)


@pytest.fixture
def short(tmp_path: Path) -> Path:
    file = tmp_path / "short.toml"
    file.write_text(SHORT)
    return file


def test_help_and_version_are_answers_and_not_errors(holdfast: Holdfast) -> None:
    assert holdfast("--version").out == f"holdfast {__version__}\n"
    for words in ((), ("--help",), ("sim",), ("sim", "run", "--help")):
        told = holdfast(*words)
        assert told.code == 0
        assert "Usage: holdfast" in told.out


@pytest.mark.parametrize("words", [(), ("apply",), ("keys",), ("keys", "create"), ("sim", "run"), ("up",)])
def test_help_may_be_asked_for_in_short(holdfast: Holdfast, words: tuple[str, ...]) -> None:
    short, long = holdfast(*words, "-h"), holdfast(*words, "--help")
    assert (short.code, short.out) == (0, long.out)


def test_no_help_shows_an_empty_default(holdfast: Holdfast) -> None:
    from holdfast.cli.reference import commands

    for name, _ in commands():
        told = holdfast(*name.split()[1:], "--help")
        assert told.code == 0
        assert "()" not in told.out, name


def test_the_list_of_commands_fits_a_terminal_and_no_summary_is_cut(
    holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for words in (("--help",), ("sim", "--help"), ("token", "--help")):
        commands = holdfast(*words).out.partition("Commands:\n")[2].splitlines()
        assert commands
        assert [text for text in commands if len(text) > 80 or "..." in text or text.startswith("    ")] == []


def test_help_loads_nothing_heavy() -> None:
    code = "import sys, holdfast.cli.main; print({'numpy', 'pydantic', 'msgspec'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_run_tells_its_story_and_then_what_it_came_to(holdfast: Holdfast) -> None:
    told = holdfast("sim", "run", STORY)
    assert told.code == 0
    assert "std-a            loses power" in told.out
    assert told.out.rstrip().endswith("liveness  met")
    assert holdfast("sim", "run", STORY, "--quiet").out.startswith("---\n")


def test_the_same_seed_tells_the_same_story_and_another_another(holdfast: Holdfast) -> None:
    first = holdfast("sim", "run", STORY).out
    assert holdfast("sim", "run", STORY, "--seed", "1").out == first
    assert holdfast("sim", "run", STORY, "--seed", "2").out != first


def test_a_run_as_json_is_one_object_on_the_last_line(holdfast: Holdfast) -> None:
    told = holdfast("sim", "run", STORY, "--json")
    result = json.loads(told.out.splitlines()[-1])
    assert (result["scenario"], result["fine"], result["nodes_lost"]) == ("one-node-dies", True, 1)
    assert any("loses power" in line for line in result["story"])


def test_a_run_that_does_not_end_well_exits_with_1(holdfast: Holdfast, tmp_path: Path) -> None:
    file = tmp_path / "lost.toml"
    file.write_text(SHORT + '[[faults]]\nat = "30s"\nfault = "control crash"\n')
    told = holdfast("sim", "run", file)
    assert told.code == 1
    assert "NOT MET" in told.out


def test_a_policy_file_replaces_the_numbers_of_the_story(
    holdfast: Holdfast, short: Path, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('[leases]\nlease = "20s"\n')
    assert holdfast("sim", "run", short, "--policy", policy).code == 0
    policy.write_text('[leases]\nleese = "20s"\n')
    told = holdfast("sim", "run", short, "--policy", policy)
    assert told.code == 2
    assert "leases.leese: expected a known field" in told.err


def test_bad_input_is_told_line_by_line_with_a_hint(holdfast: Holdfast, short: Path) -> None:
    short.write_text(SHORT + "replcas = 3\ncpus = 0\n")
    told = holdfast("sim", "run", short)
    assert told.code == 2
    assert told.out == ""
    first, second, hint = told.err.splitlines()
    assert first.startswith(f"error: {short}: workloads[0].cpus: expected a number of CPUs above 0")
    assert second.endswith("Did you mean: replicas")
    assert hint.startswith("hint: ")


def test_bad_input_as_json_lists_the_problems(holdfast: Holdfast, short: Path) -> None:
    short.write_text(SHORT + "cpus = 0\n")
    told = holdfast("sim", "what-if", short, "--json")
    (problem,) = json.loads(told.out)["problems"]
    assert told.code == 2
    assert problem["path"] == "workloads[0].cpus"
    assert set(problem) == {"path", "expected", "suggestion"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("fly",), "No such command 'fly'"),
        (("sim", "run"), "Missing argument 'FILE'"),
        (("sim", "run", "--fast"), "No such option"),
        (("sim", "run", "x.toml", "--seed", "-1"), "--seed"),
        (("sim", "run", "no-such.toml"), "no-such.toml: expected a file, got nothing"),
        (("sim", "sweep", "--seeds", "0"), "--seeds"),
        (("sim", "sweep", "--hours", "nan"), "--hours"),
        (("sim", "sweep", "--nodes", "20..3"), "--nodes"),
        (("sim", "sweep", "--nodes", "2.5"), "expected a number from 1 to 20,000, or two such as 3..200"),
        (("sim", "list", "--dir", "no-such-folder"), "no-such-folder: expected a folder"),
        (("sim", "run", STORY, "--picture", "x.gif"), "x.gif: expected a picture that ends in .svg or .png"),
        (("sim", "run", STORY, "--picture", "no-such-folder/x.svg"), "expected a folder that exists"),
    ],
)
def test_misuse_is_one_error_and_one_hint(
    holdfast: Holdfast, words: tuple[str | Path, ...], said: str
) -> None:
    told = holdfast(*words)
    error, hint = told.err.splitlines()
    assert told.code == 2
    assert error.startswith("error: ")
    assert said in error
    assert hint.startswith("hint: ")


def test_what_if_says_what_to_expect_in_a_table_and_a_sentence(holdfast: Holdfast, short: Path) -> None:
    told = holdfast("sim", "what-if", short, "--seeds", "2", "--jobs", "1")
    assert told.code == 0
    assert told.out.splitlines()[0].split()[:3] == ["workload", "kind", "available"]
    assert "In 2 runs of 2.0 min, web was up 100 % on average and 100 % at worst" in told.out


def test_what_if_counts_what_is_done_and_gives_json(holdfast: Holdfast, short: Path) -> None:
    short.write_text(GONE)
    told = json.loads(holdfast("sim", "what-if", short, "--seeds", "2", "--jobs", "1", "--json").out)
    web, once = told["workloads"]
    assert (told["seeds"], told["failed_seeds"]) == (2, [])
    assert (web["availability_worst"], once["done_mean"], once["slots"]) == (1.0, 1.0, 1)
    assert told["cost_usd_mean"] > 0


def test_a_small_sweep_ends_well_and_gives_json(holdfast: Holdfast) -> None:
    told = holdfast("sim", "sweep", "--seeds", "1", "--nodes", "5", "--hours", "0.2", "--jobs", "1", "--json")
    result = json.loads(told.out.splitlines()[-1])
    assert told.err == ""
    assert result["seeds"] == 1
    assert told.code == (0 if result["fine"] else 1)


def test_who_pipes_is_told_now_and_then_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    waits, done = iter([False, False, True]), iter([3, 7])
    progress.lines(lambda: next(done), 20, "stories", lambda _: next(waits), began=time.monotonic() - 10)
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "3 of 20 stories after 10 s\n7 of 20 stories after 10 s\n"


def test_a_command_that_takes_long_says_so_on_stderr_alone(
    holdfast: Holdfast, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = holdfast("sim", "run", short).out
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.001)
    told = holdfast("sim", "run", short)
    assert told.out == quiet
    assert "of 0.03333 hours after" in told.err
    for words in (
        ("sim", "sweep", "--seeds", "1", "--nodes", "5", "--hours", "0.2"),
        ("sim", "what-if", short),
    ):
        told = holdfast(*words, "--jobs", "1", "--json")
        json.loads(told.out)
        assert " after " in told.err


def test_a_failing_sweep_says_how_to_see_it_again() -> None:
    fine = sweep.sweep(seeds=1, nodes=3, hours=0.1, jobs=1)
    failures = (sweep.Failure(7, ("web/0 runs twice",), "a story\n", 5, 2.0),)
    result = msgspec.structs.replace(fine, violations=1, failures=failures)
    told = sim_sweep.tell(result)
    assert "seed 7 failed:\n  web/0 runs twice\n" in told
    assert "again: holdfast sim sweep --seeds 1 --first-seed 7 --nodes 5 --hours 2" in told
    assert told.endswith("a story")


def test_the_list_shows_titles_and_survives_a_broken_file(holdfast: Holdfast, short: Path) -> None:
    (short.parent / "broken.toml").write_text("[")
    told = holdfast("sim", "list", "--dir", short.parent)
    assert told.code == 0
    broken, good = told.out.splitlines()
    assert "(cannot be read: expected TOML" in broken
    assert good.endswith("Short")
    rows = json.loads(holdfast("sim", "list", "--dir", short.parent, "--json").out)
    assert rows[1] == {"file": str(short), "title": "Short"}


def test_a_picture_of_the_same_run_has_the_same_bytes(
    holdfast: Holdfast, short: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    first, second, png = tmp_path / "a.svg", tmp_path / "b.svg", tmp_path / "c.png"
    for out in (first, second, png):
        assert holdfast("sim", "run", short, "--quiet", "--picture", out).code == 0
    assert first.read_bytes() == second.read_bytes()
    assert b"<dc:date>" not in first.read_bytes()
    assert png.read_bytes().startswith(b"\x89PNG")


def test_a_picture_without_matplotlib_says_what_to_install(
    holdfast: Holdfast, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    told = holdfast("sim", "run", short, "--picture", "x.svg")
    assert told.code == 2
    assert "hint: pip install 'holdfast[plot]'" in told.err


def test_an_interrupt_ends_quietly_with_130(
    holdfast: Holdfast, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(out: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(plot, "ready", interrupt)
    told = holdfast("sim", "run", short, "--picture", "x.svg")
    assert (told.code, told.out, told.err) == (130, "", "")


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "holdfast.cli.main", "sim", "run", str(STORY)]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert done.stderr == ""


def test_scenario_files_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scenarios").mkdir()
    for name in ("pyproject.toml", "mine.toml", "scenarios/one.toml", "scenarios/two.toml"):
        (tmp_path / name).write_text("")
    assert completion.scenario_files("") == [
        "mine.toml",
        "scenarios/one.toml",
        "scenarios/two.toml",
        "scenarios/",
    ]
    assert completion.scenario_files("scenarios/t") == ["scenarios/two.toml"]


def test_completion_can_still_be_installed() -> None:
    assert "--install-completion" in CliRunner().invoke(app, ["--help"]).output
