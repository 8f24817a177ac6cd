"""A stand-in for an agent: it takes an agent's arguments, waits until the machine may come up, notes that it
did, and does nothing from then on. So a provider can be tried without a control plane, and quickly.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.adapters.providers.local import tree
from holdfast.ports.provider import Join

TIMEOUT_S = 30.0

SCRIPT = """\
#!/bin/sh
while [ $# -gt 0 ]; do
  [ "$1" = --name ] && name=$2
  shift
done
until [ -e {gate} ]; do sleep 0.02; done
echo "$name $$" >> {made}
while :; do sleep 1000; done
"""


async def join(node: str) -> Join:
    return Join(("http://127.0.0.1:1",), f"token-of-{node}")


def until(what: str, holds: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < end, f"not within {TIMEOUT_S:g} s: {what}"
        time.sleep(0.01)


class StandIn:
    def __init__(self, folder: Path) -> None:
        self.folder, self.gate, self.log = folder, folder / "may-come-up", folder / "made"
        self.path = folder / "stand-in"
        self.path.write_text(SCRIPT.format(gate=self.gate, made=self.log))
        self.path.chmod(0o755)
        self.command = (str(self.path),)

    def made(self) -> list[str]:
        """The name of each node that came up, as often as one did."""
        return [line.split()[0] for line in self._lines()]

    def wait(self) -> None:
        """Until every agent that was started has come up."""
        self.gate.touch()
        until("every agent comes up", lambda: all(map(self._came_up, self.roots())))

    def leave_nothing(self) -> None:
        tree.kill(*self.roots())

    def roots(self) -> list[str]:
        return [root for root in tree.survey() if Path(root).is_relative_to(self.folder)]

    def _lines(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def _came_up(self, root: str) -> bool:
        """A process that has no such command yet is about to become one."""
        running = {p.pid for p in tree.members(root) if os.fsencode(self.path) in command_of(p.pid)}
        return bool(running) and running <= {int(line.split()[1]) for line in self._lines()}


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
