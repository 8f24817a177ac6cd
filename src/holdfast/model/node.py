"""A machine (or a slice of one) that runs an agent: what it is, what it is doing, what we believe of it."""

import enum

import msgspec

from holdfast.model.outcomes import Failed
from holdfast.model.place import Place
from holdfast.model.resources import Resources
from holdfast.model.units import Instant, MicroUsd
from holdfast.model.verdict import Level, Link, Peers, Said, Verdict, Word


class NodeState(enum.StrEnum):
    LAUNCHING = "launching"  # asked for; the request may not even have left yet
    BOOTING = "booting"  # the provider has it, the agent has not joined
    READY = "ready"
    CORDONED = "cordoned"  # nothing new goes there
    DRAINING = "draining"  # and what is there leaves, by a deadline
    RESETTING = "resetting"
    QUARANTINED = "quarantined"  # kept off work until a person looks
    TERMINATING = "terminating"


JOINED = frozenset(
    {NodeState.READY, NodeState.CORDONED, NodeState.DRAINING, NodeState.RESETTING, NodeState.QUARANTINED}
)
COMING = frozenset({NodeState.LAUNCHING, NodeState.BOOTING})


class Answer(enum.StrEnum):
    """What a peer's probe met."""

    REACHED = "reached"
    REFUSED = "refused"
    TIMEOUT = "timeout"
    FAILED = "failed"  # the peer could not try


class Fencing(enum.StrEnum):
    """What ends an exclusive replica whose shim was killed, so that its lease means something then."""

    KERNEL = "kernel"  # all that it started dies with its shim
    NONE = "none"  # nothing: it may still run, whatever the lease and the agent say


class LimitedBy(enum.StrEnum):
    """What keeps a replica to the processors and memory it asked for."""

    CGROUP = "cgroup"  # the kernel: it gets no more processors, and is killed at its memory
    WATCHDOG = "watchdog"  # the agent: kills it above its memory, and tells of processors
    UNKNOWN = "unknown"  # an older agent: perhaps nothing


class Isolation(enum.StrEnum):
    """What keeps replicas apart from the agent and from one another."""

    USER = "user"  # each workload has a user of its own
    NONE = "none"  # they run as the agent's user, and can do all that it can
    UNKNOWN = "unknown"  # an older agent: nothing


class Clues(msgspec.Struct, frozen=True):
    """What others have told us of a node since we last heard it."""

    link: Link = Link.OPEN
    asked: tuple[str, ...] = ()  # peers asked to probe it
    asked_at: Instant = 0
    answers: dict[str, Answer] = {}
    concluded: Peers = Peers.UNASKED  # what the round before this one came to
    word: Word = Word.UNASKED
    word_at: Instant = 0
    said: Said = Said.NOTHING
    word_before: Word = Word.UNASKED  # what its provider said last, while it is asked again
    disputed_at: Instant = 0  # since then one peer says that it reached it, and others did not; 0: no


class Step(enum.IntEnum):
    """The repair ladder."""

    HEALTHY = 0
    WATCHED = 1
    CORDONED = 2
    DRAINED = 3
    RESET = 4
    REPLACED = 5
    QUARANTINED = 6


class Repair(msgspec.Struct, frozen=True):
    step: Step = Step.HEALTHY
    why: str = ""
    since: Instant = 0
    repeats: int = 0  # times it was repaired before
    flaps: tuple[Instant, ...] = ()  # when it came back from suspicion, recent ones
    failed: tuple[Failed, ...] = ()  # replicas that failed by themselves here since one succeeded


class Node(msgspec.Struct, frozen=True):
    id: str
    pool: str
    offer: str
    place: Place
    capacity: Resources
    price_micro_usd: MicroUsd
    spot: bool
    state: NodeState
    since: Instant
    verdict: Verdict
    labels: dict[str, str] = {}
    taints: tuple[str, ...] = ()
    clues: Clues = Clues()
    repair: Repair = Repair()
    deadline: Instant = 0  # of a drain or a spot notice; 0: none
    heard_at: Instant = 0  # when it was last acknowledged, as of the last verdict: the lease counts from here
    generation: int = 0  # of its desired set
    joined_at: Instant = 0
    idle_since: Instant = 0  # 0: it has work
    retry_at: Instant = 0  # not before this is a failed request about it made again
    standby: bool = False
    by_hand: bool = False  # an operator put it into this state
    releasing: bool = False  # it is well, and drained only to be released: see `core.disruption.consolidate`
    address: str = ""  # where its peers and clients reach it
    probe_port: int = 0
    hedge: str = ""  # the node that was asked for as well: the first one ready stays
    queued_at: Instant = 0  # its provider said then that it waits for its turn; 0: it does not
    starts_at: Instant = 0  # and expects its turn at this time; 0: it cannot tell
    launched_at: Instant = 0  # when it was asked for, or joined unasked: it costs from here
    answered: bool = False  # its provider has said that it is there
    price_max_micro_usd: MicroUsd | None = None  # what it was asked for at, at most
    fencing: Fencing = Fencing.KERNEL  # as its last hello said
    boot: str = ""
    limits: LimitedBy = LimitedBy.UNKNOWN
    isolation: Isolation = Isolation.UNKNOWN
    kept_at: Instant = 0  # since then the brake is narrowed to it and others: see `core.health.brake`

    @property
    def may_queue(self) -> bool:
        """Its provider has it, and it was never heard of."""
        return self.state is NodeState.BOOTING and not self.joined_at

    @property
    def is_open(self) -> bool:
        """May new replicas go there?"""
        return self.state is NodeState.READY and self.verdict.level is Level.ALIVE and not self.deadline

    @property
    def leaves_because(self) -> str:
        """Why it will be gone soon."""
        if self.releasing:
            return "its work fits elsewhere"
        return "spot notice" if self.spot else "it is leaving"
