"""Some thousands of made-up inputs for each reader of what strangers write: the same ones each time.

`make fuzz` tries others, for as long as it is let.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.seeds import SEEDS, WORDS, inputs
from tests.fuzz.targets import TARGETS, cut

ROOT = Path(__file__).resolve().parents[2]
RUNS = {"down": 1_500, "up": 1_500, "stream": 1_500, "body": 5_000}


def test_every_target_has_seeds_words_and_a_count() -> None:
    assert TARGETS.keys() == SEEDS.keys() == WORDS.keys() == RUNS.keys()


@pytest.mark.parametrize("name", TARGETS)
def test_what_a_fuzzer_begins_with_is_read_as_it_should_be(name: str) -> None:
    for each in inputs(name):
        TARGETS[name](each)


def test_a_cut_loses_nothing() -> None:
    for name in TARGETS:
        whole, *others = ("".join(map(chr, b"".join(cut(each)[0]))) for each in inputs(name)[:3])
        assert whole
        assert others == [whole, whole]


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_that_is_made_up_is_read_in_two_ways(name: str, tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="there is none for this machine")
    ran = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.drive", name, str(tmp_path), "-seed=1", f"-runs={RUNS[name]}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert ran.returncode == 0, ran.stdout[-3_000:] + ran.stderr[-5_000:]
    assert f"Done {RUNS[name]} runs" in ran.stderr
