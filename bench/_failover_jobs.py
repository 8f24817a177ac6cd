"""Rounds of harm to an exclusive job, and the one question that matters: did two copies ever run at once?

The answer comes from the trace that the copies themselves leave (`_failover_job.py`). Two counts are made.
*Running*: an older copy did something after a younger one had begun. *Strict*: a younger one began while the
older still existed, frozen or not; a machine that hangs cannot be made to let go of anything, so with a hang
this one is expected, and what matters is that the frozen copy never does anything again. So half of the hung
nodes are woken up after their job has moved, and the trace says for how long the old copy then went on.
"""

import math
import time
from pathlib import Path
from typing import NamedTuple

from bench._failover_fleet import Fleet
from bench._failover_rounds import Times, repeat, summary

JOB = "ledger"
WOKEN_S = 1.0
MARGIN_S = 1.0


class Copy(NamedTuple):
    epoch: int
    began: int  # monotonic, nanoseconds
    free: bool  # was the lock?
    moments: list[int]


def copies(trace: Path) -> list[Copy]:
    found: dict[int, Copy] = {}
    for line in trace.read_text().splitlines():
        what, epoch, at, *free = line.split()
        if what == "start":
            found[int(epoch)] = Copy(int(epoch), int(at), free == ["1"], [])
        else:
            found[int(epoch)].moments.append(int(at))
    return [found[epoch] for epoch in sorted(found)]


def overlaps(found: list[Copy], woken: dict[int, float]) -> list[float]:
    """For how many seconds the older of each two copies still ran beside the younger, if it did. What a
    frozen copy does after it was woken is left to `woken_ran_on_s`."""
    together = []
    for number, old in enumerate(found):
        until = woken.get(old.epoch, math.inf) * 1e9
        for young in found[number + 1 :]:
            late = [at for at in old.moments if young.began < at < until]
            if late:
                together.append((late[-1] - young.began) / 1e9)
    return together


class JobRounds:
    """Rounds on one fleet."""

    def __init__(self, fleet: Fleet, folder: Path, lease_s: float) -> None:
        self.fleet, self.trace, self.lease_s = fleet, folder / "trace", lease_s
        self.woken: dict[int, float] = {}  # by epoch: when
        self.hangs = 0

    def run(self, deed: str, rounds: int, beat_s: float = 1.0) -> dict[str, object]:
        done = repeat(self.fleet, deed, rounds, beat_s, self._one)
        within = sum(each["total"] <= self.lease_s + 2 for each in done)
        return {
            **summary(each["total"] for each in done),
            "rounds": len(done),
            "within_lease_plus_2_s": within,
        }

    def _one(self, deed: str) -> Times:
        old = self.fleet.ready(JOB)
        lasting_ms = int(1000 * (self.lease_s + MARGIN_S + 6))
        fault = self.fleet.harm(old["node"], f"partition {lasting_ms}" if deed == "partition" else deed)
        heir = self._heir(old["epoch"])
        if deed == "hang":
            self.hangs += 1
            if self.hangs % 2:
                self._wake(old["node"], old["epoch"])
        # Also after a partition: a node that was away so long has a history, and is given more time.
        self.fleet.clear(old["node"])
        return {"total": heir.began / 1e9 - fault.at}

    def _heir(self, epoch: int) -> Copy:
        until = time.monotonic() + self.lease_s + 60
        while time.monotonic() < until:
            later = [copy for copy in copies(self.trace) if copy.epoch > epoch]
            if later:
                return later[0]
            time.sleep(0.05)
        raise TimeoutError(f"{JOB} was not started again within {self.lease_s + 60:g} s")

    def _wake(self, node: str, epoch: int) -> None:
        self.woken[epoch] = self.fleet.harm(node, "wake").at
        time.sleep(WOKEN_S)

    def _ran_on(self, copy: Copy) -> float:
        """For how long it did things after it was woken."""
        woken_at = self.woken.get(copy.epoch, math.inf)
        return max((at / 1e9 - woken_at for at in copy.moments if at / 1e9 > woken_at), default=0.0)

    def doubles(self) -> dict[str, object]:
        found = copies(self.trace)
        together = overlaps(found, self.woken)
        ran_on = [self._ran_on(copy) for copy in found if copy.epoch in self.woken]
        return {
            "copies": len(found),
            "running": len(together),
            "longest_s": round(max(together, default=0.0), 3),
            "strict": sum(not copy.free for copy in found),
            "woken": len(ran_on),
            "woken_ran_on": sum(seconds > 0 for seconds in ran_on),
            "woken_ran_on_s": round(max(ran_on, default=0.0), 4),
        }
