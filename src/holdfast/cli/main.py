"""`holdfast`: the entry, and what goes wrong outside of any command.

Nothing heavy is imported here: the simulator and numpy load inside the command that needs them, so that help
and completion are quick.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from holdfast import __version__
from holdfast.cli.commands import (
    lists,
    operations,
    retry,
    token,
)
from holdfast.cli.commands.agent import agent
from holdfast.cli.commands.apply import apply, plan
from holdfast.cli.commands.audit import audit
from holdfast.cli.commands.capacity import capacity
from holdfast.cli.commands.demo import demo
from holdfast.cli.commands.events import events
from holdfast.cli.commands.explain import explain
from holdfast.cli.commands.gateway import keys, limits
from holdfast.cli.commands.gateway.serve import gateway
from holdfast.cli.commands.login import login
from holdfast.cli.commands.logs import logs
from holdfast.cli.commands.replay import replay
from holdfast.cli.commands.serve import serve
from holdfast.cli.commands.sim.group import app as sim_app
from holdfast.cli.commands.status import status
from holdfast.cli.commands.up import up
from holdfast.cli.commands.wait import wait
from holdfast.cli.output import BAD_INPUT, FAILED, INTERRUPTED

# typer carries its own copy of click in some versions; this is the class that both call UsageError
UsageError: type[Exception] = typer.BadParameter.__bases__[0]
JARGON = (  # of the checker that typer uses
    ("Value error, ", ""),
    ("Input should be", "expected"),
    (", unable to parse string as an integer", ""),
)

app = typer.Typer(
    help="Say what must stay up and what you will pay, and it stays up.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},  # what is below takes them over
)
COMMANDS: dict[str, Callable[..., None]] = {
    "up": up,
    "demo": demo,
    "serve": serve,
    "agent": agent,
    "gateway": gateway,
    "login": login,
    "apply": apply,
    "plan": plan,
    "wait": wait,
    "get": retry.get,
    "status": status,
    "nodes": lists.nodes,
    "workloads": lists.workloads,
    "replicas": lists.replicas,
    "pools": lists.pools,
    "projects": lists.projects,
    "offers": lists.offers,
    "spend": lists.spend,
    "capacity": capacity,
    "events": events,
    "audit": audit,
    "explain": explain,
    "logs": logs,
    "replay": replay,
    "scale": operations.scale,
    "signal": operations.signal,
    "pause": operations.pause,
    "resume": operations.resume,
    "retry": retry.retry,
    "restart": retry.restart,
    "rollback": retry.rollback,
    "delete": operations.delete,
    "cordon": operations.cordon,
    "uncordon": operations.uncordon,
    "drain": operations.drain,
    "forget": operations.forget,
    "release-brake": operations.release_brake,
    "chaos": operations.chaos,
}
for name, command in COMMANDS.items():
    app.command(name)(command)
app.add_typer(token.app, name="token")
app.add_typer(keys.app, name="keys")
app.add_typer(limits.app, name="limits")
app.add_typer(sim_app, name="sim")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"holdfast {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def holdfast(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def main() -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` has seen enough: end quietly, as other tools do
    try:
        code = app(prog_name="holdfast", standalone_mode=False) or 0
        if sys.stdout is not None:  # somebody may have closed it
            sys.stdout.flush()
    except UsageError as error:
        code = _misused(error)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except OSError as error:  # a full disk behind the output, for one
        print(f"error: {error.strerror or error}", file=sys.stderr)
        os._exit(FAILED)  # what is left in the buffer would only fail again
    sys.exit(code)


def _misused(error: Exception) -> int:
    context = getattr(error, "ctx", None)
    message = " ".join(str(getattr(error, "message", "") or error).split())
    if hasattr(error, "format_message"):
        message = " ".join(error.format_message().split())
    for jargon, plain in JARGON:
        message = message.replace(jargon, plain)
    print(f"error: {message.rstrip('.')}", file=sys.stderr)
    print(f"hint: {context.command_path if context else 'holdfast'} --help", file=sys.stderr)
    return BAD_INPUT


if __name__ == "__main__":
    main()
