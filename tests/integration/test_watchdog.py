"""Memory limits where no control group enforces them, and what is told of processors."""

import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.agent import procfs
from holdfast.agent.watch import disk, holdings, limiter, usage, watchdog
from holdfast.model.event import Ended
from holdfast.model.node import LimitedBy
from holdfast.model.resources import Resources
from holdfast.model.units import MINUTE, SECOND
from holdfast.ports.runtime import Usage
from tests.runtime_rig import NAME, PATIENCE_S, PYTHON, Node, Rig, boot_ms, rig_in, until

LIMIT = Resources(1000, 64)
HOLD = "held = bytearray({mib} << 20); print('here', flush=True); import time; time.sleep(1000)"
MAP = """
import mmap, time
file = open('big', 'wb+')
file.write(bytes(200 << 20))
file.flush()
held = mmap.mmap(file.fileno(), 0)
print(sum(held[at] for at in range(0, len(held), 4096)), 'here', flush=True)
time.sleep(1000)
"""
SHARE = """
import os, time
held = bytearray(40 << 20)
for _ in range(4):
    if os.fork() == 0:
        time.sleep(1000)
print('here', flush=True)
time.sleep(1000)
"""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with rig_in(tmp_path) as rig:
        yield rig


async def run(node: Node, code: str, *, exclusive: bool = False, needs: Resources = LIMIT) -> None:
    node.runtime.renew(boot_ms() + 600_000)
    await node.start((*PYTHON, "-c", code), wanted={"needs": needs, "exclusive": exclusive})


@pytest.mark.parametrize("exclusive", [False, True])
async def test_what_holds_more_memory_than_it_asked_for_is_killed_with_the_reason(
    rig: Rig, exclusive: bool
) -> None:
    async with rig.node() as node:
        assert node.runtime.limits() is LimitedBy.WATCHDOG
        await run(node, HOLD.format(mib=200), exclusive=exclusive)
        exit = await node.exit()
        assert exit.how is Ended.FAILED
        found = re.fullmatch(
            r"out of memory: used (?:about )?(\d+) MiB of 64 MiB \(limit enforced by the watchdog\)", exit.why
        )
        assert found, exit.why
        assert int(found[1]) > LIMIT.memory_mib  # caught as it grew, or when it had grown
        assert rig.left() == []


async def test_the_watchdog_watches_what_an_agent_before_it_started(rig: Rig) -> None:
    async with rig.node() as node:
        await run(node, f"import time; time.sleep(3); {HOLD.format(mib=200)}")
        await node.ready()
    async with rig.node() as node:
        assert (await node.exit()).why.startswith("out of memory: ")


@pytest.mark.parametrize("code", [HOLD.format(mib=30), MAP, SHARE], ids=["little", "files", "shared"])
async def test_pages_of_files_do_not_count_and_shared_ones_once(rig: Rig, code: str) -> None:
    async with rig.node() as node:
        await run(node, code)
        await node.said("here")
        root = node.runtime._replicas[NAME].root
        assert watchdog.Memory().over({NAME: (root, 64)}) == {}
        assert list(watchdog.Memory().over({NAME: (root, 1)})) == [NAME]
        assert node.exits == {}


UNMAPPED = """
import os, sys, time
handle = os.memfd_create('x')
for _ in range({mib}):
    os.write(handle, bytes(1 << 20))
print('here', flush=True)
time.sleep(1000)
"""
MAPPED = """
import mmap, os, time
handle = os.memfd_create('x')
os.ftruncate(handle, 40 << 20)
held = mmap.mmap(handle, 40 << 20)
held[:] = bytes(40 << 20)
print('here', flush=True)
time.sleep(1000)
"""
MANY = """
import mmap, os, time
held = mmap.mmap(-1, 64 << 20)
held[:] = bytes(64 << 20)
ready, said = os.pipe()
for _ in range(40):
    if os.fork() == 0:
        sum(held[at] for at in range(0, len(held), 4096))
        os.write(said, b'.')
        time.sleep(1000)
for _ in range(40):
    os.read(ready, 1)
print('here', flush=True)
time.sleep(1000)
"""


async def test_memory_that_is_held_as_a_file_without_a_name_counts(rig: Rig) -> None:
    async with rig.node() as node:
        await run(node, UNMAPPED.format(mib=200))
        assert (await node.exit()).why.startswith("out of memory: used ")


async def test_memory_that_is_held_as_a_file_and_mapped_counts_once(rig: Rig) -> None:
    async with rig.node() as node:
        await run(node, MAPPED)
        await node.said("here")
        root = node.runtime._replicas[NAME].root
        assert watchdog.Memory().over({NAME: (root, 64)}) == {}
        assert list(watchdog.Memory().over({NAME: (root, 40)})) == [NAME]


async def test_what_is_too_dear_to_look_at_is_estimated_and_known_better_with_each_look(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "BUDGET_S", 0.0)  # one process a look, and those that had most
    monkeypatch.setattr(holdings, "of_machine", lambda: holdings.Parts(1 << 50, 1 << 50))
    async with rig.node() as node:
        await run(node, MANY, needs=Resources(1000, 1024))
        await node.said("here")
        root = node.runtime._replicas[NAME].root
        memory = watchdog.Memory()
        for _ in range(5):
            assert memory.over({NAME: (root, 1024)}) == {}
            assert memory.estimated == {NAME}
        looks = [memory.over({NAME: (root, 32)}) for _ in range(watchdog.DOUBTS)]
        assert looks[0] == {}, "once is not enough"
        assert str(looks[-1][NAME]).startswith("about ")
        assert memory.over({}) == {}
        assert memory.estimated == set()
        assert node.exits == {}


async def test_what_many_share_is_bounded_by_what_the_machine_holds(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process is asked for its pages."""

    def dear(pid: int) -> holdings.Parts:
        raise AssertionError

    async with rig.node() as node:
        await run(node, MANY, needs=Resources(1000, 0))
        await node.said("here")
        root = node.runtime._replicas[NAME].root
        monkeypatch.setattr(holdings, "held_parts", dear)
        monkeypatch.setattr(holdings, "of_machine", lambda: holdings.Parts(1 << 50, 64 << 20))
        assert watchdog.Memory().over({NAME: (root, 1024)}) == {}
        with pytest.raises(AssertionError):
            watchdog.Memory().over({NAME: (root, 64)})


async def test_one_that_holds_much_is_found_among_many_that_share(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "BUDGET_S", 0.0)
    monkeypatch.setattr(holdings, "of_machine", lambda: holdings.Parts(1 << 50, 1 << 50))
    async with rig.node() as node:
        hidden = MANY.replace(
            "ready, said", "if os.fork() == 0: own = bytearray(200 << 20); time.sleep(1000)\nready, said"
        )
        hidden = hidden.replace("bytes(64 << 20)", "bytes(256 << 20)").replace("mmap(-1, 64", "mmap(-1, 256")
        await run(node, hidden, needs=Resources(1000, 0))
        await node.said("here")
        root, memory = node.runtime._replicas[NAME].root, watchdog.Memory()
        found = [memory.over({NAME: (root, 400)}) for _ in range(60)]
        assert NAME in found[-1], "everybody was asked once, and the largest again"


async def test_a_look_that_takes_long_holds_up_nothing_else(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def slow(pid: int) -> holdings.Parts:
        begun.set()
        assert goes_on.wait(PATIENCE_S)
        return holdings.Parts(0, 0)

    monkeypatch.setattr(holdings, "held_parts", slow)
    try:
        async with rig.node() as node:
            await run(node, HOLD.format(mib=200))
            await until(begun.is_set)
            await node.start(("true",), "web/1.1")
            assert (await node.exit("web/1.1")).how is Ended.DONE
            goes_on.set()
    finally:
        goes_on.set()


async def test_a_look_that_fails_is_told_and_the_next_one_comes(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    looks = {"memory": 0, "disk": 0}

    def failing(kind: str) -> Callable[..., dict[str, str]]:
        def look(self: object, replicas: object) -> dict[str, str]:
            looks[kind] += 1
            raise RecursionError("too deep")

        return look

    monkeypatch.setattr(watchdog.Memory, "over", failing("memory"))
    monkeypatch.setattr(disk.Filling, "look", failing("disk"))
    monkeypatch.setattr(limiter, "AGAIN_S", 0.01)
    async with rig.node():
        await until(lambda: min(looks.values()) > 3)
    said = capfd.readouterr().err
    assert said.count("cannot look at the memory") == 1, "the same is told once"
    assert "too deep" in said


async def test_a_mark_is_found_wherever_reading_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procfs, "CHUNK", 16)
    for before in range(20):
        env = {"A": "x" * before, "HOLDFAST_TRIAL": f"mark-{os.getpid()}-{before}", "Z": "z"}
        with subprocess.Popen(["sleep", "1000"], env=env) as process:
            try:
                mark = f"HOLDFAST_TRIAL={env['HOLDFAST_TRIAL']}"
                await until(lambda mark=mark: procfs.marked(mark))  # type: ignore[misc]
                assert procfs.marked(mark) == [process.pid]
            finally:
                process.kill()


async def test_no_limit_is_no_limit(rig: Rig) -> None:
    async with rig.node() as node:
        await run(node, HOLD.format(mib=100), needs=Resources())
        await node.said("here")
        assert watchdog.Memory().over({NAME: (node.runtime._replicas[NAME].root, 0)}) == {}


async def test_what_is_dear_to_read_is_never_more_than_its_cheap_bound(rig: Rig) -> None:
    async with rig.node() as node:
        await run(node, SHARE)
        await node.said("here")
        seen = procfs.scan()
        pids = procfs.descendants(rig.shim(), seen, procfs.families(seen))
        assert len(pids) == 5
        await until(lambda: all(map(holdings.held_bytes, pids)))
        assert sum(map(holdings.held_bytes, pids)) < 64 << 20 < sum(map(holdings.unshared_bound, pids))


def test_overuse_of_processors_is_told_when_it_lasts_and_seldom_again() -> None:
    overuse, needs, used = watchdog.Overuse(), {"web/0.1": Resources(1000, 64)}, {"web/0.1": Usage(2000, 1)}

    def told(at: int, milli: int = 2000) -> list[str]:
        return overuse.found({name: Usage(milli, 1) for name in used}, needs, at)

    assert told(0) == told(59 * SECOND) == []
    assert told(MINUTE) == ["web/0.1"]
    assert told(5 * MINUTE) == []
    assert told(11 * MINUTE) == ["web/0.1"]
    assert told(30 * MINUTE, 1100) == [], "a little more is no overuse"
    assert told(31 * MINUTE) == []
    assert told(32 * MINUTE) == ["web/0.1"]


def test_where_looking_is_dear_usage_is_told_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    line = b"7 (sh) S 3 7 9 0 -1 0 0 0 0 0 %d 0 0 0 20 0 1 0 100 4096 256 0"
    looks = 0

    def scan() -> dict[int, procfs.Seen]:
        nonlocal looks
        looks += 1
        return {7: procfs.Seen(line % (looks * procfs.TICKS))}

    monkeypatch.setattr(procfs, "scan", scan)
    meter = usage.Meter()
    running = {NAME: (3, "")}
    meter.read(running, 1000)
    meter._cost = 100
    assert meter.read(running, 2000)[NAME] == Usage(0, 1)
    assert looks == 1
    assert meter.read(running, 1000 + usage.SHARE * 100)[NAME].cpu_milli == 500, "a second of two"
    assert looks == 2
