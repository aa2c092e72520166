"""Split data into partitions, once: ``hpo partition``, in Python."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hpo_core.model import limits
from hpo_core.model.errors import SpecError, StorageError
from hpo_core.model.partition_file import PartitionFile
from hpo_core.model.short_text import some
from hpo_core.partitioning.example_sources import Examples, open_source
from hpo_core.partitioning.resolution import MANIFEST, Manifest

Rows = NDArray[np.int64]
"""Numbers of examples."""


@dataclass(frozen=True, slots=True)
class Split:
    """Rows of each partition, in the order in which they are written."""

    partitions: list[Rows]
    validation: list[Rows]


def split(
    count: int,
    parts: int,
    *,
    validation: int = 0,
    validation_parts: int = 0,
    seed: int = 0,
    classes: NDArray[np.int64] | None = None,
) -> Split:
    """Shuffle ``count`` examples and deal them out; every example is in one partition.

    Counts differ by one at most, among the partitions and among those for validation; with ``classes`` also the counts
    of each class. The order within a partition is random in any case.

    The order is that of 64-bit words of PCG64, a stream that NumPy keeps the same between its versions.

    Args:
        validation: so many examples are for validation; of each class its share.
        classes: the class of each example.
    """
    words = np.random.PCG64(seed).random_raw(count)
    order = np.argsort(words, kind="stable")
    rank = np.empty(count, np.int64)
    rank[order] = np.arange(count)
    # Sorted by class, a class is a run of neighbours: whoever deals in turn gives each partition its share of the run.
    rows = order if classes is None else np.lexsort((rank, classes))
    place = np.arange(count, dtype=np.int64)
    is_validation = (place + 1) * validation // count > place * validation // count
    return Split(
        partitions=_dealt(rows[~is_validation], parts, rank),
        validation=_dealt(rows[is_validation], validation_parts, rank),
    )


def _dealt(rows: Rows, parts: int, rank: Rows) -> list[Rows]:
    dealt = (rows[part::parts] for part in range(parts))
    return [mine[np.argsort(rank[mine])] for mine in dealt]


_PARTIAL = ".partial"
"""Ends the names of files that are being written; they begin with a dot, so that no pattern takes them."""
_LEFT_BEHIND = re.compile(rf"\.((part|validation)-\d{{5}}-of-\d{{5}}\.\w+|manifest\.json)\{_PARTIAL}$")
"""Names of files that a killed run left behind."""


class PartitionWriter:
    """Writes partitions into one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._written: list[str] = []

    def check(self) -> None:
        """Refuse a folder that holds something, before anything is read or written.

        Raises:
            SpecError: it is not empty.
        """
        if self.folder.exists() and not self.folder.is_dir():
            raise SpecError(f"{self.folder}: is a file; name a folder for the partitions.")
        there = sorted(path.name for path in self.folder.iterdir()) if self.folder.is_dir() else []
        there = [name for name in there if not _LEFT_BEHIND.match(name)]
        if there:
            raise SpecError(f"{self.folder}: is not empty ({some(there)}). Empty it, or choose another folder.")

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in [*self._written, MANIFEST]:
            with contextlib.suppress(OSError):
                self._partial(name).unlink(missing_ok=True)

    def write(self, examples: Examples, dealt: Sequence[Rows], begin: str) -> list[PartitionFile]:
        """Write partitions, not yet under their names."""
        found = []
        for number, rows in enumerate(dealt):
            name = f"{begin}-{number:05d}-of-{len(dealt):05d}.npz"
            self._written.append(name)
            path = self._partial(name)
            path.unlink(missing_ok=True)
            with path.open("xb") as file:  # never through a link that somebody put there
                examples.write(rows, file)
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            found.append(PartitionFile(name=name, count=len(rows), bytes=path.stat().st_size, digest=digest))
        return found

    def finish(self, manifest: Manifest) -> Manifest:
        """Give the partitions their names, and the manifest beside them."""
        self._partial(MANIFEST).unlink(missing_ok=True)
        with self._partial(MANIFEST).open("x", encoding="utf-8") as file:
            file.write(manifest.text())
        for name in [*self._written, MANIFEST]:
            self._partial(name).replace(self.folder / name)
        return manifest

    def _partial(self, name: str) -> Path:
        return self.folder / f".{name}{_PARTIAL}"


TRAINING, VALIDATION = "part", "validation"
"""Beginnings of the names of partitions."""


def partition_data(
    source: Any,
    folder: str | Path,
    *,
    parts: int,
    seed: int = 0,
    stratify: str | None = None,
    validation: float = 0.0,
    validation_parts: int | None = None,
    import_folders: Sequence[str] = (),
) -> Manifest:
    """Shuffle data and write them as ``parts`` files and a manifest; the same seed gives the same bytes.

    Counts differ by one at most. Files appear under their names once all are written, the manifest last.

    Args:
        source: a ``.npz`` file, ``package.module:function`` that returns arrays, or arrays (by name, or a tuple).
        folder: made if it is not there; must be empty.
        stratify: an array or column; each partition gets its share of each of its values.
        validation: share of the examples that nobody trains on, in files of their own.
        validation_parts: files of these; None: as many as ``parts``, or as examples.
        import_folders: where modules are looked for first.

    Raises:
        SpecError: an argument, the data or the folder do not fit; says which.
        StorageError: a file cannot be read or written.
    """
    _check(parts, seed, validation, validation_parts)
    writer = PartitionWriter(Path(folder))
    try:
        writer.check()
        examples = open_source(source, import_folders)
        held_back = _held_back(examples, parts, validation, validation_parts)
        dealt = split(
            len(examples),
            parts,
            validation=held_back,
            validation_parts=0 if not held_back else validation_parts or min(parts, held_back),
            seed=seed,
            classes=None if stratify is None else examples.classes(stratify),
        )
        with writer:
            return writer.finish(
                Manifest(
                    source=str(source) if isinstance(source, str | Path) else f"a {type(source).__name__}",
                    seed=seed,
                    stratify=stratify,
                    kind="npz",
                    fields=examples.fields,
                    partitions=writer.write(examples, dealt.partitions, TRAINING),
                    validation=writer.write(examples, dealt.validation, VALIDATION),
                )
            )
    except OSError as error:
        where = error.filename or folder
        raise StorageError(f"{where}: {error.strerror or error}. No manifest was written to {folder}.") from error


def _check(parts: int, seed: int, validation: float, validation_parts: int | None) -> None:
    for name, count in (("parts", parts), ("validation_parts", validation_parts)):
        if count is not None and not 1 <= count <= limits.PARTITIONS:
            raise SpecError(f"{name} = {count:,} must be from 1 to {limits.PARTITIONS:,}.")
    if seed < 0:
        raise SpecError(f"seed = {seed} must be 0 or more.")
    if not 0 <= validation < 1:
        raise SpecError(f"validation = {validation:g} must be a share of the examples: 0 or more, and below 1.")
    if validation_parts is not None and not validation:
        raise SpecError(f"validation_parts = {validation_parts}, and validation is 0; say which share, such as 0.1.")


def _held_back(examples: Examples, parts: int, validation: float, validation_parts: int | None) -> int:
    """Number of examples for validation.

    Raises:
        SpecError: there are too few of them, or of the others.
    """
    count = len(examples)
    held_back = round(count * validation)
    if validation and held_back < (validation_parts or 1):
        raise SpecError(
            f"validation = {validation:g} of {count:,} examples are {held_back:,}, too few for "
            f"{validation_parts or 1:,} files; raise validation, or lower validation_parts."
        )
    if parts > count - held_back:
        rest = f"{count - held_back:,} examples to train on" if held_back else f"{count:,} examples"
        raise SpecError(f"parts = {parts:,}, but there are {rest}: each partition needs one at least; lower parts.")
    return held_back
