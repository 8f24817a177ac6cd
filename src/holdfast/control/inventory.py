"""Does a node run what it should not?

The question: sets are pushed and hellos compared, so what runs besides is found when a node connects anew
and not before. A process that outlived its replica (a stop that was lost in an agent, a journal that was
restored, a report that was wrong) would run on for as long as the link holds.

The rule: every few beats a node names what it runs, by what it uses. A name that is not placed there twice
in a row (once may be a report that is under way) is ordered to stop again: the node is sent its set, at most
once a second however often it reports, and stops what that does not name. It is level-triggered, so nothing
is remembered for longer than it is true. What still runs `PERSISTS_MS` later is a finding, which goes when it
does.

Refused: asking each node for its inventory on a schedule of ours. It would come in bursts, and the beats
have it already; comparing costs microseconds of those that report, and nothing of those that run what they
should. A node that leaves a name out on purpose is not caught by its own word; see the page on trust.
"""

from collections.abc import Collection

import msgspec

from holdfast.model.event import Event, FindingCleared, FindingRaised
from holdfast.model.finding import Finding, Severity
from holdfast.model.units import MINUTE, Instant
from holdfast.model.world import World

NAME = "runs what it should not"
TWICE = 2  # reports in a row
ORDERED_EVERY_MS = 1_000
PERSISTS_MS = 1 * MINUTE  # a stop takes less, even of what does not want to
KEPT = 64  # strays of one node
SHOWN = 5
SHOWN_LENGTH = 80


class Strays(msgspec.Struct, frozen=True):
    """What one report of a node comes to."""

    order: bool = False  # send it its set again
    new: tuple[str, ...] = ()  # seen for the second time now
    event: Event | None = None


class Since(msgspec.Struct, frozen=True):
    at: Instant
    times: int = 0  # reports in a row

    def again(self) -> "Since":
        return Since(self.at, self.times + 1)

    def lasts(self, now: Instant) -> bool:
        return self.times >= TWICE and now - self.at >= PERSISTS_MS


class Inventory:
    def __init__(self) -> None:
        self._seen: dict[str, dict[str, Since]] = {}  # by node and stray
        self._ordered: dict[str, Instant] = {}  # by node: when it was last ordered to stop some

    def clear(self) -> None:
        self._seen.clear()
        self._ordered.clear()

    def drop(self, node: str) -> None:
        self._seen.pop(node, None)
        self._ordered.pop(node, None)

    def heard(self, world: World, node: str, running: Collection[str], now: Instant) -> Strays:
        """The node reports that it runs these."""
        placed = world.on_node.get(node, {})
        strays = [name for name in running if name not in placed][:KEPT]
        before = self._seen.pop(node, {})
        found = (node, NAME) in world.findings
        if not strays:
            return Strays(event=FindingCleared(at=now, node=node, name=NAME)) if found else Strays()
        seen = self._seen[node] = {name: before.get(name, Since(now)).again() for name in strays}
        lasting = [name for name, since in seen.items() if since.lasts(now)]
        return Strays(
            order=any(since.times >= TWICE for since in seen.values()) and self._may_order(node, now),
            new=tuple(name for name, since in seen.items() if since.times == TWICE),
            event=_finding(node, lasting, now) if lasting and not found else None,
        )

    def _may_order(self, node: str, now: Instant) -> bool:
        """A set is large, and a report is small."""
        if now - self._ordered.get(node, -ORDERED_EVERY_MS) < ORDERED_EVERY_MS:
            return False
        self._ordered[node] = now
        return True


def _finding(node: str, lasting: list[str], now: Instant) -> Event:
    shown = ", ".join(name[:SHOWN_LENGTH] for name in lasting[:SHOWN])
    more = f" and {len(lasting) - SHOWN} more" if len(lasting) > SHOWN else ""
    evidence = f"not placed there, and it does not stop it: {shown}{more}"
    remedy = "look at the machine: is its agent what you installed? Else drain it and revoke its key"
    return FindingRaised(at=now, finding=Finding(NAME, node, Severity.WATCH, 1.0, evidence, now, remedy))
