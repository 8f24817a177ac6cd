"""A member of a gang that may run beside no other of its rank: notes what it was given, and holds a lock of
its rank for life.

member.py PATH STEPS [SIGNAL]     the log is PATH.log; the checkpoint is `step` in HOLDFAST_CHECKPOINT_DIR
With a signal it reads its membership anew from its state file whenever the signal comes.
"""

import fcntl
import json
import os
import signal
import sys
import time

path, steps = sys.argv[1], int(sys.argv[2])
me = os.urandom(8).hex()  # its process id may be that of a namespace, which others have too
changed = True


def note_change(number: int, frame: object) -> None:
    global changed
    changed = True


if len(sys.argv) > 3:
    signal.signal(getattr(signal, f"SIG{sys.argv[3]}"), note_change)

log = os.open(f"{path}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def say(word: str, **more: object) -> None:
    os.write(
        log,
        (
            json.dumps({"word": word, "me": me, "replica": os.environ["HOLDFAST_REPLICA"], **more}) + "\n"
        ).encode(),
    )


def membership() -> dict[str, object]:
    with open(os.environ["HOLDFAST_STATE_FILE"], encoding="utf-8") as file:
        return dict(json.load(file))


def given() -> dict[str, object]:
    usual = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "PORT")
    own = ("HOLDFAST_RANK", "HOLDFAST_WORLD_SIZE", "HOLDFAST_PEERS", "HOLDFAST_EPOCH")
    return {name: os.environ[name] for name in (*usual, *own)}


say("start", gang=membership()["gang"], **given())
if len(sys.argv) <= 3:
    lock = os.open(f"{path}.rank-{os.environ['RANK']}", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("TWICE", rank=os.environ["RANK"])
checkpoint = f"{os.environ['HOLDFAST_CHECKPOINT_DIR']}/step"
try:
    with open(checkpoint, encoding="utf-8") as file:
        step = int(file.read())
except FileNotFoundError:
    step = 0
rank = 0
while step < steps:
    if changed:
        changed = False
        now = membership()
        rank = int(str(now["rank"]))
        say("meets", **now)
    step += 1
    if rank == 0:
        with open(f"{checkpoint}.new", "w", encoding="utf-8") as file:
            file.write(str(step))
        os.rename(f"{checkpoint}.new", checkpoint)
        say("saved", step=step)
    time.sleep(0.05)
say("done", step=step)
