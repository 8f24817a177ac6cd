"""A shared folder that stands still, as a disk does whose server is gone: nobody stands still with it."""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

from holdfast.adapters.providers.local.folders import Folders
from holdfast.adapters.providers.slurm import SlurmProvider, read_settings
from holdfast.adapters.providers.slurm.shared import AT_ONCE, Shared
from holdfast.model.verdict import Word
from holdfast.ports.errors import Denied, Unreachable
from holdfast.ports.provider import Join
from tests.planes import until

P = ParamSpec("P")
T = TypeVar("T")

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


def descriptors(path: Path) -> int:
    """How many of ours are open at this file."""
    found = 0
    for each in os.scandir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(each.path) == str(path)
    return found


async def test_a_lock_that_opens_when_nobody_waits_for_it_any_more_is_closed_again(tmp_path: Path) -> None:
    """Each launch and termination left one more descriptor behind, for as long as we ran."""
    shared, goes_on = Shared("/shared", ANSWER_S), threading.Event()
    lock = tmp_path / "nodes" / "n1" / "lock"
    lock.parent.mkdir(parents=True)

    async def slowly(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        def late() -> T:
            goes_on.wait(30)
            return function(*args, **kwargs)

        return await shared(late)

    async def hold() -> None:
        async with Folders(tmp_path, slowly).held("n1"):
            raise AssertionError("it was not answered")

    with pytest.raises(Unreachable):
        await hold()
    left = asyncio.ensure_future(hold())
    await asyncio.sleep(ANSWER_S / 2)
    left.cancel()
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await left
    await until(lambda: not [each for each in threading.enumerate() if each.name == "shared folder"])
    assert lock.exists(), "it was opened"
    assert descriptors(lock) == 0


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_lock_is_given_back_though_the_folder_stands_still_meanwhile(
    tmp_path: Path, cancelled: bool
) -> None:
    """Its descriptor had no turn to be closed, and the node was in nobody's hands but ours, for ever."""
    shared, goes_on = Shared("/shared", ANSWER_S), threading.Event()
    lock = tmp_path / "nodes" / "n1" / "lock"
    lock.parent.mkdir(parents=True)
    stands_still = asyncio.Event()

    async def hold() -> None:
        async with Folders(tmp_path, shared).held("n1"):
            stuck = [asyncio.ensure_future(shared(goes_on.wait, 30)) for _ in range(AT_ONCE)]
            await asyncio.gather(*stuck, return_exceptions=True)
            stands_still.set()

    holding = asyncio.ensure_future(hold())
    await stands_still.wait()
    if cancelled:
        await asyncio.sleep(ANSWER_S / 3)
        holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)
    await until(lambda: descriptors(lock) == 0)
    async with asyncio.timeout(10), Folders(tmp_path).held("n1"):
        goes_on.set()
