"""A fleet to harm: `holdfast up` as a process of its own, watched and hurt from outside.

What happens is followed on the stream of events, as any client would: it costs the control plane nothing
while nothing happens, and polling it a hundred times a second would be part of what is measured. A node is
killed or frozen from here, not by the API: the control plane learns of it from the fault alone.
"""

import contextlib
import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from bench._plane import Process, started
from holdfast.adapters.providers.local import tree

LONG_S = 120.0
LOOK_S = 0.05
ASK_S = 0.002
LOST = ("failed on", "fenced on", "lost on")
PORT = re.compile(r"port (\d+)")


class Line(NamedTuple):
    """A line of history; `seen` is when it came to us, `at_s` when the control plane says it was."""

    seen: float
    at_s: float
    kind: str
    subject: str
    text: str
    node: str
    workload: str


class Fault(NamedTuple):
    node: str
    at: float  # monotonic, just before the first signal
    wall: float
    mark: int  # lines there were before


class Innocent(NamedTuple):
    failovers: list[str]  # called dead, or lost its replica
    suspicions: int


class NotInTime(Exception):
    """What had to happen did not."""


class Watch:
    """The stream of events, read by a thread."""

    def __init__(self, plane: Process) -> None:
        place = urlsplit(plane.url)
        assert place.hostname is not None
        self.lines: list[Line] = []
        self._came = threading.Condition()
        self._link = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
        headers = {"Accept": "text/event-stream", **plane.headers}
        self._link.request("GET", "/v1/events?since=0", headers=headers)
        self._answer = self._link.getresponse()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            for row in self._answer:
                if not row.startswith(b"data:"):
                    continue
                said = json.loads(row[5:])
                line = Line(
                    time.monotonic(),
                    said["at_ms"] / 1000,
                    *(said[key] for key in ("kind", "subject", "text", "node", "workload")),
                )
                with self._came:
                    self.lines.append(line)
                    self._came.notify_all()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._link.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._link.close()

    def since(self, mark: int, wanted: Callable[[Line], bool]) -> list[Line]:
        with self._came:
            return [line for line in self.lines[mark:] if wanted(line)]

    def wait(self, mark: int, wanted: Callable[[Line], bool], seconds: float = LONG_S) -> Line:
        """The first line after `mark` that is as wanted."""
        until, at = time.monotonic() + seconds, mark
        with self._came:
            while True:
                for line in self.lines[at:]:
                    if wanted(line):
                        return line
                at = len(self.lines)
                if not self._came.wait(max(0.0, until - time.monotonic())) and time.monotonic() >= until:
                    last = [f"{one.kind} {one.subject} {one.text}" for one in self.lines[mark:][-8:]]
                    raise NotInTime(f"not within {seconds:g} s; last: {last}")


class Fleet:
    def __init__(self, plane: Process, nodes: int, watch: Watch) -> None:
        self.plane, self.size, self.watch = plane, nodes, watch
        self.harmed: set[str] = set()

    def harm(self, node: str, deed: str) -> Fault:
        """kill: SIGKILL to all its processes; hang: SIGSTOP; partition: its agent is cut off, all runs on."""
        self.harmed.add(node)
        fault = Fault(node, time.monotonic(), time.time(), len(self.watch.lines))
        match deed:
            case "kill":
                tree.kill(self._root(node))
            case "hang":
                tree.stop(self._root(node))
            case "wake":
                tree.resume(self._root(node))
            case _:
                asked = {"node": node, "for_ms": int(deed.removeprefix("partition "))}
                self.plane.client.post("/v1/chaos/partition", json=asked).raise_for_status()
        return fault

    def _root(self, node: str) -> str:
        return str(self.plane.state / "nodes" / node)

    def clear(self, node: str) -> None:
        """What is left of a harmed node goes, so that memory does not fill with frozen processes."""
        with contextlib.suppress(FileNotFoundError):
            tree.kill(self._root(node))

    def replicas(self, workload: str) -> list[dict[str, Any]]:
        found = self.plane.get("/v1/replicas")
        assert isinstance(found, list)
        return [one for one in found if one["workload"] == workload]

    def ready(self, workload: str, role: str = "active") -> dict[str, Any]:
        return next(one for one in self.replicas(workload) if one["state"] == "ready" and one["role"] == role)

    def whole(self) -> None:
        """Until every node is alive, what was harmed is gone, and all that is wanted is ready."""
        until, before = time.monotonic() + LONG_S, ""
        while True:
            before = self._lacks()
            if not before:
                return
            if time.monotonic() > until:
                raise NotInTime(f"the fleet is not whole after {LONG_S:g} s: {before}")
            time.sleep(LOOK_S)

    def _lacks(self) -> str:
        status: Any = self.plane.get("/v1/status")
        well = [
            one["name"] for one in status["nodes"] if one["state"] == "ready" and one["verdict"] == "alive"
        ]
        if not len(well) == len(status["nodes"]) == self.size:
            return f"nodes {[(one['name'], one['state'], one['verdict']) for one in status['nodes']]}"
        for work in status["workloads"]:
            spares = sum(seat["role"] == "standby" for seat in work["seats"])
            if work["ready"] < work["wanted"] or work["standby"] < spares or work["why"]:
                return f"{work['name']}: {work['why'] or work['seats']}"
        return ""

    def renew(self) -> None:
        """Another set of nodes, none of which has a history at another heartbeat."""
        names = [one["name"] for one in self._nodes()]
        for name in names:
            self.harm(name, "kill")
        while set(names) & {one["name"] for one in self._nodes()}:
            time.sleep(LOOK_S)
        self.whole()

    def _nodes(self) -> list[dict[str, Any]]:
        found = self.plane.get("/v1/nodes")
        assert isinstance(found, list)
        return found

    def innocent(self, mark: int = 0) -> "Innocent":
        """What befell nodes that nobody had harmed."""
        lines = self.watch.since(mark, lambda line: bool(line.node) and line.node not in self.harmed)
        judged = [line for line in lines if line.kind == "verdict"]
        ended = [line for line in lines if line.kind == "event" and line.text.startswith(LOST)]
        dead = [line for line in judged if line.text.startswith("dead")]
        suspected = [line for line in judged if line.text.startswith("suspect")]
        return Innocent([f"{line.subject}: {line.text}" for line in (*dead, *ended)], len(suspected))


@contextlib.contextmanager
def fleet(documents: str, policy: str = "", nodes: int = 4) -> Iterator[Fleet]:
    with contextlib.ExitStack() as stack:
        plane = stack.enter_context(started("up", "--nodes", str(nodes)))
        stack.callback(plane.client.close)
        watch = Watch(plane)
        stack.callback(watch.close)
        made = Fleet(plane, nodes, watch)
        made.whole()
        if policy:
            plane.apply(policy)
            made.renew()
        plane.apply(documents)
        made.whole()
        yield made


def port_of(line: Line) -> int:
    found = PORT.search(line.text)
    assert found is not None, line
    return int(found[1])


def first_answer(port: int, wanted: str, seconds: float = LONG_S) -> float:
    """When (monotonic) an HTTP GET was first answered with this in its body."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if wanted in get(port):
            return time.monotonic()
        time.sleep(ASK_S)
    raise NotInTime(f"nothing on port {port} said {wanted!r} within {seconds:g} s")


def get(port: int) -> str:
    """The answer, or nothing."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as link:
            link.sendall(b"GET / HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
            parts = []
            while part := link.recv(4096):
                parts.append(part)
            return b"".join(parts).decode("latin-1")
    except OSError:
        return ""
