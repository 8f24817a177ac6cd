"""`holdfast logs`: what a replica wrote, or all of a workload, each line with its replica before it."""

from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import complete
from holdfast.cli.talk import talks

if TYPE_CHECKING:
    from holdfast.cli.client import Client


@talks
def logs(
    api: "Client",
    name: Annotated[
        str,
        typer.Argument(
            metavar="REPLICA|WORKLOAD", help="Such as web/0.3, or web.", autocompletion=complete.logged
        ),
    ],
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on as it is written, also by replicas that come later.")
    ] = False,
    tail: Annotated[
        int | None,
        typer.Option("--tail", metavar="N", min=0, max=100_000, help="Only the last N lines of each."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON: one object a line, with -f and without.")
    ] = False,
) -> None:
    """Print what a replica wrote, or every replica of a workload. A replica's node keeps it; of one that has
    ended the control plane keeps the last 64 KiB, for when its node is gone."""
    import asyncio

    from holdfast.cli.log_streams import Reading

    asyncio.run(Reading(api, name, follow=follow, tail=tail, json=json).run())
