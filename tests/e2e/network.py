"""Hosts of their own on one machine: network namespaces, joined by two switches.

Every host has a card at each switch. Over `management` agents reach the control plane, over `peers` they
reach one another; so one can be cut from the control plane and not from its peers, as happens when a router
fails. A cut takes the switch's port away and nothing else: the host's own card stays up, no packet is
answered, and nobody is told.

This takes root, and `ip` and `bridge` from the package iproute2. The test itself steps into the control
plane's host, so that what it starts and asks is there.
"""

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.packages import need, which

CLONE_NEWNET = 0x40000000
SWITCHES = {"management": "10.77.0", "peers": "10.78.0"}
NAMESPACES = Path("/run/netns")


class Network:
    def __init__(self, *hosts: str) -> None:
        self.hosts = {host: number for number, host in enumerate(hosts, 1)}
        self._mark = f"hf{os.getpid()}"
        self._switch = f"{self._mark}-switch"

    def __enter__(self) -> "Network":
        for program in ("ip", "bridge"):
            need(partial(which, program), "iproute2")
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def address(self, host: str, switch: str) -> str:
        return f"{SWITCHES[switch]}.{self.hosts[host]}"

    def on(self, host: str) -> tuple[str, ...]:
        """Words before a command that is to run on that host."""
        return ("nsenter", f"--net={NAMESPACES / self._name(host)}")

    @contextlib.contextmanager
    def standing_on(self, host: str) -> Iterator[None]:
        """This thread, and what it starts meanwhile, is there."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(NAMESPACES / self._name(host), os.O_RDONLY)
        try:
            _enter(there)
            yield
        finally:
            _enter(home)
            os.close(home)
            os.close(there)

    def cut(self, host: str, switch: str) -> None:
        self._port(host, switch, "0")

    def mend(self, host: str, switch: str) -> None:
        self._port(host, switch, "3")

    def _port(self, host: str, switch: str, state: str) -> None:
        command = ("bridge", "-n", self._switch, "link", "set", "dev", self._card(host, switch))
        _run(*command, "state", state)

    def _build(self) -> None:
        for name in (self._switch, *map(self._name, self.hosts)):
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
        for switch in SWITCHES:
            _run("ip", "-n", self._switch, "link", "add", switch, "type", "bridge", "forward_delay", "0")
            _run("ip", "-n", self._switch, "link", "set", switch, "up")
            for host in self.hosts:
                self._plug_in(host, switch)

    def _plug_in(self, host: str, switch: str) -> None:
        card, name = self._card(host, switch), self._name(host)
        make = ("ip", "-n", self._switch, "link", "add", card, "type", "veth")
        _run(*make, "peer", "name", switch, "netns", name)
        _run("ip", "-n", self._switch, "link", "set", card, "master", switch, "up")
        _run("ip", "-n", name, "address", "add", f"{self.address(host, switch)}/24", "dev", switch)
        _run("ip", "-n", name, "link", "set", switch, "up")

    def _remove(self) -> None:
        """With a namespace go its cards, and the other ends of them."""
        for name in (self._switch, *map(self._name, self.hosts)):
            subprocess.run(("ip", "netns", "delete", name), capture_output=True, check=False)

    def _name(self, host: str) -> str:
        return f"{self._mark}-{host}"

    def _card(self, host: str, switch: str) -> str:
        return f"{switch[0]}-{host}"


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


def _enter(namespace: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")
