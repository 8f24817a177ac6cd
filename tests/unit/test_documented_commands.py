"""What the front pages tell a reader to type exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [page for page in ("README.md", "CONTRIBUTING.md") if (ROOT / page).exists()]

CODE = re.compile(r"^```.*?\n(.*?)^```|`([^`\n]+)`", re.MULTILINE | re.DOTALL)
MAKE = re.compile(r"(?:^|&&|;|\$ )\s*make +([a-z][a-z-]*)", re.MULTILINE)
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
