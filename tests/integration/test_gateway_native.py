"""The compiled worker is the worker: the same words to the same conversations, and the same tests hold."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from holdfast.gateway import compile as compiling
from holdfast.gateway import native, settings
from holdfast.gateway.serve import gateway
from tests.packages import need

ROOT = Path(__file__).parent.parent.parent
STORY_S = 240
# Not those that put something else in the place of a compiled class, or of a function of its module.
PURE = (
    "bucket",
    "estimate",
    "glance",
    "health",
    "hold",
    "lease",
    "picker",
    "prefix",
    "siblings",
    "sse",
    "tries",
)
RUN = """
import sys
from holdfast.gateway import native
assert native.use()
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


@pytest.fixture(scope="module")
def compiled() -> Path:
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    need(lambda: shutil.which("gcc"), "gcc", "libc6-dev")
    need(lambda: headers if headers.is_file() else None, "python3-dev")
    return compiling.compile_all()


def told(seed: int, switch: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.native_story", str(seed), "700"],
        cwd=ROOT,
        env={**os.environ, native.SWITCH: switch},
        capture_output=True,
        text=True,
        timeout=STORY_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.usefixtures("compiled")
def test_it_says_the_same_in_the_same_conversations(seed: int) -> None:
    interpreted = told(seed, "0")
    assert b"[DONE]".decode() in interpreted
    assert '"code":"upstream_lost"' in interpreted
    assert told(seed, "1") == interpreted
    assert re.search("hedged=[1-9]", interpreted)
    assert re.search("continued=[1-9]", interpreted)
    held = [
        line.split()[1]
        for line in interpreted.splitlines()
        if line.startswith(("concurrent|", "tokens|", "total|", "left "))
    ]
    assert held
    assert {float(one) for one in held} == {0.0}  # nothing is in flight any more


@pytest.mark.usefixtures("compiled")
def test_what_holds_for_the_core_holds_for_the_compiled_core() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            RUN,
            *(f"tests/unit/test_gateway_{name}.py" for name in PURE),
            "tests/property/test_gateway_answer_properties.py",
            "tests/property/test_gateway_lease_properties.py",
            "tests/property/test_gateway_routing_properties.py",
        ],
        cwd=ROOT,
        env={**os.environ, native.SWITCH: "1"},
        capture_output=True,
        text=True,
        timeout=STORY_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4_000:]
    assert " passed" in done.stdout


@pytest.mark.parametrize("switch", ["0", "1"])
@pytest.mark.usefixtures("compiled")
async def test_workers_use_what_was_compiled_unless_they_are_told_not_to(
    switch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(native.SWITCH, switch)
    async with gateway(settings.Gateway(state=tmp_path, port=0, admin_port=0, workers=1)) as serving:
        maps = Path(f"/proc/{serving.keeper.seats[0].pid}/maps").read_text()
    assert (native.GROUP in maps) is (switch == "1")
