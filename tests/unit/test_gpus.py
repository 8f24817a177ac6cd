"""How busy the GPUs are, as a twin of the driver's library says."""

import sys
import threading
from pathlib import Path

import pytest

from holdfast.agent import gpus
from holdfast.agent.gpus import OFTEN_MS, OLD_MS, Busy, Gpus, used_milli
from holdfast.agent.kernel import boot_ms
from holdfast.core.agent.machine import Wanted
from tests.build import resources

TWIN = Path(__file__).parents[1] / "nvml_twin"


def answered(those: Gpus, later_ms: int = 0) -> Busy:
    """What is known when the question that this asks has been answered."""
    those.busy(boot_ms() + later_ms)
    assert those._asking is not None
    those._asking.join(10)
    return those.busy(boot_ms() + later_ms)


def wanted(gpu: float, *devices: int) -> Wanted:
    return Wanted("web/0.1", "web/0", 1, exclusive=False, needs=resources(1, 512, gpu), devices=devices)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.syspath_prepend(str(TWIN))
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.setenv("NVML_TWIN", str(tmp_path / "busy"))
    return tmp_path / "busy"


def test_each_device_that_answers_is_told_in_thousandths(driver: Path) -> None:
    driver.write_text("40 - 7")
    assert answered(Gpus()) == {0: 400, 2: 70}


def test_without_library_or_driver_nothing_is_known(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpus.nvml() is None, "no driver"
    those = Gpus()
    assert answered(those) == {}
    driver.write_text("50")
    assert answered(those, OFTEN_MS) == {0: 500}, "it came later"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpus.nvml() is None, "no library"


def test_nobody_waits_for_a_device_that_hangs_and_an_old_answer_is_none() -> None:
    hangs, asked = threading.Event(), []

    def read() -> Busy:
        asked.append(1)
        if len(asked) > 1:
            hangs.wait(10)
        return {0: 900}

    those = Gpus(lambda: read)
    assert answered(those) == {0: 900}
    now = boot_ms()
    assert those.busy(now + OFTEN_MS) == {0: 900}
    assert those.busy(now + OLD_MS + 2 * OFTEN_MS) == {}
    assert those.busy(now + OLD_MS + 4 * OFTEN_MS) == {}
    assert len(asked) == 2, "one question at a time"
    hangs.set()


@pytest.mark.parametrize(
    ("of", "used"),
    [
        (wanted(2, 0, 1), 1400),
        (wanted(1, 1), 600),
        (wanted(0.5, 0), 400),
        (wanted(2, 0, 5), None),  # one of its devices does not answer
        (wanted(0), None),
    ],
)
def test_a_replica_uses_what_its_devices_are_busy(of: Wanted, used: int | None) -> None:
    assert used_milli(of, {0: 800, 1: 600, 3: 0}) == used
