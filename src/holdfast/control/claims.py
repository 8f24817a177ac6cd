"""May a node be believed that it has obeyed a later leader than we know of?

The question: a leader on a database that was restored from a copy has a generation that agents have left
behind, and they refuse its sets, as they must refuse a leader that was deposed. So a hello carries the
generation that the node has obeyed, and the leader goes above it. But a node that lies could drive the
generation up to where no number is left, or end one term after the other.

The rule: a claim is believed up to `JUMP_MAX` above our own generation. A database gains one generation with
each change of leaders: a million is more than any has ever lost. A node is believed once in `AGAIN_MS`, and
all of them once in `PAUSE_MS`, so one that lies costs the fleet a change of leaders in an hour, and driving
the generation to the end of 63 bits would take it longer than machines last. Who is not believed is refused,
and nobody else.

Refused: asking for a majority of nodes (a fleet may have one node, and after a restore the others may be
down), and an operator's word (who restores a backup has enough to think of).
"""

from holdfast.model.units import HOUR, SECOND, Instant

JUMP_MAX = 1 << 20
AGAIN_MS = 1 * HOUR
PAUSE_MS = 5 * SECOND


class Claims:
    """`highest`: what we lead above."""

    def __init__(self) -> None:
        self.highest = 0
        self._believed: dict[str, Instant] = {}  # by node: when it was believed

    def doubt(self, node: str, obeyed: int, ours: int, now: Instant) -> str:
        """Why it is not believed (now); empty: it is, and noted."""
        self._believed = {name: at for name, at in self._believed.items() if now - at < AGAIN_MS}
        if obeyed - ours > JUMP_MAX:
            return f"that is more than {JUMP_MAX:,} above it, and not believed"
        if node in self._believed:
            return "it said so a short while ago, and is not believed again so soon"
        if any(now - at < PAUSE_MS for at in self._believed.values()):
            return "another one said so a moment ago: try again"
        self._believed[node] = now
        self.highest = max(self.highest, obeyed)
        return ""
