"""Which partitions a worker holds: files of its folder that are what the study knows of them."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hpo_core.model.partition_file import PartitionFile

_Version = tuple[int, int, int, int, int]
"""Device, inode, size, time of the last write, time of the last change (which nobody can set back)."""


class Held(NamedTuple):
    """What a worker holds at one moment."""

    names: frozenset[str]
    problems: dict[str, str]
    """By name: a sentence why a file that is there does not count. One that is not there is no problem: others may hold
    it."""


class Holdings:
    """Looks which partitions lie in a folder; one instance for each study and worker.

    Size and time are looked at each time; a digest is computed once for each version of a file, so a first look at
    large partitions takes as long as reading them. Nothing is raised, whatever lies in the folder.

    Args:
        folder: of this worker (:func:`~hpo_core.model.partition_file.folder_here`).
        files: all partitions of the study, those for validation included.
    """

    def __init__(self, folder: str | Path, files: Sequence[PartitionFile]) -> None:
        self.folder = Path(folder)
        self._files = tuple(files)
        self._digests: dict[str, tuple[_Version, str]] = {}

    def look(self) -> Held:
        """What is held now."""
        try:
            above = self.folder.resolve(strict=True)
        except (OSError, ValueError, RuntimeError):  # RuntimeError: links in a circle, before Python 3.13
            return Held(frozenset(), {})
        names, problems = set(), {}
        for file in self._files:
            try:
                problem = self._problem(file, above)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except (OSError, ValueError, RuntimeError) as error:
                reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
                problem = f"cannot be read ({reason})"
            if problem:
                problems[file.name] = f"Partition {file.name} in {self.folder} {problem}."
            else:
                names.add(file.name)
        return Held(frozenset(names), problems)

    def _problem(self, file: PartitionFile, above: Path) -> str:
        """Why a file does not count; empty: it is held."""
        path = (above / file.name).resolve(strict=True)
        if not path.is_relative_to(above):
            return "is a link that leads out of that folder, and is not followed; put the file there"
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            return "is no regular file"
        if file.bytes not in (None, status.st_size):
            short = f"has {status.st_size:,} bytes where {file.bytes:,} belong"
            return f"{short}: it is incomplete, or was changed; copy it again"
        if not os.access(path, os.R_OK):
            return "may not be read by this user"
        if file.digest is None:
            return ""
        known = self._digests.get(file.name)
        if known is None or known[0] != _version(status):
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as opened:
                digest = hashlib.file_digest(opened, "sha256").hexdigest()
                if _version(os.fstat(opened.fileno())) != _version(status):
                    return "changed while it was read; it is looked at again"
            known = self._digests[file.name] = _version(status), digest
        if known[1] != file.digest:
            return f"has the SHA-256 {known[1]} where {file.digest} belongs: its content is another one; copy it again"
        return ""


def _version(status: os.stat_result) -> _Version:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
