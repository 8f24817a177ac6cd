"""Where workers find their keeper: a socket in its folder, and nobody's once the keeper has ended.

A keeper that was killed leaves its socket behind, and the next one takes it away. Whether somebody still
listens there is asked of the socket itself, never of the process number in its name: numbers come again, and
two containers that share a folder may both be number 1.

A socket whose name would be too long for the kernel is in a folder of its own for temporary files; a link in
the keeper's folder leads there, so that the next one finds that too.
"""

import contextlib
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

NAME_MAX = 100  # bytes: the kernel takes 107
ELSEWHERE = "holdfast-"


class Taken(Exception):
    """Somebody listens where we would."""


@contextlib.contextmanager
def kept(state: Path) -> Iterator[Path]:
    """The place to listen at: it is free, and nothing of it is left when the block ends."""
    for left in state.glob("keeper-*.sock"):
        if not is_alive(left):
            _remove(left)
    ours = state / f"keeper-{os.getpid()}.sock"
    if os.path.lexists(ours):
        raise Taken(f"another gateway uses {state}")
    path = ours
    if len(os.fsencode(ours)) > NAME_MAX:
        path = Path(tempfile.mkdtemp(prefix=ELSEWHERE)) / "keeper.sock"
        ours.symlink_to(path)
    try:
        yield path
    finally:
        _remove(ours)


def is_alive(path: Path) -> bool:
    """Does somebody listen there? Who is too busy to answer does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        try:
            asking.connect(os.fsencode(_target(path)))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
    return True


def _remove(path: Path) -> None:
    target = _target(path)
    target.unlink(missing_ok=True)
    if target != path and target.parent.name.startswith(ELSEWHERE):
        with contextlib.suppress(OSError):
            target.parent.rmdir()
    path.unlink(missing_ok=True)


def _target(path: Path) -> Path:
    return Path(os.readlink(path)) if path.is_symlink() else path
