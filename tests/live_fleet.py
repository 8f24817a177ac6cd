"""A control plane in a process of its own, for tests of what people type."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PATIENCE_S = 60.0


@contextlib.contextmanager
def running(folder: Path, *words: str) -> Iterator[dict[str, Any]]:
    """A server in a process of its own: what it says when it is ready. It must end by itself when asked."""
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
        yield json.loads(first)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate()


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
