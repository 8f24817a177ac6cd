"""`holdfast logs`: what a replica wrote, or all of a workload, each line with its replica before it."""

from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import completion
from holdfast.cli.client.with_client import talks

if TYPE_CHECKING:
    from holdfast.cli.client.http import Client


@talks
def logs(
    api: "Client",
    name: Annotated[
        str,
        typer.Argument(
            metavar="REPLICA|SLOT|WORKLOAD",
            help="Such as web/0.3, web/0 or web.",
            autocompletion=completion.logged,
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
    """Print what replicas wrote. One, the last in a slot, or all of a workload. Its node keeps 20 to 30 MB of
    each; for when the node is gone the control plane keeps the last 64 KiB of what has ended, and 16 KiB of
    what runs, some seconds old. Exit code 1: that is not all of it."""
    import asyncio

    from holdfast.cli.client.log_streams import Reading

    asyncio.run(Reading(api, name, follow=follow, tail=tail, json=json).run())
