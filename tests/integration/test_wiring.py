"""How a control plane is put together: its first token, and the providers of others."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast import wiring
from holdfast.adapters.clock import HostClock
from holdfast.control.enrol import Enrolment
from holdfast.model.pool import Pool
from holdfast.ports.registry import Role, Token
from holdfast.sim.registry import SimRegistry
from holdfast.wire.identity import hashed
from holdfast.wiring import CannotStart, Providers, Settings, first_token
from tests.how_to import install
from tests.planes import until

CLOCK = HostClock()


async def test_the_first_token_is_in_a_file_and_lets_its_reader_in(tmp_path: Path) -> None:
    registry = SimRegistry()
    await first_token(Settings(tmp_path), registry, CLOCK)
    found = await registry.find(hashed((tmp_path / "token").read_text().strip()))
    assert found is not None
    assert found.role is Role.ADMIN
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    before = (tmp_path / "token").read_text()
    await first_token(Settings(tmp_path), registry, CLOCK)
    assert (tmp_path / "token").read_text() == before


async def test_a_first_token_that_could_not_be_written_down_is_made_again(tmp_path: Path) -> None:
    registry = SimRegistry()
    (tmp_path / "token").mkdir()
    with pytest.raises(CannotStart, match="token cannot be written"):
        await first_token(Settings(tmp_path), registry, CLOCK)
    assert await registry.tokens() == ()
    (tmp_path / "token").rmdir()
    await first_token(Settings(tmp_path), registry, CLOCK)
    assert await registry.find(hashed((tmp_path / "token").read_text().strip())) is not None


async def test_an_admin_that_has_expired_can_make_no_others(tmp_path: Path) -> None:
    registry = SimRegistry()
    await registry.add(Token("old", b"hash", Role.ADMIN, expires_at=CLOCK.wall() - 1))
    await first_token(Settings(tmp_path), registry, CLOCK)
    assert (tmp_path / "token").exists()


async def test_of_two_that_make_the_first_token_at_once_one_keeps_no_file(tmp_path: Path) -> None:
    registry = SimRegistry()
    await registry.add(Token("first", b"of another", Role.READ))  # no admin, but its id is taken
    await first_token(Settings(tmp_path), registry, CLOCK)
    assert not (tmp_path / "token").exists()


# providers of others

MODULE = """
import asyncio
from holdfast.adapters.providers.join import JoinProvider

class Theirs(JoinProvider):
    looks, closed = 0, 0
    takes = None  # any settings, and not as few as those it is made of

    def __init__(self, settings, credentials):
        self.fails = "fails" in settings

    async def supervise(self):
        type(self).looks += 1
        if self.fails and self.looks == 1:
            raise ZeroDivisionError
        await asyncio.sleep(1000)

    async def close(self):
        if self.fails:
            raise ZeroDivisionError
        type(self).closed += 1
"""
PROJECT = """
[project]
name = "theirs"
version = "1"
entry-points."holdfast.providers".theirs = "supervising:Theirs"
"""


async def test_a_provider_that_fails_in_what_it_does_by_itself_ends_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "path", PROJECT, supervising=MODULE)
    monkeypatch.syspath_prepend(tmp_path / "path")
    monkeypatch.setattr(wiring, "SUPERVISE_AGAIN_S", 0.01)
    enrolment = Enrolment(SimRegistry(), CLOCK, b"")
    providers = Providers(Settings(tmp_path), enrolment, "http://127.0.0.1:1")
    first = providers.of(Pool("one", "theirs", (), settings={"fails": "yes"}))
    assert providers.of(Pool("two", "theirs", (), settings={"fails": "yes"})) is first, "settings make it"
    theirs: Any = type(providers.of(Pool("three", "theirs", ())))
    supervising = asyncio.create_task(providers.supervise())
    await until(lambda: theirs.looks == 3)
    assert not supervising.done()
    supervising.cancel()
    await asyncio.gather(supervising, return_exceptions=True)
    await providers.close()
    assert theirs.closed == 1


async def test_a_mistake_while_looking_after_local_nodes_ends_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wiring, "SUPERVISE_AGAIN_S", 0.01)
    providers = Providers(Settings(tmp_path), Enrolment(SimRegistry(), CLOCK, b""), "http://127.0.0.1:1")
    looks = list[int]()

    async def mistaken() -> None:
        looks.append(1)
        raise ZeroDivisionError

    monkeypatch.setattr(providers.local, "supervise", mistaken)
    supervising = asyncio.create_task(providers.supervise())
    await until(lambda: len(looks) == 3)
    assert not supervising.done()
    supervising.cancel()
    await asyncio.gather(supervising, return_exceptions=True)
    await providers.close()
