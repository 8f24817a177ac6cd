"""Must run once at a time: holds a lock for life, and writes down when it starts and that it lives.

alone.py PATH     the lock is PATH.lock, the log PATH.log: word, epoch, pid, milliseconds since boot
"""

import fcntl
import os
import sys
import time

path = sys.argv[1]
epoch = os.environ["HOLDFAST_EPOCH"]
log = os.open(f"{path}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def say(word: str) -> None:
    now = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    os.write(log, f"{word} {epoch} {os.getpid()} {now}\n".encode())


lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o644)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    say("TWICE")
    sys.exit(1)
say("start")
while True:
    time.sleep(0.1)
    say("lives")
