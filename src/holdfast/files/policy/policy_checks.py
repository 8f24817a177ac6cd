"""Do the numbers of a policy agree with each other?"""

from collections.abc import Iterator

from holdfast.files.problem import Problem
from holdfast.model.policy import Detection, Leases, Policy
from holdfast.model.units import seconds

BEATS_A_LEASE = 5  # fewer, and a few lost beats fence a healthy job


def problems(policy: Policy, table: str = "") -> Iterator[Problem]:
    detection, leases = policy.detection, policy.leases
    yield from _silence(detection, f"{table}detection")
    yield from _leases(detection, leases, f"{table}leases")


def _silence(detection: Detection, where: str) -> Iterator[Problem]:
    if detection.late_beats > detection.late_beats_max:
        text = f"expected at most late_beats_max ({detection.late_beats_max:g}), got {detection.late_beats:g}"
        yield Problem(f"{where}.late_beats", text, f"Try: {min(2.2, detection.late_beats_max):g}")
    if detection.peers_quorum > detection.peers_asked:
        text = f"expected at most peers_asked ({detection.peers_asked}), got {detection.peers_quorum}"
        yield Problem(f"{where}.peers_quorum", text, f"Try: {detection.peers_asked}")


def _leases(detection: Detection, leases: Leases, where: str) -> Iterator[Problem]:
    least = BEATS_A_LEASE * detection.beat_ms
    if leases.lease_ms < least:
        text = f"expected at least {BEATS_A_LEASE} beats ({seconds(least)}), got {seconds(leases.lease_ms)}"
        yield Problem(f"{where}.lease", text, f'Try: "{max(30, least // 1000)}s"')
