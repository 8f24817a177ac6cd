"""How a control plane is put together: its first token."""

from pathlib import Path

import pytest

from holdfast.adapters.clock import HostClock
from holdfast.ports.registry import Role, Token
from holdfast.sim.registry import SimRegistry
from holdfast.wire.identity import hashed
from holdfast.wiring import CannotStart, Settings, first_token

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
