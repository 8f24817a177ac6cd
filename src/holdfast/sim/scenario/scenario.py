"""A story to simulate: pools, workloads, programs, network, faults. Plain data; `files` reads it from
TOML."""

import enum

import msgspec

from holdfast.model.gateway import Limits
from holdfast.model.node import Fencing
from holdfast.model.policy import Policy
from holdfast.model.pool import Pool
from holdfast.model.project import Project
from holdfast.model.units import HOUR, MINUTE, SECOND, Instant, Millis
from holdfast.model.workload import Workload
from holdfast.sim.scenario.load_profile import Load
from holdfast.sim.scenario.market import Market
from holdfast.sim.traffic.requests import Requests
from holdfast.sim.twins.provider import ProviderTraits


class Program(msgspec.Struct, frozen=True):
    """What the simulated program of a workload does."""

    start_ms: Millis = 2 * SECOND  # from start to ready
    run_ms: Millis = 0  # work until it is done; 0: for ever
    crash_every_ms: Millis = 0  # it fails by itself about so often; 0: never
    fails_at_start: bool = False  # it is simply broken
    fails: float = (
        0.0  # this share of its runs fails by itself, at any time of a run; it may pass when tried again
    )
    stop_ms: Millis = 500  # how long it takes to stop when asked
    first_ms: Millis = 200  # of a model: from a request to its first token, besides its prompt
    prompt_per_s: int = 10_000  # tokens of a prompt that it reads in a second, if it has not read them before
    gap_ms: Millis = 20  # from one token to the next
    at_once: int = 0  # with so many requests it has enough, and answers the next with 429; 0: never


class GatewayTraits(msgspec.Struct, frozen=True):
    """The gateways before all services that are asked for tokens; each is as patient as the others."""

    count: int = 1  # called gw-1, gw-2, ...
    patience_ms: Millis = 2 * MINUTE  # a request is held so long while nobody can answer it
    held: int = 1_000  # at most so many of a service at a time
    tries: int = 3  # how often a request is tried in all
    connect_ms: Millis = 2 * SECOND  # within which a connection is made
    first_byte_ms: Millis = 2 * MINUTE  # within which an answer begins
    stall_ms: Millis = 1 * MINUTE  # without a byte, an answer is lost
    total_ms: Millis = 1 * HOUR  # within which an answer ends
    hedge: bool = False  # a late request is asked of a second replica
    continues: bool = False  # an answer that was cut goes on elsewhere, with what it has said so far
    fail_open: bool = False  # let requests in when nobody can say what is left of a quota
    shadow: bool = True  # keys that seem to work for nobody are only named, and not held back

    @property
    def first_byte_s(self) -> float:
        return self.first_byte_ms / SECOND

    @property
    def stall_s(self) -> float:
        return self.stall_ms / SECOND

    @property
    def total_s(self) -> float:
        return self.total_ms / SECOND


class NetworkTraits(msgspec.Struct, frozen=True):
    delay_ms: Millis = 5
    jitter_ms: Millis = 20  # mean of an exponential tail
    loss: float = 0.0005


class Fault(enum.StrEnum):
    CRASH = "crash"  # power loss: silent at once, everything on it gone
    KILL = "kill"  # every process of the node dies, its host lives
    HANG = "hang"  # frozen, silent, thaws later
    SLOW = "slow"  # answers late, works slowly
    GRAY = "gray"  # heartbeats fine, fails every replica
    PARTITION = "partition"  # between `nodes` and everybody else (or only the control plane)
    AGENT_RESTART = "agent restart"
    PROVIDER_OUTAGE = "provider outage"
    PROVIDER_SLOW = "provider slow"
    PROVIDER_LIES = "provider lies"
    PROVIDER_ERRORS = "provider errors"  # it does as it is told and answers with an error
    PROVIDER_THROTTLES = "provider throttles"  # too many requests: later
    PROVIDER_DENIES = "provider denies"  # our credentials are no good
    PROVIDER_LATE = "provider late"  # no answer in time, and it does what it was asked after that
    LAUNCHES_FAIL = "launches fail"  # machines end before they are up
    STOCK_OUT = "stock out"
    OFFERS_VANISH = "offers vanish"  # between listing and launch
    PRICE_SPIKE = "price spike"  # `factor` times what it was
    SPOT_NOTICE = "spot notice"
    SPOT_TAKEN = "spot taken"  # without any notice
    CONTROL_CRASH = "control crash"  # `step`: between which two steps of a turn
    CONTROL_PAUSE = "control pause"
    CLOCK_JUMP = "clock jump"
    STORE_OUTAGE = "store outage"
    STORE_CUT = "store cut"  # one control plane cannot reach it; the others can
    STORE_CRASH = "store crash"  # in the middle of an append
    SIGNALS_MISSING = "signals missing"  # the gateway of `workload` falls silent; empty: every one
    SIGNALS_STUCK = "signals stuck"  # it repeats what it last said
    SIGNALS_ABSURD = "signals absurd"  # no numbers, negative ones, impossible ones
    GATEWAY_CRASH = "gateway crash"  # with all requests that it has; it starts anew after `lasts`


OF_PROVIDERS = (
    Fault.PROVIDER_OUTAGE,
    Fault.PROVIDER_SLOW,
    Fault.PROVIDER_LIES,
    Fault.PROVIDER_ERRORS,
    Fault.PROVIDER_THROTTLES,
    Fault.PROVIDER_DENIES,
    Fault.PROVIDER_LATE,
    Fault.LAUNCHES_FAIL,
    Fault.STOCK_OUT,
    Fault.OFFERS_VANISH,
    Fault.PRICE_SPIKE,
)
OF_SIGNALS = (Fault.SIGNALS_MISSING, Fault.SIGNALS_STUCK, Fault.SIGNALS_ABSURD)


class Between(enum.StrEnum):
    ALL = "all"  # nobody outside reaches them
    CONTROL = "control"  # only the control plane does not; peers do


class Direction(enum.StrEnum):
    BOTH = "both"
    TO = "to"  # nothing arrives at the nodes
    FROM = "from"  # nothing arrives from them


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """One fault of the story. `nodes` are names, or domains such as `zone:a` and `rack:r1`."""

    at: Instant
    fault: Fault
    nodes: tuple[str, ...] = ()
    lasts_ms: Millis = 0  # 0: for ever, where that makes sense
    times: int = 1  # repeated so often
    every_ms: Millis = 0
    between: Between = Between.ALL
    direction: Direction = Direction.BOTH
    provider: str = ""
    control: str = ""
    step: int = 0
    jump_ms: int = 0
    provider_knows: bool = True  # a crashed node: does its provider notice that it stopped?
    factor: float = 5.0  # price spike: so many times the price
    workload: str = ""  # signals: of which service
    gateway: str = ""  # gateway crash, partition: which one


class PoolSetup(msgspec.Struct, frozen=True):
    """A pool and the nodes that are already there when the story begins."""

    pool: Pool
    nodes: int = 0
    mtbf_ms: Millis = 0  # what-if: nodes fail by themselves about so often; 0: never
    repair_ms: Millis = 10 * MINUTE  # and, if they cannot be replaced, return after this
    preempt_every_ms: Millis = 0  # spot nodes are taken about so often
    market: Market | None = None  # what can be had when; none: anything, at the pool's prices
    fencing: Fencing = Fencing.KERNEL  # what its nodes say ends a replica whose shim was killed


class WorkloadSetup(msgspec.Struct, frozen=True):
    """A workload, and when it is applied. Named twice, it is applied again, as it then is."""

    workload: Workload
    program: Program = Program()
    at: Instant = 0
    load: Load | None = None  # what is asked of a service: as a fluid, or how many requests a second
    requests: Requests | None = None  # what these requests are like; none: it is a fluid


class Change(msgspec.Struct, frozen=True):
    """Something a person does in the middle of the story."""

    at: Instant
    do: str  # delete | pause | scale | update | restart | cordon | drain | release brake | ...
    workload: str = ""
    node: str = ""
    replicas: int = 0
    key: str = ""
    pool: str = ""
    deadline_ms: Millis = 5 * MINUTE


class Scenario(msgspec.Struct, frozen=True):
    name: str
    title: str = ""
    seed: int = 1
    lasts_ms: Millis = 10 * MINUTE
    settle_ms: Millis = 15 * MINUTE  # after the last fault, by then all must be well
    pools: tuple[PoolSetup, ...] = ()
    workloads: tuple[WorkloadSetup, ...] = ()
    providers: dict[str, ProviderTraits] = {}
    network: NetworkTraits = NetworkTraits()
    troubles: tuple[Trouble, ...] = ()
    changes: tuple[Change, ...] = ()
    control_planes: int = 1
    policy: Policy = Policy()
    projects: tuple[Project, ...] = ()
    gateways: GatewayTraits = GatewayTraits()
    limits: dict[str, Limits] = {}  # by scope: what may be asked of the gateways
    domain_mtbf_ms: Millis = 0  # what-if: a whole zone fails about so often
    domain_repair_ms: Millis = 1 * HOUR
