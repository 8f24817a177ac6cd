"""What the API gives, as JSON. The OpenAPI document is made from these.

Instants are milliseconds since 1970, durations milliseconds, money micro-dollars: the units of the domain.
Names end in their unit, as everywhere.

They are msgspec structs because nobody writes them by hand: ten thousand nodes are built and encoded in some
80 ms, with pydantic in 300 (and a control plane that answers is a control plane that does not listen to its
nodes meanwhile). A client reads one with `read(body, Status)`, or `read(body, list[Node])`; fields it does
not know are passed over. What people do write, the bodies of requests, is pydantic: `api/bodies.py`.
"""

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from holdfast.model.workload import DEFAULT_PROJECT

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
    state: Annotated[
        str,
        Meta(
            description="`dead` or `unreachable` if that is the verdict on a node that had joined, else as "
            "`lifecycle`"
        ),
    ]
    verdict: Annotated[
        str, Meta(description="alive, suspect, unreachable or dead; unknown: it has never joined")
    ]
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
    fencing: Annotated[
        str, Meta(description="kernel: what an exclusive replica started dies with its shim; or none")
    ] = ""
    limits: Annotated[
        str, Meta(description="what keeps replicas to their cpus and memory: cgroup, watchdog (memory only)")
    ] = ""
    isolation: Annotated[
        str, Meta(description="user: each workload runs as a user of its own; none: as the agent's user")
    ] = ""
    lifecycle: Annotated[
        str,
        Meta(description="launching, booting, ready, cordoned, draining, resetting, ..."),
    ] = ""


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


class Bounds(Shape, frozen=True, gc=False):
    """Between which sizes a service grows and shrinks, and by which signals."""

    min: int
    max: int
    signals: list[str]


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
    scale: Annotated[Bounds | None, Meta(description="null: its size does not follow its load")] = None
    gang: Annotated[
        int, Meta(description="of a training: the generation whose members are all ready; 0: none is")
    ] = 0
    deadline_ms: Annotated[
        int | None, Meta(description="the instant by which a job is to be done; null: it has no deadline")
    ] = None
    missed_deadline: Annotated[
        bool, Meta(description="its deadline passed before it was done; also if it was done later")
    ] = False
    project: Annotated[str, Meta(description="whose it is")] = DEFAULT_PROJECT


class Offer(Shape, frozen=True, gc=False):
    name: str
    pool: str
    place: Place
    capacity: Resources
    price_micro_usd: Annotated[int, Meta(description="an hour")]
    spot: bool


class Price(Shape, frozen=True, gc=False):
    at_ms: int
    micro_usd: Annotated[int, Meta(description="an hour, from then on")]


class OfferListed(Offer, frozen=True, gc=False):
    """An offer, what is remembered of it, and what is expected of it now. Counts fade: half after two
    weeks."""

    key: Annotated[str, Meta(description="POOL/OFFER")]
    prices: Annotated[list[Price], Meta(description="its latest changes of price, the newest last")]
    chance: Annotated[float, Meta(description="that a launch now comes up")]
    ready_ms: Annotated[int, Meta(description="expected until it has joined, if it comes up")]
    lasts_a_day: Annotated[float, Meta(description="the chance that a node is there for a day")]
    cost_micro_usd: Annotated[
        int, Meta(description="expected, of a useful hour: losses and failures counted")
    ]
    asked: Annotated[float, Meta(description="launches, lately")]
    came_up: float
    refused: Annotated[float, Meta(description="there was none")]
    failed: Annotated[float, Meta(description="granted or not answered, and never came up")]
    lost: Annotated[float, Meta(description="nodes taken away or dead")]
    retry_ms: Annotated[
        int | None, Meta(description="the instant until which it backs off; null: it does not")
    ]
    refusal: Annotated[str, Meta(description="why it would not be launched now; empty: it may be")]


class Budget(Shape, frozen=True, gc=False):
    """Hard limits; null: there is none."""

    hour_micro_usd: Annotated[int | None, Meta(description="what all that is there may cost an hour")] = None
    month_micro_usd: Annotated[int | None, Meta(description="what a calendar month may cost, by UTC")] = None


class Spend(Shape, frozen=True, gc=False):
    """What the fleet or a pool costs."""

    pool: Annotated[str, Meta(description="empty: the fleet")]
    nodes: int
    hour_micro_usd: Annotated[int, Meta(description="what it costs an hour now")]
    month_micro_usd: Annotated[int, Meta(description="this calendar month so far")]
    ever_micro_usd: int
    budget: Budget
    lasts_ms: Annotated[
        int | None,
        Meta(description="how long the month's money lasts; null: to the end of the month, or no budget"),
    ]
    on_demand_micro_usd: Annotated[
        int | None,
        Meta(description="what the nodes that there are would cost an hour on demand; null: not known"),
    ]


class Spending(Shape, frozen=True, gc=False):
    """Money: what is spent, and what may be."""

    now_ms: int
    month_ends_ms: int
    fleet: Spend
    pools: list[Spend]
    told: Annotated[list[str], Meta(description="what is worth knowing, in words")]


class Pool(Shape, frozen=True, gc=False):
    name: str
    provider: str
    min: int
    max: int
    standby: int
    nodes: Annotated[int, Meta(description="that there are now, coming ones included")]
    why: Annotated[
        str, Meta(description="what is wrong with it now; of the past, with its age; empty: nothing")
    ]
    offers: list[Offer]
    hour_micro_usd: Annotated[int, Meta(description="what its nodes cost an hour now")] = 0
    price_max_micro_usd: Annotated[
        int | None, Meta(description="dearer offers are left alone; null: no limit")
    ] = None
    budget: Budget = Budget()
    network: Annotated[
        tuple[str, ...], Meta(description="where its nodes may say that they are reached, as CIDR")
    ] = ()
    deleted: Annotated[
        bool, Meta(description="its nodes are emptied and let go; it is forgotten when none is left")
    ] = False
    profile: Annotated[str, Meta(description="the provider profile that it names; empty: none")] = ""


class Line(Shape, frozen=True, gc=False):
    """One line of history."""

    seq: Annotated[int, Meta(description="number of its journal entry; an entry may have several lines")]
    at_ms: int
    kind: Annotated[str, Meta(description="verdict, action, held, event, leader, user or finding")]
    subject: str
    text: str
    node: Annotated[str, Meta(description="that it is about, or empty")]
    workload: Annotated[str, Meta(description="that it is about, or empty")]
    actor: Annotated[
        str,
        Meta(description="who, of what somebody did: the note or id of a token; `local`: none is needed"),
    ] = ""


class Project(Shape, frozen=True, gc=False):
    """What a project takes of the fleet, and how much it may; null: as much as there is."""

    name: str
    workloads: int
    nodes: Annotated[int, Meta(description="on which its replicas stand")]
    cpu_milli: int
    memory_mib: int
    gpu_milli: int
    hour_micro_usd: Annotated[int, Meta(description="what its replicas cost, by their shares of their nodes")]
    nodes_max: int | None = None
    cpu_milli_max: int | None = None
    memory_mib_max: int | None = None
    gpu_milli_max: int | None = None
    month_micro_usd_max: Annotated[int | None, Meta(description="of 730 such hours")] = None
    priority_max: Annotated[int | None, Meta(description="of its workloads")] = None
    replicas: Annotated[int, Meta(description="slots, at the most that its workloads may come to")] = 0
    replicas_max: Annotated[int, Meta(description="more are refused when they are applied")] = 0
    workloads_max: Annotated[int, Meta(description="more are refused when they are applied")] = 0


class Audited(Shape, frozen=True, gc=False):
    """One record of the audit log."""

    seq: Annotated[int, Meta(description="its number, in the order in which they were kept")]
    at_ms: Annotated[int, Meta(description="by the wall clock of the control plane")]
    kind: Annotated[
        str,
        Meta(
            description="order: somebody changed something; token: made, used first, revoked, brought late"
            "; login: failed; denied: a token is not for this; lost: records that found no room"
        ),
    ]
    actor: Annotated[str, Meta(description="the name of the token, or empty")]
    token: Annotated[str, Meta(description="its id, or empty")]
    origin: Annotated[str, Meta(description="the address of the client")]
    subject: str
    text: str
    count: Annotated[int, Meta(description="how many of the same this record stands for")] = 1
    plane: Annotated[str, Meta(description="the control plane that wrote it")] = ""


class Finding(Shape, frozen=True, gc=False):
    node: str
    name: str
    severity: Annotated[int, Meta(description="0 note, 1 watch, 2 cordon, 3 drain, 4 reset, 5 replace")]
    confidence: float
    evidence: str
    remedy: str
    at_ms: int


class Brake(Shape, frozen=True, gc=False):
    scope: Annotated[str, Meta(description="fleet, a failure domain, or kept: dead nodes only")]
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
    clock_off_ms: Annotated[
        int,
        Meta(
            description="how far the clock of the machine that answers is ahead of `now_ms`; 0 up to an hour"
        ),
    ] = 0


class Free(Shape, frozen=True, gc=False):
    """The nodes of one pool in one zone with one kind of GPU, and what is free on those that are open."""

    pool: str
    zone: str
    gpu_kind: str
    nodes: Annotated[int, Meta(description="that are here")]
    open: Annotated[int, Meta(description="that take new replicas; warm standby nodes do not count")]
    cpu_milli: int
    memory_mib: int
    gpus: Annotated[int, Meta(description="that nobody uses")]
    shares_milli: Annotated[int, Meta(description="what is left of GPUs that somebody uses")]
    standby: Annotated[int, Meta(description="warm nodes")]
    coming: int
    leaving: int


class FreeGpus(Shape, frozen=True, gc=False):
    """How the free GPUs of one kind lie."""

    kind: str
    gpus: Annotated[int, Meta(description="that nobody uses, on open nodes")]
    shares_milli: int
    largest: Annotated[int, Meta(description="free together on one node")]
    together: Annotated[
        dict[str, int], Meta(description="how many asks for 1, 2, 4 and 8 GPUs would find a node")
    ]
    stranded_milli: Annotated[
        int, Meta(description="of the free ones, what the next typical asks could not use")
    ]


class Fits(Shape, frozen=True, gc=False):
    workload: str
    more: Annotated[int, Meta(description="replicas that would fit now, each workload alone; at most 100")]
    waiting: Annotated[int, Meta(description="seats that are empty for want of room")]


class Hit(Shape, frozen=True, gc=False):
    """What a loss does to one workload: lost = promoted + placed + by_preemption + short."""

    workload: str
    priority: int
    lost: Annotated[int, Meta(description="active replicas; of a gang that must stop, those elsewhere too")]
    left: Annotated[int, Meta(description="ready elsewhere")]
    promoted: Annotated[int, Meta(description="seats that a warm replica takes")]
    placed: Annotated[int, Meta(description="started again on what is free")]
    by_preemption: Annotated[int, Meta(description="started again in the place of lower priorities")]
    short: Annotated[int, Meta(description="for which there is no room")]
    standbys: Annotated[int, Meta(description="warm replicas lost")]
    availability: Annotated[float | None, Meta(description="promised; null: nothing is")]
    broken: Annotated[str, Meta(description="for how long the promise is broken; empty: it is kept")]


class Loss(Shape, frozen=True, gc=False):
    """What would happen if all nodes of a failure domain were gone."""

    level: str
    domain: str
    told: Annotated[str, Meta(description="all of it in words")]
    nodes: int
    lost: int
    short: int
    hits: list[Hit]
    pushed_out: Annotated[
        dict[str, int], Meta(description="replicas that would stop for more important ones, by workload")
    ]


class Capacity(Shape, frozen=True, gc=False):
    """What is free, what of it can be used, and what fails next."""

    now_ms: int
    level: str
    told: Annotated[list[str], Meta(description="what is worth knowing, in words")]
    cpu_milli: Annotated[int, Meta(description="free on open nodes")]
    cpu_milli_unusable: Annotated[int, Meta(description="of it, where nothing that is asked for fits")]
    gpu_milli_unusable: int
    free: list[Free]
    gpus: list[FreeGpus]
    fits: list[Fits]
    losses: Annotated[list[Loss], Meta(description="one for each domain of the level, the worst first")]


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
    cautions: Annotated[list[str], Meta(description="what would be so, and may surprise later")] = []


class SpotOffer(Shape, frozen=True, gc=False):
    """What a service on a mix has of one spot offer. Nodes count that it uses, waits for or could use."""

    key: Annotated[str, Meta(description="POOL/OFFER")]
    price_micro_usd: Annotated[int, Meta(description="an hour")]
    stays_ms: Annotated[int, Meta(description="a node launched now is expected to stay so long")]
    ready: int
    coming: int
    leaving: Annotated[int, Meta(description="of those, under notice")]
    refused: Annotated[bool, Meta(description="none may be had now")]
    taking: Annotated[bool, Meta(description="it has taken nodes away in the last minutes")]


class Way(Shape, frozen=True, gc=False):
    """A way to have all that are wanted, and what it costs an hour."""

    name: Annotated[str, Meta(description="as it is, as asked, all on spot or all on demand")]
    price_micro_usd: int
    losses_micro_usd: Annotated[int, Meta(description="what losing some of them is expected to cost besides")]


class Mix(Shape, frozen=True, gc=False):
    """How a service is spread over spot and on demand, and what was learnt of its losses."""

    wanted: int
    floor: Annotated[int, Meta(description="always on demand")]
    spares: Annotated[int, Meta(description="on spot, beside those wanted")]
    on_demand: Annotated[int, Meta(description="copies that stand there")]
    spot: int
    offers: list[SpotOffer]
    ordered: Annotated[list[str], Meta(description="what is launched or let go now, and why")]
    alone_per_hour: Annotated[float, Meta(description="losses of a single node")]
    more_follow: Annotated[
        float, Meta(description="chance that an offer that took some and left some takes more within minutes")
    ]
    cases: Annotated[int, Meta(description="in which that was seen")]
    short_share: Annotated[float, Meta(description="of the time, with fewer ready than wanted")]
    short_share_max: Annotated[float, Meta(description="that is accepted")]
    ways: list[Way]


class Explanation(Shape, frozen=True, gc=False):
    """Why something is as it is, and what would help."""

    kind: str
    name: str
    summary: str
    because: list[str]
    would_help: list[str]
    history: Annotated[list[Line], Meta(description="the latest lines about it, oldest first")]
    mix: Annotated[Mix | None, Meta(description="of a service on spot and on demand")] = None


class Applied(Shape, frozen=True, gc=False):
    name: str
    kind: Annotated[str, Meta(description="service, job, training, sweep, pool or policy")]
    outcome: Annotated[str, Meta(description="created, changed, unchanged or deleted")]
    version: Annotated[int, Meta(description="of a workload; 0: pools and the policy have none")]
    changes: Annotated[list[str], Meta(description="what changed, in words")] = []


class Version(Shape, frozen=True, gc=False):
    """What ran under a version of a workload; the last one of the list runs now."""

    version: int
    until_ms: Annotated[int | None, Meta(description="then it was superseded; null: it runs now")]
    command: list[str]
    changes: Annotated[list[str], Meta(description="against the one before it in the list, in words")]


class Written(Shape, frozen=True, gc=False):
    """What is applied, as a file would say it."""

    name: str
    version: int
    file: Annotated[str, Meta(description="YAML; to apply it changes nothing")]
    fields: Annotated[dict[str, Any], Meta(description="the same as an object, which can be applied too")]


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
    ca_pin: Annotated[
        str,
        Meta(description="of the fleet's authority, for behind the token and a dot; empty: not needed"),
    ] = ""


class TokenShown(Shape, frozen=True, gc=False):
    id: str
    role: Annotated[str, Meta(description="admin, operator, read, gateway, signals or join")]
    note: str
    pool: str
    node: str
    created_ms: int
    expires_ms: Annotated[int | None, Meta(description="null: never")]
    used_by: Annotated[str, Meta(description="the last node that joined with it, or empty")]
    uses: Annotated[int, Meta(description="join: how many nodes may join with it")] = 1
    used: Annotated[int, Meta(description="join: how many have")] = 0
    project: Annotated[str, Meta(description="the only one that it is for; empty: all")] = ""
    first_used_ms: Annotated[int | None, Meta(description="null: not yet")] = None


class Health(Shape, frozen=True, gc=False):
    name: Annotated[str, Meta(description="of the control plane that answers")]
    leading: bool
    ready: bool
