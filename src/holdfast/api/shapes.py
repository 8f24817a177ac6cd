"""What the API gives, as JSON. The OpenAPI document is made from these.

Instants are milliseconds since 1970, durations milliseconds, money micro-dollars: the units of the domain.
Names end in their unit, as everywhere.

They are msgspec structs because nobody writes them by hand: ten thousand nodes are built and encoded in some
80 ms, with pydantic in 300 (and a control plane that answers is a control plane that does not listen to its
nodes meanwhile). A client reads one with `read(body, Status)`, or `read(body, list[Node])`; fields it does
not know are passed over. What people do write, the bodies of requests, is pydantic: `api/bodies.py`.
"""

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

T = TypeVar("T")


def read(body: bytes | str, shape: type[T]) -> T:
    """An answer of the API. msgspec.DecodeError: it is none."""
    try:
        return msgspec.json.decode(body, type=shape)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None


class Shape(msgspec.Struct, frozen=True, gc=False):
    """Shapes are trees and live for one answer: the garbage collector would walk the whole world for them."""


class Resources(Shape, frozen=True, gc=False):
    cpu_milli: int
    memory_mib: int
    gpu_milli: int = 0
    gpu_kind: str = ""


class Place(Shape, frozen=True, gc=False):
    """The failure domains of a node, widest first."""

    provider: str
    region: str
    zone: str
    rack: str


class Node(Shape, frozen=True, gc=False):
    name: str
    pool: str
    offer: str
    place: Place
    state: Annotated[str, Meta(description="launching, booting, ready, cordoned, draining, resetting, ...")]
    verdict: Annotated[str, Meta(description="alive, suspect, unreachable or dead")]
    rule: Annotated[str, Meta(description="the rule that decided the verdict")]
    evidence: str
    verdict_since_ms: int
    state_since_ms: int
    silent_ms: Annotated[
        int | None, Meta(description="since it was last heard; null on a control plane that follows")
    ]
    capacity: Resources
    free: Annotated[Resources, Meta(description="not promised to a replica")]
    used: Annotated[Resources | None, Meta(description="measured by its agent; null: not known")]
    price_micro_usd: Annotated[int, Meta(description="an hour")]
    spot: bool
    standby: bool
    deadline_ms: Annotated[int | None, Meta(description="the instant at which a drain or a spot notice ends")]
    address: str
    labels: dict[str, str]
    taints: list[str]
    replicas: list[str]
    findings: list[str]


class Replica(Shape, frozen=True, gc=False):
    id: str
    workload: str
    slot: str
    node: str
    epoch: int
    role: Annotated[str, Meta(description="active or standby")]
    state: Annotated[str, Meta(description="placed, starting, ready, stopping or lost")]
    since_ms: int
    version: int
    address: Annotated[str, Meta(description="HOST:PORT, or empty as long as it is not known")]
    devices: Annotated[list[int], Meta(description="which GPUs of its node")]
    gang: Annotated[int, Meta(description="the generation of its gang; 0: it is in none")]
    used: Resources | None


class Seat(Shape, frozen=True, gc=False):
    """A slot of a workload: a seat that wants to be filled."""

    slot: str
    role: str
    phase: Annotated[str, Meta(description="open, done, closed or failed")]
    replica: Annotated[str, Meta(description="the one that fills it, or empty")]
    last: Annotated[str, Meta(description="the last one that filled it, which may have ended, or empty")]
    node: str
    state: Annotated[str, Meta(description="of its replica; pending if it has none")]
    failures: int
    down_ms: Annotated[int | None, Meta(description="for how long nothing in it has been ready")]
    why: str


class Workload(Shape, frozen=True, gc=False):
    name: str
    kind: Annotated[str, Meta(description="service, job, training or sweep")]
    version: int
    paused: bool
    priority: int
    wanted: int
    ready: int
    done: int
    failed: int
    standby: Annotated[int, Meta(description="warm replicas that are ready")]
    needs: Annotated[Resources, Meta(description="of one replica")]
    command: list[str]
    availability: Annotated[float | None, Meta(description="the target; null: it has none")]
    why: Annotated[str, Meta(description="what keeps it from being as wanted; empty: nothing")]
    seats: Annotated[
        list[Seat],
        Meta(
            description="all of them when one workload is asked for; in lists at most 50, troubled ones first"
        ),
    ]


class Offer(Shape, frozen=True, gc=False):
    name: str
    pool: str
    place: Place
    capacity: Resources
    price_micro_usd: Annotated[int, Meta(description="an hour")]
    spot: bool


class Pool(Shape, frozen=True, gc=False):
    name: str
    provider: str
    min: int
    max: int
    standby: int
    nodes: Annotated[int, Meta(description="that there are now, coming ones included")]
    why: Annotated[str, Meta(description="why it last failed to launch; empty: it did not")]
    offers: list[Offer]


class Line(Shape, frozen=True, gc=False):
    """One line of history."""

    seq: Annotated[int, Meta(description="number of its journal entry; an entry may have several lines")]
    at_ms: int
    kind: Annotated[str, Meta(description="verdict, action, held, event, leader, user or finding")]
    subject: str
    text: str
    node: Annotated[str, Meta(description="that it is about, or empty")]
    workload: Annotated[str, Meta(description="that it is about, or empty")]


class Finding(Shape, frozen=True, gc=False):
    node: str
    name: str
    severity: Annotated[int, Meta(description="0 note, 1 watch, 2 cordon, 3 drain, 4 reset, 5 replace")]
    confidence: float
    evidence: str
    remedy: str
    at_ms: int


class Brake(Shape, frozen=True, gc=False):
    scope: Annotated[str, Meta(description="fleet, or a failure domain")]
    since_ms: int
    why: str


class Status(Shape, frozen=True, gc=False):
    """The fleet on one page."""

    leader: Annotated[str, Meta(description="empty: nobody leads")]
    leader_url: str
    generation: int
    leading: Annotated[bool, Meta(description="is it the control plane that answers?")]
    now_ms: int
    journal: Annotated[int, Meta(description="entries")]
    brakes: list[Brake]
    nodes: list[Node]
    workloads: list[Workload]


class Step(Shape, frozen=True, gc=False):
    """One action of a dry run."""

    action: str
    subject: str
    text: str
    why: str


class Preview(Shape, frozen=True, gc=False):
    """What would happen, decided by the real loop on a copy of the world."""

    changes: Annotated[list[str], Meta(description="what would be created, changed (how), or stay as it is")]
    steps: list[Step]
    pending: Annotated[list[str], Meta(description="what would still wait, and why")]


class Explanation(Shape, frozen=True, gc=False):
    """Why something is as it is, and what would help."""

    kind: str
    name: str
    summary: str
    because: list[str]
    would_help: list[str]
    history: Annotated[list[Line], Meta(description="the latest lines about it, oldest first")]


class Applied(Shape, frozen=True, gc=False):
    name: str
    kind: Annotated[str, Meta(description="service, job, training, sweep, pool or policy")]
    outcome: Annotated[str, Meta(description="created, changed, unchanged or deleted")]
    version: Annotated[int, Meta(description="of a workload; 0: pools and the policy have none")]
    changes: Annotated[list[str], Meta(description="what changed, in words")] = []


class Done(Shape, frozen=True, gc=False):
    """An order that has nothing else to show."""

    done: str


class Problem(Shape, frozen=True, gc=False):
    """RFC 9457."""

    title: str
    status: int
    detail: str
    hint: Annotated[str, Meta(description="what to do about it; may be empty")] = ""
    problems: Annotated[
        list[str], Meta(description="each thing that is wrong with the input, with its path")
    ] = []
    type: str = "about:blank"


class TokenMade(Shape, frozen=True, gc=False):
    id: str
    token: Annotated[str, Meta(description="shown once, never again")]
    role: str


class TokenShown(Shape, frozen=True, gc=False):
    id: str
    role: Annotated[str, Meta(description="admin, operator, read or join")]
    note: str
    pool: str
    node: str
    created_ms: int
    expires_ms: Annotated[int | None, Meta(description="null: never")]
    used_by: Annotated[str, Meta(description="the node that joined with it, or empty")]


class Health(Shape, frozen=True, gc=False):
    name: Annotated[str, Meta(description="of the control plane that answers")]
    leading: bool
    ready: bool
