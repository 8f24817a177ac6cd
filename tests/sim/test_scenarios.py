"""The stories end as their transcripts say, and what each was written to show is so.

A transcript that changes shows what a change of the code means to a user: read it, and if it is better, write
the new ones with `make golden`.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.files import scenario as files
from holdfast.sim.result import Result, tell
from holdfast.sim.run import Simulation

ROOT = Path(__file__).resolve().parents[2]
STORIES = sorted((ROOT / "scenarios").glob("*.toml"))


class Told:
    """A story that has been run."""

    def __init__(self, result: Result, text: str) -> None:
        self.result, self.text = result, text
        self.lines = text.splitlines()

    def has(self, *words: str) -> bool:
        """Is there a line with all of these?"""
        return any(all(word in line for word in words) for line in self.lines)

    def at(self, *words: str) -> float:
        """When the first line with all of these was told."""
        return next(
            float(line.split("s", 1)[0]) for line in self.lines if all(word in line for word in words)
        )


def run(path: Path) -> Told:
    sim = Simulation(files.read(path))
    result = sim.run()
    assert sim.story is not None
    return Told(result, sim.story.text() + tell(result))


@pytest.fixture(scope="module")
def stories() -> dict[str, Told]:
    return {}


def story(stories: dict[str, Told], name: str) -> Told:
    if name not in stories:
        stories[name] = run(ROOT / "scenarios" / f"{name}.toml")
    return stories[name]


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_the_story_is_told_as_before(path: Path, stories: dict[str, Told]) -> None:
    told = story(stories, path.stem)
    assert told.text == path.with_suffix(".out").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_the_story_ends_well(path: Path, stories: dict[str, Told]) -> None:
    result = story(stories, path.stem).result
    assert (result.violations, result.unmet, result.false_failovers) == ((), (), 0)
    assert result.settled, "it ends too soon to say whether all is well"


def test_no_transcript_is_without_its_story() -> None:
    found = {path.stem for path in (ROOT / "scenarios").glob("*.out")}
    assert found == {path.stem for path in STORIES}


CLAIMS: dict[str, Callable[[Told], bool]] = {
    # what has been down is up again, elsewhere
    "one-node-dies": lambda told: told.at("ready on std-d") - told.at("loses power") < 6,
    "a-rack-dies": lambda told: told.result.nodes_lost == 4,
    # nobody healthy is killed, nothing is failed over
    "cut-off-from-forty-percent": lambda told: told.result.nodes_lost == 0 and not told.has("TerminateNode"),
    "twenty-five-timeouts": lambda told: told.result.nodes_lost == 0 and not told.has(".2 ", "PlaceReplica"),
    "control-loop-stands-still": lambda told: told.result.nodes_lost == 0,
    "majority-falls-silent": lambda told: told.has("doubt ourselves first"),
    "clocks-jump": lambda told: told.result.nodes_lost == 0,
    "one-way-link": lambda told: told.result.nodes_lost == 0,
    "agent-restart": lambda told: told.has("std-a", "unreachable") and not told.has(".2 ", "PlaceReplica"),
    # a node that is ill is found out and taken away, and a program that is ill is not blamed on its node
    "flapping-node": lambda told: told.has("std-a", "ResetNode") and told.has("std-a", "TerminateNode"),
    "gray-node": lambda told: told.has("std-a", "ResetNode") and told.result.nodes_lost == 0,
    "crash-loop": lambda told: told.has("broken/0", "GiveUpSlot") and not told.has("std-", "ResetNode"),
    # work leaves before the node does
    "spot-notice": lambda told: told.at("web/0.2", "ready") <= told.at("web/0.1", "StopReplica"),
    "drain-and-rolling-update": lambda told: told.has("service", "available 100 %"),
    # never two at once
    "exclusive-job-across-a-partition": lambda told: (
        told.at("ledger/0.2", "PlaceReplica") - told.at("cut") >= 30 and told.has("ledger/0.1", "fenced")
    ),
    # nothing is ordered twice, and nothing is forgotten
    "provider-answers-with-an-error": lambda told: (
        sum("LaunchNode" in line for line in told.lines) == 1 and told.has("std-1", "joined")
    ),
    "leader-changes-in-mid-failover": lambda told: (
        told.at("web/0.2", "PlaceReplica") < told.at("cp-2", "leads") < told.at("web/0", "ready on std-e")
    ),
    "out-of-stock": lambda told: told.has("CapacityShort"),
    # gangs
    "gang-with-a-standby": lambda told: told.has("PromoteStandby") and told.has("4 of 4 done"),
    "gang-without-a-standby": lambda told: told.has("goes on with 3 of 4") and told.has("grows to 4"),
    # order
    "priorities-and-preemption": lambda told: told.has("StopReplica", "has priority"),
    "thundering-return": lambda told: told.has("service", "web") and told.result.nodes_lost == 4,
    "a-pipeline": lambda told: told.has("done on"),
}


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_what_it_was_written_to_show_is_so(path: Path, stories: dict[str, Told]) -> None:
    assert CLAIMS[path.stem](story(stories, path.stem))
