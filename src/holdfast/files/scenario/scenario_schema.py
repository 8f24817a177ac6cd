"""The tables of a scenario file, field by field. The reference page is made from the descriptions here."""

import enum
from typing import Annotated

from pydantic import Field

from holdfast.files import values
from holdfast.files.fleet.fleet_schema import PoolFields, ProjectFields, WorkloadFields
from holdfast.files.gateway.gateway_schema import LimitsForm
from holdfast.files.policy.policy_file import POLICY
from holdfast.files.scenario.load_schema import LoadForm
from holdfast.files.struct_schema import Mirror, Strict
from holdfast.files.values import (
    IDENTITY,
    MONEY,
    TEXT,
    choice,
    duration,
    whole,
)
from holdfast.model.policy import Policy
from holdfast.model.units import HOUR, MINUTE
from holdfast.sim.scenario.scenario import (
    Change,
    GatewayTraits,
    NetworkTraits,
    Program,
    Trouble,
)
from holdfast.sim.scenario.traces import Format
from holdfast.sim.traffic.requests import Requests
from holdfast.sim.twins.provider import ProviderTraits


class Deed(enum.StrEnum):
    """What people do in the middle of a story."""

    DELETE = "delete"
    PAUSE = "pause"
    RESUME = "resume"
    SCALE = "scale"
    UPDATE = "update"
    RESTART = "restart"
    RETRY = "retry"
    CORDON = "cordon"
    UNCORDON = "uncordon"
    DRAIN = "drain"
    RELEASE_BRAKE = "release brake"
    RESTORE = "restore"
    DELETE_POOL = "delete pool"


PROGRAM = Mirror(Program, prompt_per_s=whole(1, 10_000_000))
REQUESTS = Mirror(
    Requests,
    prompt=whole(1, 1_000_000),
    answer=whole(1, 1_000_000),
    beginnings=whole(0, 10_000),
    prompts=whole(0, 10_000),
)
GATEWAYS = Mirror(GatewayTraits, count=whole(1, 100), tries=whole(1, 10), held=whole(0, 1_000_000))
NETWORK = Mirror(NetworkTraits)
PROVIDER = Mirror(ProviderTraits)
FAULT = Mirror(
    Trouble,
    times=whole(1, 10_000),
    step=whole(0, 100),
    jump=duration(-values.LONGEST_MS, '"90s"'),
)
CHANGE = Mirror(Change, do=choice(Deed), replicas=whole(0))


class StepForm(Strict):
    """What is not said here stays as it was."""

    at: Annotated[int, duration()] = Field(0, description="from then on")
    offer: Annotated[str, TEXT] = Field("", description="of this offer; empty: of each")
    available: Annotated[int | None, whole(0)] = Field(
        None, description="so many can be had, with those there are"
    )
    price: Annotated[int | None, MONEY] = Field(None, description="of one node")


class MarketForm(Strict):
    """Steps that are written here, or a trace of them."""

    steps: list[StepForm] = Field([], description="what changes, and when")
    trace: Annotated[str, TEXT] = Field("", description="instead of `steps`: a file, from where this one is")
    format: Annotated[Format, choice(Format)] = Field(Format.COUNTS, description="of the trace")
    pick: Annotated[str, TEXT] = Field(
        "", description='which part: "ENV/3" of windows, "3" of zones, "H100:8" of offers'
    )


class PoolForm(PoolFields):
    name: Annotated[str, IDENTITY] = Field(
        description="unique; its first nodes are called NAME-a, NAME-b, ..."
    )
    nodes: Annotated[int, whole(0, 20_000, 6)] = Field(0, description="how many are there at the beginning")
    min: Annotated[int | None, whole(0, 20_000)] = Field(None, description="never fewer; as many as `nodes`")
    max: Annotated[int | None, whole(0, 20_000, 10)] = Field(
        None, description="never more; the larger of `nodes` and `min`"
    )
    mtbf: Annotated[int, duration()] = Field(0, description="a node fails about so often; 0: never")
    repair: Annotated[int, duration()] = Field(
        10 * MINUTE, description="and returns after this, when it cannot be replaced"
    )
    preempt_every: Annotated[int, duration()] = Field(0, description="a spot node is taken about so often")
    market: MarketForm = Field(MarketForm(), description="what can be had when, and at which price")


class WorkloadForm(WorkloadFields):
    program: Annotated[Program, PROGRAM] = Field(Program(), description="what the simulated program does")
    applied_at: Annotated[int, duration()] = Field(0, description="when the user asks for it")
    load: LoadForm = Field(LoadForm(), description="how much is asked of a service")
    requests: Annotated[Requests | None, REQUESTS] = Field(
        None, description="what is asked are requests for tokens, like these, at the gateways"
    )


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
    projects: list[ProjectFields] = Field([], description="how much of the fleet they may take")
    providers: dict[str, Annotated[ProviderTraits, PROVIDER]] = Field({}, description="how providers behave")
    gateways: Annotated[GatewayTraits, GATEWAYS] = Field(
        GatewayTraits(), description="through which requests come"
    )
    limits: dict[str, LimitsForm] = Field({}, description="what may be asked of the gateways, by scope")
    network: Annotated[NetworkTraits, NETWORK] = Field(NetworkTraits(), description="between everybody")
    faults: list[Annotated[Trouble, FAULT]] = Field([], description="what goes wrong")
    changes: list[Annotated[Change, CHANGE]] = Field([], description="what people do")
    policy: Annotated[Policy, POLICY] = Field(Policy(), description="the numbers the decisions go by")
