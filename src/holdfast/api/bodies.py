"""What people and programs send: small JSON objects. An unknown field is an error, not a surprise later."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from holdfast.model.scale import Signal
from holdfast.model.units import DAY
from holdfast.wire.keys import GRACE_MS

LONG = 3_650 * DAY
COUNT_MAX = 10_000  # seats made in one turn of the loop: ten thousand take it half a second
USES_MAX = 10_000  # nodes that one join token enrols
NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"
PROJECT = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$"

Duration = Annotated[int, Field(ge=1, le=LONG, strict=True)]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Scale(Body):
    count: Annotated[int, Field(ge=0, le=COUNT_MAX, strict=True)] = Field(
        description="replicas of a service, tasks of a sweep at a time, or the most members of a training"
    )


class Rollback(Body):
    version: Annotated[int, Field(ge=1, le=1 << 53, strict=True)] | None = Field(
        None, description="what ran under this one; null: under the last one that was another"
    )


class Signals(Body):
    source: Annotated[str, Field(max_length=253)] = Field(
        "", description="who tells: the words of several sources about one signal are taken together"
    )
    signals: Annotated[dict[Signal, Annotated[float, Field(strict=True)]], Field(min_length=1)] = Field(
        description="how it goes: in_flight, queue, oldest_wait_ms, requests_per_s, tokens_per_s, "
        "latency_ms, cpu, gpu, value"
    )


class Drain(Body):
    deadline_ms: Duration | None = Field(
        None, description="how long what runs there may take to leave; null: as the policy says"
    )


class Chaos(Body):
    node: Annotated[str, Field(max_length=253)]
    for_ms: Duration = Field(
        30_000, description="how long a partition lasts, or how long a node has that gets notice"
    )


class SellOut(Body):
    pool: Annotated[str, Field(max_length=253)]
    offer: Annotated[str, Field(max_length=253)] = Field("", description="empty: every offer of the pool")
    for_ms: Duration = Field(60_000, description="for how long nothing can be had")


class TokenWanted(Body):
    role: Literal["admin", "operator", "read", "gateway", "signals", "join"]
    note: Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")] = Field(
        "", description="for whom it is: shown in the list"
    )
    pool: Annotated[str, Field(pattern=f"^$|{NAME}")] = Field(
        "",
        description="join: the only pool it may join; empty: any but those that launch their own nodes",
    )
    node: Annotated[str, Field(pattern=f"^$|{NAME}")] = Field(
        "", description="join: the only name it may take; empty: any"
    )
    project: Annotated[str, Field(pattern=f"^$|{PROJECT}")] = Field(
        "", description="read, operator and signals: the only project that it is for; empty: all"
    )
    uses: Annotated[int, Field(ge=1, le=USES_MAX, strict=True)] = Field(
        1, description="join: how many nodes may be enrolled with it, each once"
    )
    ttl_ms: Duration | None = Field(None, description="how long it is good for; null: until it is revoked")


Count = Annotated[int, Field(ge=0, le=10**15, strict=True)]
Words = Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]


class LimitsWanted(Body):
    """What is left out, or null, is not limited."""

    tokens_per_min: Count | None = Field(None, description="prompt and answer together")
    requests_per_min: Count | None = None
    concurrent: Count | None = Field(None, description="requests at a time")
    tokens_total: Count | None = Field(None, description="a budget that does not come back by itself")
    tokens_burst: Count | None = Field(None, description="the most at once; null: what a minute brings")
    requests_burst: Count | None = Field(None, description="the most at once; null: what a minute brings")


class KeyWanted(Body):
    id: Annotated[str, Field(pattern=f"^$|{NAME}")] = Field(
        "", description="how reports call it; empty: made up"
    )
    owner: Words = Field("", description="whom to ask about it")
    team: Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f/]*$")] = Field(
        "", description="whose limits it shares"
    )
    note: Words = ""
    models: Annotated[list[Words], Field(max_length=1_000)] = Field(
        [], description='what it may use, "llama-*": all that begin so; empty: everything'
    )
    limits: LimitsWanted = LimitsWanted()
    ttl_ms: Duration | None = Field(None, description="how long it is good for; null: until it is deleted")
    new_team: Annotated[bool, Field(strict=True)] = Field(
        False, description="a team without keys and limits is meant, and no misspelt one"
    )
    new_model: Annotated[bool, Field(strict=True)] = Field(
        False, description="models that no service answers for yet are meant"
    )


class Rotation(Body):
    grace_ms: Annotated[int, Field(ge=0, le=LONG, strict=True)] = Field(
        GRACE_MS, description="how long the old key is good beside the new one"
    )


class Suspension(Body):
    why: Words = Field("", description="told to whoever brings the key")
