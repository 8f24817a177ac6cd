"""`holdfast explain`: why something is as it is, and what would help."""

import enum
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import completion, output
from holdfast.cli.client.with_client import talks
from holdfast.cli.options import Json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from holdfast.api.shapes import Explanation
    from holdfast.cli.client.http import Client


INDENT = 2


class Kind(enum.StrEnum):
    NODE = "node"
    WORKLOAD = "workload"
    REPLICA = "replica"
    POOL = "pool"
    OFFER = "offer"


@talks
def explain(
    api: "Client",
    kind: Annotated[Kind, typer.Argument(metavar="|".join(Kind), help="What it is.")],
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Its name; of an offer, POOL/OFFER.", autocompletion=completion.explained
        ),
    ],
    json: Json = False,
) -> None:
    """Say why it is as it is. Why a node is in doubt, a workload waits or has as many replicas as it has, a
    pool does not grow, an offer is not tried; and what would help."""
    from holdfast.api.shapes import Explanation
    from holdfast.cli.client import http
    from holdfast.cli.render import theme

    body = api.get(f"/v1/explain/{kind}", name=name)
    if json:
        output.raw(body)
    else:
        theme.show(told(http.read(body, Explanation)))


def told(explanation: "Explanation") -> "RenderableType":
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    from holdfast.cli.render import theme

    summary = Text(explanation.summary)
    summary.highlight_words([explanation.name], "bold")
    parts: list[RenderableType] = [summary]
    for title, texts in (("because", explanation.because), ("would help", explanation.would_help)):
        if texts:
            room, colour = theme.width() - INDENT, "green" if title == "would help" else ""
            bullets = [Text(theme.hanging("- ", text, room), colour) for text in texts]
            parts += ["", Text(title, "dim"), Padding(Group(*bullets), (0, 0, 0, INDENT))]
    if explanation.history:
        parts += ["", Text("lately", "dim"), Padding(theme.lines(explanation.history), (0, 0, 0, INDENT))]
    return Group(*parts)
