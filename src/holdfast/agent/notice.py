"""Has somebody said that this machine will be taken away?

Whoever knows (a watcher of the cloud's metadata, the trap of a batch script, a test) writes one number into
the file `notice` of the node's folder: the time at which the machine goes, in seconds since 1970, by this
machine's own clock. The agent passes it on, once on every link and when it changes. So the agent knows of no
provider, and a provider needs nothing of the agent but a path.
"""

import math
import time
from pathlib import Path

LEFT_S_MAX = 7 * 24 * 3600.0  # further off is no notice


def goes_at(path: Path) -> float | None:
    """When the machine goes, by its own clock; None: nobody said anything that makes sense."""
    try:
        said = float(path.read_text(encoding="ascii")[:64])
    except (OSError, ValueError):
        return None
    return said if math.isfinite(said) and said - time.time() <= LEFT_S_MAX else None


def left_ms(path: Path) -> int | None:
    """How long it still has."""
    goes = goes_at(path)
    return None if goes is None else max(1, round((goes - time.time()) * 1000))
