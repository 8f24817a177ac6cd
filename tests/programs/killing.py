"""Kills every subset of an exclusive replica's agent, shim, first process and program, one round after the
other, and starts the next epoch as soon as an agent says that the last has ended. Its copies fork twice,
begin sessions of their own and throw away their environment, and all of them write. Says `ok` if no copy ever
wrote after its heir had started, and how long the rounds took.

    killing.py ROOT ROUNDS SEED [users]
"""

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from holdfast.agent import procfs
from holdfast.agent.init import refusal
from holdfast.core.agent.machine import Brief, Wanted
from holdfast.model.program import Program
from holdfast.ports.runtime import Task

LEASE_MS = 600_000  # never over: what ends here is ended by the kernel
PATIENCE_S = 60.0
VICTIMS = ("agent", "shim", "init", "program")
SUBSETS = [subset for n in range(len(VICTIMS) + 1) for subset in itertools.combinations(VICTIMS, n)]
SCRIPT = """
write='while :; do echo "$0 $1" >> "$2"; sleep 0.02; done'
(setsid sh -c "($write) & exec sleep 1000" "$HOLDFAST_EPOCH" session "$OUT" & )
forget="(setsid sh -c '$write' \\$0 forgetful \\$1) & "
(env -i PATH="$PATH" setsid sh -c "$forget" "$HOLDFAST_EPOCH" "$OUT" & )
sh -c "$write" "$HOLDFAST_EPOCH" child "$OUT"
sleep 1000
"""
WRITERS = ("session", "forgetful", "child")


class Node:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.out = root / "out"
        root.mkdir(exist_ok=True)
        self.out.touch()
        self.out.chmod(0o666)  # for users of workloads
        self.agent = self._agent()

    def _agent(self) -> "subprocess.Popen[str]":
        program = str(Path(__file__).with_name("node.py"))
        command = [sys.executable, program, str(self.root), str(LEASE_MS), *sys.argv[4:]]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def heard(self, epoch: int) -> list[str]:
        """What is said next of a replica: that it was found, or how it ended. Older ends are said again."""
        assert self.agent.stdout
        for line in self.agent.stdout:
            words = line.split()
            if words[0] in ("found", "ended") and words[1] == f"job/0.{epoch}":
                return words
        raise AssertionError("the agent ended")

    def start(self, epoch: int) -> None:
        name = f"job/0.{epoch}"
        command = Program(("sh", "-c", SCRIPT), env={"OUT": str(self.out)})
        task = Task(Wanted(name, "job/0", epoch, exclusive=True), "job", Brief(command, grace_ms=1_000), 0)
        assert self.agent.stdin
        self.agent.stdin.write(msgspec.json.encode(task).decode() + "\n")
        self.agent.stdin.flush()
        self.wait(lambda: all(f"{epoch} {writer}\n" in self.out.read_text() for writer in WRITERS))

    def wait(self, condition) -> None:  # type: ignore[no-untyped-def]
        until = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < until, self.out.read_text()
            time.sleep(0.01)

    def pids(self, epoch: int) -> dict[str, int]:
        lines = (self.root / "replicas" / f"job%2F0.{epoch}" / "running").read_text().splitlines()
        said = dict(line.split(" ", 1) for line in lines)
        return {name: int(said[name]) for name in ("shim", "init", "program")} | {"agent": self.agent.pid}

    def round(self, epoch: int, victims: tuple[str, ...]) -> None:
        self.start(epoch)
        pids = self.pids(epoch)
        for victim in victims:
            try:
                os.kill(pids[victim], signal.SIGKILL)
            except ProcessLookupError:
                assert len(victims) > 1, "it died with one that was killed before it"
        if "agent" in victims:
            self.agent.wait()
            self.agent = self._agent()
        if victims in ((), ("agent",)):  # it runs on, and then something else must end
            if victims:
                assert self.heard(epoch)[0] == "found"
            os.kill(pids["shim"], signal.SIGKILL)
        what, _, how, proven = self.heard(epoch)
        assert (what, how, proven) == ("ended", "failed", "proven")

    def check(self) -> None:
        epochs = [int(line.split()[0]) for line in self.out.read_text().splitlines()]
        late = [(before, after) for before, after in itertools.pairwise(epochs) if after < before]
        assert late == [], f"a copy wrote after its heir had started: {late[:5]}"


def main(root: Path, rounds: int, seed: int) -> None:
    chance = random.Random(seed)
    began = time.monotonic()
    assert refusal()[0] == ""
    node = Node(root)
    try:
        for number in range(rounds):
            victims = list(SUBSETS[(seed + number) % len(SUBSETS)])
            chance.shuffle(victims)
            node.round(number + 1, tuple(victims))
        time.sleep(0.2)  # whatever still lives shows itself
        node.check()
        assert procfs.marked(f"OUT={node.out}") == []
    finally:
        node.agent.kill()
        node.agent.wait()
    print(f"ok: {rounds} rounds in {time.monotonic() - began:.1f} s as user {os.geteuid()}")


main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
