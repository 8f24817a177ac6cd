"""What a replica is when it runs: a command, its environment, and how to tell that it is well."""

import msgspec

from holdfast.model.units import SECOND, Millis


class Probe(msgspec.Struct, frozen=True):
    """One question asked again and again. Exactly one of `http`, `tcp` and `exec` is given."""

    http: str = ""  # a path on the replica's own port: any answer below 400 is well
    tcp: bool = False  # its port accepts a connection
    exec: tuple[str, ...] = ()  # this command, run beside it, exits with 0
    every_ms: Millis = 1 * SECOND
    timeout_ms: Millis = 1 * SECOND
    failures: int = 3  # in a row, before it counts


class Program(msgspec.Struct, frozen=True):
    command: tuple[str, ...]
    env: dict[str, str] = {}
    workdir: str = ""  # empty: a folder of the replica's own
    ready: Probe | None = None  # none: it is ready as soon as it runs
    alive: Probe | None = None  # fails: it is stopped, and counts as failed
    tell: str = ""  # the name of a signal it wants when its role, epoch or gang changes; empty: none
