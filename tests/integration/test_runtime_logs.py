"""What replicas write is kept, in pieces, and a full disk holds up nobody."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.agent import logs
from holdfast.model.event import Ended
from tests.runtime_rig import NAME, PYTHON, Rig, rig_in

CHATTER = "import sys\nfor i in range({lines}): print(f'{{i:09}}')"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with rig_in(tmp_path) as rig:
        yield rig


async def test_output_and_errors_are_kept_in_order(rig: Rig) -> None:
    async with rig.node() as node:
        await node.start(("sh", "-c", "echo one; echo two >&2; echo three; printf '\\377\\0'"))
        await node.exit()
        data, offset = node.runtime.read_log(NAME, 0, 100)
        assert data == b"one\ntwo\nthree\n\xff\0"
        assert offset == len(data)
        assert node.runtime.read_log(NAME, 4, 3) == (b"two", 7)
        assert node.runtime.read_log(NAME, offset, 10) == (b"", offset)
        assert node.runtime.read_log(NAME, offset + 50, 10) == (b"", offset), "no further than it goes"
        assert node.runtime.read_log(NAME, -2, 10) == (b"\xff\0", offset)
        assert node.runtime.read_log("nobody/0.1", 0, 10) == (b"", 0)


async def test_a_long_log_keeps_its_end_and_its_offsets(rig: Rig) -> None:
    lines = 200_000  # of ten bytes
    async with rig.node(log_bytes=1 << 18) as node:
        await node.start((*PYTHON, "-c", CHATTER.format(lines=lines)))
        assert (await node.exit()).how is Ended.DONE
        assert len(list((rig.root / "logs" / "web%2F0.1").iterdir())) == 3
        data, end = node.runtime.read_log(NAME, 0, 10 * lines)
        first = end - len(data)
        assert end == 10 * lines
        assert 2 << 18 <= len(data) <= 4 << 18
        assert data[10 - first % 10 :].startswith(f"{first // 10 + 1:09}\n".encode())
        assert node.runtime.read_log(NAME, end - 1000, 10) == (f"{lines - 100:09}\n".encode(), end - 990)
        assert node.runtime.read_log(NAME, -10, 100) == (f"{lines - 1:09}\n".encode(), end)
        again = b""
        at = first
        while at < end:
            part, at = node.runtime.read_log(NAME, at, 77_777)
            again += part
        assert again == data


async def test_a_disk_without_room_holds_up_nobody(rig: Rig) -> None:
    async with rig.node() as node:
        folder = rig.root / "logs" / "web%2F0.1"
        folder.mkdir()
        (folder / "log.0").symlink_to("/dev/full")
        await node.start((*PYTHON, "-c", CHATTER.format(lines=100_000)))
        assert (await node.exit()).how is Ended.DONE
        assert node.log() == ""


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A disk of 64 kB; false: we may not mount one, and the test says less."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


async def test_a_disk_that_fills_up_keeps_what_came_before(rig: Rig) -> None:
    with small_disk(rig.root / "logs") as small:
        async with rig.node() as node:
            await node.start((*PYTHON, "-c", CHATTER.format(lines=100_000)))
            assert (await node.exit()).how is Ended.DONE
            kept, end = node.runtime.read_log(NAME, 0, 1 << 20)
            assert kept.startswith(b"000000000\n000000001\n")
            assert 30_000 < len(kept) == end <= (64 << 10 if small else 1_000_000)


async def test_the_exit_record_has_its_room_before_the_disk_is_full(rig: Rig) -> None:
    with small_disk(rig.root / "replicas") as small:
        async with rig.node() as node:
            fill = "dd if=/dev/zero of=fill bs=1k count=200 2> /dev/null && exit 6; exit 5"
            await node.start(("sh", "-c", fill))
            assert (await node.exit()).why == f"exit code {5 if small else 6}"


def test_what_was_dropped_is_said_as_soon_as_there_is_room(tmp_path: Path) -> None:
    (tmp_path / "log.0").symlink_to("/dev/full")
    log = logs.LogWriter(str(tmp_path))
    log.write(b"lost")
    log.write(b"lost too")
    log.close()
    assert logs.read(str(tmp_path), 0, 100) == (b"", 0)
    log._piece_bytes = 0  # the next write begins another piece, on a disk that has room
    (tmp_path / "log.0").unlink()
    log.write(b"kept")
    log.close()
    assert logs.read(str(tmp_path), 0, 100)[0].decode() == (
        "\n[holdfast: 12 bytes of output were dropped: No space left on device]\nkept"
    )


def test_logs_of_the_ended_are_kept_by_number_and_by_size(tmp_path: Path) -> None:
    for number in range(6):
        folder = tmp_path / f"r{number}"
        folder.mkdir()
        (folder / "log.0").write_bytes(b"x" * 100)
        os.utime(folder, (number, number))
    logs.prune(str(tmp_path), {"r0"}, count=4, size=1_000)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r0", "r2", "r3", "r4", "r5"]
    logs.prune(str(tmp_path), {"r0"}, count=4, size=250)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r0", "r4", "r5"]
