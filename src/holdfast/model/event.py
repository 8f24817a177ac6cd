"""What happened. Past tense; facts, never wishes. `at` is when the control plane learnt it."""

import enum

import msgspec

from holdfast.model.finding import Finding
from holdfast.model.gateway import Key, Limits, Tranche
from holdfast.model.node import Answer, Fencing, Isolation, LimitedBy
from holdfast.model.place import Place
from holdfast.model.policy import Policy
from holdfast.model.pool import Offer, Pool
from holdfast.model.project import Project
from holdfast.model.resources import Resources
from holdfast.model.units import Instant, Millis
from holdfast.model.verdict import Verdict, Word
from holdfast.model.workload import Workload


class Happened(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    at: Instant


class UserMade(Happened, frozen=True, kw_only=True):
    """Somebody wanted it. Nothing is decided by who did: history names them."""

    actor: str = ""  # the name of their token, `local` where there are none; empty: the control plane itself
    actor_id: str = ""  # the id of their token
    origin: str = ""  # the address of their client


class Changed(UserMade, frozen=True, kw_only=True):
    """`changes` are in words, without values that may be secret: a line of history is made of its entry
    alone, and the entry has only what is wanted from now on."""

    changes: tuple[str, ...] = ()


class NodeJoined(Happened, frozen=True):
    """An agent said hello (again): `running` is everything that lives there, or ended there untold."""

    node: str
    running: tuple[str, ...] = ()
    pool: str = ""
    offer: str = ""
    place: Place | None = None  # a node we did not launch tells what it is
    capacity: Resources | None = None
    address: str = ""  # where its peers and clients reach it: a host name or address
    probe_port: int = 0  # where it, or any shim of it, answers "are you there"
    fencing: Fencing = (
        Fencing.KERNEL
    )  # what ends its exclusive replicas when nothing of ours is left to do it
    boot: str = ""  # of the machine: another one after each restart; empty: an older agent
    limits: LimitedBy = LimitedBy.UNKNOWN  # what keeps its replicas to what they asked for
    told: int = 0  # the number of the last set that it took
    isolation: Isolation = Isolation.UNKNOWN  # what keeps its replicas apart


class NodeSaidGoodbye(Happened, frozen=True):
    node: str


class SpotNoticed(Happened, frozen=True):
    node: str
    deadline: Instant
    own: bool = False  # nobody takes it away: its agent is being ended


class LinkClosed(Happened, frozen=True):
    node: str


class PeerAnswered(Happened, frozen=True):
    node: str
    peer: str
    answer: Answer


class ProviderAnswered(Happened, frozen=True):
    node: str
    word: Word


class NodeJudged(Happened, frozen=True):
    """The detector changed its mind. Heartbeats are not journalled; this is what they came to."""

    node: str
    verdict: Verdict
    heard_at: Instant


class NodeLaunched(Happened, frozen=True):
    node: str


class NodeTerminated(Happened, frozen=True):
    """The provider confirmed that the node is gone: nothing runs there any more."""

    node: str
    found: bool = True  # False: there was nothing to terminate


class NodeReset(Happened, frozen=True):
    node: str


class PoolListed(Happened, frozen=True):
    """Everything the provider says exists in a pool, by our ids; and which of it waits for its turn, with how
    long that will take (`None`: nobody knows), if the provider has a queue and tells."""

    pool: str
    nodes: tuple[str, ...]
    asked_at: Instant
    queued: dict[str, Millis | None] | None = None


class OffersListed(Happened, frozen=True):
    """What the provider says can be had in a pool, at which price. What is missing cannot be had."""

    pool: str
    offers: tuple[Offer, ...] | None = None  # None: the same as before


class ActionFailed(Happened, frozen=True):
    action: str
    node: str
    error: str  # one of the port errors, by name
    why: str
    retry_after_ms: Millis = 0


class Ended(enum.StrEnum):
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"
    FENCED = "fenced"  # its lease ran out and the shim stopped it


class ReplicaStarted(Happened, frozen=True):
    replica: str
    node: str
    port: int = 0  # the one it was given, on its node
    incarnation: int = 0


class ReplicaReady(Happened, frozen=True):
    replica: str
    node: str
    incarnation: int = 0


class ReplicaEnded(Happened, frozen=True):
    replica: str
    node: str
    how: Ended
    progress_ms: Millis = 0
    why: str = ""
    proven: bool = True  # False: its shim is gone, and something that it started may still run


class CheckpointSaved(Happened, frozen=True):
    replica: str
    progress_ms: Millis
    node: str = ""  # that reported it; journals written before it was noted have none


class FindingRaised(Happened, frozen=True):
    finding: Finding


class FindingCleared(Happened, frozen=True):
    node: str
    name: str


class DemandJudged(Happened, frozen=True):
    """How many replicas the load of a service asks for. Signals are not journalled; this is what they came
    to."""

    workload: str
    wanted: int
    why: str
    said: str = ""
    expected: str = ""
    instead: tuple[str, ...] = ()
    memory: bytes | None = None  # None: as before


class WorkloadApplied(Changed, frozen=True):
    workload: Workload


class WorkloadDeleted(UserMade, frozen=True):
    workload: str


class WorkloadRetried(UserMade, frozen=True):
    """What failed of it, or rests after a failure, starts again."""

    workload: str


class WorkloadRestarted(UserMade, frozen=True):
    """The same program under a new version: what runs is replaced, what is done or has failed runs again."""

    workload: str


class PoolApplied(Changed, frozen=True):
    pool: Pool


class PoolDeleted(UserMade, frozen=True):
    pool: str


class PolicyApplied(Changed, frozen=True):
    policy: Policy


class ProjectApplied(Changed, frozen=True):
    """The quota of a project; one without limits is none."""

    project: Project


class KeyPut(Changed, frozen=True):
    """A key of the gateways is new, or was changed. It is whole, without its secret: nobody has that."""

    key: Key


class KeyDeleted(UserMade, frozen=True):
    key: str


class LimitsSet(Changed, frozen=True):
    """What a team, a model, or all together may take of the gateways; no limits at all: as much as they
    like."""

    scope: str
    limits: Limits


class TokenMade(UserMade, frozen=True):
    """Somebody was let in. The registry knows tokens; nothing is decided by these two."""

    token: str  # its id: nobody has its secret
    what: str  # its role, and what it is limited to, in words


class TokenRevoked(UserMade, frozen=True):
    token: str


class BudgetDrawn(Happened, frozen=True):
    """Of budgets that do not come back: what is used or lent, by scope. Of limits a minute: how much there
    was and how much may be lent until it is said again, by counter. Journalled before it is lent."""

    drawn: dict[str, int]
    tranches: dict[str, Tranche] = {}
    full: tuple[str, ...] = ()  # counters of which nothing is lent or missing any more
    term: int = 0  # the generation that lends by this; 0: it does not say what it lends of limits a minute


class JournalBehind(Happened, frozen=True):
    """The journal is older than what was done by it: it was restored from a copy. What was decided since is
    not known here, and may still run."""

    why: str
    node: str = ""  # that was told of more than the journal knows
    epoch: int = 0  # the highest that it was told of


class LeaderChanged(Happened, frozen=True):
    leader: str
    generation: int
    anew: bool = False  # it begins from a snapshot, and looks at everything
    era: str = ""  # which monotonic clock its instants go by
    offset: Millis = 0  # of its instants from that clock
    stepped_ms: Millis = 0  # the clock was set forward by so much since the leader before: not charged


class Order(enum.StrEnum):
    CORDON = "cordon"
    UNCORDON = "uncordon"
    DRAIN = "drain"
    FORGET = "forget"  # a dead node that will not come back and that nobody can terminate
    RELEASE_BRAKE = "release brake"
    CHAOS = "chaos"  # harm on purpose: nothing is decided by it, but history tells that it was us


BY_HAND = "by hand"


class OperatorOrdered(UserMade, frozen=True):
    order: Order
    node: str = ""
    deadline: Instant = 0
    why: str = BY_HAND
    pool: str = ""  # chaos: instead of a node


Event = (
    NodeJoined
    | NodeSaidGoodbye
    | SpotNoticed
    | LinkClosed
    | PeerAnswered
    | ProviderAnswered
    | NodeJudged
    | NodeLaunched
    | NodeTerminated
    | NodeReset
    | PoolListed
    | OffersListed
    | ActionFailed
    | ReplicaStarted
    | ReplicaReady
    | ReplicaEnded
    | CheckpointSaved
    | FindingRaised
    | FindingCleared
    | DemandJudged
    | WorkloadApplied
    | WorkloadDeleted
    | WorkloadRetried
    | WorkloadRestarted
    | PoolApplied
    | PoolDeleted
    | PolicyApplied
    | ProjectApplied
    | KeyPut
    | KeyDeleted
    | LimitsSet
    | TokenMade
    | TokenRevoked
    | BudgetDrawn
    | LeaderChanged
    | JournalBehind
    | OperatorOrdered
)
