"""The program of a rogue replica: an ordinary job of an ordinary user, at full speed, on the node of others.

    python bench/_hostile_replica.py CONTROL_URL GATEWAY_URL SECONDS PORT

It needs nothing but the standard library. First it looks what it could take or stop without doing harm: may
it read its node's key, what other programs were started with, may it signal its agent? It sends that to the
UDP port PORT. Then, until its time is over: it writes its log and its progress as fast as it can, starts
children that leave its process group, and knocks at the control plane and the gateway.
"""

import contextlib
import json
import os
import socket
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

LINE = b"\x1b]0;rogue\x07" + b"x" * 1_000 + b"\n"
CHILDREN = 16
PROGRESS_MAX = 1 << 50


def powers() -> dict[str, bool]:
    """What it could do to others. Signal 0 does nothing but say whether a signal would be taken."""
    keys = [parent / "key" for parent in folder().parents]
    return {
        "reads_the_key_of_its_node": any(_readable(key) for key in keys),
        "writes_beside_that_key": any(key.exists() and os.access(key.parent, os.W_OK) for key in keys),
        "reads_the_environment_of_others": any(map(_readable, _others("environ"))),
        "may_signal_its_agent": any(_may_signal(int(path.parent.name)) for path in _others("cmdline")),
    }


def folder() -> Path:
    return Path(os.environ["HOLDFAST_STATE_FILE"]).parent


def _others(name: str) -> list[Path]:
    """Of the agent of this node, which has its folder in its command line, and of its shims."""
    found, roots = [], [str(parent).encode() for parent in list(folder().parents)[:3]]
    for path in Path("/proc").glob(f"[0-9]*/{name}"):
        with contextlib.suppress(OSError):
            words = (path.parent / "cmdline").read_bytes()
            if b"holdfast.agent" in words and any(root in words for root in roots):
                found.append(path)
    return found


def _readable(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError:
        return False
    return True


def _may_signal(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return True


def write_log(until: float) -> None:
    while time.monotonic() < until:
        sys.stdout.buffer.write(LINE * 64)


def write_progress(until: float) -> None:
    file, at = os.environ["HOLDFAST_PROGRESS_FILE"], 1
    while time.monotonic() < until:
        at = at * 2 % PROGRESS_MAX or 1
        with contextlib.suppress(OSError):
            Path(f"{file}.new").write_text(str(at))
            os.replace(f"{file}.new", file)


def leave(until: float) -> None:
    """Children that begin a session of their own, a few at a time: in the end there must be none left."""
    while time.monotonic() < until:
        children = []
        for _ in range(CHILDREN):
            with contextlib.suppress(OSError):
                child = os.fork()
                if child == 0:
                    os.setsid()
                    time.sleep(0.05)
                    os._exit(0)
                children.append(child)
        for child in children:
            with contextlib.suppress(OSError):
                os.waitpid(child, 0)


def knock(addresses: list[tuple[str, int]], until: float) -> None:
    """Half a request, or no request at all, then gone."""
    words = (b"GET /v1/nodes HTTP/1.1\r\nHost: x\r\n\r\n", b"POST /v1/apply HTTP/1.1\r\n", os.urandom(4_096))
    number = 0
    while time.monotonic() < until:
        number += 1
        with (
            contextlib.suppress(OSError),
            socket.create_connection(addresses[number % len(addresses)], 1) as to,
        ):
            to.sendall(words[number % len(words)])
            if number % 3 == 0:
                to.recv(1 << 16)


def main(words: list[str]) -> None:
    doors = [urlsplit(url) for url in words[:2]]
    targets = [(door.hostname or "", door.port or 80) for door in doors]
    until = time.monotonic() + float(words[2])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as to:
        to.sendto(json.dumps(powers()).encode(), ("127.0.0.1", int(words[3])))
    os.nice(19)
    deeds = [write_log, write_progress, leave, *[lambda to: knock(targets, to)] * 4]
    threads = [threading.Thread(target=deed, args=(until,)) for deed in deeds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    threading.Event().wait()  # a job that ends would be over; this one stays, quietly


if __name__ == "__main__":
    main(sys.argv[1:])
