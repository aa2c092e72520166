"""The file with an attempt's output: all of it, or its two ends where it is longer than the limit.

The zygote alone writes it, from a pipe. So the limit holds at every moment, whatever the child and its own processes
print, and what was dropped is counted exactly.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from hpo_core.model.errors import StorageError


class AttemptLog:
    """Appends to ``path``; never more than ``limit`` bytes and one line that says how many were dropped.

    The first fifth of the limit stays. Once the file is full, the last two fifths are moved up to it, and what was
    between is dropped: so much of the end at least is always there. Costs two bytes written for each at most.

    A file that exists is continued: attempts of one number have one log.

    Raises:
        StorageError: the file cannot be opened.
    """

    def __init__(self, path: Path, limit: int | None) -> None:
        self.path = path
        self._limit = limit
        self._head = (limit or 0) // 5
        self._tail = 2 * self._head
        self._dropped = 0
        self._marker = 0  # bytes of the line that says so
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            self._size = os.lseek(self._file, 0, os.SEEK_END)
        except OSError as error:
            raise StorageError(
                f"Log {path} cannot be written: {error.strerror or error}. Free space on that disk or make the folder "
                "writable, then resume the study."
            ) from error

    def write(self, data: bytes) -> None:
        """Append. Output that a full disk does not take is lost, and ends nothing: the checkpoint will tell."""
        while data:
            room = len(data) if self._limit is None else self._limit + self._marker - self._size
            if room <= 0:
                if not self._drop():
                    return
                continue
            try:
                written = os.pwrite(self._file, data[:room], self._size)
            except OSError:
                return
            self._size += written
            data = data[written:]

    def _drop(self) -> bool:
        """Leave the head, a line, and the tail."""
        try:
            tail = os.pread(self._file, self._tail, self._size - self._tail)
            dropped = self._dropped + self._size - self._head - self._marker - len(tail)
            line = f"\n[... {dropped:,} bytes of output were dropped here (training.log_limit) ...]\n".encode()
            os.ftruncate(self._file, self._head)
            self._size = self._head
            self._size += os.pwrite(self._file, line + tail, self._size)
        except OSError:
            return False
        self._dropped, self._marker = dropped, len(line)
        return True

    def end(self, length: int) -> str:
        """The last bytes as text."""
        with contextlib.suppress(OSError):
            return os.pread(self._file, length, max(0, self._size - length)).decode("utf-8", "replace")
        return ""

    def close(self) -> None:
        os.close(self._file)
