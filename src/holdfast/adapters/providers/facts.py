"""Which providers there are, and what each cannot do. Whoever writes a pool need not know."""

from collections.abc import Mapping
from typing import Final

LIMITS: Final[Mapping[str, Mapping[str, bool]]] = {
    "local": {},
    "ssh": {},
    "join": {"can_launch": False, "can_terminate": False, "can_reset": False},
}
