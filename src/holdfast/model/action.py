"""What to do. Imperative; each says why, and which fact caused it.

An action takes effect in the world when its plan is accepted, before anyone carries it out. Those in
`DISRUPTIVE` take a node away from somebody, so the brake may hold them; the others only add, ask, or clear
up.
"""

import enum

import msgspec

from holdfast.model.course import Way
from holdfast.model.finding import Finding
from holdfast.model.node import Step
from holdfast.model.place import Place
from holdfast.model.replica import Role
from holdfast.model.resources import Resources
from holdfast.model.units import Instant, MicroUsd, Millis


class Deed(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    why: str
    cause: str = ""


class AskPeers(Deed, frozen=True):
    node: str
    peers: tuple[str, ...]


class AskProvider(Deed, frozen=True):
    node: str


class ListPool(Deed, frozen=True):
    pool: str


class ListOffers(Deed, frozen=True):
    pool: str


class ForgetPool(Deed, frozen=True):
    """It was deleted, and nothing of it is left."""

    pool: str


class LaunchNode(Deed, frozen=True):
    """The plan chose the id, so asking twice is asking for the same machine."""

    node: str
    pool: str
    offer: str
    place: Place
    capacity: Resources
    price_micro_usd: MicroUsd
    spot: bool
    standby: bool = False
    hedge: str = ""  # the other one asked for at the same time: whichever is ready first stays
    price_max_micro_usd: MicroUsd | None = None  # spot: at no higher price, neither now nor later


class TerminateNode(Deed, frozen=True):
    node: str


class WatchNode(Deed, frozen=True):
    node: str
    repeats: int = 0


class CordonNode(Deed, frozen=True):
    node: str


class UncordonNode(Deed, frozen=True):
    node: str


class DrainNode(Deed, frozen=True):
    node: str
    deadline: Instant
    step: Step = Step.DRAINED
    release: bool = False  # once empty it is terminated; if it does not get empty, it is given back


class GiveNotice(Deed, frozen=True):
    """The node will be taken away by ourselves at the deadline, as its provider takes a spot node."""

    node: str
    deadline: Instant


class ResetNode(Deed, frozen=True):
    node: str


class QuarantineNode(Deed, frozen=True):
    node: str


class RaiseFinding(Deed, frozen=True):
    finding: Finding


class ClearFinding(Deed, frozen=True):
    """What raised it is gone, or it has stood long enough: the node is to be tried again."""

    node: str
    name: str


class TakeWay(Deed, frozen=True):
    """How a job with a deadline goes on, and when to ask again."""

    workload: str
    way: Way
    safe_until: Instant
    ask_at: Instant


class DeclareLate(Deed, frozen=True):
    """The deadline of a job has passed, and the job is not done."""

    workload: str
    deadline: Instant


class PlaceReplica(Deed, frozen=True):
    replica: str
    slot: str
    node: str
    epoch: int
    role: Role
    needs: Resources
    exclusive: bool
    devices: tuple[int, ...] = ()
    gang: int = 0
    version: int = 1
    resume_ms: Millis = 0
    grace_ms: Millis = 0  # from being asked to stop to being killed


class StopReplica(Deed, frozen=True):
    replica: str
    deadline: Instant


class PromoteStandby(Deed, frozen=True):
    """The warm replica takes the seat of the lost one, under a new epoch; its old seat is open again."""

    replica: str
    slot: str
    epoch: int
    gang: int = 0
    resume_ms: Millis = 0
    restart: bool = False  # its program is started anew in its new role


class RegroupGang(Deed, frozen=True):
    """The gang goes on with these members in a new generation: they resume from their last common checkpoint.
    With `restart` their programs are started anew where they are, each under a new epoch; without it they are
    sent a signal and keep running."""

    workload: str
    generation: int
    members: tuple[str, ...]  # replicas
    restart: bool = False


class Proof(enum.StrEnum):
    LEASE_OVER = "its lease ran out, with margin"
    NODE_GONE = "the provider confirmed that its node is gone"


class DeclareGone(Deed, frozen=True):
    """A lost replica is provably not running any more."""

    replica: str
    proof: Proof


class AddSlot(Deed, frozen=True):
    slot: str
    workload: str
    index: int
    role: Role


class CloseSlot(Deed, frozen=True):
    """Not wanted any more: nothing is placed in it again."""

    slot: str


class RemoveSlot(Deed, frozen=True):
    slot: str


class GiveUpSlot(Deed, frozen=True):
    slot: str


class EngageBrake(Deed, frozen=True):
    scope: str  # "fleet" or a failure domain


class ReleaseBrake(Deed, frozen=True):
    scope: str


class NarrowBrake(Deed, frozen=True):
    """From now on it holds what would disturb these nodes, and nothing else."""

    scope: str
    nodes: tuple[str, ...]


Action = (
    AskPeers
    | AskProvider
    | ListPool
    | ListOffers
    | ForgetPool
    | LaunchNode
    | TerminateNode
    | WatchNode
    | CordonNode
    | UncordonNode
    | DrainNode
    | GiveNotice
    | ResetNode
    | QuarantineNode
    | RaiseFinding
    | ClearFinding
    | TakeWay
    | DeclareLate
    | PlaceReplica
    | StopReplica
    | PromoteStandby
    | RegroupGang
    | DeclareGone
    | AddSlot
    | CloseSlot
    | RemoveSlot
    | GiveUpSlot
    | EngageBrake
    | ReleaseBrake
    | NarrowBrake
)

DISRUPTIVE = (TerminateNode, DrainNode, ResetNode)
SEATING = (AddSlot, CloseSlot, RemoveSlot)  # of which a plan has so many
