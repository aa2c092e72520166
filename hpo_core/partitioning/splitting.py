"""Split data into partitions, once: ``hpo partition``, in Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpo_core.model import limits
from hpo_core.model.errors import SpecError, StorageError
from hpo_core.partitioning.manifest import Manifest
from hpo_core.partitioning.partition_writer import PartitionWriter
from hpo_core.partitioning.sources import Examples, FileFormat, open_source
from hpo_core.partitioning.split import split

TRAINING, VALIDATION = "part", "validation"
"""What names of partitions begin with."""


def partition_data(
    source: Any,
    folder: str | Path,
    *,
    parts: int,
    seed: int = 0,
    stratify: str | None = None,
    validation: float = 0.0,
    validation_parts: int | None = None,
    file_format: FileFormat | None = None,
    overwrite: bool = False,
    import_folders: Sequence[str] = (),
) -> Manifest:
    """Shuffle data and write them as ``parts`` files and a manifest; the same seed gives the same bytes.

    Counts differ by one at most. Files appear under their names once all are written, the manifest last.

    Args:
        source: a ``.npz``, ``.npy``, ``.parquet`` or ``.csv`` file, a folder of ``.npy`` or ``.parquet`` files,
            ``package.module:function``; or arrays (by name, or a tuple), a DataFrame, a dataset with length and items.
        folder: made if it is not there; must be empty.
        stratify: an array or column; each partition gets its share of each of its values.
        validation: share of the examples that nobody trains on, in files of their own.
        validation_parts: files of these; None: as many as ``parts``, or as examples.
        file_format: what is written; None: as the source is, and arrays as ``npz``.
        overwrite: remove what the manifest in the folder names, and nothing else there.
        import_folders: where modules are looked for first.

    Raises:
        SpecError: an argument, the data or the folder do not fit; says which.
        StorageError: a file cannot be read or written.
    """
    _check(parts, seed, validation, validation_parts)
    writer = PartitionWriter(Path(folder), overwrite=overwrite)
    try:
        writer.check()
        examples = open_source(source, file_format, import_folders)
        chosen = file_format or examples.own_format
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
                    kind=chosen,
                    fields=examples.fields,
                    partitions=writer.write(examples, dealt.partitions, TRAINING, chosen),
                    validation=writer.write(examples, dealt.validation, VALIDATION, chosen),
                )
            )
    except OSError as error:
        where = error.filename or folder
        raise StorageError(f"{where}: {error.strerror or error}. No manifest was written to {folder}.") from error


def _check(parts: int, seed: int, validation: float, validation_parts: int | None) -> None:
    """Refuse numbers that fit no data."""
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
    """How many examples are for validation.

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
