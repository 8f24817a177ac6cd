"""How busy is each GPU of this machine, as its driver says?

NVIDIA's library (NVML) is asked, if `nvidia-ml-py` is installed (the extra `gpu`) and there is a driver. It
is loaded when the first replica with a GPU is asked about, and not before: most agents never pay for it.

A driver may take seconds to wake up, and a device that fell off the bus may hang whoever asks. So it is asked
by a thread of its own, one question at a time, and nobody waits: what is known is the last answer, and
nothing if that is old. Nothing is not zero: a device that does not answer (as slices of one do not) is left
out, and so is every replica that has it.

What the driver gives is the share of its last sample, up to a second long, in which the device did anything.
Of a device that several share it is that of all of them: their shares of it are taken as equally busy.
"""

import importlib
import threading
from collections.abc import Callable, Mapping

from holdfast.agent.kernel import boot_ms
from holdfast.core.agent.machine import Wanted
from holdfast.model.units import SECOND, Instant, Millis

OFTEN_MS: Millis = 1 * SECOND  # the driver's own samples are as long
OLD_MS: Millis = 15 * SECOND  # three times as long as between two beats that tell

Busy = Mapping[int, int]  # by number of the device: in thousandths of it
Read = Callable[[], Busy]


class Gpus:
    """`begin` gives a way to read them, or None while there is none."""

    def __init__(self, begin: Callable[[], Read | None] | None = None) -> None:
        self._begin = begin or nvml
        self._read: Read | None = None
        self._asked_at: Instant | None = None
        self._last: tuple[Instant, Busy] | None = None
        self._asking: threading.Thread | None = None

    def busy(self, now: Instant) -> Busy:
        """What was answered last, if that is not old; and asks again, for the next time."""
        waits = self._asking is not None and self._asking.is_alive()
        if not waits and (self._asked_at is None or now - self._asked_at >= OFTEN_MS):
            self._asked_at = now
            self._asking = threading.Thread(target=self._ask, name="gpus", daemon=True)
            self._asking.start()
        last = self._last
        return last[1] if last is not None and now - last[0] <= OLD_MS else {}

    def _ask(self) -> None:
        self._read = self._read or self._begin()
        found = self._read() if self._read is not None else {}
        if found:
            self._last = (boot_ms(), found)
        else:
            self._read = None  # the driver may have gone and come back


def used_milli(wanted: Wanted, busy: Busy) -> int | None:
    """Of the GPUs that it asked for, in thousandths of one. None: nobody knows."""
    if not wanted.needs.gpu_milli or not wanted.devices or not set(wanted.devices) <= busy.keys():
        return None
    mean = sum(busy[device] for device in wanted.devices) / len(wanted.devices)
    return round(mean * wanted.needs.gpu_milli / 1000)


def nvml() -> Read | None:
    """None: there is no library or no driver. Numbers are as in CUDA_VISIBLE_DEVICES: those of the bus."""
    try:
        library = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        library.nvmlInit()
        handles = {n: library.nvmlDeviceGetHandleByIndex(n) for n in range(library.nvmlDeviceGetCount())}
    except (library.NVMLError, OSError):
        return None

    def read() -> Busy:
        found = {}
        for number, handle in handles.items():
            try:
                found[number] = 10 * int(library.nvmlDeviceGetUtilizationRates(handle).gpu)
            except library.NVMLError:
                continue
        return found

    return read
