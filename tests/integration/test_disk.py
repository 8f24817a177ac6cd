"""Disks that fill up: in ways that a program may think of so that it is not seen."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.agent.watch import disk, holdings
from holdfast.agent.watch.disk import Filling, Held, Sample, Writing
from holdfast.model.event import Ended
from tests.runtime_rig import PYTHON, Node, Rig, rig_in, until

MIB = 1 << 20
NAMELESS = """
import os, time
file = open('x', 'wb')
os.unlink('x')
print('here', flush=True)
try:
    while True:
        file.write(bytes(1 << 20))
        file.flush()
except OSError:
    time.sleep(1000)
"""
BENEATH = """
import os, time
top = os.open('.', os.O_RDONLY)
for _ in range(1500):
    os.mkdir('d')
    os.chdir('d')
file = open('x', 'wb')
os.fchdir(top)
try:
    while True:
        file.write(bytes(1 << 20))
        file.flush()
except OSError:
    time.sleep(1000)
"""
CROWD = """
import time
try:
    for at in range(1 << 20):
        open(f'{at}', 'w').close()
except OSError:
    time.sleep(1000)
"""
SAVED = """
import os, time
file = open(os.environ['HOLDFAST_CHECKPOINT_DIR'] + '/x', 'wb')
try:
    while True:
        file.write(bytes(1 << 20))
        file.flush()
except OSError:
    time.sleep(1000)
"""
QUIET = "open('data', 'wb').write(bytes(5 << 20)); print('here', flush=True); import time; time.sleep(1000)"


@contextlib.contextmanager
def mounted(at: Path, options: str) -> Iterator[None]:
    at.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"{options},mode=711", "none", str(at)])
    if done.returncode:
        pytest.skip("nothing can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(at)], check=True)


async def greedy_is_ended(node: Node, code: str) -> str:
    await node.start((*PYTHON, "-c", QUIET), "quiet/0.1")
    await node.said("here", "quiet/0.1")
    await node.start((*PYTHON, "-c", code), "greedy/0.1")
    exit = await node.exit("greedy/0.1")
    assert exit.how is Ended.FAILED
    assert list(node.exits) == ["greedy/0.1"]
    return exit.why


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@pytest.mark.parametrize("code", [NAMELESS, BENEATH], ids=["without a name", "far below"])
async def test_who_fills_the_disk_where_it_is_hard_to_see_is_ended(tmp_path: Path, code: str) -> None:
    with mounted(tmp_path / "small", "size=64m"), rig_in(tmp_path / "small") as rig:
        async with rig.node() as node:
            assert (await greedy_is_ended(node, code)).startswith("filled the disk: wrote ")
            node.runtime.forget("greedy/0.1")
            await until(lambda: os.listdir(rig.root / "gone") == [])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
async def test_who_takes_all_files_of_a_disk_is_ended(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "size=64m,nr_inodes=2000"), rig_in(tmp_path / "small") as rig:
        async with rig.node() as node:
            assert "files in the last minute" in await greedy_is_ended(node, CROWD)
            node.runtime.forget("greedy/0.1")
            await until(lambda: disk.room_for_files(str(rig.root))[0] > 1000)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
async def test_the_disk_of_the_checkpoints_is_watched_too(tmp_path: Path) -> None:
    with rig_in(tmp_path) as rig, mounted(rig.checkpoints, "size=64m"):
        async with rig.node() as node:
            assert (await greedy_is_ended(node, SAVED)).startswith("filled the disk: wrote ")


# by what the kernel counts

BOTH = {name: Writing((), 1) for name in ("greedy", "quiet")}


@pytest.fixture
def filling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Filling:
    """Of a disk of 100 GiB that is full, and had 10 GiB a minute ago."""
    monkeypatch.setattr(disk, "room", lambda folder: (10 * MIB, 100 << 30))
    monkeypatch.setattr(disk, "measured", lambda writing, device: dict.fromkeys(writing, Held(MIB, 1)))
    monkeypatch.setattr(disk, "written", lambda writing: {"greedy": 12 << 30, "quiet": 20 << 30})
    filling = Filling(str(tmp_path))
    filling._samples = [Sample(0.0, 10 << 30, {"greedy": 1 << 30, "quiet": 20 << 30})]
    return filling


def test_if_nobody_is_seen_to_hold_it_growth_counts(filling: Filling) -> None:
    assert filling.look(BOTH)["greedy"].startswith("filled the disk: wrote 11264 MiB")


def test_who_overwrites_its_own_is_not_ended_for_what_another_fills(filling: Filling) -> None:
    filling._samples = [Sample(0.0, 11 * MIB, {"greedy": 1 << 30})]
    assert filling.look(BOTH) == {}, "the disk was as full before"


def test_one_that_cannot_be_measured_in_time_counts_by_its_growth(
    filling: Filling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "written", lambda writing: {"greedy": 12 << 30, "quiet": 40 << 30})
    found = {"greedy": Held(MIB, 1, all=False), "quiet": Held(MIB, 1)}
    monkeypatch.setattr(disk, "measured", lambda writing, device: found)
    assert list(filling.look(BOTH)) == ["greedy"]
    filling._not_before = 0.0
    found["quiet"] = Held(300 * MIB, 1)
    assert list(filling.look(BOTH)) == ["quiet"], "what was seen comes first"


async def test_what_the_kernel_counts_is_of_the_whole_tree_and_of_those_that_ended(tmp_path: Path) -> None:
    with rig_in(tmp_path) as rig:
        await _writes(rig)


async def _writes(rig: Rig) -> None:
    write = "head -c 3000000 /dev/zero > x; sync x"
    async with rig.node() as node:
        await node.start(("sh", "-c", f"sh -c '{write}'; echo here; exec sleep 1000"))
        await node.said("here")
        counted = disk.written({"web": Writing((), rig.shim())})
        if os.stat(rig.root).st_dev in holdings.memory_devices() or not counted["web"]:
            pytest.skip("this disk is not counted")
        assert counted["web"] >= 3_000_000
