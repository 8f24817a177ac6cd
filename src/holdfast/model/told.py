"""One line of history: what a journal entry says to a person."""

import msgspec

from holdfast.model.units import Instant

VERDICT = "verdict"


class Told(msgspec.Struct, frozen=True):
    """A plan has a line for each action; an event has one, or none if nobody would want to read it."""

    seq: int  # the journal entry's number, from 1
    at: Instant
    kind: str  # verdict | action | held | event | leader | user | finding
    subject: str
    text: str
    node: str = ""
    workload: str = ""
    actor: str = ""  # who wanted it, of what somebody did
    project: str = ""  # of its workload; empty: the default one
