"""Real control planes, agents and nodes in a folder of their own, and a look at them from outside.

What a test believes it reads from the API, from /proc and from what its programs wrote, never from our own
objects. A `Ground` ends with the proof that nothing it started is left.
"""

import asyncio
import contextlib
import dataclasses
import http.client
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

from holdfast.adapters.stores import open_store
from holdfast.model.event import PolicyApplied
from holdfast.model.policy import Detection, Leases, Policy
from holdfast.model.units import HOUR

T = TypeVar("T")

HOLDFAST = (str(Path(sys.executable).parent / "holdfast"),)
AGENT = (sys.executable, "-m", "holdfast.agent")
PROGRAMS = Path(__file__).parent / "programs"
LONG_S = 60.0  # for what takes a second or two on a machine that has nothing else to do
LEASE_MS, MARGIN_MS = 5_000, 1_000  # the shortest lease there may be: five beats
SHORT_LEASES = "{kind: policy, leases: {lease: 5s, margin: 1s}}"
DEFAULT_LEASE_MS = Policy().leases.lease_ms
DEFAULT_BEAT_MS = Policy().detection.beat_ms
WEB = f"""
kind: service
name: web
replicas: 3
command: exec {sys.executable} -m http.server $PORT
ready: {{ tcp: true, every: 100ms }}
cpus: 0.1
memory: 64MiB
stop_grace: 2s
"""
POOL = "{kind: pool, name: fleet, provider: join, can_launch: false, can_terminate: false, can_reset: false}"


def until(look: Callable[[], T], what: str, seconds: float = LONG_S) -> T:
    """Waits until something is true, and gives it. A control plane that is away is asked again."""
    deadline, seen = time.monotonic() + seconds, "nothing"
    while time.monotonic() < deadline:
        try:
            found = look()
        except (OSError, http.client.HTTPException, Unanswered) as error:
            seen = repr(error)
        else:
            if found:
                return found
            seen = repr(found)
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds:g} s: {what}; last seen: {seen}")


def boot_ms() -> int:
    """The clock that leases count by, and programs/alone.py writes."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


# processes


def processes(folder: Path) -> dict[int, str]:
    """Every process whose command, environment or folder is below this one: pid -> command. Zombies are not
    counted: whoever they belong to has ended them."""
    mark, found = str(folder).encode(), {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{entry}/cmdline").read_bytes()
            told = command + Path(f"/proc/{entry}/environ").read_bytes()
            if mark in told or os.readlink(f"/proc/{entry}/cwd").encode().startswith(mark):
                found[int(entry)] = command.replace(b"\0", b" ").decode(errors="replace").strip()
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def kill(*pids: int, number: int = signal.SIGKILL) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@dataclasses.dataclass(frozen=True)
class Pids:
    shim: int
    program: int


def replicas(folder: Path) -> dict[str, Pids]:
    """What runs below a folder, by its shims' notes and the kernel's word: replica -> its processes."""
    found = {}
    for note in folder.glob("**/replicas/*/running"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            fields = dict(line.split(" ", 1) for line in note.read_text().splitlines())
            pids = Pids(int(fields["shim"]), int(fields["program"]))
            if is_alive(pids.program):
                found[unquote(note.parent.name)] = pids
    return found


# talking to a control plane


class Unanswered(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        super().__init__(f"{status}: {problem}")
        self.status, self.problem = status, problem


def request(url: str, method: str, path: str, body: object = None, *, token: str = "") -> Any:
    """One request on a connection of its own. Text is sent as YAML, anything else as JSON."""
    where = urlsplit(url)
    text = isinstance(body, str | bytes)
    headers = {"Content-Type": "application/yaml" if text else "application/json", "Connection": "close"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=15)
    try:
        sent = body if text or body is None else json.dumps(body)
        connection.request(method, path, body=sent, headers=headers)  # type: ignore[arg-type]
        answer = connection.getresponse()
        status, content = answer.status, answer.read()
    finally:
        connection.close()
    found = json.loads(content) if content else None
    if status >= 400:
        raise Unanswered(status, found or {})
    return found


def refusal(ask: Callable[[], object]) -> Unanswered | None:
    """How it was refused; None: it was not."""
    try:
        ask()
    except Unanswered as error:
        return error
    return None


class Api:
    """What people and programs ask of a control plane."""

    url: str
    token = ""

    def get(self, path: str) -> Any:
        return request(self.url, "GET", path, token=self.token)

    def post(self, path: str, body: object = None) -> Any:
        return request(self.url, "POST", path, body, token=self.token)

    def delete(self, path: str) -> Any:
        return request(self.url, "DELETE", path, token=self.token)

    def apply(self, *documents: str) -> Any:
        return self.post("/v1/apply", "\n---\n".join(documents))

    def apply_when_led(self, *documents: str) -> Any:
        """On a busy machine a leader may lose its leadership for a moment; it says that nothing was done and
        that one should ask again."""
        return until(lambda: self.apply(*documents), "somebody leads")

    def nodes(self) -> dict[str, Any]:
        return {node["name"]: node for node in self.get("/v1/nodes")}

    def replicas(self, workload: str) -> dict[str, Any]:
        return {each["id"]: each for each in self.get(f"/v1/replicas?workload={quote(workload)}")}

    def ready(self, workload: str) -> dict[str, str]:
        """Its replicas that serve: id -> node."""
        return {
            name: each["node"] for name, each in self.replicas(workload).items() if each["state"] == "ready"
        }

    def until_ready(self, workload: str, count: int = 1, seconds: float = LONG_S) -> dict[str, str]:
        def look() -> dict[str, str]:
            found = self.ready(workload)
            return found if len(found) == count == len(self.replicas(workload)) else {}

        return until(look, f"{workload} has {count} ready replicas", seconds)

    def until_alive(self, count: int) -> None:
        def look() -> bool:
            nodes = self.nodes().values()
            good = [n for n in nodes if n["verdict"] == "alive" and n["state"] == "ready"]
            return len(good) == len(nodes) == count

        until(look, f"{count} nodes are alive and no other is known")

    def history(self, **about: str) -> list[str]:
        words = "".join(f"&{name}={quote(value)}" for name, value in about.items())
        return [f"{line['subject']} {line['text']}" for line in self.get(f"/v1/events?limit=1000{words}")]


# what runs


class Started(Api):
    """A control plane in a process of its own."""

    def __init__(self, ground: "Ground", name: str, words: tuple[str, ...]) -> None:
        self.ground = ground
        self.folder, self.errors = ground.folder / name, ground.folder / f"{name}.err"
        self.folder.mkdir(exist_ok=True)
        command = [*HOLDFAST, *words, "--dir", str(self.folder), "--json"]
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                cwd=ground.folder,
                env=ground.environment_for(words),
            )

    def wait(self) -> "Started":
        """Until it says where it answers. `up` says so when its nodes have joined."""
        assert self.process.stdout is not None
        said = _line(self.process, LONG_S)
        assert said, f"it ended or said nothing: {self.errors.read_text()}"
        self.told: dict[str, Any] = json.loads(said)
        self.url = self.told["url"]
        self.token = self._first_token()
        return self

    def _first_token(self) -> str:
        """It is in the folder of the control plane that came to their database first."""
        for plane in (self, *self.ground.planes):
            with contextlib.suppress(OSError):
                return (plane.folder / "token").read_text().strip()
        return ""

    @property
    def said(self) -> str:
        """On its standard error."""
        return self.errors.read_text(errors="replace")

    def kill(self) -> None:
        self.process.kill()
        self.ended()

    def stop(self, number: int = signal.SIGINT) -> int:
        """As Ctrl-C does; its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        status = self.process.wait(LONG_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return status

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None


def _line(process: "subprocess.Popen[bytes]", seconds: float) -> bytes:
    assert process.stdout is not None
    pipe, text, deadline = process.stdout.fileno(), b"", time.monotonic() + seconds
    os.set_blocking(pipe, False)
    while time.monotonic() < deadline and not text.endswith(b"\n"):
        with contextlib.suppress(BlockingIOError):
            part = os.read(pipe, 65536)
            if not part:
                break
            text += part
        time.sleep(0.02)
    return text if text.endswith(b"\n") else b""


class Ground:
    """A folder in which control planes and agents run. `close` ends them and looks for what is left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.planes: list[Started] = []
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self.prefix: dict[str, tuple[str, ...]] = {}  # agent -> words before its command
        self.words: dict[str, tuple[str, ...]] = {}  # agent -> words after it
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PYTEST_"))
        }

    def up(self, *words: str, name: str = "up", port: int = 0, lease_ms: int = DEFAULT_LEASE_MS) -> Started:
        """A control plane with three local nodes that have joined."""
        self.have_leases(lease_ms, name)
        return self.begin("up", *words, "--port", str(port), name=name).wait()

    def have_leases(
        self,
        lease_ms: int,
        name: str = "",
        *,
        database: str = "",
        ago_ms: int = HOUR,
        beat_ms: int = DEFAULT_BEAT_MS,
    ) -> None:
        """Leases have been of this length for an hour: one that was changed just now would have to be waited
        out first."""
        if lease_ms != DEFAULT_LEASE_MS:
            (self.folder / name).mkdir(exist_ok=True)
            policy = Policy(detection=Detection(beat_ms=beat_ms), leases=Leases(lease_ms))
            asyncio.run(_begin_with(policy, database or self.database(name), ago_ms))

    def database(self, name: str) -> str:
        return f"sqlite:///{self.folder / name / 'holdfast.db'}"

    def serve(
        self,
        *words: str,
        name: str = "serve",
        port: int = 0,
        lease_ms: int = DEFAULT_LEASE_MS,
        beat_ms: int = DEFAULT_BEAT_MS,
    ) -> Started:
        self.have_leases(lease_ms, name, beat_ms=beat_ms)
        return self.begin("serve", *words, "--port", str(port), name=name).wait()

    def token_at(self, url: str) -> str:
        """For whoever speaks to these control planes."""
        return next((plane.token for plane in self.planes if getattr(plane, "url", "?") in url), "")

    def environment_for(self, words: tuple[str, ...]) -> dict[str, str]:
        """A gateway's own; a control plane needs no token."""
        control = words[words.index("--control") + 1] if "--control" in words else ""
        return {"HOLDFAST_TOKEN": self.token_at(control)} | self.environment if control else self.environment

    def begin(self, *words: str, name: str) -> Started:
        plane = Started(self, name, words)
        self.planes.append(plane)
        return plane

    def agent(self, name: str, urls: str, token: str, *words: str) -> "subprocess.Popen[bytes]":
        """A node of the pool `fleet`, in a zone of its own."""
        root = self.folder / name
        told = ["--join", urls, "--name", name, "--root", str(root), "--pool", "fleet", "--allow-chaos"]
        told += ["--place", f"here/here/{name}", "--cpus", "4", "--memory", "4096"]
        told += ["--checkpoints", str(self.folder / "checkpoints")]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.agents[name] = subprocess.Popen(
                [*self.prefix.get(name, ()), *AGENT, *told, *words, *self.words.get(name, ())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=self.environment | {"HOLDFAST_JOIN_TOKEN": token},
            )
        return self.agents[name]

    def fleet(
        self, plane: Started, *names: str, urls: str = "", words: tuple[str, ...] = (), pool: str = POOL
    ) -> None:
        """Agents that have joined."""
        plane.apply_when_led(pool)
        for name in names:
            self.join(plane, name, urls=urls, words=words)
        plane.until_alive(len(names))

    def join(self, plane: Started, name: str, urls: str = "", words: tuple[str, ...] = ()) -> None:
        wanted = {"role": "join", "pool": "fleet", "node": name}
        made = until(lambda: plane.post("/v1/tokens", wanted), "the pool is known")
        self.agent(name, urls or plane.url, made["token"], *words)

    def cli(self, *words: str, url: str = "", stdin: str = "") -> "subprocess.CompletedProcess[str]":
        """A command as a person types it."""
        found = {"HOLDFAST_URL": url, "HOLDFAST_TOKEN": self.token_at(url)} if url else {}
        env = found | self.environment
        return subprocess.run(
            [*HOLDFAST, *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=LONG_S,
            cwd=self.folder,
            env=env,
        )

    def close(self) -> None:
        for plane in self.planes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                plane.stop()
            if plane.is_running:
                plane.kill()
        deadline = time.monotonic() + LONG_S
        while (left := processes(self.folder)) and time.monotonic() < deadline:
            kill(*left)
            time.sleep(0.02)
        for agent in self.agents.values():
            agent.wait(LONG_S)
        assert not left, f"these do not end: {left}"


async def _begin_with(policy: Policy, database: str, ago_ms: int) -> None:
    store, _ = await open_store(database)
    try:
        held = await store.lead("before", "", 1_000)
        at = time.time_ns() // 1_000_000 - ago_ms
        await store.append(held.generation, 0, (PolicyApplied(at=at, policy=policy),))
        await store.resign("before", held.generation)
    finally:
        await store.close()


# a program that must never run twice


def alone(folder: Path, name: str = "job") -> str:
    """A job that holds a lock for life and writes down when it lived (programs/alone.py). Ready when it has
    begun to write."""
    command = json.dumps([sys.executable, "-I", "-S", str(PROGRAMS / "alone.py"), str(folder / name)])
    ready = f"{{exec: [test, -s, {folder / name}.log], every: 100ms}}"
    sizes = "cpus: 0.1, memory: 32MiB, stop_grace: 1s"
    return f"{{kind: job, name: {name}, command: {command}, ready: {ready}, {sizes}}}"


@dataclasses.dataclass
class Life:
    epoch: int
    pid: int
    start: int
    last: int


def lives(folder: Path, name: str = "job") -> list[Life]:
    """The copies there were, by what they wrote; it must be one after the other."""
    found: list[Life] = []
    with contextlib.suppress(FileNotFoundError):
        for line in (folder / f"{name}.log").read_text().splitlines():
            word, epoch, pid, at = line.split()
            assert word != "TWICE", f"two copies at once: {line}; before: {found}"
            if word == "start":
                found.append(Life(int(epoch), int(pid), int(at), int(at)))
            else:
                # Each counts process ids for itself: it is in a namespace of its own.
                mine = next(one for one in found if (one.epoch, one.pid) == (int(epoch), int(pid)))
                mine.last = max(mine.last, int(at))
    for before, after in itertools.pairwise(found):
        assert before.last < after.start, f"{before} still ran when {after} started"
        assert before.epoch < after.epoch, f"{after} has no higher epoch than {before}"
    return found
