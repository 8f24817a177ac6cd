"""What a picker is told of replicas: who they are, where prompts went, and what others have in flight.

Workers and keepers send it to each other as it stands, so it is apart from those who decide by it: they may
be compiled, and what is compiled has no annotations by which it could be decoded.
"""

import msgspec


class ReplicaSpec(msgspec.Struct, frozen=True):
    id: str
    address: str
    weight: float = 1.0
    priority: int = 0  # 0 is asked first
    streams_max: int = 0  # 0: not known

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise ValueError(f"the weight of {self.id} is {self.weight}; it must be above 0")


class Load(msgspec.Struct, frozen=True, array_like=True):
    """What one process, or several together, have in flight at a replica."""

    cost: float = 0.0
    largest: float = 0.0
    streams: int = 0


NO_LOAD = Load()


class Went(msgspec.Struct, frozen=True, array_like=True):
    """A prompt went to a replica: what siblings are told of it."""

    prefix: tuple[int, ...]
    first: int  # from this block on it belongs to the place
    key: int
    spills: int
    replica: str
