"""Partitions that a worker holds: files of its folder with the size and digest that the study knows."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Sequence
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

from hpo_core.model.partition_file import PartitionFile, Signature, signature_of

READ_SPEED = 50e6
"""Bytes a second that a worker is taken to read at least when it computes digests (a busy network file system)."""

_READING = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC

SETTLED_SECONDS = 2.0
"""Seconds since its last change after which a file's digest is remembered.

A file that is written twice between two ticks of the file system's clock (milliseconds; up to 2 s on some) has the same
times before and after. Git has the same rule for its index ("racy git").
"""


def longest_look(files: Sequence[PartitionFile]) -> float:
    """Seconds after which a worker has said which of these files it holds, or something is wrong with it.

    A minute, and as long as reading all whose digest is known takes at 50 MB/s; an hour more where a size is not known.

    >>> longest_look([PartitionFile(name="a", bytes=100_000_000_000, digest="0" * 64)]), longest_look([])
    (2060.0, 60.0)
    """
    read = [file.bytes for file in files if file.digest is not None]
    return 60.0 + sum(size or 0 for size in read) / READ_SPEED + 3600.0 * (None in read)


BLAKE3 = "blake3:"
"""Beginning of a digest that a study computed by itself; those of a manifest are SHA-256, without a beginning."""


def digest_of(opened: BufferedReader, like: str | None = BLAKE3) -> str:
    """Digest of an open file's content, of the kind of another one."""
    if like is not None and like.startswith(BLAKE3):
        found = blake3()
        while chunk := opened.read(1 << 20):
            found.update(chunk)
        return BLAKE3 + found.hexdigest()
    return hashlib.file_digest(opened, "sha256").hexdigest()


class Held(NamedTuple):
    """Partitions of a worker at one moment."""

    names: frozenset[str]
    problems: dict[str, str]
    """Sentences, by name of a partition: why its file does not count, or that a held one is gone. A file that never was
    there is no problem: other workers may hold it."""


class Holdings:
    """Looks which partitions lie in a folder; one instance for each study and worker.

    Size and time are looked at each time; a digest is computed once for each version of a file (anew while the file
    changed less than two seconds ago), so a first look at large partitions takes as long as reading them. Nothing is
    raised, whatever lies in the folder.

    Args:
        folder: of this worker (:func:`~hpo_core.model.partition_file.folder_here`).
        files: all partitions of the study, those for validation included.
    """

    def __init__(self, folder: str | Path, files: Sequence[PartitionFile]) -> None:
        self.folder = Path(folder)
        self._files = tuple(files)
        self._digests: dict[str, tuple[Signature, str]] = {}
        self.reading = False
        """True if a file is being read, which may take minutes: its digest is computed."""
        self._once_held: set[str] = set()
        self._doubted: set[str] = set()
        """Names of partitions that are to be read again as a whole."""
        self.signatures: dict[str, Signature] = {}
        """The file that was looked at, by name of a partition that is or was held and has a known size or digest."""

    def look(self) -> Held:
        """Look at the files, and return the partitions that are held now."""
        try:
            above = self.folder.resolve(strict=True)
        except (OSError, ValueError, RuntimeError):  # RuntimeError: links in a circle, before Python 3.13
            return Held(frozenset(), {name: self._gone(name) for name in sorted(self._once_held)})
        names, problems, read = set(), {}, set()
        doubted = frozenset(self._doubted)  # others may come while these are read
        for file in self._files:
            try:
                problem, seen = self._problem(file, above, read=file.name in doubted)
                read.add(file.name)
            except (FileNotFoundError, NotADirectoryError):
                if file.name in self._once_held:
                    problems[file.name] = self._gone(file.name)
                continue
            except (OSError, ValueError, RuntimeError) as error:
                reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
                problem = f"cannot be read ({reason})"
            if problem:
                problems[file.name] = f"Partition {file.name} in {self.folder} {problem}."
            else:
                names.add(file.name)
                if file.bytes is not None or file.digest is not None:
                    self.signatures[file.name] = seen
        self._once_held |= names
        self._doubted -= doubted & read
        return Held(frozenset(names), problems)

    def doubt(self, name: str) -> None:
        """Read a partition as a whole at the next look: a unit could not use it, though size and time were right."""
        self._doubted.add(name)

    def _gone(self, name: str) -> str:
        return f"Partition {name} was in {self.folder} and is there no more."

    def _problem(self, file: PartitionFile, above: Path, *, read: bool) -> tuple[str, Signature]:
        """Why a file does not count (empty: it is held), and which file was looked at.

        Args:
            read: as a whole, whatever is known of it.
        """
        path = (above / file.name).resolve(strict=True)
        if not path.is_relative_to(above):
            return "is a link that leads out of that folder, and is not followed; put the file there", (0, 0, 0, 0, 0)
        status = path.lstat()
        return self._problem_of(file, path, status, read=read), signature_of(status)

    def _problem_of(self, file: PartitionFile, path: Path, status: os.stat_result, *, read: bool) -> str:
        if not stat.S_ISREG(status.st_mode):
            return "is no regular file"
        if file.bytes not in (None, status.st_size):
            short = f"has {status.st_size:,} bytes where {file.bytes:,} belong"
            return f"{short}: it is incomplete, or was changed; copy it again"
        if not os.access(path, os.R_OK):
            return "may not be read by this user"
        if file.digest is None and not read:
            return ""
        known = self._digests.get(file.name)
        if read or known is None or known[0] != signature_of(status):
            settled = abs(time.time_ns() - status.st_ctime_ns) >= SETTLED_SECONDS * 1e9
            self.reading = True
            try:
                with os.fdopen(os.open(path, _READING), "rb") as opened:
                    digest = digest_of(opened, file.digest)
                    if signature_of(os.fstat(opened.fileno())) != signature_of(status):
                        return "changed while it was read; it is looked at again"
            finally:
                self.reading = False
            known = signature_of(status), digest
            if settled:
                self._digests[file.name] = known
        if file.digest not in (None, known[1]):
            return f"has the digest {known[1]} where {file.digest} belongs: its content is another one; copy it again"
        return ""
