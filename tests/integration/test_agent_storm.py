"""An agent in a storm: links that break, control planes that babble, sets that change all the while.

Whatever happened before: when it is calm again, the node runs exactly what the last set names, nothing was
started twice, and everything that it had to say has been heard.
"""

import asyncio
import contextlib
import random
from collections import Counter
from pathlib import Path

import pytest

from holdfast.agent import control_planes
from holdfast.core.agent.machine import Stopping, Wanted
from holdfast.model.event import Ended
from holdfast.wire.messages import Ack, Ask, Desired, Moved, ReadLog, Refused, Silence
from tests.agent_rig import Rig, agent
from tests.hub_twin import HubTwin, Line, desired, lived, until, wanted

SLOTS = 6
TURNS = 60


class Storm:
    """Two control planes that do to an agent what they should not."""

    def __init__(self, seed: int, hubs: list[HubTwin], rig: Rig) -> None:
        self.random = random.Random(seed)
        self.hubs, self.rig = hubs, rig
        self.generation = 0
        self.epochs = dict.fromkeys(range(SLOTS), 1)
        self.seated: set[int] = set()
        self.last: Desired = desired(0)
        self.calm = False

    def new_set(self) -> Desired:
        """Some seats are filled anew, some are emptied. A filling that was given up never comes back."""
        before = {each.replica for each in self.last.desired.wanted}
        seated = {slot for slot in range(SLOTS) if self.random.random() < 0.7}
        for slot in seated:
            self.epochs[slot] += slot not in self.seated or self.random.random() < 0.3
        self.seated = seated
        those = [self.seat(slot) for slot in sorted(self.seated)]
        gone = before - {each.replica for each in those}
        self.generation += 1
        stopping = tuple(Stopping(name, 0) for name in sorted(gone))
        self.last = desired(self.generation, *those, stopping=stopping)
        return self.last

    def seat(self, slot: int) -> Wanted:
        return wanted(f"w{slot}/0.{self.epochs[slot]}", exclusive=slot % 2 == 0)

    async def serve(self, hub: HubTwin) -> None:
        """Welcomes whoever comes, most of the time."""
        while True:
            line = await hub.line()
            with contextlib.suppress(AssertionError):  # the line was cut meanwhile
                if self.calm or self.random.random() < 0.8:
                    await line.welcome(lease_ms=5_000, beat_ms=10)
                    line.say(self.last)
                else:
                    await line.challenge()
                    line.say(self.random.choice([Refused("full", "later"), Moved("", ()), Moved(hub.url)]))

    def strike(self, line: Line) -> None:
        match self.random.randrange(9):
            case 0:
                line.cut()
            case 1:
                line.raw(self.random.randbytes(20))
            case 2:
                line.say(Moved(self.random.choice(self.hubs).url))
            case 3:
                line.say(Silence(self.random.randrange(50)))
            case 4:
                line.say(Ack(self.random.randrange(1_000)))
            case 5:
                line.say(Ask(1, "127.0.0.1", self.rig.neighbours.port, 100))
            case 6:
                line.say(ReadLog(self.random.randrange(5), "w0/0.1", 0, follow=True))
            case 7:
                line.notes = not line.notes
            case _:
                line.say(self.new_set())

    async def rage(self) -> None:
        for _ in range(TURNS):
            await asyncio.sleep(self.random.random() * 0.04)
            lines = [line for hub in self.hubs for line in hub.lines if not line.over.is_set()]
            if lines:
                self.strike(self.random.choice(lines))
            running = sorted(self.rig.runtime.disk.running)
            if running and self.random.random() < 0.2:
                how = self.random.choice([Ended.DONE, Ended.FAILED])
                self.rig.runtime.end(self.random.choice(running), how)
        self.calm = True


@pytest.mark.parametrize("seed", [1, 2, 3])
@lived
async def test_after_the_storm_the_node_runs_what_it_should_and_all_was_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(control_planes, "SLOWEST_ROUND_S", 0.1)
    async with (
        HubTwin() as one,
        HubTwin() as two,
        agent(tmp_path, f"{one.url},{two.url}", "--allow-chaos") as rig,
    ):
        storm = Storm(seed, [one, two], rig)
        serving = [asyncio.ensure_future(storm.serve(hub)) for hub in (one, two)]
        # Where neither of them ever spoke our language the agent is right to give up.
        await until(lambda: bool(rig.home.read("joined")), "the first welcome")
        await storm.rage()
        for hub in (one, two):
            for line in hub.lines:
                line.cut()
        last, disk, machine = storm.new_set(), rig.runtime.disk, rig.agent.machine

        def settled() -> bool:
            names = {each.replica for each in last.desired.wanted} - set(machine.finished)
            return (
                set(disk.running) == names and not machine.reports and machine.generation == storm.generation
            )

        await until(settled, "the set that was wanted last")
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        starts = Counter(replica for did, replica in rig.runtime.did if did == "start")
        assert starts
        assert max(starts.values()) == 1
        assert not disk.exits, "every end was noted, and so forgotten"
