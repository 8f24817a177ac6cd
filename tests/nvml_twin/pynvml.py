"""A twin of NVIDIA's library, as far as the agent asks it: put its folder on the path, and say in the file
that NVML_TWIN names how busy each device is (one number a line; `-`: it does not answer)."""

import os
from pathlib import Path
from typing import NamedTuple


class NVMLError(Exception):
    pass


class Utilization(NamedTuple):
    gpu: int  # percent
    memory: int


def _lines() -> list[str]:
    try:
        return Path(os.environ["NVML_TWIN"]).read_text().split()
    except (KeyError, OSError):
        raise NVMLError("Driver Not Loaded") from None


def nvmlInit() -> None:  # noqa: N802
    _lines()


def nvmlDeviceGetCount() -> int:  # noqa: N802
    return len(_lines())


def nvmlDeviceGetHandleByIndex(index: int) -> int:  # noqa: N802
    return index


def nvmlDeviceGetUtilizationRates(handle: int) -> Utilization:  # noqa: N802
    said = _lines()[handle]
    if said == "-":
        raise NVMLError("GPU is lost")
    return Utilization(int(said), 0)
