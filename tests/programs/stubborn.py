"""A program that does not want to go: it ignores SIGTERM, and so do its child and two grandchildren that
forked twice, began sessions of their own and lost their parents; one of those has also thrown away its
environment.

It says the process ids of all four, and waits. With `leave` it ends at once and leaves the others behind.
"""

import os
import signal
import sys
import time


def stay() -> None:
    time.sleep(100)
    os._exit(0)


def orphan(forget: bool) -> int:
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(write, b"%d" % os.getpid())
            if forget:
                os.execve("/bin/sleep", ["sleep", "100"], {})
            os.close(write)
            stay()
        os._exit(0)
    os.wait()
    os.close(write)
    pid = os.read(read, 64)
    os.read(read, 1)  # closed: it has become what it shall be
    return int(pid)


signal.signal(signal.SIGTERM, signal.SIG_IGN)
orphans = [orphan(forget=False), orphan(forget=True)]
child = os.fork()
if child == 0:
    stay()
print(os.getpid(), child, *orphans, "here", flush=True)
if "leave" not in sys.argv:
    stay()
