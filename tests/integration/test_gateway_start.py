"""What a gateway says when it cannot start."""

import asyncio
import shutil
import sys
from pathlib import Path

import pytest

from holdfast import wiring
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


async def test_a_second_gateway_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    """Both served: each had the whole budget, and who wrote last decided which keys there are."""
    file = tmp_path / "gateway.yaml"
    file.write_text("services: []\nopen: true\n")
    command = [sys.executable, "-m", "holdfast.cli.main", "gateway", "-c", str(file)]
    command += ["--dir", str(tmp_path / "state"), "--port", "0", "--admin-port", "0"]
    with wiring.only_one(tmp_path / "state", "gateway"):
        second = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        try:
            async with asyncio.timeout(60):
                _, said = await second.communicate()
        finally:
            if second.returncode is None:
                second.kill()
                await second.wait()
    assert second.returncode
    assert b"another `holdfast gateway` uses" in said
    assert b"--dir" in said
