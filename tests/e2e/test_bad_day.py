"""Many faults, one after the other and some at once, drawn by chance from a seed; at the end all is well."""

import random
import signal
import time

from tests.e2e.live import (
    LEASE_MS,
    WEB,
    Ground,
    Started,
    alone,
    kill,
    lives,
    processes,
    refusal,
    replicas,
    until,
)
from tests.ports import free_port

SECONDS = 25


class Day:
    """One fleet, and what may happen to it."""

    def __init__(self, ground: Ground, seed: int) -> None:
        self.ground, self.random, self.port = ground, random.Random(seed), free_port()
        self.up = ground.up(port=self.port, lease_ms=LEASE_MS)
        self.asleep: list[int] = []
        self.story: list[str] = []

    @property
    def nodes(self) -> list[str]:
        return sorted(path.name for path in (self.up.folder / "nodes").glob("[a-z]*"))

    def happens(self) -> None:
        deeds = (
            self.kill_node,
            self.kill_agent,
            self.kill_shim,
            self.kill_replica,
            self.cut,
            self.hang,
            self.crash,
        )
        deed = self.random.choices(deeds, (3, 3, 3, 3, 2, 2, 1))[0]
        what = deed()
        self.story.append(f"{time.monotonic():.1f} {deed.__name__} {what}")

    def kill_node(self) -> str:
        node = self.random.choice(self.nodes)
        kill(*processes(self.up.folder / "nodes" / node))
        return node

    def kill_agent(self) -> str:
        node = self.random.choice(self.nodes)
        found = processes(self.up.folder / "nodes" / node).items()
        kill(*(pid for pid, words in found if "-m holdfast.agent" in words))
        return node

    def kill_shim(self) -> str:
        return self._one("shim")

    def kill_replica(self) -> str:
        return self._one("program")

    def _one(self, part: str) -> str:
        running = sorted(replicas(self.up.folder).items())
        if not running:
            return "none"
        name, pids = self.random.choice(running)
        kill(getattr(pids, part))
        return name

    def cut(self) -> str:
        node, ms = self.random.choice(self.nodes), self.random.choice((2_000, 8_000))
        refusal(lambda: self.up.post("/v1/chaos/partition", {"node": node, "for_ms": ms}))
        return f"{node} for {ms} ms"

    def hang(self) -> str:
        """All but the job and its shim: frozen with its lock held, it would look like one that runs."""
        node = self.random.choice(self.nodes)
        job = [pids for name, pids in replicas(self.up.folder).items() if name.startswith("job")]
        spared = {pid for pids in job for pid in (pids.program, pids.shim)}
        self.wake()
        self.asleep = [pid for pid in processes(self.up.folder / "nodes" / node) if pid not in spared]
        kill(*self.asleep, number=signal.SIGSTOP)
        return node

    def wake(self) -> None:
        kill(*self.asleep, number=signal.SIGCONT)
        self.asleep = []

    def crash(self) -> str:
        self.up.kill()
        self.up = self.ground.begin("up", "--port", str(self.port), name="up").wait()
        return "up"


def test_after_a_bad_day_everything_runs_and_nothing_ran_twice(ground: Ground) -> None:
    live_through(ground, seed=1)


def live_through(ground: Ground, seed: int) -> None:
    day = Day(ground, seed)
    day.up.apply(WEB, alone(day.up.folder))
    day.up.until_ready("web", 3)
    day.up.until_ready("job")
    over = time.monotonic() + SECONDS
    try:
        while time.monotonic() < over:
            day.happens()
            lives(day.up.folder)
            time.sleep(day.random.uniform(0.2, 3))
        day.wake()
        check(day.up)
    except BaseException:
        print("\n".join(day.story))
        print("\n".join(day.up.history()))
        raise
    assert "Traceback" not in day.up.said
    assert day.up.stop() == 0
    assert processes(ground.folder) == {}
    again = ground.cli("replay", "--dir", str(day.up.folder))
    assert again.returncode == 0, again.stdout + again.stderr


def check(up: Started) -> None:
    up.until_ready("web", 3, seconds=90)
    up.until_ready("job", seconds=90)
    until(lambda: len(replicas(up.folder)) == 4, "nothing else runs")
    last = lives(up.folder)[-1]
    until(lambda: lives(up.folder)[-1].last > last.last, "the job lives")
    until(lambda: sum(n["verdict"] == "alive" for n in up.nodes().values()) >= 3, "three nodes are alive")
