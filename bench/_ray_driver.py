"""The program that uses Ray, run by the Python that has it: one actor, called again and again.

It says on its output, one JSON object a line, who answers when that changes and which nodes Ray holds for
alive when that changes. Instants are those of the machine's monotonic clock, which all its processes share.

The actor may restart for ever and its calls are repeated by Ray itself, so a call that was under way when a
node fell is answered as soon as Ray can: nothing is lost by our asking.

    _ray_driver.py ADDRESS
"""

import json
import os
import sys
import threading
import time

import ray  # type: ignore[import-not-found, unused-ignore]

MARK = "HOLDFAST_NODE_ROOT"  # how the processes of one pretended machine are known
PAUSE_S = 0.01
LOOK_S = 0.05


class Counter:
    def __init__(self) -> None:
        self.instance = f"{os.getpid()}-{time.monotonic_ns()}"

    def ping(self) -> tuple[str, str]:
        return self.instance, os.environ.get(MARK, "")


def say(**what: object) -> None:
    os.write(1, b"\n" + json.dumps({"at": time.monotonic(), **what}).encode() + b"\n")  # Ray prints there too


def watch_nodes() -> None:
    before = None
    while True:
        alive = sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])
        if alive != before:
            say(alive=len(alive) - 1)  # without the head
            before = alive
        time.sleep(LOOK_S)


def main(address: str) -> None:
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    say(version=ray.__version__)
    threading.Thread(target=watch_nodes, daemon=True).start()
    actor = ray.remote(Counter).options(num_cpus=1, max_restarts=-1, max_task_retries=-1).remote()
    before = None
    while True:
        answer = ray.get(actor.ping.remote(), timeout=600)
        if answer != before:
            say(instance=answer[0], root=answer[1])
            before = answer
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main(sys.argv[1])
