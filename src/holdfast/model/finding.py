"""A named health result with evidence, confidence and a proposed remedy."""

import enum

import msgspec

from holdfast.model.units import Instant


class Severity(enum.IntEnum):
    """How far up the repair ladder one such finding moves a node at once."""

    NOTE = 0
    WATCH = 1
    CORDON = 2
    DRAIN = 3
    RESET = 4
    REPLACE = 5


class Finding(msgspec.Struct, frozen=True):
    name: str  # "gpu fell off the bus", "flapping", "fails every replica"
    node: str
    severity: Severity
    confidence: float
    evidence: str
    at: Instant
    remedy: str = ""
    expires: Instant = 0  # 0: it stands until it is cleared
    raised_by: tuple[tuple[str, int], ...] = ()  # workloads and their versions; without them it is over
