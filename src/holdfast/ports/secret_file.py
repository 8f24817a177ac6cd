"""Files with a key or a token: nobody else on the machine may read or write them.

ssh refuses a private key that others can read: it would go on being used, and nobody would know that it is
lost. So do we, for every file with a secret that a person hands to us, and the error says what helps. Its
owner alone may read it; of a file of root's its group may too, as PostgreSQL and Debian's `ssl-cert` have it
(and Kubernetes, for what it mounts with `fsGroup`). Who may write it is another's token in our place, so that
is refused as well. What is no file (a pipe from a password manager) has no others.

Refused: only to warn. A warning is read once, by the person who tries it, and the mode stays.
"""

import os
import stat

GROUP_MAY_OF_ROOT = stat.S_IRGRP


class Exposed(OSError):
    """Others can read or change it. `hint`: the command that closes it."""

    def __init__(self, path: str | os.PathLike[str], mode: int) -> None:
        self.path = os.fspath(path)
        why = f"{self.path} has the mode {stat.S_IMODE(mode):04o}: others on this machine could use it"
        super().__init__(None, why)
        self.strerror: str = why
        self.hint = f"chmod 600 {self.path}; and make another if somebody may have read it"

    def __str__(self) -> str:
        return self.strerror


def check(path: str | os.PathLike[str]) -> None:
    """Exposed: it is closed first. OSError: it cannot be looked at."""
    _check(path, os.stat(path))


def read(path: str | os.PathLike[str]) -> str:
    """What is in it, without blanks around. OSError: it cannot be read; Exposed is one.
    UnicodeDecodeError: it is no text."""
    with open(path, encoding="utf-8") as file:
        _check(path, os.fstat(file.fileno()))
        return file.read().strip()


def _check(path: str | os.PathLike[str], found: os.stat_result) -> None:
    may = GROUP_MAY_OF_ROOT if found.st_uid == 0 else 0
    if stat.S_ISREG(found.st_mode) and stat.S_IMODE(found.st_mode) & 0o077 & ~may:
        raise Exposed(path, found.st_mode)
