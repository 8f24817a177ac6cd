"""The stories end as their transcripts say, and what each was written to show is so.

A transcript that changes shows what a change of the code means to a user: read it, and if it is better, write
the new ones with `make golden`.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.core.replay import Replay
from holdfast.core.turn import Entry
from holdfast.files.scenario import scenario_file as files
from holdfast.model.world import World
from holdfast.sim.random import random_requests, scenarios
from holdfast.sim.result import Result, tell
from holdfast.sim.run import Simulation
from holdfast.sim.traffic.counts import Asked
from holdfast.sim.traffic.fluid_gateway import Served

ROOT = Path(__file__).resolve().parents[2]
STORIES = sorted((ROOT / "scenarios").glob("*.toml"))


class Told:
    """A story that has been run."""

    def __init__(self, path: Path, result: Result, text: str, entries: list[Entry]) -> None:
        self.path, self.result, self.text = path, result, text
        self.entries = entries  # its journal
        self.lines = text.splitlines()

    def has(self, *words: str) -> bool:
        """Is there a line with all of these?"""
        return any(all(word in line for word in words) for line in self.lines)

    def at(self, *words: str) -> float:
        """When the first line with all of these was told."""
        return next(
            float(line.split("s", 1)[0]) for line in self.lines if all(word in line for word in words)
        )

    def between(self, start: float, end: float, *words: str) -> int:
        """How many lines with all of these were told from one second to another."""
        timed = [line for line in self.lines[: self.lines.index("---")] if all(w in line for w in words)]
        return sum(start <= float(line.split("s", 1)[0]) < end for line in timed)

    @property
    def served(self) -> Served:
        """Of the service that scales."""
        return next(w.served for w in self.result.workloads if w.served is not None)

    @property
    def asked(self) -> Asked:
        """Of the service that answers with tokens."""
        return next(w.asked for w in self.result.workloads if w.asked is not None)


def run(path: Path) -> Told:
    sim = Simulation(files.read(path))
    result = sim.run()
    assert sim.story is not None
    return Told(path, result, sim.story.text() + tell(result), sim.store.entries)


@pytest.fixture(scope="module", params=STORIES, ids=lambda path: path.stem)
def told(request: pytest.FixtureRequest) -> Told:
    """One story for all that is asked of it: the tests of a story follow one another, on one worker."""
    return run(request.param)


def test_the_story_is_told_as_before(told: Told) -> None:
    assert told.text == told.path.with_suffix(".out").read_text(encoding="utf-8")


def test_the_same_would_be_decided_again(told: Told) -> None:
    replay = Replay(World())
    assert [found for entry in told.entries if (found := replay.feed(entry))] == []
    assert replay.actions > 0


@pytest.mark.parametrize("seed", [50123, 50349])
def test_looks_that_found_nothing_are_decided_the_same_again(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a look had passed over was found by the replay of a later look, which was at something else."""
    monkeypatch.setattr(random_requests, "SHARE", 1.0)
    sim = Simulation(scenarios.draw(seed, 8, 0.5), history=False)
    sim.run()
    replay = Replay(World())
    assert [found for entry in sim.store.entries if (found := replay.feed(entry))] == []


def test_the_story_ends_well(told: Told) -> None:
    result = told.result
    assert (result.violations, result.unmet, result.false_failovers) == ((), (), 0)
    assert result.settled, "it ends too soon to say whether all is well"


def test_no_transcript_is_without_its_story() -> None:
    found = {path.stem for path in (ROOT / "scenarios").glob("*.out")}
    assert found == {path.stem for path in STORIES}


CLAIMS: dict[str, Callable[[Told], bool]] = {
    # what is restarted runs again: a service without a gap, exclusive work after it was stopped
    "started-anew": lambda told: (
        told.has("web", "never down") and told.has("gang/0.2", "ready") and told.has("count/0.2", "done")
    ),
    # a project at its quota is repaired, gets no more, and takes nothing from another
    "a-project-at-its-quota": lambda told: (
        told.has("web/0.2", "ready")
        and not told.has("web/4.1", "ready")
        and not told.has("action", "StopReplica")
    ),
    # what has been down is up again, elsewhere
    "one-node-dies": lambda told: told.at("ready on std-d") - told.at("loses power") < 6,
    "a-rack-dies": lambda told: told.result.nodes_lost == 4,
    # the brake narrows to the dead of a burst: they are kept, whoever dies later is replaced
    "dead-at-once-and-listed": lambda told: (
        told.has("fleet", "NarrowBrake")
        and told.has("action", "std-e", "TerminateNode")
        and not any(told.has("action", name, "TerminateNode") for name in ("std-a", "std-b", "std-d"))
    ),
    # and however long a cut is, nobody behind it is harmed
    "a-long-cut": lambda told: (
        told.at("fleet", "NarrowBrake") < told.at("action", "std-b", "TerminateNode") < told.at("is mended")
        and not any(told.has(f" std-{letter} ", "TerminateNode:", "action") for letter in "adeg")
    ),
    "a-long-cut-that-peers-see-through": lambda told: (
        not told.has("NarrowBrake")
        and told.at("ReleaseBrake") > told.at("is mended")
        and told.has("std-e", "dead")
        and not any(told.has(f" std-{letter} ", "TerminateNode:", "action") for letter in "adeg")
    ),
    # nobody healthy is killed, nothing is failed over
    "cut-off-from-forty-percent": lambda told: told.result.nodes_lost == 0 and not told.has("TerminateNode"),
    "twenty-five-timeouts": lambda told: told.result.nodes_lost == 0 and not told.has(".2 ", "PlaceReplica"),
    "control-loop-stands-still": lambda told: told.result.nodes_lost == 0,
    "majority-falls-silent": lambda told: told.has("doubt ourselves first"),
    "clocks-jump": lambda told: told.result.nodes_lost == 0,
    "well-again-behind-a-cut": lambda told: (
        told.has("std-a", "dead") and told.has("given up") and not told.has("TerminateNode")
    ),
    "one-way-link": lambda told: told.result.nodes_lost == 0,
    "agent-restart": lambda told: told.has("std-a", "unreachable") and not told.has(".2 ", "PlaceReplica"),
    # a node that is ill is found out and taken away, and a program that is ill is not blamed on its node
    "flapping-node": lambda told: told.has("std-a", "ResetNode") and told.has("std-a", "TerminateNode"),
    "gray-node": lambda told: told.has("std-a", "ResetNode") and told.result.nodes_lost == 0,
    # a program that fails everywhere is no node's fault; a node that fails everything is found beside it
    "flaky-sweep": lambda told: not told.has("RaiseFinding") and told.result.nodes_lost == 0,
    "broken-node": lambda told: (
        told.at("local-a", "QuarantineNode") - told.at("turns gray") < 30
        and not any(told.has(node, "RaiseFinding") for node in ("local-b", "local-c"))
        and told.has("local-a", "UncordonNode")
    ),
    "crash-loop": lambda told: told.has("broken/0", "GiveUpSlot") and not told.has("std-", "ResetNode"),
    # work leaves before the node does
    "spot-notice": lambda told: told.at("web/0.2", "ready") <= told.at("web/0.1", "StopReplica"),
    "drain-and-rolling-update": lambda told: told.has("service", "available 100 %"),
    "the-evening": lambda told: (
        sum("TerminateNode" in line for line in told.lines) == 3 and told.has("api", "available 100 %")
    ),
    # a key that works for nobody is held back, one that has much to do is not, and what is restored serves
    "a-key-in-a-loop": lambda told: (
        told.has("key:forgotten", "held back")
        and not told.has("key:nightly", "held back")
        and told.at("0.01 requests_per_s") > told.at("key:forgotten", "is held back")
        and not told.between(told.at("0.01 requests_per_s"), 21_600, "key:forgotten", "held back")
    ),
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
    "burst-from-a-queue": lambda told: (
        told.at("rented-2", "LaunchNode", "in its queue")
        < told.at("web/1.1", "PlaceReplica on rented-2")
        <= told.at("batch-1", "TerminateNode", "was ready first")
        and sum("LaunchNode" in line for line in told.lines) == 2
    ),
    "out-of-stock": lambda told: told.has("CapacityShort"),
    "provider-answers-late": lambda told: (
        sum("LaunchNode" in line for line in told.lines) == 1
        and told.at("OutcomeUnknown") < told.at("std-1", "joined")
    ),
    "credentials-expire": lambda told: (
        told.at("Denied") < told.at("std-a", "provider confirms") and told.has("std-6", "joined")
    ),
    # spot
    "spot-market": lambda told: (
        told.has("service", "available 100 %") and told.at("3 of a to be had") < told.at("spot-17", "joined")
    ),
    # load: it does not flap, jumps act at once, nobody who waits is lost, and what is not known takes nothing
    "a-day-of-load": lambda told: told.served.turns_a_day <= 24 and told.served.lost_share < 0.001,
    "burst-beyond-the-forecast": lambda told: (
        told.between(900, 910, "LaunchNode") + told.between(900, 910, "PlaceReplica") > 0
        and told.served.lost_share < 0.06  # a boot of 45 s in a burst of 240 s, which nobody could foresee
    ),
    "to-zero-and-back": lambda told: (
        told.served.lost == 0 and told.served.waited > 0 and told.has("wants 0 replicas")
    ),
    "signals-missing": lambda told: told.at("StopReplica") >= 5400,
    "signal-stuck": lambda told: (
        told.has("is stuck at one value") and not told.between(told.at("is stuck"), 4200, "StopReplica")
    ),
    "absurd-metrics": lambda told: (
        told.has("signals absurd")
        and not told.between(900, 1800, "wants")
        and not told.between(900, 1800, "TerminateNode")
    ),
    # requests: what has no content is asked of others, a lease is spent and no more, nobody who waits is lost
    "a-replica-dies-under-requests": lambda told: (
        told.asked.asked_again > 5 and told.asked.cut > 5 and not told.asked.refused
    ),
    "a-gateway-cut-off": lambda told: (
        0 < told.at("gw-1", "nobody lends") - told.at("cut (both)") < 4
        and told.at("gw-1", "lent to again") - told.at("cut is mended") < 4
        and told.asked.refused["unavailable"] > 50
    ),
    "woken-by-a-request": lambda told: (
        told.asked.waited > 100 and not told.asked.refused and not told.asked.cut
    ),
    "a-gateway-is-killed": lambda told: (
        told.asked.gone > 0
        and told.has("cp-2", "leads")
        and told.asked.refused["tokens key:app"] > 1_000  # it wants more all the time, and never gets it
    ),
    # money
    "budget-in-mid-scale-up": lambda told: (
        told.has("wants 10 replicas") and told.between(0, 3000, "LaunchNode") == 4
    ),
    "month-used-up": lambda told: told.result.cost_usd < 3 and told.has("GiveNotice", "used up"),
    "price-spike-above-the-ceiling": lambda told: (
        not told.between(660, 2100, "cheap-", "LaunchNode")
        and told.between(660, 2100, "dear-", "LaunchNode") > 0
        and told.between(2160, 4500, "cheap-", "LaunchNode") > 0
    ),
    # providers
    "offers-that-vanish": lambda told: (
        told.has("cheap-", "CapacityShort") and told.at("ready on dear-") - told.at("more", "applied") < 60
    ),
    "throttled-provider": lambda told: (
        told.between(360, 600, "LaunchNode") <= 12 and told.between(600, 1800, "joined") >= 5
    ),
    "late-answers-while-growing": lambda told: (
        told.has("its provider does not have it")
        and not told.has("nobody here knows it")
        and told.between(600, 3600, "joined") >= 3
    ),
    # gangs
    "gang-with-a-standby": lambda told: told.has("PromoteStandby") and told.has("4 of 4 done"),
    "gang-without-a-standby": lambda told: told.has("goes on with 3 of 4") and told.has("grows to 4"),
    # order
    "priorities-and-preemption": lambda told: told.has("StopReplica", "has priority"),
    "thundering-return": lambda told: told.has("service", "web") and told.result.nodes_lost == 4,
    "a-pipeline": lambda told: told.has("done on"),
}


def test_what_it_was_written_to_show_is_so(told: Told) -> None:
    assert CLAIMS[told.path.stem](told)
