"""How the runs of a program ended lately, and where: what tells a flaky program from a broken node."""

import msgspec

from holdfast.model.units import SECOND, Instant, Millis

PROVEN_MS: Millis = 30 * SECOND  # a copy of a service that served for so long has succeeded


class Failed(msgspec.Struct, frozen=True):
    """A replica that failed by itself on a node, and nothing has succeeded on that node since."""

    at: Instant
    slot: str
    workload: str
    version: int
    age_ms: Millis  # from being placed


class Outcome(msgspec.Struct, frozen=True):
    at: Instant
    node: str
    ok: bool


class Outcomes(msgspec.Struct, frozen=True):
    """Of one version of a workload."""

    workload: str
    version: int
    recent: tuple[Outcome, ...] = ()  # in the order in which they came
