"""What is believed of a service's load, and how many replicas that comes to."""

import msgspec

from holdfast.model.units import Instant, Millis


class Demand(msgspec.Struct, frozen=True):
    workload: str
    wanted: int
    since: Instant  # it has been wanted since then
    at: Instant  # when it was last judged
    why: str = ""
    said: str = ""  # the signals
    expected: str = ""  # the forecast
    instead: tuple[str, ...] = ()  # what other rules would have wanted, and at what cost
    memory: bytes = b""  # of its load so far: what a forecast begins with


class Start(msgspec.Struct, frozen=True):
    """How long a replica of a workload takes from being placed to being ready."""

    mean_ms: Millis
    count: int
