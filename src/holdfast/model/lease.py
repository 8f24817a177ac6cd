"""A lease: a node's time-limited permission to run its exclusive replicas.

Two clocks count it. The agent counts from the moment it *sent* the heartbeat that was acknowledged, on its
own monotonic clock; we count from the moment we *received* it, which is later. So ours always ends after
theirs, and a margin covers clocks that run at different speeds.
"""

from holdfast.model.units import Instant, Millis


def ends_at_agent(sent_at: Instant, lease_ms: Millis) -> Instant:
    return sent_at + lease_ms


def surely_over(heard_at: Instant, lease_ms: Millis, margin_ms: Millis) -> Instant:
    """The first instant at which a node last acknowledged at `heard_at` cannot hold a lease any more."""
    return heard_at + lease_ms + margin_ms
