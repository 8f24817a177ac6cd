"""What a replica writes, kept in pieces: the shim writes them, the agent reads them.

A piece is named by the offset of its first byte in all that was ever written (`log.0`, `log.10485760`), so
rotation renames nothing, an offset means the same for ever, and a reader needs no index. A full disk never
holds up the program: what cannot be written is dropped, and as soon as there is room a line says how much.
"""

import os

PIECE_BYTES = 10 << 20
PIECES = 3


class LogWriter:
    def __init__(self, folder: str, piece_bytes: int = PIECE_BYTES, pieces: int = PIECES) -> None:
        self._folder = folder
        self._piece_bytes = piece_bytes
        self._pieces = pieces
        self._handle = -1
        self._written = 0  # ever
        self._in_piece = 0
        self._dropped = 0
        self._why = ""
        self._go_on()

    def _go_on(self) -> None:
        """After what the same replica wrote before it was started anew."""
        starts = pieces_in(self._folder)
        if not starts:
            return
        try:
            handle = os.open(f"{self._folder}/log.{starts[-1]}", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            self._why = os.strerror(error.errno or 0)
            return
        self._handle, self._in_piece = handle, os.fstat(handle).st_size
        self._written = starts[-1] + self._in_piece

    def write(self, data: bytes) -> None:
        note = b""
        if self._dropped:
            note = f"\n[holdfast: {self._dropped} bytes of output were dropped: {self._why}]\n".encode()
        try:
            if self._handle < 0 or self._in_piece >= self._piece_bytes:
                self._next_piece()
            if note:
                self._put(note)
                self._dropped = 0
            data = data[self._put(data) :]
        except OSError as error:
            self._why = os.strerror(error.errno or 0)
        self._dropped += len(data)

    def _put(self, data: bytes) -> int:
        """How much of it was written: a disk may fill up in the middle."""
        done = 0
        while done < len(data):
            try:
                count = os.write(self._handle, data[done:])
            except OSError as error:
                if not done:
                    raise
                self._why = os.strerror(error.errno or 0)
                return done
            done += count
            self._written += count
            self._in_piece += count
        return done

    def _next_piece(self) -> None:
        path = f"{self._folder}/log.{self._written}"
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = handle
        self._in_piece = 0
        for start in pieces_in(self._folder)[: -self._pieces]:
            os.unlink(f"{self._folder}/log.{start}")

    def close(self) -> None:
        if self._dropped:
            self.write(b"")
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def pieces_in(folder: str) -> list[int]:
    """The offsets at which its pieces begin."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted(int(name[4:]) for name in names if name.startswith("log.") and name[4:].isdigit())


def read(folder: str, offset: int, size: int) -> tuple[bytes, int]:
    """Up to `size` bytes from `offset` (negative: from the end) and the offset after them. Of a replica that
    has written nothing there are no pieces."""
    starts = pieces_in(folder)
    if not starts:
        return b"", 0
    try:
        end = starts[-1] + os.stat(f"{folder}/log.{starts[-1]}").st_size
    except FileNotFoundError:  # a rotation, or the whole folder, went by
        return b"", max(0, offset)
    offset = end + offset if offset < 0 else offset
    offset = min(max(offset, starts[0]), end)
    parts: list[bytes] = []
    for start, after in zip(starts, [*starts[1:], end], strict=True):
        if offset < after and size > 0:
            part = _read_piece(f"{folder}/log.{start}", offset - start, min(size, after - offset))
            parts.append(part)
            offset += len(part)
            size -= len(part)
            if offset < after:  # that was all, or the piece has gone
                break
    return b"".join(parts), offset


def _read_piece(path: str, at: int, size: int) -> bytes:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(handle, size, at)
    finally:
        os.close(handle)


def prune(root: str, live: set[str], count: int, size: int) -> None:
    """Keep the logs of the replicas that live, and of the last `count` that ended, up to `size` bytes."""
    ended = []
    for name in os.listdir(root):
        if name not in live:
            folder = f"{root}/{name}"
            ended.append((os.stat(folder).st_mtime_ns, folder))
    for _, folder in sorted(ended, reverse=True):
        count -= 1
        size -= sum(os.stat(f"{folder}/log.{start}").st_size for start in pieces_in(folder))
        if count < 0 or size < 0:
            for start in pieces_in(folder):
                os.unlink(f"{folder}/log.{start}")
            os.rmdir(folder)
