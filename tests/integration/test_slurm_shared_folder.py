"""A shared folder that stands still, as a disk does whose server is gone: nobody stands still with it."""

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.adapters.providers.slurm import SlurmProvider, read_settings
from holdfast.adapters.providers.slurm.shared import AT_ONCE, Shared
from holdfast.model.verdict import Word
from holdfast.ports.errors import Denied, Unreachable
from holdfast.ports.provider import Join

ANSWER_S = 0.3


async def join(node: str) -> Join:
    raise AssertionError("nothing is launched here")


@pytest.fixture
def provider(tmp_path: Path) -> SlurmProvider:
    """Slurm has no jobs: its commands say nothing."""
    for name in ("squeue", "scancel", "sbatch", "sinfo"):
        command = tmp_path / "bin" / name
        command.parent.mkdir(exist_ok=True)
        command.write_text("#!/bin/sh\n")
        command.chmod(0o755)
    settings = read_settings({"root": str(tmp_path / "root"), "bin": str(tmp_path / "bin")})
    return SlurmProvider(settings, join, answer_s=ANSWER_S)


@pytest.fixture
def still(tmp_path: Path) -> Iterator[Path]:
    """A file that nobody can read to its end: whoever opens it waits for a writer that does not come."""
    folder = tmp_path / "root" / "nodes" / "n1"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "began")
    yield folder
    os.close(os.open(folder / "began", os.O_RDWR))  # whoever waits goes on


async def ticks(until: "asyncio.Future[Word]") -> int:
    """How often the event loop comes round meanwhile."""
    count = 0
    while not until.done():
        await asyncio.sleep(0.01)
        count += 1
    return count


async def test_a_folder_that_stands_still_is_told_as_unreachable_and_the_loop_goes_on(
    provider: SlurmProvider, still: Path
) -> None:
    asked = asyncio.ensure_future(provider.state("n1"))
    assert await ticks(asked) > 5
    with pytest.raises(Unreachable, match=r"root has not answered for 0.3 s"):
        await asked
    assert await provider.list("pool") == (), "Slurm itself answers"


async def test_termination_does_not_wait_for_it_for_ever_either(provider: SlurmProvider, still: Path) -> None:
    async with asyncio.timeout(20):
        with pytest.raises(Unreachable, match="has not answered"):
            await provider.terminate("n1")


async def test_a_root_that_cannot_be_is_denied_when_it_is_first_needed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    settings = read_settings({"root": str(tmp_path / "file")})
    with pytest.raises(Denied, match="`root` is a folder that is shared"):
        await SlurmProvider(settings, join).list("pool")


async def test_threads_that_stand_still_keep_their_places_and_give_them_back() -> None:
    shared, goes_on = Shared("/shared", ANSWER_S), threading.Event()
    stuck = [asyncio.ensure_future(shared(goes_on.wait, 30)) for _ in range(AT_ONCE)]
    for one in await asyncio.gather(*stuck, return_exceptions=True):
        assert isinstance(one, Unreachable)
    touched: list[int] = []
    with pytest.raises(Unreachable):
        await shared(touched.append, 1)
    assert touched == [], "it had no turn"
    goes_on.set()
    assert await shared(lambda: 7) == 7


async def test_what_the_folder_says_is_what_is_said() -> None:
    with pytest.raises(FileNotFoundError):
        await Shared("/shared", ANSWER_S)(os.stat, "/nowhere/at/all")
