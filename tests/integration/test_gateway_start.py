"""What a gateway says when it cannot start."""

import shutil
import sys
from pathlib import Path

import pytest

from holdfast.gateway import keeper, settings
from holdfast.gateway.serve import gateway


async def test_workers_that_do_not_come_up_are_told_and_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "READY_WITHIN_S", 1.0)
    monkeypatch.setattr(keeper, "CLOSE_WITHIN_S", 1.0)
    monkeypatch.setattr(sys, "executable", shutil.which("false"))  # of which workers are made
    wanted = settings.Gateway(state=tmp_path, port=0, admin_port=0)
    with pytest.raises(keeper.CannotStart, match="did not come up within 1 s"):
        async with gateway(wanted):
            pass
    assert not list(tmp_path.glob("*.sock"))
