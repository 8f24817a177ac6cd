"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.completion import scenario_files

File = Annotated[
    Path, typer.Argument(metavar="FILE", help="A scenario file (TOML).", autocompletion=scenario_files)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON: one object on the last line.")]
PolicyFile = Annotated[
    Path | None,
    typer.Option("--policy", metavar="FILE", help="A policy file instead of the scenario's own numbers."),
]
Picture = Annotated[
    Path | None,
    typer.Option("--picture", metavar="OUT", help="Draw what happened: OUT ends in .svg or .png."),
]
Jobs = Annotated[
    int, typer.Option("--jobs", metavar="N", min=0, max=1024, help="Processes to use; 0: one a core.")
]
Wait = Annotated[bool, typer.Option("--wait", help="Come back when it is so.")]
WaitForWork = Annotated[
    bool, typer.Option("--wait", help="Come back when a service is ready, or what has an end is done.")
]
WorkTimeout = Annotated[
    str,
    typer.Option(
        "--timeout",
        metavar="TIME",
        help="With --wait: give up after.",
        show_default="10m; for what has an end: never",
    ),
]
Timeout = Annotated[str, typer.Option("--timeout", metavar="TIME", help="With --wait: give up after.")]
