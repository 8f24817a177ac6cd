"""Small files of `name value` lines: what agent and shim tell each other, and leave for the next agent.

Not JSON: the shim reads and writes these too, and reading JSON would double what it imports. A line is still
something that a person can read with `cat`. A value may hold anything; a newline in it is escaped.
"""

import os
import stat

Fields = list[tuple[str, str]]

ROOM = 2048  # kept free on the disk for the exit record, so that a full disk cannot swallow it
REASON_MAX = 900  # bytes of it for a reason: twice as many if all of it has to be escaped
NUMBER_MAX = 1 << 40  # milliseconds: nobody has worked longer, and what is larger cannot always be told


def encode(fields: Fields) -> bytes:
    lines = [f"{name} {_escape(value)}\n" for name, value in fields]
    return "".join(lines).encode("utf-8", "surrogateescape")


def decode(data: bytes) -> Fields:
    fields = []
    for line in data.decode("utf-8", "surrogateescape").split("\n"):
        name, space, value = line.partition(" ")
        if name and space:
            fields.append((name, _unescape(value)))
    return fields


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def _unescape(value: str) -> str:
    return "\\".join(part.replace("\\n", "\n") for part in value.split("\\\\"))


def cut(reason: str) -> str:
    """Text, whatever it was made of, and so short that a reserved record has room for it."""
    return reason.encode("utf-8", "replace")[:REASON_MAX].decode("utf-8", "ignore")


def read(path: str) -> Fields:
    """FileNotFoundError: nobody has written it."""
    with open(path, "rb") as file:
        return decode(file.read())


def read_number(path: str) -> int:
    """0 if there is none, or one that makes no sense. A program writes it, perhaps one that means harm: a
    link is not followed, and nobody waits at a pipe."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        number = int(os.read(handle, 32)) if stat.S_ISREG(os.fstat(handle).st_mode) else 0
    except (OSError, ValueError):
        return 0
    finally:
        os.close(handle)
    return number if 0 <= number <= NUMBER_MAX else 0


def write(path: str, data: bytes, reader: int = 0) -> None:
    """Whoever reads it finds the old or the new, and nothing between; also when several write it at once, as
    the agents of one machine do whose replicas share checkpoints. `reader`: a group that may, besides."""
    fresh = f"{path}.{os.urandom(6).hex()}.new"
    handle = _anew(fresh)
    try:
        if reader:
            os.fchown(handle, -1, reader)
            os.fchmod(handle, 0o640)
        _write_all(handle, data)
        os.rename(fresh, path)
    except OSError:
        os.unlink(fresh)
        raise
    finally:
        os.close(handle)


def _anew(path: str) -> int:
    """A file that nobody else has made, nor left a link to: what was there is removed, and not written to."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileExistsError:  # from a write that was cut short, or planted
        os.unlink(path)
        return os.open(path, flags, 0o600)


def _write_all(handle: int, data: bytes) -> None:
    """A disk that is almost full takes a part without complaint."""
    while data:
        data = data[os.write(handle, data) :]


def reserve(path: str) -> None:
    """Take the room that `write_reserved` will need, while there is some."""
    handle = _anew(f"{path}.new")
    try:
        _write_all(handle, b" " * ROOM)
    finally:
        os.close(handle)


def write_reserved(path: str, data: bytes) -> None:
    """Durable when it returns."""
    handle = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(handle, data[:ROOM].ljust(ROOM), 0)
        os.fsync(handle)
    finally:
        os.close(handle)
    os.rename(f"{path}.new", path)
