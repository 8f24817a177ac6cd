"""The reference page of the command line, made from the commands: `python -m holdfast.cli.reference`."""

import sys
from collections.abc import Iterator
from typing import Any

import typer

from holdfast.cli.client.with_client import CONNECTION
from holdfast.cli.main import app

HEAD = """# The command line

Every command takes `--help` (`-h`), and every one but `agent` takes `--json`: then the last line of the
output is one JSON value (of `logs` and `events -f`, every line is one). Exit codes: 0 all is well, 1 it could
not be done or a promise was broken, 2 the input is wrong (a name that nobody knows, for one), 3 what was
waited for (`wait`, `--wait`) did not come true in time, 130 broken off with Ctrl-C. For what runs until it is
told to end (`up`, `serve`, `agent`, `gateway`) Ctrl-C is the usual end: once it serves, it exits with 0.
Errors go to stderr as `error:` and `hint:` lines. Colours and bars are for terminals; what is piped is plain,
and no line is cut. `holdfast --install-completion` teaches your shell to complete commands, options, files,
and the names of nodes, workloads, replicas, pools and keys.

Commands that talk to a control plane take these as well, and look further if they are not given:

| | else | |
|---|---|---|
| `--url URL` | the file `.holdfast/url` in this folder or one above; `http://127.0.0.1:7700` | {url} |
| `--token TOKEN` | the file `token` beside that `url` | {token} |
| `--ca FILE` | the file `ca/ca.pem` beside that `url`; what the system trusts | {ca} |
| `--insecure` | | {insecure} |

`keys` and `limits` ask a gateway that works alone if one has left its address in `.holdfast-gateway` of this
folder or one above, else the control plane. Where such a folder is there and neither `--gateway` nor `--url`
(or its variable) names anybody, they say on stderr whom they ask.

The environment says what options do not:

| | |
|---|---|
{variables}

This page is made by `python -m holdfast.cli.reference` and checked by a test.
"""
SHARED = tuple(CONNECTION)
VARIABLES = {
    "HOLDFAST_URL": "`--url` of commands that talk to a control plane",
    "HOLDFAST_TOKEN": "their `--token`; what `login` keeps",
    "HOLDFAST_CA": "their `--ca`",
    "HOLDFAST_PROJECT": "their `--project`",
    "HOLDFAST_DIR": "`--dir` of `up` and `serve`; others look there first for `url`, `token` and `ca/ca.pem`",
    "HOLDFAST_GATEWAY_DIR": "`--dir` of `gateway`; `keys` and `limits` look there for its address",
    "HOLDFAST_DATABASE": "`--database` of `serve`",
    "HOLDFAST_JOIN_TOKEN": "the join token of `agent`; on its command line others could read it",
    "XDG_STATE_HOME": "where `agent` keeps its `--root`, instead of `/var/lib` (root) or `~/.local/state`",
    "NO_COLOR": "no colours, not even on a terminal",
}


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
    told = {name: hint.__metadata__[0].help for name, (hint, _) in CONNECTION.items()}
    sections = (line for name, command in commands() for line in _section(name, command))
    variables = "\n".join(f"| `{name}` | {what} |" for name, what in VARIABLES.items())
    return "\n".join([HEAD.format(**told, variables=variables), *sections])


def _section(name: str, command: Any) -> Iterator[str]:
    text = " ".join(command.help.split())
    yield from (f"## `{name}`", "", text, "", "| | default | |", "|---|---|---|")
    talks = set(SHARED) <= {parameter.name for parameter in command.params}
    for parameter in command.params:
        if not talks or parameter.name not in SHARED:
            yield _row(parameter)
    yield ""


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = parameter.metavar.strip("[]") + ("..." if parameter.nargs == -1 else "")
        needed = "*required*" if parameter.required else ""
        return f"| `{_cell(name)}` | {needed} | {parameter.help} |"
    takes = "" if parameter.is_flag else f" {parameter.metavar or 'VALUE'}"
    names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    also = f" Also ${parameter.envvar}." if parameter.envvar else ""
    return f"| `{_cell(names + takes)}` | {_default(parameter)} | {parameter.help}{also} |"


def _default(parameter: Any) -> str:
    """What is found out only when the command runs has its default in words."""
    if parameter.required:
        return "*required*"
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    return "" if parameter.default in (None, "") or parameter.is_flag else f"`{parameter.default}`"


def _cell(text: str) -> str:
    """A bar inside a table would end the cell."""
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())
