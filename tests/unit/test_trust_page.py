"""The trust model: each row of its table names who plays the attacker, and those tests are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "explanation" / "trust.md"
COLUMNS = ["who", "is trusted with", "what is defended, and how", "played by", "what is not defended"]
PARTIES = (
    "control plane",
    "leader",
    "database",
    "node",
    "agent",
    "shim",
    "replica",
    "gateway",
    "key holder",
    "client without a key",
    "token `read`",
    "token `operator`",
    "token with a project",
    "token `admin`",
    "token `gateway`, `signals`",
    "token `join`",
    "provider",
    "other local users",
    "network",
)
NAMED = re.compile(r"`(test_\w+)`")


def rows() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| **"):
            assert len(cells) == len(COLUMNS), line
            who = re.match(r"\*\*(.+?)\*\*", cells[0])
            assert who is not None
            found[who[1]] = cells
    return found


def names_of_tests() -> set[str]:
    files = (ROOT / "tests").rglob("test_*.py")
    texts = [file.read_text(encoding="utf-8") for file in files]
    return {
        name for text in texts for name in re.findall(r"^ *(?:async )?def (test_\w+)\(", text, re.MULTILINE)
    }


def test_everybody_who_takes_part_has_a_row() -> None:
    assert "| " + " | ".join(COLUMNS) + " |" in PAGE.read_text(encoding="utf-8")
    assert not set(PARTIES) - rows().keys()


@pytest.mark.parametrize("who", rows())
def test_each_row_says_what_is_not_defended_and_names_tests_that_there_are(who: str) -> None:
    _, trusted, defended, tests, not_defended = rows()[who]
    assert all((trusted, defended, not_defended))
    named = NAMED.findall(tests)
    assert named, "which test plays them?"
    assert not set(named) - names_of_tests()


FINDINGS = [
    f"{rank}{number}"
    for rank, last in zip("CHML", (3, 8, 16, 14), strict=True)
    for number in range(1, last + 1)
]


def test_each_finding_of_the_review_has_a_test_that_is_there() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    told = {row[0]: row[-1] for row in cells if row[0] in FINDINGS}
    assert list(told) == FINDINGS
    for finding, answer in told.items():
        assert answer.startswith(("fixed", "as it is:")), finding
        assert NAMED.findall(answer), finding
        assert not set(NAMED.findall(answer)) - names_of_tests(), finding
