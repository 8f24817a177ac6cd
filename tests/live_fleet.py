"""A control plane in a process of its own, for tests of what people type."""

import contextlib
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PATIENCE_S = 60.0
PATIENT = ("--leader-timeout", "60")  # a busy machine is no reason to lose the leadership


@contextlib.contextmanager
def running(folder: Path, *words: str, reached: bool = True) -> Iterator[dict[str, Any]]:
    """A server in a process of its own: what it says when it is ready. It must end by itself when asked.
    `reached`: at the address that it says."""
    command = [
        sys.executable,
        "-m",
        "holdfast.cli.main",
        *words,
        "--port",
        "0",
        "--json",
        "--dir",
        str(folder),
    ]
    with (folder.parent / f"{folder.name}.err").open("wb") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    watchdog = threading.Timer(PATIENCE_S, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        watchdog.cancel()
        assert first, (folder.parent / f"{folder.name}.err").read_text()
        said = json.loads(first)
        if words[0] == "serve" and reached:
            until_it_is_ready(said["url"])
        yield said
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate()


def until_it_is_ready(url: str) -> None:
    """It says where it is before it leads or follows, and knows nothing until then."""
    anybody = ssl.create_default_context()
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    ends = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends:
        with contextlib.suppress(OSError):  # an answer of 503 is one
            urllib.request.urlopen(f"{url}/readyz", timeout=PATIENCE_S, context=anybody).close()
            return
        time.sleep(0.02)
    raise AssertionError(f"{url} is not ready")


@contextlib.contextmanager
def joined(root: Path, url: str, token: str, *words: str) -> Iterator["subprocess.Popen[str]"]:
    """An agent that joins the pool `metal`, named as its folder."""
    command = [sys.executable, "-m", "holdfast.agent", "--join", url, "--root", str(root), *words]
    command += ["--name", root.name, "--pool", "metal", "--place", "here/here/here", "--stop-all-on-exit"]
    environment = {**os.environ, "HOLDFAST_JOIN_TOKEN": token}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=PATIENCE_S)
        process.kill()
        process.wait()
