"""How people write that a service grows and shrinks: `model.scale`, with days and times of day as words."""

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from holdfast.files.struct_schema import Strict
from holdfast.files.values import (
    SHARE,
    TEXT,
    Leaf,
    choice,
    duration,
    whole,
)
from holdfast.model.scale import Scale, ScalePolicy, Signal, Window
from holdfast.model.units import HOUR, MINUTE

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
TIME = re.compile(r"(\d{1,2}):(\d{2})")
OFFSET = re.compile(r"([+-])(\d{1,2}):(\d{2})")
COUNT_MAX = 10_000
AMOUNT_MAX = 1e12


class BySignal(Leaf):
    """A table with one kind of value for each signal, so that what is wrong is told with its path."""

    def __init__(self, expected: str, example: str, values: Mapping[Signal, Leaf], *, least: int) -> None:
        super().__init__(expected, example, lambda table: _a_table(table, least), str)
        self.values = values

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        fields = {
            str(signal): core_schema.typed_dict_field(_schema(value), required=False)
            for signal, value in self.values.items()
        }
        rows = core_schema.typed_dict_schema(fields, extra_behavior="forbid")
        return core_schema.chain_schema(
            [_schema(self), rows, core_schema.no_info_plain_validator_function(_by_signal)]
        )


def _schema(leaf: Leaf) -> CoreSchema:
    return core_schema.no_info_plain_validator_function(leaf.checked)


def _a_table(value: object, least: int) -> object:
    if not isinstance(value, dict) or len(value) < least:
        raise ValueError
    return value


def _by_signal(table: dict[str, object]) -> dict[Signal, object]:
    return {Signal(name): value for name, value in table.items()}


def _amount(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= AMOUNT_MAX:
        raise ValueError
    return float(value)


def _query(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError
    return value


def _days(value: object) -> tuple[int, ...]:
    """`mon-fri`, `sat, sun`, `fri-mon`."""
    if not isinstance(value, str):
        raise ValueError
    found: list[int] = []
    for part in value.lower().replace(" ", "").split(","):
        first, _, last = part.partition("-")
        start, end = DAYS.index(first), DAYS.index(last or first)
        found += [(start + n) % 7 for n in range((end - start) % 7 + 1)]
    return tuple(sorted(set(found)))


def _minute(value: object) -> int:
    match = TIME.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or int(match[2]) > 59 or (minute := 60 * int(match[1]) + int(match[2])) > 24 * 60:
        raise ValueError
    return minute


def _offset(value: object) -> int:
    match = OFFSET.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or int(match[2]) > 14 or int(match[3]) > 59:
        raise ValueError
    minutes = 60 * int(match[2]) + int(match[3])
    return -minutes if match[1] == "-" else minutes


def show_minute(minute: int) -> str:
    return f'"{minute // 60:02}:{minute % 60:02}"'


def _show_days(days: tuple[int, ...]) -> str:
    return '"mon-sun"' if len(days) == 7 else f'"{", ".join(DAYS[day] for day in days)}"'


SIGNALS = ", ".join(Signal)
TAKES = {  # of each signal, what one replica might take
    Signal.IN_FLIGHT: "8",
    Signal.QUEUE: "4",
    Signal.OLDEST_WAIT: "2000",
    Signal.REQUESTS: "50",
    Signal.TOKENS: "2000",
    Signal.LATENCY: "500",
    Signal.CPU: "0.7",
    Signal.GPU: "0.7",
    Signal.VALUE: "10",
}
PER_REPLICA = BySignal(
    f"a table of signals and what one replica takes of each, of: {SIGNALS}",
    "{ in_flight = 8 }",
    {signal: Leaf("a number above 0, at most 1e12", example, _amount) for signal, example in TAKES.items()},
    least=1,
)
QUERIES = BySignal(
    f"a table of signals and queries, of: {SIGNALS}",
    '{ queue = "sum(waiting)" }',
    dict.fromkeys(Signal, Leaf("a query in quotes", '"sum(waiting)"', _query)),
    least=0,
)
WEEKDAYS = Leaf('days such as "mon-fri" or "sat, sun"', '"mon-fri"', _days, _show_days)
TIME_OF_DAY = Leaf('a time of day such as "08:30", up to "24:00"', '"08:30"', _minute, show_minute)
UTC_OFFSET = Leaf('an offset from UTC such as "+01:00"', '"+01:00"', _offset, lambda _: '"+00:00"')


class WindowForm(Strict):
    """At least so many at these times."""

    replicas: Annotated[int, whole(0, COUNT_MAX, 4)] = Field(description="at least so many")
    days: Annotated[tuple[int, ...], WEEKDAYS] = Field(tuple(range(7)), description="on which days")
    start: Annotated[int, TIME_OF_DAY] = Field(0, description="from then on")
    end: Annotated[int, TIME_OF_DAY] = Field(
        24 * 60, description="until then; before the start: on the next day"
    )


class ScaleForm(Strict):
    min: Annotated[int, whole(0, COUNT_MAX)] = Field(1, description="never fewer; 0: it may go to zero")
    max: Annotated[int, whole(1, COUNT_MAX, 10)] = Field(description="never more")
    per_replica: Annotated[dict[Signal, float], PER_REPLICA] = Field(
        description="which signals count, and how much of each one replica takes; the largest demand decides"
    )
    policy: Annotated[ScalePolicy, choice(ScalePolicy)] = Field(
        ScalePolicy.FORECAST,
        description="by which rule: enough for what may come, or what is used brought to a `target`",
    )
    target: Annotated[float, SHARE] = Field(
        0.7, description="target tracking: so much of what one replica takes shall be used"
    )
    confidence: Annotated[float, SHARE] = Field(
        0.98, description="forecast: how sure to be of having enough until more could be ready"
    )
    down_window: Annotated[int, duration(1)] = Field(
        1 * HOUR, description="forecast: it shrinks to what so long may ask back"
    )
    up_per_minute: Annotated[int, whole(0, COUNT_MAX)] = Field(
        0, description="at most so many more; no limit"
    )
    down_per_minute: Annotated[int, whole(0, COUNT_MAX)] = Field(
        0, description="at most so many fewer; no limit"
    )
    idle: Annotated[int, duration(1)] = Field(
        10 * MINUTE, description="with `min` 0: without any load for so long, it goes to zero"
    )
    stale: Annotated[int, duration(1)] = Field(1 * MINUTE, description="an older signal is missing")
    fallback: Annotated[int, whole(0, COUNT_MAX)] = Field(
        0, description="at least so many while signals are missing; as many as there are"
    )
    schedule: list[WindowForm] = Field([], description="at least so many at certain times")
    utc_offset: Annotated[int, UTC_OFFSET] = Field(0, description="of the schedule's times")
    prometheus: Annotated[str, TEXT] = Field(
        "",
        description="where the queries are asked; an operator names one that the control plane's host lists",
    )
    query: Annotated[dict[Signal, str], QUERIES] = Field(
        {}, description="Prometheus queries that give signals, one number each"
    )


def scale_of(form: ScaleForm) -> Scale:
    return Scale(
        min=form.min,
        max=form.max,
        per_replica=form.per_replica,
        policy=form.policy,
        target=form.target,
        confidence=form.confidence,
        down_window_ms=form.down_window,
        up_per_minute=form.up_per_minute,
        down_per_minute=form.down_per_minute,
        idle_ms=form.idle,
        stale_ms=form.stale,
        fallback=form.fallback,
        schedule=tuple(Window(each.replicas, each.days, each.start, each.end) for each in form.schedule),
        utc_offset_minutes=form.utc_offset,
        query=form.query,
        prometheus=form.prometheus,
    )
