"""The folder of a node: its key, its lock, and the few things an agent leaves to the next one.

One agent at a time: two of them would start everything twice. The lock is the kernel's, so that it is gone
with its holder however that ends; a file with a process id in it would have to be believed.
"""

import contextlib
import fcntl
import os
from pathlib import Path

from holdfast.ports import private_folder
from holdfast.wire.identity import Key


class Unusable(Exception):
    """The agent cannot begin; a person must change something. `hint` says what."""

    def __init__(self, why: str, hint: str) -> None:
        super().__init__(why)
        self.hint = hint


class Home:
    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._lock = -1

    def enter(self) -> None:
        """Makes the folder and takes its lock. Of a folder in which another agent works, nothing changes."""
        try:
            private_folder.make(self.path)
            private_folder.check_owner(self.path)
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise self._unusable(error) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._lock, 32).decode(errors="replace").strip() or "?"
            self.leave()
            why = f"another agent (process {holder}) works in {self.path}"
            raise Unusable(why, "stop that one first, or give this one another --root and --name") from None
        try:
            private_folder.claim(self.path, private_folder.PASSAGE)  # replicas of before may be in it
        except OSError as error:
            self.leave()
            raise self._unusable(error) from None
        with contextlib.suppress(OSError):  # for whoever is refused, and nobody else: the disk may be full
            os.ftruncate(self._lock, 0)
            os.write(self._lock, f"{os.getpid()}\n".encode())

    def _unusable(self, error: OSError) -> Unusable:
        why = f"the folder {self.path} cannot be used: {error.strerror}"
        return Unusable(why, "give --root a folder that this user may write to, and nobody else")

    def leave(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def key(self) -> Key:
        path = self.path / "key"
        try:
            return Key.at(path)
        except ValueError:
            why = f"the key file {path} is damaged"
            raise Unusable(why, "bring it back from a copy, or remove it and join under a new name") from None
        except OSError as error:
            why = f"the key file {path} cannot be used: {error.strerror}"
            raise Unusable(why, "it must belong to the user that runs the agent") from None

    def read(self, name: str) -> str:
        """What an agent kept under this name; empty: nothing."""
        try:
            return (self.path / name).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""

    def keep(self, name: str, text: str) -> None:
        """For the next agent. A full disk is no reason to stop: the next one asks again."""
        fresh = self.path / f"{name}.new"
        try:
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(text + "\n")
            fresh.replace(self.path / name)
        except OSError:
            self.drop(fresh.name)

    def drop(self, name: str) -> None:
        with contextlib.suppress(OSError):  # there is none, or the disk takes no change at all
            (self.path / name).unlink()
