"""The tables of a scenario file, field by field. The reference page is made from the descriptions here."""

import enum
from typing import Annotated

from pydantic import Field

from holdfast.files import leaf
from holdfast.files.leaf import (
    CPUS,
    FLAG,
    GPUS,
    IDENTITY,
    LABELS,
    MEMORY,
    MONEY,
    NAMES,
    SHARE,
    TEXT,
    choice,
    duration,
    whole,
)
from holdfast.files.mirror import Mirror, Strict
from holdfast.model.place import Level
from holdfast.model.policy import Policy
from holdfast.model.units import HOUR, MINUTE, SECOND
from holdfast.model.workload import Restart, Spread
from holdfast.sim.provider import ProviderTraits
from holdfast.sim.scenario import Change, NetworkTraits, Program, Trouble


class Kind(enum.StrEnum):
    SERVICE = "service"
    JOB = "job"
    TRAINING = "training"
    SWEEP = "sweep"


class Deed(enum.StrEnum):
    """What people do in the middle of a story."""

    DELETE = "delete"
    PAUSE = "pause"
    RESUME = "resume"
    SCALE = "scale"
    UPDATE = "update"
    CORDON = "cordon"
    UNCORDON = "uncordon"
    DRAIN = "drain"
    RELEASE_BRAKE = "release brake"


POLICY = Mirror(Policy, least_ms=1)
PROGRAM = Mirror(Program)
RESTART = Mirror(Restart)
NETWORK = Mirror(NetworkTraits)
PROVIDER = Mirror(ProviderTraits)
FAULT = Mirror(
    Trouble,
    times=whole(1, 10_000),
    step=whole(0, 100),
    jump=duration(-leaf.LONGEST_MS, '"90s"'),
)
CHANGE = Mirror(Change, do=choice(Deed), replicas=whole(0))


class OfferForm(Strict):
    """What is not said here is taken from the pool."""

    name: Annotated[str, IDENTITY] = Field(description="unique in its pool")
    region: Annotated[str | None, TEXT] = Field(None, description="as the pool's")
    zone: Annotated[str, TEXT] = Field("-", description="its zone: a failure domain")
    rack: Annotated[str, TEXT] = Field("-", description="its rack: a smaller one")
    cpus: Annotated[int | None, CPUS] = Field(None, description="as the pool's")
    memory: Annotated[int | None, MEMORY] = Field(None, description="as the pool's")
    gpus: Annotated[int | None, whole(0, 1024)] = Field(None, description="as the pool's")
    gpu_kind: Annotated[str | None, TEXT] = Field(None, description="as the pool's")
    price: Annotated[int | None, MONEY] = Field(None, description="as the pool's")
    spot: Annotated[bool | None, FLAG] = Field(None, description="as the pool's")


class PoolForm(Strict):
    name: Annotated[str, IDENTITY] = Field(
        description="unique; its first nodes are called NAME-a, NAME-b, ..."
    )
    provider: Annotated[str, IDENTITY] = Field("local", description="who launches and terminates its nodes")
    nodes: Annotated[int, whole(0, 20_000, 6)] = Field(0, description="how many are there at the beginning")
    min: Annotated[int | None, whole(0, 20_000)] = Field(None, description="never fewer; as many as `nodes`")
    max: Annotated[int | None, whole(0, 20_000, 10)] = Field(
        None, description="never more; the larger of `nodes` and `min`"
    )
    standby: Annotated[int, whole(0, 20_000)] = Field(0, description="warm nodes kept empty and ready")
    region: Annotated[str, TEXT] = Field("-", description="where it is")
    zones: Annotated[tuple[str, ...], NAMES] = Field(("a",), description="one offer a zone, filled in turn")
    racks_per_zone: Annotated[int, whole(1, 1000)] = Field(
        1, description="more than one: an offer a rack, called a-r1, a-r2, ..."
    )
    cpus: Annotated[int, CPUS] = Field(8_000, description="of one node")
    memory: Annotated[int, MEMORY] = Field(32 * 1024, description="of one node")
    gpus: Annotated[int, whole(0, 1024)] = Field(0, description="of one node")
    gpu_kind: Annotated[str, TEXT] = Field("", description="such as h100")
    price: Annotated[int, MONEY] = Field(0, description="of one node")
    spot: Annotated[bool, FLAG] = Field(False, description="can be taken away")
    offers: list[OfferForm] = Field([], description="instead of `zones`, when the nodes are not all alike")
    labels: Annotated[dict[str, str], LABELS] = Field({}, description="of every node")
    taints: Annotated[tuple[str, ...], NAMES] = Field((), description="only what tolerates them runs here")
    idle: Annotated[int, duration()] = Field(
        10 * MINUTE, description="an empty node above `min` is released after this"
    )
    can_launch: Annotated[bool, FLAG] = Field(True, description="false: what is there is all there is")
    can_terminate: Annotated[bool, FLAG] = Field(True, description="false: dead nodes are waited for")
    can_reset: Annotated[bool, FLAG] = Field(True, description="can its nodes be power-cycled")
    mtbf: Annotated[int, duration()] = Field(0, description="a node fails about so often; 0: never")
    repair: Annotated[int, duration()] = Field(
        10 * MINUTE, description="and returns after this, when it cannot be replaced"
    )
    preempt_every: Annotated[int, duration()] = Field(0, description="a spot node is taken about so often")


class WorkloadForm(Strict):
    name: Annotated[str, IDENTITY] = Field(description="unique")
    kind: Annotated[Kind, choice(Kind)] = Field(Kind.SERVICE, description="what it is")
    replicas: Annotated[int | None, whole(1, example=3)] = Field(None, description="service: copies; 1")
    availability: Annotated[float | None, SHARE] = Field(
        None, description="service: a target, from which the number of copies is chosen"
    )
    nodes_min: Annotated[int | None, whole(1, example=2)] = Field(
        None, description="training: it starts with so many or not at all; must be given"
    )
    nodes_max: Annotated[int | None, whole(1, example=4)] = Field(
        None, description="training: and grows to so many when there is room; `nodes_min`"
    )
    tasks: Annotated[int | None, whole(1, example=100)] = Field(
        None, description="sweep: how many in all; must be given"
    )
    parallel: Annotated[int | None, whole(0, example=10)] = Field(
        None, description="sweep: at most so many at a time; 0: as many as fit"
    )
    standby: Annotated[int | None, whole(0)] = Field(
        None, description="warm copies that only need promotion (not for a sweep); 0"
    )
    cpus: Annotated[int, CPUS] = Field(1_000, description="of one replica")
    memory: Annotated[int, MEMORY] = Field(512, description="of one replica")
    gpus: Annotated[int, GPUS] = Field(0, description="of one replica")
    gpu_kind: Annotated[str, TEXT] = Field("", description='such as "h100" or "h100|a100"; empty: any')
    labels: Annotated[dict[str, str], LABELS] = Field({}, description="its nodes must have these")
    tolerates: Annotated[tuple[str, ...], NAMES] = Field((), description="taints that do not keep it away")
    spot: Annotated[bool, FLAG] = Field(True, description="may run on spot nodes")
    spread: Annotated[Spread, choice(Spread)] = Field(Spread.PREFER, description="keep the copies apart")
    spread_over: Annotated[Level, choice(Level)] = Field(Level.ZONE, description="in different ones of these")
    priority: Annotated[int, whole(0, 1000)] = Field(0, description="the higher may push out the lower")
    checkpoint: Annotated[int, duration()] = Field(
        0, description="it saves its progress so often; 0: it starts from the beginning"
    )
    move_cost: Annotated[int, duration()] = Field(30 * SECOND, description="what one restart costs it")
    stop_grace: Annotated[int, duration()] = Field(
        10 * SECOND, description="from being asked to being killed"
    )
    after: Annotated[tuple[str, ...], NAMES] = Field((), description="starts when these are done or ready")
    restart: Annotated[Restart, RESTART] = Field(
        Restart(), description="for programs that fail by themselves"
    )
    program: Annotated[Program, PROGRAM] = Field(Program(), description="what the simulated program does")
    applied_at: Annotated[int, duration()] = Field(0, description="when the user asks for it")


class ScenarioForm(Strict):
    title: Annotated[str, TEXT] = Field("", description="one line that says what happens")
    lasts: Annotated[int, duration(1, '"10m"')] = Field(10 * MINUTE, description="how long the story is")
    seed: Annotated[int, whole(0, 2**53, 1)] = Field(1, description="the same seed tells the same story")
    settle: Annotated[int | None, duration()] = Field(
        None, description="so long after the last fault all must be well; half of `lasts`, at most 15m"
    )
    control_planes: Annotated[int, whole(1, 9)] = Field(1, description="called cp-1, cp-2, ...")
    domain_mtbf: Annotated[int, duration()] = Field(
        0, description="a whole zone fails about so often; 0: never"
    )
    domain_repair: Annotated[int, duration(1)] = Field(HOUR, description="and is back after this")
    pools: list[PoolForm] = Field([], description="where nodes come from; at least one")
    workloads: list[WorkloadForm] = Field([], description="what must stay up")
    providers: dict[str, Annotated[ProviderTraits, PROVIDER]] = Field({}, description="how providers behave")
    network: Annotated[NetworkTraits, NETWORK] = Field(NetworkTraits(), description="between everybody")
    faults: list[Annotated[Trouble, FAULT]] = Field([], description="what goes wrong")
    changes: list[Annotated[Change, CHANGE]] = Field([], description="what people do")
    policy: Annotated[Policy, POLICY] = Field(Policy(), description="the numbers the decisions go by")
