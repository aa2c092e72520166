"""The lock that allows one process for each projection: two would create every run twice."""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path

from hpo_core.model.errors import StorageError
from hpo_core.tracking.projection import ProjectionBusyError


class ProcessLock:
    """An advisory lock on a file; the kernel frees it when its process ends, however it ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    @classmethod
    def of(cls, folder: Path, target: str) -> ProcessLock:
        """The lock for projecting the study in ``folder`` to ``target``."""
        return cls(folder / f".projection-{hashlib.sha256(target.encode()).hexdigest()[:12]}.lock")

    def take(self, *, wait: bool = False) -> None:
        """Take the lock; harmless where this object holds it.

        Raises:
            ProjectionBusyError: another process holds it (never with ``wait``).
            StorageError: the folder cannot be written.
        """
        if self._file is not None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise StorageError(
                f"{self.path}: the lock of the projection cannot be opened ({error.strerror}). "
                "Make its folder writable."
            ) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(file, 40).decode("ascii", "replace").strip() or "unknown"
            os.close(file)
            raise ProjectionBusyError(
                f"{self.path}: process {holder} projects this study already, and one at a time may. "
                "It catches up by itself; to do it by hand, end that process first."
            ) from None
        except BaseException:
            os.close(file)
            raise
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        self._file = file

    def holder(self) -> int | None:
        """Process that holds the lock; None where nobody does, or it left no number."""
        try:
            file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            found = os.read(file, 40).decode("ascii", "replace").strip()
            return int(found) if found.isdecimal() else None
        except OSError:
            return None
        finally:
            os.close(file)
        return None

    def free(self) -> None:
        """Free the lock; harmless where this object does not hold it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
