"""A Ray cluster on this machine: a head and two workers, each worker a pretended machine of its own.

Ray gets an environment of its own (`build/bench-ray`): it is a peer to be measured, not a dependency. A
worker's processes carry the same mark as those of our local nodes, so exactly the same code kills and freezes
both. Head and workers run as `ray start --block`; the dashboard and the log monitor are left out, which
spares Ray their share of the processors.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.adapters.providers.local import tree

HOME = Path(__file__).resolve().parents[1] / "build" / "bench-ray"
DRIVER = Path(__file__).with_name("_ray_driver.py")
WANTED = "ray[default]"
INSTALL_S = 900
WORKERS = 2
STORE_BYTES = 100_000_000
START_S = 120
WARM_S = 6.0  # a new worker is not checked for its first five seconds
AGAIN_S = 30.0

# What the head takes from its environment. Both ask ten times a second and take one check that is not
# answered for a death; with `edge` the answer must come within a fifth of a second.
SETTINGS: dict[str, dict[str, str]] = {
    "defaults": {},
    "tuned": {"period_ms": "100", "timeout_ms": "500", "failure_threshold": "1"},
    "edge": {"period_ms": "100", "timeout_ms": "200", "failure_threshold": "1"},
}
PREFIX = "RAY_health_check_"

News = dict[str, object]


class NoRay(Exception):
    """It cannot be installed or does not come up here."""


def python() -> Path:
    """The Python that has Ray; it is installed if it is not there yet."""
    found = HOME / "bin" / "python"
    if (HOME / "bin" / "ray").exists():
        return found
    try:
        _call(sys.executable, "-m", "venv", str(HOME))
        _call(str(found), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", WANTED)
    except (OSError, subprocess.SubprocessError) as error:
        shutil.rmtree(HOME, ignore_errors=True)
        said = getattr(error, "stderr", None) or ""
        raise NoRay(f"{WANTED} cannot be installed: {error} {said[-500:]}".strip()) from error
    return found


def _call(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True, timeout=INSTALL_S)


class Cluster:
    def __init__(self, folder: Path, settings: dict[str, str]) -> None:
        self.folder, self.settings = folder, settings
        self.port = free_port()
        self.roots: list[Path] = []
        self.children: list[subprocess.Popen[bytes]] = []
        self.news: list[News] = []
        self.came = threading.Condition()

    # processes

    def start(self) -> None:
        self._ray("head", "--head", f"--port={self.port}", "--num-cpus=0", "--include-dashboard=false")
        until(lambda: answers(self.port), START_S, "the head of Ray does not come up")
        words = [str(python()), "-u", str(DRIVER), f"127.0.0.1:{self.port}"]
        errors = open(self.folder / "driver.err", "wb")  # noqa: SIM115 (it lives as long as the driver)
        with errors:
            child = subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=errors, env=self._environment("driver")
            )
        self.children.append(child)
        threading.Thread(target=self._listen, args=(child,), daemon=True).start()
        for count in range(WORKERS):  # one at a time: two that start at once may choose the same ports
            self.add_worker()
            self._get_to(count + 1)
        self.wait(lambda news: "instance" in news, 0, START_S)
        time.sleep(WARM_S)

    def add_worker(self) -> None:
        self._ray(f"worker-{len(self.roots)}", f"--address=127.0.0.1:{self.port}", "--num-cpus=1")

    def _ray(self, name: str, *words: str) -> None:
        shared = (f"--object-store-memory={STORE_BYTES}", "--include-log-monitor=false", "--block")
        command = [
            str(python().parent / "ray"),
            "start",
            *words,
            *shared,
            "--node-ip-address=127.0.0.1",
            "--disable-usage-stats",
        ]
        if name == "head":
            command.append(f"--temp-dir={self.folder}")
        environment = self._environment(name)
        with open(self.folder / f"{name}.out", "wb") as log:
            child = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        self.children.append(child)

    def _environment(self, name: str) -> dict[str, str]:
        root = self.folder / "nodes" / name
        root.mkdir(parents=True)
        self.roots.append(root)
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("HOLDFAST_", "RAY_"))}
        return kept | self.settings | {tree.MARK: str(root), "RAY_USAGE_STATS_ENABLED": "0"}

    def stop(self) -> None:
        tree.kill(*(str(root) for root in self.roots))
        for child in self.children:
            child.wait(30)

    # what the driver says

    def _listen(self, child: "subprocess.Popen[bytes]") -> None:
        assert child.stdout is not None
        with child.stdout:
            for line in child.stdout:
                if not line.startswith(b"{"):
                    continue  # Ray writes there too
                with self.came:
                    self.news.append(json.loads(line))
                    self.came.notify_all()
        with self.came:
            self.news.append({"at": time.monotonic(), "over": True})
            self.came.notify_all()

    def wait(self, wanted: Callable[[News], bool], since: int, seconds: float) -> News:
        """The first news after `since` that is as wanted."""
        found: list[News] = []

        def there() -> bool:
            found.extend(news for news in self.news[since:] if wanted(news) or "over" in news)
            return bool(found)

        with self.came:
            if not self.came.wait_for(there, seconds) or "over" in found[0]:
                raise NoRay(f"Ray did not get there within {seconds:g} s: {self.news[-3:]} {self.errors()}")
        return found[0]

    def errors(self) -> str:
        return (self.folder / "driver.err").read_text(errors="replace")[-1000:]

    def last(self, key: str) -> object:
        with self.came:
            return next((news[key] for news in reversed(self.news) if key in news), None)

    def whole(self) -> None:
        """Until all workers are there, and have had time for what they start ahead of need."""
        self._get_to(WORKERS)
        time.sleep(WARM_S)

    def _get_to(self, workers: int) -> None:
        """A worker that does not come up is started again."""
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            with contextlib.suppress(NoRay):
                until(lambda: self.last("alive") == workers, AGAIN_S, "")
                return
            self.add_worker()
        raise NoRay(f"Ray does not get {workers} workers within {START_S} s: {self.errors()}")


@contextlib.contextmanager
def cluster(name: str) -> Iterator[Cluster]:
    python()
    settings = {f"{PREFIX}{key}": value for key, value in SETTINGS[name].items()}
    with tempfile.TemporaryDirectory(prefix="hf-ray-", ignore_cleanup_errors=True) as folder:
        made = Cluster(Path(folder), settings)
        try:
            made.start()
            yield made
        finally:
            made.stop()


def until(true: Callable[[], bool], seconds: float, otherwise: str) -> None:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise NoRay(otherwise)
        time.sleep(0.05)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1):
            return True
    except OSError:
        return False
