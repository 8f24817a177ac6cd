"""The keys of a gateway without a control plane: in a file, changed by one writer, whole or not at all.

The file has the hashes of secrets, never these themselves. Keys that stand in the configuration
are there too, but only whoever edits that changes them.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

from holdfast.model.gateway import Grade, Key, Limits
from holdfast.model.units import Instant
from holdfast.wire import keys
from holdfast.wire.keys import GRACE_MS, KeyWanted

T = TypeVar("T")


class Unknown(Exception):
    """There is no such key."""


class NotOurs(Exception):
    """It stands in the configuration."""


class Damaged(Exception):
    """A file of ours that is not what we wrote; to go on without it would forget keys, or what is spent."""


class Keyring:
    def __init__(self, file: Path | None, fixed: Iterable[Key] = ()) -> None:
        self.file = file
        self.fixed = {key.id: key for key in fixed}
        self.own: dict[str, Key] = {}
        if file is not None and file.exists():
            self.own = {key.id: key for key in read_whole(file, list[Key])}

    def all(self) -> list[Key]:
        return [*self.fixed.values(), *self.own.values()]

    def get(self, id: str) -> Key:
        found = self.own.get(id) or self.fixed.get(id)
        if found is None:
            raise Unknown(id)
        return found

    def create(self, wanted: KeyWanted, wall: Instant) -> tuple[Key, str]:
        """The key and its secret."""
        key, secret = keys.made(wanted, wall)
        self._put(key)
        return key, secret

    def rotate(self, id: str, wall: Instant, grace_ms: int = GRACE_MS) -> tuple[Key, Key, str]:
        """The old key, which ends after the grace, the new one in its place, and its secret."""
        old, fresh, secret = keys.rotated(self._own(id), self.own, wall, grace_ms)
        self._keep({**self.own, old.id: old, fresh.id: fresh})
        return old, fresh, secret

    def suspend(self, id: str, why: str) -> Key:
        return self._changed(keys.suspended(self._own(id), why))

    def restore(self, id: str, wall: Instant) -> Key:
        return self._changed(keys.restored(self._own(id), wall))

    def graded(self, id: str, grade: Grade, suspended: str = "") -> Key:
        return self._changed(msgspec.structs.replace(self._own(id), grade=grade, suspended=suspended))

    def limit(self, id: str, limits: Limits) -> Key:
        return self._changed(keys.limited(self._own(id), limits))

    def delete(self, id: str) -> None:
        self._own(id)
        self._keep({other: key for other, key in self.own.items() if other != id})

    def _own(self, id: str) -> Key:
        key = self.own.get(id)
        if key is None and id in self.fixed:
            raise NotOurs(id)
        if key is None:
            raise Unknown(id)
        return key

    def _changed(self, key: Key) -> Key:
        self._put(key)
        return key

    def _put(self, key: Key) -> None:
        self._keep({**self.own, key.id: key})

    def _keep(self, own: dict[str, Key]) -> None:
        """On disk first: what could not be written did not happen."""
        if self.file is not None:
            write_whole(self.file, msgspec.json.encode(list(own.values())))
        self.own = own


def read_whole(file: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Damaged(f"{file} cannot be read: {error}") from None


def write_whole(file: Path, content: bytes) -> None:
    """The file has the old content or the new one, also after a crash."""
    fresh = file.with_name(f".{file.name}.new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with open(descriptor, "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    fresh.replace(file)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
