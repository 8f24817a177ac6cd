"""Programs that tests need and Python does not bring, from Debian's packages where they are missing.

One worker of a test run installs, the others wait. No service is started by it: tests start their own.
Whoever asks looks again afterwards, and says what is missing if it is still not there.
"""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

INSTALL_S = 600.0
POLICY = "/usr/sbin/policy-rc.d"  # Debian asks this file whether a service may start
ADMIN = "/usr/sbin:/sbin:/usr/local/sbin"  # not on everybody's path


def which(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:{ADMIN}")


def need(find: Callable[[], T | None], *packages: str) -> T:
    """What `find` finds, if need be after these packages were installed."""
    found = find()
    if found is None:
        with open(Path(tempfile.gettempdir()) / "holdfast-packages.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            found = find()
            if found is None:
                _install(packages)
                found = find()
    if found is None:
        raise RuntimeError(f"these tests need what is in {', '.join(packages)}: apt-get install it")
    return found


def _install(packages: tuple[str, ...]) -> None:
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if not shutil.which("apt-get") or (sudo and not shutil.which("sudo")):
        return
    quiet = [*sudo, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]
    install = [*quiet, "install", "-y", "--no-install-recommends", *packages]
    with _no_services(sudo):
        for steps in ([install], [[*quiet, "update"], install]):
            done = [
                subprocess.run(step, capture_output=True, timeout=INSTALL_S, check=False) for step in steps
            ]
            if done[-1].returncode == 0:
                return


@contextmanager
def _no_services(sudo: list[str]) -> Iterator[None]:
    if os.path.exists(POLICY):
        yield
        return
    write = [*sudo, "sh", "-c", f"printf '#!/bin/sh\\nexit 101\\n' > {POLICY} && chmod 755 {POLICY}"]
    subprocess.run(write, check=False, capture_output=True)
    try:
        yield
    finally:
        subprocess.run([*sudo, "rm", "-f", POLICY], check=False, capture_output=True)
