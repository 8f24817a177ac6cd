"""What each provider cannot do, unless a pool says otherwise. Whoever writes a pool need not know."""

from collections.abc import Mapping
from typing import Final

LIMITS: Final[Mapping[str, Mapping[str, bool]]] = {
    "local": {},
    "ssh": {},
    "ec2": {"lists_offers": True},
    "slurm": {"can_reset": False, "lists_offers": True, "queues": True},
    "join": {"can_launch": False, "can_terminate": False, "can_reset": False},
}
