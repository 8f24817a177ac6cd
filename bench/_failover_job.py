"""A job that must never run twice: each copy takes one shared lock and leaves a trace of when it runs.

The lock alone would not do. A copy that was frozen holds it and does not run; a copy that came without it
runs all the same, as a program would that knows nothing of locks. So each copy says whether it found the lock
free, and then, every few milliseconds, that it runs. Two copies ran at once if the older says so after the
younger began; whoever reads the file decides that from outside.

    _failover_job.py FOLDER
"""

import fcntl
import os
import sys
import time

EVERY_S = 0.01


def main(folder: str) -> None:
    trace = os.open(f"{folder}/trace", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    lock = os.open(f"{folder}/lock", os.O_RDWR | os.O_CREAT, 0o600)
    epoch = os.environ["HOLDFAST_EPOCH"]
    os.write(trace, b"start %s %d %d\n" % (epoch.encode(), time.monotonic_ns(), take(lock)))
    free = False
    while True:
        free = free or take(lock)
        os.write(trace, b"runs %s %d\n" % (epoch.encode(), time.monotonic_ns()))
        time.sleep(EVERY_S)


def take(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1])
