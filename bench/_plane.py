"""A real control plane or gateway as a process of its own, for benchmarks: started, watched from outside,
ended."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

TICK_S = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class Process:
    def __init__(self, child: "subprocess.Popen[str]", url: str, state: Path) -> None:
        self.child, self.url, self.state = child, url, state
        self.token = _token(state)
        self.client = httpx.Client(base_url=url, headers=self.headers, timeout=30)

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"} if self.token else {}

    def cpu_s(self) -> float:
        """User and system time of the process itself so far."""
        fields = Path(f"/proc/{self.child.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICK_S

    def rss_mb(self) -> float:
        return int(Path(f"/proc/{self.child.pid}/statm").read_text().split()[1]) * PAGE / 1e6

    def get(self, path: str) -> object:
        answer = self.client.get(path)
        answer.raise_for_status()
        return answer.json()

    def apply(self, text: str) -> None:
        answer = self.client.post("/v1/apply", content=text, headers={"content-type": "application/yaml"})
        if answer.is_error:
            raise RuntimeError(answer.text)


def _token(state: Path) -> str:
    """The first one, of a control plane."""
    file = state / "token"
    return file.read_text().strip() if file.exists() else ""


@contextlib.contextmanager
def started(*words: str, ready: str = "/readyz", token: str = "") -> Iterator[Process]:
    """`holdfast WORDS --json` in a folder of its own; its first line of output says that it serves. `ready`:
    the path that says so too; empty: there is none. `token`: a gateway's, for the control plane."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        program = [sys.executable, "-m", "holdfast.cli.main"]
        command = [*program, *words, "--json", "--port", "0", "--dir", folder]
        with open(Path(folder) / "stderr", "w") as errors:
            env = os.environ | {"HOLDFAST_TOKEN": token}
            child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=env)
        assert child.stdout is not None
        with child.stdout:
            try:
                line = child.stdout.readline()
                if not line:
                    raise RuntimeError((Path(folder) / "stderr").read_text()[-2000:])
                plane = Process(child, json.loads(line)["url"], Path(folder))
                with plane.client:
                    while ready and plane.client.get(ready).status_code != 200:
                        time.sleep(0.02)
                    yield plane
            finally:
                child.send_signal(signal.SIGTERM)
                try:
                    child.wait(30)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
