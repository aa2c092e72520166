"""AttemptLog: the file with an attempt's output, with a limit on its size.

The zygote alone writes it, from a pipe. So the limit holds at every moment, whatever the child and its own processes
print, and dropped bytes are counted exactly.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from hpo_core.model.errors import StorageError

LOG_TAIL_BYTES = 4096
"""Bytes from the end of an attempt's output that its report repeats."""


class AttemptLog:
    """A log of at most ``limit`` bytes, plus one line that counts the dropped bytes.

    Once the file is full, its first fifth and its last two fifths stay and the middle is dropped. So the beginning
    and at least the last two fifths of the limit are always there. Each byte is written twice at most.

    An existing file is continued: attempts of one number have one log.

    Raises:
        StorageError: the file cannot be opened.
    """

    def __init__(self, path: Path, limit: int | None) -> None:
        self.path = path
        self._limit = limit
        self._head = (limit or 0) // 5
        self._tail = 2 * self._head
        self._dropped = 0
        self._notice = 0  # bytes of the line that counts them
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
        """Append. Output that a full disk refuses is lost without an error: saving the checkpoint will raise it."""
        while data:
            room = len(data) if self._limit is None else self._limit + self._notice - self._size
            if room <= 0:
                if not self._drop_middle():
                    return
                continue
            try:
                written = os.pwrite(self._file, data[:room], self._size)
            except OSError:
                return
            self._size += written
            data = data[written:]

    def _drop_middle(self) -> bool:
        """Keep head, notice and tail; False where the file cannot be rewritten."""
        try:
            tail = os.pread(self._file, self._tail, self._size - self._tail)
            dropped = self._dropped + self._size - self._head - self._notice - len(tail)
            line = f"\n[... {dropped:,} bytes of output were dropped here ...]\n".encode()
            os.ftruncate(self._file, self._head)
            self._size = self._head
            self._size += os.pwrite(self._file, line + tail, self._size)
        except OSError:
            return False
        self._dropped, self._notice = dropped, len(line)
        return True

    def tail(self, length: int = LOG_TAIL_BYTES) -> str:
        """The last ``length`` bytes as text."""
        with contextlib.suppress(OSError):
            return os.pread(self._file, length, max(0, self._size - length)).decode("utf-8", "replace")
        return ""

    def close(self) -> None:
        """Release the descriptor."""
        os.close(self._file)


def log_tail(path: str | Path) -> str:
    """The last ``LOG_TAIL_BYTES`` bytes of a log as text; empty where there is no such file."""
    try:
        with Path(path).open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(0, end - LOG_TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
