"""What the front pages tell a reader to type exists."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from holdfast.cli import reference as cli_reference
from holdfast.cli.main import app
from holdfast.files.gateway import gateway_reference
from holdfast.files.provider_profiles import profiles_reference
from holdfast.files.scenario import scenario_reference as file_reference
from holdfast.files.workload import workload_reference

ROOT = Path(__file__).resolve().parents[2]
PAGES = [page for page in ("README.md", "CONTRIBUTING.md") if (ROOT / page).exists()]

CODE = re.compile(r"^```.*?\n(.*?)^```|`([^`\n]+)`", re.MULTILINE | re.DOTALL)
MAKE = re.compile(r"(?:^|&&|;|\$ )\s*make +([a-z][a-z-]*)", re.MULTILINE)
HOLDFAST = re.compile(r"(?:^|&&|;|\||\$ )\s*(?:[\w./]*/)?holdfast((?: +[a-z][a-z-]*)*)(?= |$)", re.MULTILINE)
DOCS = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if page.exists()]
TARGET = re.compile(r"^([a-z][a-z-]*):(?!=)", re.MULTILINE)


def code_in(text: str) -> str:
    """Fenced blocks and inline spans; prose may say 'make sure' without promising a target."""
    return "\n".join(fenced or inline for fenced, inline in CODE.findall(text))


def make_targets() -> set[str]:
    return set(TARGET.findall((ROOT / "Makefile").read_text(encoding="utf-8")))


@pytest.mark.parametrize("page", PAGES)
def test_every_make_command_on_a_front_page_is_a_target(page: str) -> None:
    named = set(MAKE.findall(code_in((ROOT / page).read_text(encoding="utf-8"))))
    assert named, f"{page} names no make target: is it still read rightly?"
    assert named - make_targets() == set()


def test_every_target_has_a_line_of_help() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    documented = set(re.findall(r"^([a-z][a-z-]*):.*## \S", makefile, re.MULTILINE))
    assert make_targets() == documented


def test_commands_are_read_from_code_and_not_from_prose() -> None:
    text = "To make sure, run `make check`.\n```sh\ncd x && make venv\n$ make test ARGS=1\n```\n"
    assert MAKE.findall(code_in(text)) == ["check", "venv", "test"]


def unknown_words(words: list[str]) -> list[str]:
    """What is left of `sim run x` when the commands that exist have been followed; arguments are allowed."""
    command: object = typer.main.get_command(app)
    for number, word in enumerate(words):
        inner = getattr(command, "commands", None)
        if inner is None:
            return []
        if word not in inner:
            return words[number:]
        command = inner[word]
    return []


@pytest.mark.parametrize("page", DOCS, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_holdfast_command_in_the_docs_exists(page: Path) -> None:
    named = HOLDFAST.findall(code_in(page.read_text(encoding="utf-8")))
    assert [words for words in named if unknown_words(words.split())] == []


def test_a_command_that_does_not_exist_is_noticed() -> None:
    lines = ["holdfast sim run x.toml | head", "$ holdfast sim fly --fast", "cd a && holdfast sim what-if f"]
    text = "\n".join(["```sh", *lines, "```", ""])
    named = [words.split() for words in HOLDFAST.findall(code_in(text + "`holdfast swim`, holdfast is"))]
    assert named == [["sim", "run"], ["sim", "fly"], ["sim", "what-if", "f"], ["swim"]]
    assert [unknown_words(words) for words in named] == [[], ["fly"], [], ["swim"]]


@pytest.mark.parametrize(
    ("page", "made"),
    [
        ("scenario-file.md", file_reference.page),
        ("workload-file.md", workload_reference.page),
        ("gateway-file.md", gateway_reference.page),
        ("provider-profiles.md", profiles_reference.page),
        ("cli.md", cli_reference.page),
    ],
)
def test_the_reference_is_what_the_code_says(page: str, made: Callable[[], str]) -> None:
    """Make it anew with `python -m holdfast.files.scenario.scenario_reference` or whichever module made
    it."""
    assert (ROOT / "docs" / "reference" / page).read_text(encoding="utf-8") == made()


def test_the_reference_names_every_variable_and_who_takes_no_json() -> None:
    commands = dict(cli_reference.commands())
    silent = [name for name, it in commands.items() if "json" not in {one.name for one in it.params}]
    assert silent == ["holdfast agent"]
    read = {one.envvar for it in commands.values() for one in it.params if one.envvar}
    sources = (ROOT / "src" / "holdfast" / "cli").rglob("*.py")
    read |= {name for file in sources for name in re.findall(r"HOLDFAST_[A-Z_]+[A-Z]", _no_story(file))}
    assert read == {name for name in cli_reference.VARIABLES if name.startswith("HOLDFAST")}


def _no_story(file: Path) -> str:
    """The programs of the demo have variables of their own."""
    return "" if file.name in ("demo.py", "reference.py") else file.read_text(encoding="utf-8")


def test_every_field_of_the_reference_says_what_it_is_for_or_has_a_telling_name() -> None:
    rows = [line for line in file_reference.page().splitlines() if line.startswith("| `")]
    assert len(rows) > 100
    assert not [row for row in rows if row.split(" | ")[2].strip() == ""]


LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")
MARKDOWN = sorted(
    page for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").rglob("*.md"))
)


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_figures_of_the_demo_on_the_front_page_are_those_of_its_lines() -> None:
    """Lines and summary count from the fault."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    chapters = re.findall(r"^\d\. (?:Kill|Hang)\..*?ready again after [\d.]+ s", page, re.M | re.S)
    assert len(chapters) == 2
    for chapter in chapters:
        dead, ready = re.findall(r"after ([\d.]+) s", chapter)
        times = {what: at for at, what in re.findall(r"^ +([\d.]+) s +\S+ +(dead|ready)", chapter, re.M)}
        assert times == {"dead": dead, "ready": ready}


def test_the_story_on_the_front_page_is_the_one_that_is_told() -> None:
    """All of it from the fault on."""
    story = (ROOT / "scenarios" / "one-node-dies.out").read_text(encoding="utf-8")
    fault = next(line for line in story.splitlines(keepends=True) if "loses power" in line)
    assert story[story.index(fault) :] in (ROOT / "README.md").read_text(encoding="utf-8")
