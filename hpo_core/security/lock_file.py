"""A private file whose lock tells processes of one machine apart. The kernel gives it back, also after ``kill -9``."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from hpo_core.model.errors import HpoError, StorageError
from hpo_core.security.private_files import FILE_MODE


class LockFile:
    """A file that is locked as a whole; never waits.

    Args:
        needed_by: who cannot go on without it, for the error: ``retraining of model 'a'``.
        error: what is raised.
        cure: what else than another home helps, for the error.

    Raises:
        StorageError: the file cannot be opened, here, or locked, in :meth:`take`.
    """

    def __init__(
        self, path: Path, needed_by: str, *, error: type[HpoError] = StorageError, cure: str = "make it writable"
    ) -> None:
        self._path = path
        self._needed_by = needed_by
        self._error = error
        self._cure = cure
        try:
            self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
        except OSError as error:
            raise self._unusable("opened", error) from None

    def take(self, how: int) -> bool:
        """Whether the lock is ours now; ``how`` is ``fcntl.LOCK_EX`` or ``fcntl.LOCK_SH``. One held before is lost."""
        try:
            fcntl.flock(self.fd, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._unusable("locked", error) from None
        return True

    def give_back(self) -> None:
        fcntl.flock(self.fd, fcntl.LOCK_UN)

    def read(self) -> str:
        """What the holder of the lock wrote; empty where nobody did."""
        return os.pread(self.fd, 100_000, 0).decode(errors="replace")

    def write(self, text: str) -> None:
        """Replace the text, for those who ask while the lock is held."""
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, text.encode(), 0)

    def close(self) -> None:
        """Close the file; the lock remains with processes that inherited it."""
        os.close(self.fd)

    def _unusable(self, what: str, error: OSError) -> HpoError:
        return self._error(
            f"{self._path} cannot be {what} ({error.strerror or error}): the lock that {self._needed_by} needs. Choose "
            f"another home with --home or HPO_HOME, or {self._cure}."
        )
