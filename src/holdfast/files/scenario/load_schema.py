"""What a scenario says of the load that is pretended for a service that scales."""

from typing import Annotated

from pydantic import Field

from holdfast.files import values
from holdfast.files.struct_schema import Strict
from holdfast.files.values import SHARE, Leaf, duration
from holdfast.model.scale import SUMMED, Signal
from holdfast.model.units import DAY, SECOND
from holdfast.sim.scenario.load_profile import Burst, Load, LoadStep

AMOUNT = values.number(0, 1e9, "20")
SHOWN = tuple(signal for signal in Signal if signal in SUMMED)


def _signal(value: object) -> Signal:
    if value not in SHOWN:
        raise ValueError
    return Signal(str(value))


SIGNAL = Leaf(f"one of: {', '.join(SHOWN)}", '"in_flight"', _signal, choices=SHOWN)


class LoadStepForm(Strict):
    at: Annotated[int, duration()] = Field(0, description="from then on")
    value: Annotated[float, AMOUNT] = Field(description="so much")


class BurstForm(Strict):
    at: Annotated[int, duration()] = Field(description="from then on")
    lasts: Annotated[int, duration(1)] = Field(description="for so long")
    value: Annotated[float, AMOUNT] = Field(description="so much more")


class LoadForm(Strict):
    signal: Annotated[Signal, SIGNAL] = Field(Signal.IN_FLIGHT, description="in the unit of which it is")
    base: Annotated[float, AMOUNT] = Field(0.0, description="at the beginning of each period")
    peak: Annotated[float, AMOUNT] = Field(0.0, description="in its middle; below `base`: as `base`")
    period: Annotated[int, duration(1)] = Field(DAY, description="of base and peak")
    steps: list[LoadStepForm] = Field([], description="instead of base and peak")
    bursts: list[BurstForm] = Field([], description="on top")
    noise: Annotated[float, SHARE] = Field(0.0, description="deviation of each reading, as a share of it")
    every: Annotated[int, duration(1)] = Field(5 * SECOND, description="it is counted and told so often")
    takes: Annotated[int, duration(1)] = Field(SECOND, description="one request, when it is answered")
    patience: Annotated[int, duration()] = Field(
        0, description="a request waits so long for an answer; 0: not at all"
    )


def load(form: LoadForm) -> Load | None:
    if not form.model_fields_set:
        return None
    return Load(
        signal=form.signal,
        base=form.base,
        peak=form.peak,
        period_ms=form.period,
        steps=tuple(LoadStep(step.at, step.value) for step in form.steps),
        bursts=tuple(Burst(burst.at, burst.lasts, burst.value) for burst in form.bursts),
        noise=form.noise,
        every_ms=form.every,
        takes_ms=form.takes,
        patience_ms=form.patience,
    )
