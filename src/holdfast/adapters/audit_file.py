"""The audit log of one control plane as a file: JSON lines, appended, for whoever ships logs.

It is for its owner alone (0600) and of bounded size: at SIZE_MAX it is put aside as `audit.log.1`, the one
before as `.2`, and so on; the oldest goes.
"""

import os
from pathlib import Path

SIZE_MAX = 8 << 20
FILES = 5  # with the one that is written


class AuditFile:
    def __init__(self, path: Path, size_max: int = SIZE_MAX, files: int = FILES) -> None:
        self.path, self.size_max, self.files = path, size_max, files

    def write(self, lines: list[bytes]) -> None:
        with open(os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(b"".join(line + b"\n" for line in lines))
            full = file.tell() >= self.size_max
        if full:
            self._put_aside()

    def _put_aside(self) -> None:
        for number in range(self.files - 2, 0, -1):
            older = self._older(number)
            if older.exists():
                older.replace(self._older(number + 1))
        self.path.replace(self._older(1))

    def _older(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")
