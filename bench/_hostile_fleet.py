"""A fleet under load, all of it real processes: `holdfast serve`, agents that joined by token, a gateway
before twins of an engine, tenants who ask it steadily, and a job that must never run twice."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench._hostile_attackers import Wanted
from bench._plane import PAGE, Process, started

ENGINE = f"{sys.executable} -m holdfast.sim.live.llm_engine"
WAIT_S = 60.0
TENANTS = 4
TENANT_EVERY_S = 0.2
ASK_EVERY_S = 0.05
TENANT_TIMEOUT_S = 60.0
BEACON_S = 0.02
POOL = "kind: pool\nname: fleet\nprovider: join\nmax: 20\n"
# The job sends its own name over and over: two names at the same time are two copies.
BEACON = (
    "import os, socket, time\n"
    "to = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
    "while True:\n"
    "    to.sendto(os.environ['HOLDFAST_REPLICA'].encode(), ('127.0.0.1', {port}))\n"
    f"    time.sleep({BEACON_S})\n"
)


class NotInTime(Exception):
    """What had to happen did not."""


def until(true: Callable[[], object], what: str, seconds: float = WAIT_S) -> None:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise NotInTime(f"{what}: not within {seconds:g} s")
        time.sleep(0.05)


def own_rss_mb(process: int) -> float:
    """Of one process; 0: it is gone."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * PAGE / 1e6
    except (OSError, IndexError):
        return 0.0


def living(folder: Path) -> int:
    """Processes that were started for a fleet whose files are there, whatever they call themselves by now."""
    count = 0
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            count += bytes(folder) in path.read_bytes()
    return count


def rss_mb(process: int) -> float:
    """Of a process and all below it."""
    children: list[str] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            children += (thread / "children").read_text().split()
    return own_rss_mb(process) + sum(rss_mb(int(child)) for child in children)


class Steady:
    """Asks the same thing again and again from a thread: how long each answer took, and what was refused."""

    def __init__(self, url: str, every_s: float, request: tuple[str, str, bytes], token: str) -> None:
        place = urlsplit(url)
        self._place = (place.hostname or "", place.port or 80)
        self._every_s, self._request = every_s, request
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self.took_ms: list[float] = []
        self.refused: list[str] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        link: http.client.HTTPConnection | None = None
        while not self._over.wait(self._every_s):
            link = link or http.client.HTTPConnection(*self._place, timeout=TENANT_TIMEOUT_S)
            begun = time.perf_counter()
            try:
                method, path, body = self._request
                link.request(method, path, body or None, self._headers)
                answer = link.getresponse()
                text = answer.read()
                if answer.status != 200:
                    self.refused.append(f"{answer.status} {text[:120].decode(errors='replace')}")
            except (OSError, http.client.HTTPException) as error:
                self.refused.append(f"{type(error).__name__}: {error}")
                link.close()
                link = None
            self.took_ms.append((time.perf_counter() - begun) * 1000)
        if link is not None:
            link.close()

    def close(self) -> None:
        self._over.set()
        self._thread.join(TENANT_TIMEOUT_S + 5)


class Beacons:
    """Which copies of the exclusive job were alive, and when: one that began beside another is a double."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.settimeout(0.2)
        self.port: int = self._socket.getsockname()[1]
        self.seen: dict[str, tuple[float, float]] = {}  # first and last
        self.powers: dict[str, bool] = {}  # of the rogue replica, which sends them here
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(TimeoutError):
                name, now = self._socket.recv(512).decode(errors="replace"), time.monotonic()
                if name.startswith("{"):
                    self.powers = json.loads(name)
                    continue
                self.seen[name] = (self.seen.get(name, (now, now))[0], now)

    def doubles(self) -> int:
        """Pairs of copies whose lives overlap. What waited in the socket's buffer is not counted as one."""
        lives = sorted(self.seen.values())
        return sum(
            later[0] < earlier[1] - 2 * BEACON_S
            for number, earlier in enumerate(lives)
            for later in lives[number + 1 :]
        )

    def close(self) -> None:
        self._over.set()
        self._thread.join(5)
        self._socket.close()


class Fleet:
    def __init__(self, plane: Process, gateway: Process, agents: dict[str, int], beacons: Beacons) -> None:
        self.plane, self.gateway, self.agents, self.beacons = plane, gateway, agents, beacons
        self.key = ""

    def status(self) -> dict[str, Any]:
        """Tried again when it is refused: how the API fares is measured elsewhere."""
        until(lambda: self.plane.client.get("/v1/status").status_code == 200, "the status is shown")
        found = self.plane.get("/v1/status")
        assert isinstance(found, dict)
        return found

    def ready(self, *workloads: str) -> bool:
        found: Any = self.plane.get("/v1/workloads")
        ready = {one["name"] for one in found if one["ready"] >= max(1, one["wanted"])}
        return ready >= set(workloads)

    def memory_mb(self) -> dict[str, float]:
        agents = {name: own_rss_mb(process) for name, process in self.agents.items()}
        return {
            "control_plane": rss_mb(self.plane.child.pid),
            "gateway": rss_mb(self.gateway.child.pid),
            **agents,
        }

    def journal_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.plane.state.glob("holdfast.db*"))

    def log_bytes(self) -> int:
        return sum((process.state / "stderr").stat().st_size for process in (self.plane, self.gateway))

    def token(self, role: str, **more: object) -> str:
        return make_token(self.plane, role, **more)

    def wanted(self, seconds: float, token: str = "") -> Wanted:
        return Wanted(self.plane.url, self.gateway.url, seconds, token)


def make_token(plane: Process, role: str, **more: object) -> str:
    answer = plane.client.post("/v1/tokens", json={"role": role, **more})
    if answer.is_error:
        raise RuntimeError(answer.text)
    secret: str = answer.json()["token"]
    return secret


@contextlib.contextmanager
def agent(plane: Process, name: str) -> Iterator[int]:
    """The process of an agent; what runs on it ends with it."""
    root = plane.state / "agents" / name
    command = [sys.executable, "-m", "holdfast.agent", f"--join={plane.url}", f"--name={name}"]
    command += [
        f"--root={root}",
        "--pool=fleet",
        f"--place=bench/-/{name[-1]}/-",
        "--cpus=4",
        "--memory=4096",
        "--stop-all-on-exit",
    ]
    environment = {**os.environ, "HOLDFAST_JOIN_TOKEN": make_token(plane, "join", pool="fleet")}
    with (plane.state / f"{name}.log").open("w") as log:
        child = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        yield child.pid
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(30)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def workloads(beacon_port: int) -> str:
    chat = {
        "kind": "service",
        "name": "chat",
        "replicas": 2,
        "command": f"{ENGINE} --port $PORT --first-ms 5 --gap-ms 1 --tokens 8",
        "ready": {"http": "/health"},
        "serves": {"models": ["toy"], "probe": "/health"},
        "cpus": 0.1,
        "memory": "64MiB",
    }
    beacon = BEACON.format(port=beacon_port)
    once = {
        "kind": "job",
        "name": "once",
        "command": [sys.executable, "-c", beacon],
        "cpus": 0.1,
        "memory": "64MiB",
    }
    return "\n---\n".join(map(json.dumps, (chat, once)))


def rogue(fleet: Fleet, seconds: float) -> str:
    """A service and not a job: jobs are in a PID namespace, and see less."""
    program = str(Path(__file__).with_name("_hostile_replica.py"))
    words = [fleet.plane.url, fleet.gateway.url, str(seconds), str(fleet.beacons.port)]
    return json.dumps(
        {
            "kind": "service",
            "name": "rogue",
            "command": [sys.executable, program, *words],
            "cpus": 0.1,
            "memory": "256MiB",
        }
    )


@contextlib.contextmanager
def fleet(leader_timeout_s: float, agents: int = 3) -> Iterator[Fleet]:
    with contextlib.ExitStack() as stack:
        plane = stack.enter_context(started("serve", "--leader-timeout", f"{leader_timeout_s:g}"))
        plane.apply(POOL)
        beacons = Beacons()
        stack.callback(beacons.close)
        pids = {
            name: stack.enter_context(agent(plane, name)) for name in (f"good-{n + 1}" for n in range(agents))
        }
        plane.apply(workloads(beacons.port))
        words = ("--control", plane.url, "--token", make_token(plane, "gateway"))
        more = ("--admin-port", "0", "--workers", "1")
        gateway = stack.enter_context(started("gateway", *words, *more, ready=""))
        made = Fleet(plane, gateway, pids, beacons)
        try:
            until(lambda: made.ready("chat", "once") and beacons.seen, "the fleet is ready")
        except NotInTime as error:
            logs = [log.read_text()[-500:] for log in sorted(plane.state.glob("*.log"))]
            raise NotInTime("\n".join((str(error), *logs))) from None
        key = plane.client.post("/v1/keys", json={"team": "steady", "new_team": True})
        key.raise_for_status()
        made.key = key.json()["secret"]
        until(lambda: chat(made) == 200, "the gateway answers")
        yield made


CHAT = b'{"model": "toy", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}'


def chat(made: Fleet) -> int:
    headers = {"authorization": f"Bearer {made.key}", "content-type": "application/json"}
    answer = made.gateway.client.post("/v1/chat/completions", content=CHAT, headers=headers)
    return answer.status_code


@contextlib.contextmanager
def tenants(made: Fleet) -> Iterator[list[Steady]]:
    asked = ("POST", "/v1/chat/completions", CHAT)
    with contextlib.ExitStack() as stack:
        steady = [Steady(made.gateway.url, TENANT_EVERY_S, asked, made.key) for _ in range(TENANTS)]
        for each in steady:
            stack.callback(each.close)
        yield steady


@contextlib.contextmanager
def asking(made: Fleet) -> Iterator[Steady]:
    """An operator who looks at the fleet."""
    token = made.token("operator")
    steady = Steady(made.plane.url, ASK_EVERY_S, ("GET", "/v1/workloads", b""), token)
    try:
        yield steady
    finally:
        steady.close()
