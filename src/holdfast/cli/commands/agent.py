"""`holdfast agent`: makes this machine a node.

The command becomes another program, `python -m holdfast.agent`, which takes the same words: an agent stays
small because nothing of the command line is left in it. What is wrong with a value it says itself. The join
token goes over in the environment, where other users do not see it.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

TOKEN_VARIABLE = "HOLDFAST_JOIN_TOKEN"

Ca = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Certificates to trust instead of the system's.")
]
CaPin = Annotated[
    str | None,
    typer.Option(metavar="sha256:HEX", help="Of the control plane's own authority; tokens carry it."),
]
Isolation = Annotated[
    str | None,
    typer.Option(
        metavar="auto|user|none",
        help="auto: run each workload as a user of its own, if possible; user: or do not start.",
    ),
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Trust any certificate, and plain http.")]


def agent(
    join: Annotated[
        list[str] | None,
        typer.Option(metavar="URL[,URL...]", help="The control planes; may be given more than once."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NODE", show_default="the host's", help="Of this node.")
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            show_default="/var/lib/holdfast/nodes/NODE, or in ~/.local/state",
            help="Where the node keeps its key, its replicas and their logs.",
        ),
    ] = None,
    token: Annotated[
        str | None, typer.Option(metavar="T", help=f"Join token; better a file, or ${TOKEN_VARIABLE}.")
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A file with the join token; needed for the first start only."),
    ] = None,
    pool: Annotated[str | None, typer.Option(metavar="POOL", help="The pool to join.")] = None,
    offer: Annotated[
        str | None, typer.Option(metavar="OFFER", help="Which of the pool's offers this machine is.")
    ] = None,
    place: Annotated[
        str | None, typer.Option(metavar="PROVIDER/REGION/ZONE/RACK", help="Its failure domains.")
    ] = None,
    cpus: Annotated[
        str | None, typer.Option(metavar="N", help="Processors to lend; else all there are.")
    ] = None,
    memory: Annotated[str | None, typer.Option(metavar="MIB", help="Memory to lend; else all.")] = None,
    gpus: Annotated[str | None, typer.Option(metavar="N", help="GPUs to lend; else all there are.")] = None,
    gpu_kind: Annotated[str | None, typer.Option(metavar="KIND", help="h100, a100, ...")] = None,
    address: Annotated[
        str | None, typer.Option(metavar="HOST", help="Where it is reached: see `network` of its pool.")
    ] = None,
    allow_chaos: Annotated[
        bool, typer.Option("--allow-chaos", help="Let the control plane rehearse partitions with it.")
    ] = False,
    ca: Ca = None,
    ca_pin: CaPin = None,
    insecure: Insecure = False,
    checkpoints: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", show_default="in --root", help="Where programs keep checkpoints; better shared."
        ),
    ] = None,
    fencing: Annotated[
        str | None,
        typer.Option(metavar="auto|none", help="auto: contain jobs in PID namespaces, if possible."),
    ] = None,
    isolation: Isolation = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log lines as JSON.")] = False,
    stop_all_on_exit: Annotated[
        bool, typer.Option("--stop-all-on-exit", help="Stop what runs here when the agent is ended.")
    ] = False,
) -> None:
    """Make this machine a node. It runs what the control plane wants here."""
    told = dict(locals())  # each option under its own name
    if told.pop("token"):
        os.environ[TOKEN_VARIABLE] = str(token)
    told["join"] = ",".join(join or ())
    words = command(told)
    os.execv(words[0], words)


def command(told: Mapping[str, object]) -> list[str]:
    """The program to become. A value is joined to its name, so that one that begins with a dash stays one."""
    words = [sys.executable, "-m", "holdfast.agent"]
    for name, value in told.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            words.append(option)
        elif value is not False and value is not None and value != "":
            words.append(f"{option}={value}")
    return words
