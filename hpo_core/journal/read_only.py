"""A SQLite journal in a folder that cannot be written to: an archive, a mounted backup, somebody else's home.

In WAL mode even a reader needs two more files beside the database. Where they are there (a writer is at work on the
other side of a read-only mount, or was killed) SQLite reads them as they are. Where only the ``-wal`` file was kept it
is copied together with the database to a temporary folder, for its entries must not be passed over. Where there is
neither, the database is complete and is read as one that nobody changes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
from pathlib import Path
from urllib.parse import quote


def is_read_only(file: Path) -> bool:
    """Whether a database is there and cannot be written to, or nothing can be made beside it."""
    return file.exists() and not (os.access(file, os.W_OK) and os.access(file.parent, os.W_OK))


class ReadingSide:
    """How such a database is opened."""

    def __init__(self, file: Path, how: str, folder: tempfile.TemporaryDirectory[str] | None = None) -> None:
        self._file = file
        self._how = how
        self._folder = folder

    def connect(self) -> sqlite3.Connection:
        """A connection that writes nothing."""
        uri = f"file:{quote(str(self._file.absolute()))}?{self._how}"
        return sqlite3.connect(uri, uri=True, timeout=30, check_same_thread=False, isolation_level=None)

    def close(self) -> None:
        """Remove the copy, where there is one."""
        if self._folder is not None:
            self._folder.cleanup()


def reading_side(file: Path) -> ReadingSide:
    """The way to read ``file`` that misses nothing.

    Raises:
        OSError: its copy cannot be made.
    """
    wal = file.with_name(file.name + "-wal")
    try:
        kept = wal.stat().st_size > 0
    except FileNotFoundError:
        kept = False
    if not kept:
        return ReadingSide(file, "mode=ro&immutable=1")
    if file.with_name(file.name + "-shm").exists():
        side = ReadingSide(file, "mode=ro")
        with contextlib.suppress(sqlite3.Error), contextlib.closing(side.connect()) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            return side
    folder = tempfile.TemporaryDirectory(prefix="hpo-journal-", ignore_cleanup_errors=True)
    for source in (file, wal):
        shutil.copyfile(source, Path(folder.name) / source.name)
    return ReadingSide(Path(folder.name) / file.name, "mode=rw", folder)
