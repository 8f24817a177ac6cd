"""What the last probes of replicas answered that are not well, as their nodes say it with their beats.

It is for people who ask why something is not ready: never journalled, forgotten with the connection, and
nothing is decided by it. A node is heard about its own replicas only, because it is asked by node and
replica; what it says is bounded in number and length, and is one line of printable text.
"""

from typing import NamedTuple

from holdfast.model.units import Instant, Millis

OF_A_NODE_MAX = 1_000
LENGTH_MAX = 200


class ProbeAnswer(NamedTuple):
    text: str
    since: Instant  # by our own monotonic clock: so long it has been the same


class ProbeAnswers:
    def __init__(self) -> None:
        self._by_node: dict[str, dict[str, ProbeAnswer]] = {}

    def heard(self, node: str, changed: dict[str, str], now: Instant) -> None:
        known = self._by_node.setdefault(node, {})
        for replica, text in changed.items():
            known.pop(replica, None)
            if text and len(known) < OF_A_NODE_MAX:
                line = "".join(each if each.isprintable() else "?" for each in text[:LENGTH_MAX])
                known[replica] = ProbeAnswer(line, now)

    def of(self, node: str, replica: str, now: Instant) -> tuple[str, Millis] | None:
        """The answer, and for how long it has been that."""
        found = self._by_node.get(node, {}).get(replica)
        return None if found is None else (found.text, max(0, now - found.since))

    def drop(self, node: str) -> None:
        self._by_node.pop(node, None)

    def clear(self) -> None:
        self._by_node.clear()
