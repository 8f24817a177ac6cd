"""A control plane in a process of its own, for tests of what people type."""

import contextlib
import json
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
