"""`holdfast`: the entry, and what goes wrong outside of any command.

Nothing heavy is imported here: the simulator and numpy load inside the command that needs them, so that help
and completion are quick.
"""

import os
import signal
import sys
from typing import Annotated

import typer

from holdfast import __version__
from holdfast.cli.say import BAD_INPUT, FAILED, INTERRUPTED
from holdfast.cli.sim import app as sim_app

# typer carries its own copy of click in some versions; this is the class that both call UsageError
UsageError: type[Exception] = typer.BadParameter.__bases__[0]

app = typer.Typer(
    help="Say what must stay up and what you will pay, and it stays up.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
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
    print(f"error: {message.rstrip('.')}", file=sys.stderr)
    print(f"hint: {context.command_path if context else 'holdfast'} --help", file=sys.stderr)
    return BAD_INPUT


if __name__ == "__main__":
    main()
