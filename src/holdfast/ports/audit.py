"""The audit log: who came in, who was refused, and who changed what."""

import enum
from typing import Protocol

import msgspec

from holdfast.model.units import Instant


class Kind(enum.StrEnum):
    ORDER = "order"  # somebody changed something
    TOKEN = "token"  # one was made, used first, revoked, or brought after it had expired
    LOGIN = "login"  # a failed one
    DENIED = "denied"  # a token that is good, and not for this
    LOST = "lost"  # records that could not be kept


# So many of each kind a registry keeps, and the oldest go first: what strangers do displaces no order.
KEPT = {Kind.ORDER: 80_000, Kind.LOGIN: 8_000, Kind.DENIED: 6_000, Kind.TOKEN: 5_000, Kind.LOST: 1_000}


class Record(msgspec.Struct, frozen=True):
    at: Instant  # by the wall clock of the control plane
    kind: Kind
    id: str = ""  # made up, one for each: what is written twice is kept once
    actor: str = ""  # the name of the token
    token: str = ""  # its id
    origin: str = ""  # the address of the client
    subject: str = ""
    text: str = ""
    count: int = 1  # of the same, since the last record of it
    plane: str = ""  # the control plane that wrote it
    seq: int = 0  # its number, from 1; 0: it was not kept yet


class Sink(Protocol):
    """Where each record goes besides the registry, as it comes."""

    def write(self, lines: list[bytes]) -> None:
        """Blocks. OSError: they were not written."""
