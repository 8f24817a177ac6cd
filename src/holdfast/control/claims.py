"""May a node be believed that it has obeyed a later leader than we know of?

The question: a leader on a database that was restored from a copy has a generation that agents have left
behind, and they refuse its sets, as they must refuse a leader that was deposed. So a hello carries the
generation that the node has obeyed, and the leader goes above it: its term ends, and it leads on under
another. But a node that lies could end one term after the other, and drive the generation up to where no
number is left.

The rule: a claim is believed with a proof. Each welcome has one that there was a leader of its generation: a
code (HMAC) over that number, made with the launch secret of the fleet, which every control plane and every
copy of the database has and no node. The node keeps it and brings it with its hello. A claim without a proof
is refused, and ends nothing.

Refused: believing a claim once in a while and within bounds. It cost a change of leaders an hour for each
node that lies. Refused too: asking for a majority of nodes (a fleet may have one node, and after a restore
the others may be down), and an operator's word (who restores a backup has enough to think of).
"""

import hashlib
import hmac

JUMP_MAX = 1 << 20  # epochs that a node may know of above those of the journal
PROOF_BYTES = 32


class Claims:
    """`highest`: what we lead above."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.highest = 0

    def proof(self, generation: int) -> bytes:
        """That there was a leader of this generation."""
        return hmac.new(self._secret, b"led\0%d" % generation, hashlib.sha256).digest()

    def believed(self, obeyed: int, led: int, proof: bytes) -> bool:
        """It has obeyed a leader of generation `obeyed`, and proves that there was one of `led`."""
        if led < obeyed or not hmac.compare_digest(proof, self.proof(led)):
            return False
        self.highest = max(self.highest, led)
        return True
