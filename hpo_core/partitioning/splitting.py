"""Split data into partitions, once: ``hpo partition``, in Python."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import re
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from hpo_core.model import limits
from hpo_core.model.errors import SpecError, StorageError
from hpo_core.model.partition_file import PartitionFile
from hpo_core.model.short_text import shown, some
from hpo_core.partitioning.resolution import MANIFEST, Manifest

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_NO_PICKLE = "reading them back would unpickle them, which can run any code; store numbers, booleans, dates or text"
_OTHERS = (
    "Read other data by a function of yours that returns arrays by name, and give its name, package.module:function: "
    "def arrays(): return {'x': ..., 'y': ...}."
)


class Examples:
    """Arrays whose first dimension counts examples.

    Raises:
        SpecError: there is no array, one holds objects or no examples, or their lengths differ.
    """

    def __init__(self, arrays: Mapping[str, Any], source: str) -> None:
        self._arrays = {str(name): as_array(value, f"{source}: {name}") for name, value in arrays.items()}
        lengths = {name: len(array) for name, array in self._arrays.items()}
        if not lengths:
            raise SpecError(f"{source}: holds no array.")
        if len(set(lengths.values())) > 1:
            words = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
            raise SpecError(f"{source}: arrays have different lengths ({words}); each needs an entry for each example.")
        self._length = next(iter(lengths.values()))
        self.fields: dict[str, dict[str, Any]] = {
            name: {"dtype": array.dtype.str, "shape": list(array.shape[1:])} for name, array in self._arrays.items()
        }
        """Name of each array, with its type (``dtype``) and the ``shape`` of one example."""

    def __len__(self) -> int:
        return self._length

    def classes(self, field: str) -> NDArray[np.int64]:
        """The class of each example, numbered.

        Raises:
            SpecError: there is no such array, or it has several values for an example.
        """
        if field not in self._arrays:
            raise SpecError(f"stratify = {field!r} is not there; the data have {some(self._arrays)}.")
        values = self._arrays[field]
        if values.ndim != 1:
            raise SpecError(
                f"stratify = {field!r} has values of shape {values.shape[1:]}; it must have one value for each example."
            )
        return np.unique(values, return_inverse=True)[1].astype(np.int64)

    def write(self, rows: NDArray[np.int64], file: BinaryIO) -> None:
        write_npz({name: array[rows] for name, array in self._arrays.items()}, file)


def write_npz(arrays: Mapping[str, NDArray[Any]], file: BinaryIO) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():  # ZipInfo's own date is fixed; that of a file would be now
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def read_npz(path: Path) -> Examples:
    """Read all arrays of a ``.npz`` file.

    Raises:
        SpecError: it is none, or holds objects.
    """
    try:
        found = np.load(path, allow_pickle=False)
        if not isinstance(found, np.lib.npyio.NpzFile):
            raise SpecError(f"{path}: is one array and no .npz archive; save it with numpy.savez(file, x=array).")
        with found:
            return Examples({name: found[name] for name in found.files}, str(path))
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        if any(words in str(error) for words in ("allow_pickle", "Object arrays", "Python objects")):
            raise SpecError(f"{path}: holds Python objects: {_NO_PICKLE}.") from None
        raise SpecError(f"{path}: cannot be read ({error}); it is incomplete, or no file of NumPy.") from None


def as_array(value: Any, where: str) -> NDArray[Any]:
    """A value as an array of examples.

    Raises:
        SpecError: it holds objects, or is one value alone.
    """
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SpecError(f"{where} is no array ({error}); give arrays whose first dimension counts examples.") from None
    if array.dtype.hasobject:
        raise SpecError(f"{where} holds Python objects ({type(value).__name__}): {_NO_PICKLE}.")
    if array.ndim == 0:
        raise SpecError(f"{where} is one value and no array; its first dimension must count examples.")
    return array


def open_source(source: Any, folders: Sequence[str] = ()) -> Examples:
    """Open what is to be split.

    Args:
        source: a ``.npz`` file, ``package.module:function`` that returns arrays, or arrays by name, or a tuple of them
            (a pair is ``x``, ``y``).
        folders: where modules are looked for first.

    Raises:
        SpecError: it is none of these.
        OSError: a file cannot be read.
    """
    if isinstance(source, str) and _FUNCTION.fullmatch(source) and not Path(source).exists():
        return _of_object(_called(source, folders), source)
    if isinstance(source, str | Path):
        path = Path(source).expanduser()
        if not path.exists():
            raise SpecError(f"{path}: no such file. Give a .npz file, or package.module:function.")
        if path.suffix.lower() != ".npz" or path.is_dir():
            raise SpecError(f"{path}: only .npz files are read. {_OTHERS}")
        return read_npz(path)
    return _of_object(source, f"the {type(source).__name__}")


def _of_object(found: Any, source: str) -> Examples:
    if isinstance(found, Mapping) and type(found).__name__ == "Bunch" and found.keys() >= {"data", "target"}:
        # a data set of scikit-learn, whose other entries describe it
        return Examples({"x": found["data"], "y": found["target"]}, source)
    if isinstance(found, Mapping):
        return Examples(found, source)
    if isinstance(found, tuple):
        names = ("x", "y") if len(found) <= 2 else tuple(f"field_{place}" for place in range(len(found)))
        return Examples(dict(zip(getattr(found, "_fields", names), found, strict=False)), source)
    if hasattr(found, "__array__") and not hasattr(found, "iloc"):
        return Examples({"x": found}, source)
    raise SpecError(f"{source}: gives {shown(found)} of type {type(found).__name__}, which is no array. {_OTHERS}")


def _called(name: str, folders: Sequence[str]) -> Any:
    module, _, function = name.partition(":")
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]
    try:
        found = getattr(importlib.import_module(module), function, None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise SpecError(
            f"{name}: there is no module {error.name!r}. Correct the name, or run this beside it."
        ) from None
    if not callable(found):
        raise SpecError(f"{name}: module {module!r} has no function {function!r}. Correct the name.")
    return found()


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
