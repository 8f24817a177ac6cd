"""What we believe of a node, and the evidence for it."""

import enum

import msgspec

from holdfast.model.units import Instant, seconds


class Level(enum.StrEnum):
    ALIVE = "alive"
    SUSPECT = "suspect"
    UNREACHABLE = "unreachable"
    DEAD = "dead"


class Silence(enum.StrEnum):
    """How its heartbeats look against its own history."""

    FRESH = "fresh"
    LATE = "late"  # longer than it ever was: time to ask
    SILENT = "silent"  # long enough to act on, if others agree
    LONG = "long"  # long enough to act on alone


class Link(enum.StrEnum):
    OPEN = "open"
    CLOSED = "closed"


class Peers(enum.StrEnum):
    """What nodes in other failure domains answered when asked to probe it."""

    UNASKED = "unasked"
    WAITING = "waiting"
    REACHED = "reached"
    DISPUTED = "one reached it, others did not"
    OUTVOTED = "one reached it, others did not, for long"
    REFUSED = "refused"  # the host answers, nothing of ours lives there
    NOT_REACHED = "not reached"
    NOT_REACHED_AGAIN = "not reached, twice"
    NOBODY = "nobody to ask"


class Word(enum.StrEnum):
    """The provider's word."""

    UNASKED = "unasked"
    WAITING = "waiting"
    RUNNING = "running"
    STOPPED = "stopped"
    UNKNOWN = "unknown"


class Said(enum.StrEnum):
    NOTHING = "nothing"
    GOODBYE = "goodbye"
    NOTICE = "notice"


class Doubt(enum.StrEnum):
    """Why the observer may be the one at fault."""

    NONE = "none"
    GRACE = "new leader"
    LATE = "our own loop ran late"
    CROWD = "many fell silent at once"
    MAJORITY = "a majority fell silent at once"


class Evidence(msgspec.Struct, frozen=True):
    silence: Silence = Silence.FRESH
    link: Link = Link.OPEN
    peers: Peers = Peers.UNASKED
    provider: Word = Word.UNASKED
    said: Said = Said.NOTHING
    doubt: Doubt = Doubt.NONE
    silent_ms: int = 0
    usual_ms: int = 0  # the longest silence its history calls normal

    def __str__(self) -> str:
        parts = []
        if self.silence is not Silence.FRESH:
            parts.append(f"silent {seconds(self.silent_ms)} (usually at most {seconds(self.usual_ms)})")
        if self.link is Link.CLOSED:
            parts.append("link closed")
        if self.peers is not Peers.UNASKED:
            parts.append(f"peers: {self.peers}")
        if self.provider is not Word.UNASKED:
            parts.append(f"provider: {self.provider}")
        if self.said is not Said.NOTHING:
            parts.append(f"said {self.said}")
        if self.doubt is not Doubt.NONE:
            parts.append(f"doubt: {self.doubt}")
        return ", ".join(parts) or "heartbeats on time"


class Verdict(msgspec.Struct, frozen=True):
    level: Level
    rule: str
    evidence: Evidence
    since: Instant
