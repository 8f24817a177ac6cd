"""`holdfast capacity`: what is free, what would fit, and what fails next."""

import enum
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import completion, output
from holdfast.cli.client.with_client import talks
from holdfast.cli.options import Json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from holdfast.api.shapes import Capacity
    from holdfast.cli.client.http import Client

LOSSES_SHOWN = 8


class Over(enum.StrEnum):
    PROVIDER = "provider"
    REGION = "region"
    ZONE = "zone"
    RACK = "rack"


@talks
def capacity(
    api: "Client",
    level: Annotated[
        Over,
        typer.Option(
            "--level", metavar="provider|region|zone|rack", help="Ask about the loss of each of these."
        ),
    ] = Over.ZONE,
    if_zone: Annotated[
        str,
        typer.Option(
            "--if-zone", metavar="ZONE", help="Ask about this one alone.", autocompletion=completion.zones
        ),
    ] = "",
    json: Json = False,
) -> None:
    """Say what is free, what would fit, and what fails next. What becomes of every workload if a zone goes is
    worked out by the real decisions, on a copy."""
    asked = Over.ZONE if if_zone else level
    body = api.get("/v1/capacity", level=asked.value, domain=if_zone)
    if json:
        output.raw(body)
        return
    from holdfast.api.shapes import Capacity
    from holdfast.cli.client import http
    from holdfast.cli.render import theme

    theme.show(told(http.read(body, Capacity), one=bool(if_zone)))


def told(found: "Capacity", *, one: bool) -> "RenderableType":
    """In words first, then the tables; of one loss, what it does to each workload."""
    from rich.console import Group
    from rich.text import Text

    from holdfast.cli.render import theme
    from holdfast.cli.render.tables import capacity as tables_capacity

    parts: list[RenderableType] = [Text(theme.hanging("- ", text, theme.width())) for text in found.told]
    if one:
        for loss in found.losses:
            parts += ["", Text(f"if {loss.level} {loss.domain} goes", "dim"), tables_capacity.hits(loss)]
        return Group(*parts)
    if found.free:
        parts += ["", tables_capacity.free(found.free)]
    if found.gpus:
        parts += ["", tables_capacity.gpus(found.gpus)]
    if found.fits:
        parts += ["", tables_capacity.fits(found.fits)]
    if found.losses:
        shown = found.losses[:LOSSES_SHOWN]
        parts += ["", tables_capacity.losses(shown, found.level)]
        if len(found.losses) > LOSSES_SHOWN:
            parts.append(Text(f"and {len(found.losses) - LOSSES_SHOWN} more; --json shows all", "dim"))
    return Group(*parts)
