"""The reference page of the command line, made from the commands: `python -m holdfast.cli.reference`."""

import sys
from collections.abc import Iterator
from typing import Any

import typer

from holdfast.cli.main import app

HEAD = """# The command line

Every command takes `--help` and `--json`; with `--json` the last line of the output is one JSON value. Exit
codes: 0 all is well, 1 the simulation broke a promise, 2 the input is wrong, 130 interrupted. Errors go to
stderr as `error:` and `hint:` lines.
`holdfast --install-completion` teaches your shell to complete commands, options and scenario files.

This page is made by `python -m holdfast.cli.reference` and checked by a test.
"""


def commands(command: Any = None, name: str = "holdfast") -> Iterator[tuple[str, Any]]:
    """Every command that does something, with its full name."""
    command = command or typer.main.get_command(app)
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name, command
        return
    for word, child in inner.items():
        yield from commands(child, f"{name} {word}")


def page() -> str:
    return "\n".join([HEAD, *(line for name, command in commands() for line in _section(name, command))])


def _section(name: str, command: Any) -> Iterator[str]:
    yield from (f"## `{name}`", "", command.help, "", "| | default | |", "|---|---|---|")
    for parameter in command.params:
        yield _row(parameter)
    yield ""


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"| `{parameter.metavar}` | *required* | {parameter.help} |"
    takes = "" if parameter.is_flag else f" {parameter.metavar or 'VALUE'}"
    default = "" if parameter.default is None or parameter.is_flag else f"`{parameter.default}`"
    return f"| `{parameter.opts[0]}{takes}` | {default} | {parameter.help} |"


if __name__ == "__main__":
    sys.stdout.write(page())
