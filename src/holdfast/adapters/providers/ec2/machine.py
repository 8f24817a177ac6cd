"""What a new machine is told: the shell script that it runs when it first boots.

It is made from two files of this folder, `machine.sh` and `watch.py`, and the values that differ from node to
node stand above them as quoted assignments, so that nothing in a name or a setting is ever run. Agent and
watcher are units of systemd, because cloud-init runs the script at the first boot only and a reset is a
reboot. The same node gives the same text: EC2 takes a repeated request for the same only if nothing differs.
"""

import functools
import shlex
from importlib import resources

from holdfast.adapters.providers.ec2.settings import SHELL
from holdfast.model.action import LaunchNode
from holdfast.ports.errors import Denied
from holdfast.ports.provider import Join, agent_arguments

HOME = "@HOME@"  # needs no quotes; becomes the variable of machine.sh
BYTES_MAX = 16 * 1024  # what EC2 takes


def user_data(request: LaunchNode, join: Join, install: str) -> str:
    is_line = install.startswith(SHELL)
    told = {
        "requirement": "" if is_line else install,
        "line": install.removeprefix(SHELL).strip() if is_line else "",
        "arguments": _arguments(request, join),
        "token": join.token,
        "ca": join.ca,
        "watcher": _file("watch.py"),
    }
    lines = [f"{name}={shlex.quote(value)}" for name, value in told.items()]
    script = "\n".join(["#!/bin/sh", *lines, _file("machine.sh")])
    if (size := len(script.encode())) > BYTES_MAX:
        raise Denied(
            f"what {request.node} must be told has {size:,} bytes, and EC2 takes {BYTES_MAX:,}: "
            "use fewer certificates or a shorter install"
        )
    return script


def _arguments(request: LaunchNode, join: Join) -> str:
    """As a shell reads them, where `home` is set."""
    told = agent_arguments(
        request,
        join,
        root=f"{HOME}/node/agent",
        token_file=f"{HOME}/node/token",
        checkpoints=f"{HOME}/checkpoints",
    )
    return shlex.join(told).replace(HOME, "$home")


@functools.cache
def _file(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")
