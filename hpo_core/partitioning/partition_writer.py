"""Writes partitions so that a folder holds all of them with their manifest, or none."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from hpo_core.model.errors import SpecError
from hpo_core.model.partition_file import PartitionFile
from hpo_core.model.short_text import some
from hpo_core.partitioning.manifest import MANIFEST, Manifest, read_manifest
from hpo_core.partitioning.sources import Examples, FileFormat
from hpo_core.partitioning.split import Rows

_PARTIAL = ".partial"
"""Ends the names of files that are being written; they begin with a dot, so that no pattern takes them."""
_LEFT_BEHIND = re.compile(rf"\.((part|validation)-\d{{5}}-of-\d{{5}}\.\w+|manifest\.json)\{_PARTIAL}$")
"""Of a run that was killed."""


class PartitionWriter:
    """One folder that partitions are written into.

    Args:
        overwrite: whether the files of a former manifest are replaced.
    """

    def __init__(self, folder: Path, *, overwrite: bool) -> None:
        self.folder = folder
        self._overwrite = overwrite
        self._former: list[Path] = []
        """Files that go: those of the former manifest."""
        self._written: list[str] = []

    def check(self) -> None:
        """Refuse a folder that holds something, before anything is read or written.

        Raises:
            SpecError: it is not empty, and nothing says that what lies there may go.
        """
        if self.folder.exists() and not self.folder.is_dir():
            raise SpecError(f"{self.folder}: is a file; name a folder for the partitions.")
        there = sorted(path.name for path in self.folder.iterdir()) if self.folder.is_dir() else []
        there = [name for name in there if not _LEFT_BEHIND.match(name)]
        if there and not self._overwrite:
            raise SpecError(
                f"{self.folder}: is not empty ({some(there)}). Choose another folder; --overwrite replaces partitions "
                "that a manifest there names."
            )
        if not there:
            return
        if MANIFEST not in there:
            raise SpecError(
                f"{self.folder}: holds {some(there)} and no {MANIFEST}, so nothing there is known to be replaceable. "
                "Choose another folder, or empty this one by hand."
            )
        manifest = read_manifest(self.folder / MANIFEST)
        names = [file.name for file in (*manifest.partitions, *manifest.validation)]
        if outside := [name for name in names if "/" in name]:
            raise SpecError(f"{self.folder / MANIFEST}: names {some(outside)} in other folders; empty it by hand.")
        self._former = [self.folder / name for name in names if name in there]

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in [*self._written, MANIFEST]:
            with contextlib.suppress(OSError):
                self._partial(name).unlink(missing_ok=True)

    def write(
        self, examples: Examples, dealt: Sequence[Rows], begin: str, file_format: FileFormat
    ) -> list[PartitionFile]:
        """Write partitions, not yet under their names.

        Raises:
            SpecError: another file has such a name, or the format cannot hold the examples.
        """
        found = []
        for number, rows in enumerate(dealt):
            name = f"{begin}-{number:05d}-of-{len(dealt):05d}.{file_format}"
            if (self.folder / name).exists() and self.folder / name not in self._former:
                raise SpecError(
                    f"{self.folder / name}: is there, and its manifest does not name it; remove it by hand."
                )
            self._written.append(name)
            path = self._partial(name)
            path.unlink(missing_ok=True)
            with path.open("xb") as file:  # never through a link that somebody put there
                examples.write(rows, file, file_format)
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            found.append(PartitionFile(name=name, count=len(rows), bytes=path.stat().st_size, digest=digest))
        return found

    def finish(self, manifest: Manifest) -> Manifest:
        """Put the partitions in the place of the former ones, and the manifest beside them."""
        self._partial(MANIFEST).unlink(missing_ok=True)
        with self._partial(MANIFEST).open("x", encoding="utf-8") as file:
            file.write(manifest.text())
        if self._former:
            (self.folder / MANIFEST).unlink()  # first: a manifest never names what is not there
        for path in self._former:
            path.unlink(missing_ok=True)
        for name in [*self._written, MANIFEST]:
            self._partial(name).replace(self.folder / name)
        return manifest

    def _partial(self, name: str) -> Path:
        return self.folder / f".{name}{_PARTIAL}"
