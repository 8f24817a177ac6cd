"""The markets of a scenario: steps that stand in the file, or a trace beside it."""

from collections.abc import Iterator
from pathlib import Path

from holdfast.core.spelling import did_you_mean
from holdfast.files.fleet import fleet_convert
from holdfast.files.problem import Problem
from holdfast.files.scenario.scenario_schema import (
    MarketForm,
    PoolForm,
    ScenarioForm,
    StepForm,
)
from holdfast.sim.scenario import traces
from holdfast.sim.scenario.market import (
    UNSAID,
    Market,
    Step,
    market,
)
from holdfast.sim.scenario.traces import BadTrace


def markets_name_offers(form: ScenarioForm) -> Iterator[Problem]:
    for number, pool in enumerate(form.pools):
        where = f"pools[{number}].market"
        offers = {offer.name for offer in fleet_convert.offers(pool)}
        if pool.market.steps and pool.market.trace:
            yield Problem(
                f"{where}.trace", "expected either steps or a trace, got both", "Try: leave out one"
            )
        for place, step in enumerate(pool.market.steps):
            if step.offer and step.offer not in offers:
                text = f'expected an offer of the pool, got "{step.offer}"'
                yield Problem(f"{where}.steps[{place}].offer", text, did_you_mean(step.offer, offers))


def read(form: ScenarioForm, folder: Path) -> tuple[dict[str, Market], list[Problem]]:
    """The market of each pool that has one, and what is wrong with the traces."""
    made: dict[str, Market] = {}
    problems: list[Problem] = []
    for number, pool in enumerate(form.pools):
        if pool.market.steps:
            made[pool.name] = _written(pool)
        elif pool.market.trace:
            found = _traced(pool, folder)
            if isinstance(found, Market):
                made[pool.name] = found
            else:
                problems.append(found._replace(path=f"pools[{number}].market.{found.path}"))
    return made, problems


def _written(pool: PoolForm) -> Market:
    names = [offer.name for offer in fleet_convert.offers(pool)]
    return market({name: [_step(s) for s in pool.market.steps if s.offer in ("", name)] for name in names})


def _step(form: StepForm) -> Step:
    return Step(
        form.at,
        UNSAID if form.available is None else form.available,
        UNSAID if form.price is None else form.price,
    )


def _traced(pool: PoolForm, folder: Path) -> Market | Problem:
    told: MarketForm = pool.market
    try:
        tracks = traces.read(folder / told.trace, told.format, told.pick, spot=pool.spot)
    except BadTrace as error:
        return Problem("trace", f"expected a trace of {told.format}, got trouble: {error}")
    offers = tuple(fleet_convert.offers(pool))
    made = traces.for_offers(tracks, offers)
    if not made.tracks:
        zones = ", ".join(sorted({offer.place.zone for offer in offers}))
        text = f"expected a trace of the zones of the pool ({zones}), got one of others"
        return Problem("trace", text, f"There is: {', '.join(sorted(tracks)[:6])}")
    return made
