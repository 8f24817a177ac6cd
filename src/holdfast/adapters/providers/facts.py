"""Which providers there are, what each cannot do, and what is wrong with a pool's settings for it. Whoever
writes a pool need not know."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from holdfast.adapters.providers.local import market as local
from holdfast.adapters.providers.settings import Wrong

LIMITS: Final[Mapping[str, Mapping[str, bool]]] = {
    "local": {},
    "ssh": {},
    "ec2": {"lists_offers": True},
    "slurm": {"can_reset": False, "lists_offers": True, "queues": True},
    "join": {"can_launch": False, "can_terminate": False, "can_reset": False},
}
# Of the settings, and the names of the pool's offers.
WRONG: Final[Mapping[str, Callable[[Mapping[str, str], Collection[str]], Iterator[Wrong]]]] = {
    "local": local.wrong,
}
