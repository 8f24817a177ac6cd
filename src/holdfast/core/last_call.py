"""How long before the end of a drain is what still runs there stopped?

Exclusive work needs its time to save: it is told `drain_last_call` before the end, at once if there is less.
A copy of a service has nothing to save and is missed as soon as it stops, so it goes on serving while its
successor starts: a quarter of the time given is enough to end open requests. Where only thirty seconds'
notice is given (some markets give no more), one last call for both would stop every copy the moment the
notice comes.
"""

from holdfast.model.node import Node
from holdfast.model.policy import Policy
from holdfast.model.units import Instant

SERVING_SHARE = 4  # of the time given, a fourth is for ending


def last_call(node: Node, policy: Policy, *, exclusive: bool) -> Instant:
    before = policy.replicas.drain_last_call_ms
    if not exclusive:
        before = min(before, max(0, node.deadline - node.since) // SERVING_SHARE)
    return node.deadline - before
