"""What a pool, an offer and a workload say of themselves wherever people write them down.

A scenario adds what the simulator pretends (`forms`), a workload file what really runs (`workload_forms`).
"""

import enum
from typing import Annotated

from pydantic import Field

from holdfast.files.fleet.scale_schema import ScaleForm
from holdfast.files.struct_schema import Mirror, Strict
from holdfast.files.values import (
    CPUS,
    FLAG,
    GPUS,
    IDENTITY,
    LABELS,
    MEMORY,
    MONEY,
    NAMES,
    OFFER,
    PATHS,
    SHARE,
    TEXT,
    URL_PATH,
    choice,
    duration,
    whole,
)
from holdfast.model.money import Budget
from holdfast.model.place import Level
from holdfast.model.pool import Reserve
from holdfast.model.units import MINUTE, SECOND
from holdfast.model.workload import Mix, Restart, Serves, Spread


class Kind(enum.StrEnum):
    SERVICE = "service"
    JOB = "job"
    TRAINING = "training"
    SWEEP = "sweep"


RESTART = Mirror(Restart)
BUDGET = Mirror(Budget)
MIX = Mirror(Mix)
RESERVE = Mirror(Reserve)
SERVES = Mirror(Serves, prefixes=PATHS, probe=URL_PATH, concurrent=whole(0, 1_000_000, 64))


class OfferForm(Strict):
    """What is not said here is taken from the pool."""

    name: Annotated[str, OFFER] = Field(description="unique in its pool")
    region: Annotated[str | None, TEXT] = Field(None, description="as the pool's")
    zone: Annotated[str, TEXT] = Field("-", description="its zone: a failure domain")
    rack: Annotated[str, TEXT] = Field("-", description="its rack: a smaller one")
    cpus: Annotated[int | None, CPUS] = Field(None, description="as the pool's")
    memory: Annotated[int | None, MEMORY] = Field(None, description="as the pool's")
    gpus: Annotated[int | None, whole(0, 1024)] = Field(None, description="as the pool's")
    gpu_kind: Annotated[str | None, TEXT] = Field(None, description="as the pool's")
    price: Annotated[int | None, MONEY] = Field(None, description="as the pool's")
    spot: Annotated[bool | None, FLAG] = Field(None, description="as the pool's")


class PoolFields(Strict):
    name: Annotated[str, IDENTITY] = Field(description="unique")
    provider: Annotated[str, IDENTITY] = Field("local", description="who launches and terminates its nodes")
    min: Annotated[int | None, whole(0, 20_000)] = Field(None, description="never fewer")
    max: Annotated[int | None, whole(0, 20_000, 10)] = Field(None, description="never more")
    standby: Annotated[int, whole(0, 20_000)] = Field(0, description="warm nodes kept empty and ready")
    standby_covers: Annotated[float, SHARE] = Field(
        0.0, description="and so many more that failures during a boot find one, this often; 0: none"
    )
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
    lists_offers: Annotated[bool, FLAG] = Field(
        False, description="its provider is asked what can be had and at which price"
    )
    lists_stock: Annotated[bool, FLAG] = Field(
        False, description="and only what can be had at that moment is in its answer"
    )
    queues: Annotated[bool, FLAG] = Field(
        False, description="what is launched may have to wait for its turn, and its provider tells"
    )
    price_max: Annotated[int | None, MONEY] = Field(
        None, description="dearer offers are left alone; no limit"
    )
    reserve: Annotated[Reserve, RESERVE] = Field(
        Reserve(), description="its last `nodes` are only for workloads of this `priority` and above"
    )
    budget: Annotated[Budget, BUDGET] = Field(
        Budget(), description="hard limits for all of its nodes: `hour` and `month`, in dollars"
    )


class ProjectFields(Strict):
    name: Annotated[str, IDENTITY] = Field(description="unique")
    nodes: Annotated[int | None, whole(0, 20_000, 4)] = Field(
        None, description="on which its replicas stand, shared ones too; no limit"
    )
    cpus: Annotated[int | None, CPUS] = Field(None, description="of all its replicas; no limit")
    memory: Annotated[int | None, MEMORY] = Field(None, description="of all its replicas; no limit")
    gpus: Annotated[int | None, GPUS] = Field(None, description="of all its replicas; no limit")
    month: Annotated[int | None, MONEY] = Field(
        None,
        description="dollars: what its replicas cost an hour, by their shares of their nodes, times 730; "
        "no limit",
    )
    priority: Annotated[int | None, whole(0, 1000)] = Field(
        None,
        description="the highest that its workloads may have, since the higher may push out those of other "
        "projects; no limit",
    )
    replicas: Annotated[int | None, whole(0, 250_000, 20_000)] = Field(
        None,
        description="of all its workloads, whether they run or wait: copies, standbys, tasks of sweeps, the "
        "`max` of a scale; more is refused when it is applied; 20,000, of the project `default` 150,000",
    )
    workloads: Annotated[int | None, whole(0, 10_000, 1_000)] = Field(
        None, description="more are refused when they are applied; 1,000, of the project `default` 5,000"
    )


class WorkloadFields(Strict):
    name: Annotated[str, IDENTITY] = Field(description="unique in the fleet, whatever its project")
    project: Annotated[str, IDENTITY] = Field(
        "", description="whose it is, for life; the token's own, or `default`"
    )
    kind: Annotated[Kind, choice(Kind)] = Field(Kind.SERVICE, description="what it is")
    replicas: Annotated[int | None, whole(1, example=3)] = Field(None, description="service: copies; 1")
    availability: Annotated[float | None, SHARE] = Field(
        None, description="service: a target, from which the number of copies is chosen"
    )
    mix: Annotated[Mix | None, MIX] = Field(
        None,
        description="service: on spot, with on demand where there is none; `on_demand`: so many always, "
        "`spares`: so many more on spot",
    )
    scale: ScaleForm | None = Field(
        None, description="service: it grows and shrinks with its load, and begins with `replicas`"
    )
    serves: Annotated[Serves | None, SERVES] = Field(
        None,
        description="service: gateways lead to it; `{}` will do: then it answers for the model of its name",
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
    deadline: Annotated[int | None, duration(1, '"52h"')] = Field(
        None, description="job: done so long after it was first applied, on the cheapest mix that is certain"
    )
    work: Annotated[int | None, duration(1, '"48h"')] = Field(
        None, description="job: how long it takes without interruption; must be given with `deadline`"
    )
    standby: Annotated[int | None, whole(0)] = Field(
        None, description="warm copies that only need promotion (not for a sweep); 0"
    )
    cpus: Annotated[int, CPUS] = Field(
        1_000, description="of one replica; a limit where its node has cgroups"
    )
    memory: Annotated[int, MEMORY] = Field(512, description="of one replica; what holds more is killed")
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
    after: Annotated[tuple[str, ...], NAMES] = Field(
        (), description="starts when these are done, or ready if they are services"
    )
    restart: Annotated[Restart, RESTART] = Field(
        Restart(), description="for programs that fail by themselves"
    )
