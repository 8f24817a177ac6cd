"""The tables of `holdfast offers` and `holdfast spend`: what can be had, what to expect, what it costs."""

from collections.abc import Sequence

from rich.text import Text

from holdfast.api.shapes import OfferListed, Resources, Spend, Spending
from holdfast.cli.render import theme
from holdfast.cli.render.rows import Rows
from holdfast.cli.render.tables.fleet import budget
from holdfast.model.units import DAY, seconds, usd

LOW = 0.5  # a chance that deserves a look
SHOWN = 0.05  # of what has faded to less nothing is said


def offers(found: Sequence[OfferListed]) -> Rows:
    columns = ("OFFER", "ZONE", "HAS", "$/H", "USEFUL $/H", "UP", "READY", "LASTS 1D")
    made = Rows(*columns, spare=("USEFUL $/H", "ZONE", "HAS"))
    for offer in found:
        made.add(
            Text(offer.key, "bold"),
            offer.place.zone,
            has(offer.capacity),
            _price(offer),
            f"{offer.cost_micro_usd / 1_000_000:.2f}",
            _chance(offer.chance),
            theme.ago(offer.ready_ms),
            _chance(offer.lasts_a_day),
            remark=_remark(offer),
        )
    return made


def has(of: Resources) -> str:
    """`8 cpu 32G`, `8 h100`."""
    if of.gpu_milli:
        return f"{of.gpu_milli / 1000:g} {of.gpu_kind or 'gpu'}"
    return f"{of.cpu_milli / 1000:g} cpu {of.memory_mib / 1024:.3g}G"


def _price(offer: OfferListed) -> Text:
    return Text(f"{offer.price_micro_usd / 1_000_000:.2f}{' spot' if offer.spot else ''}")


def _chance(share: float) -> Text:
    """Rounded down: nothing is certain."""
    return Text(f"{int(100 * share)}%", theme.UNUSUAL if share < LOW else "")


def _remark(offer: OfferListed) -> Text:
    parts = [offer.refusal] if offer.refusal else []
    counts = ((offer.refused, "refused"), (offer.failed, "never came up"), (offer.lost, "lost"))
    lately = [f"{_count(count)} {what}" for count, what in counts if count >= SHOWN]
    if lately:
        parts.append(f"lately {', '.join(lately)} of {_count(offer.asked)}")
    if len(offer.prices) > 1:
        parts.append(f"was {usd(offer.prices[-2].micro_usd)}")
    return Text("; ".join(parts), theme.UNUSUAL if offer.refusal else "dim")


def _count(count: float) -> str:
    return f"{count:.0f}" if count >= 9.5 or abs(count - round(count)) < SHOWN else f"{count:.1f}"


def spend(found: Spending) -> Rows:
    rows = (found.fleet, *found.pools)
    mixed = any(row.on_demand_micro_usd is not None for row in rows)
    columns = ["POOL", "NODES", "NOW", *(["ON DEMAND"] if mixed else []), "THIS MONTH", "EVER", "BUDGET"]
    made = Rows(*columns, spare=("NODES", "ON DEMAND"))
    for row in rows:
        made.add(
            Text(row.pool, "") if row.pool else Text("fleet", "bold"),
            str(row.nodes),
            f"{usd(row.hour_micro_usd)}/h",
            *([_on_demand(row)] if mixed else []),
            usd(row.month_micro_usd),
            usd(row.ever_micro_usd),
            budget(row.budget) or "-",
            remark=Text(_lasts(row), theme.UNUSUAL),
        )
    return made


def _on_demand(row: Spend) -> str:
    return "-" if row.on_demand_micro_usd is None else f"{usd(row.on_demand_micro_usd)}/h"


def _lasts(row: Spend) -> str:
    """Only if it does not last to the end of the month."""
    if row.lasts_ms is None:
        return ""
    if row.lasts_ms == 0:
        return "used up"
    return f"lasts {theme.ago(row.lasts_ms) if row.lasts_ms >= 2 * DAY else seconds(row.lasts_ms)}"
