"""Memory limits where no control group enforces them, and what is told of processors."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.agent import procfs, watchdog
from holdfast.model.event import Ended
from holdfast.model.node import LimitedBy
from holdfast.model.resources import Resources
from holdfast.model.units import MINUTE, SECOND
from holdfast.ports.runtime import Usage
from tests.runtime_rig import NAME, PYTHON, Node, Rig, boot_ms, rig_in, until

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
            r"out of memory: used (\d+) MiB of 64 MiB \(limit enforced by the watchdog\)", exit.why
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
        assert watchdog.over_memory({NAME: (root, 64)}) == {}
        assert list(watchdog.over_memory({NAME: (root, 1)})) == [NAME]
        assert node.exits == {}


async def test_no_limit_is_no_limit(rig: Rig) -> None:
    async with rig.node() as node:
        await run(node, HOLD.format(mib=100), needs=Resources())
        await node.said("here")
        assert watchdog.over_memory({NAME: (node.runtime._replicas[NAME].root, 0)}) == {}


async def test_what_is_dear_to_read_is_never_more_than_its_cheap_bound(rig: Rig) -> None:
    async with rig.node() as node:
        await run(node, SHARE)
        await node.said("here")
        seen = procfs.scan()
        pids = procfs.descendants(rig.shim(), seen, procfs.families(seen))
        assert len(pids) == 5
        await until(lambda: all(map(procfs.held_bytes, pids)))
        assert sum(map(procfs.held_bytes, pids)) < 64 << 20 < sum(map(procfs.unshared_bound, pids))


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
