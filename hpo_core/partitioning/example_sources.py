"""Which class reads what: a path, a function's result, an object."""

from __future__ import annotations

import importlib
import re
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hpo_core.model.errors import SpecError
from hpo_core.model.short_text import shown
from hpo_core.partitioning.example_tables import (
    CsvLines,
    Examples,
    FileFormat,
    check_field,
    numbered,
    read_csv,
    read_parquet,
    table_of,
    table_of_arrays,
    write_npz,
    write_table,
)

_NO_PICKLE = "reading them back would unpickle them, which can run any code; store numbers, booleans, dates or text"


class Arrays:
    """Arrays whose first dimension counts examples."""

    own_format: FileFormat = "npz"

    def __init__(self, arrays: Mapping[str, Any], source: str) -> None:
        """Raises:
        SpecError: there is no array, one holds objects or no examples, or their lengths differ.
        """
        self._arrays = {str(name): as_array(value, f"{source}: {name}") for name, value in arrays.items()}
        lengths = {name: len(array) for name, array in self._arrays.items()}
        if not lengths:
            raise SpecError(f"{source}: holds no array.")
        if len(set(lengths.values())) > 1:
            words = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
            raise SpecError(f"{source}: arrays have different lengths ({words}); each needs an entry for each example.")
        self._length = next(iter(lengths.values()))
        self.fields = {
            name: {"dtype": array.dtype.str, "shape": list(array.shape[1:])} for name, array in self._arrays.items()
        }

    def __len__(self) -> int:
        return self._length

    def classes(self, field: str) -> NDArray[np.int64]:
        check_field(field, list(self._arrays))
        return numbered(self._arrays[field], field)

    def write(self, rows: NDArray[np.int64], file: BinaryIO, file_format: FileFormat) -> None:
        write_arrays({name: array[rows] for name, array in self._arrays.items()}, file, file_format)


def read_npz(path: Path) -> Arrays:
    """Read all arrays of a ``.npz`` file.

    Raises:
        SpecError: it is none, or holds objects.
    """
    try:
        with np.load(path, allow_pickle=False) as found:
            if not isinstance(found, np.lib.npyio.NpzFile):
                raise SpecError(f"{path}: is no .npz archive; give it the suffix that it deserves.")
            return Arrays({name: found[name] for name in found.files}, str(path))
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise _unreadable(path, error) from None


def read_npy(path: Path) -> Arrays:
    """Map a ``.npy`` file, or all of a folder, into memory; their names are those of the arrays.

    Raises:
        SpecError: a file is none, or holds objects.
    """
    files = sorted(path.glob("*.npy")) if path.is_dir() else [path]
    arrays = {}
    for file in files:
        try:
            arrays[file.stem] = np.load(file, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise _unreadable(file, error) from None
    return Arrays(arrays, str(path))


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


def write_arrays(arrays: Mapping[str, NDArray[Any]], file: BinaryIO, file_format: FileFormat) -> None:
    """Write arrays.

    Raises:
        SpecError: a table cannot hold them.
    """
    if file_format == "npz":
        write_npz(arrays, file)
    else:
        write_table(table_of_arrays(arrays), file, file_format)


def _unreadable(path: Path, error: Exception) -> SpecError:
    if any(words in str(error) for words in ("allow_pickle", "Object arrays", "Python objects")):
        return SpecError(f"{path}: holds Python objects: {_NO_PICKLE}.")
    return SpecError(f"{path}: cannot be read ({error}); it is incomplete, or no file of NumPy.")


_PAIR = ("x", "y")
_TEXT = "SU"


class Dataset:
    """Items are read when they are written: each once, and once more to stratify.

    The names of an item's values: its keys, or those of a named tuple; else ``x`` and ``y`` of a pair, ``x`` of one
    value, ``field_0``, ``field_1``, ... of more.
    """

    own_format: FileFormat = "npz"

    def __init__(self, items: Any, source: str) -> None:
        """Raises:
        SpecError: it is empty, or its first item holds what is no number.
        """
        self._items, self._source, self._length = items, source, len(items)
        first = self._fields(0) if self._length else {}
        self.fields: dict[str, dict[str, Any]] = {
            name: {"dtype": value.dtype.str, "shape": list(value.shape)} for name, value in first.items()
        }

    def __len__(self) -> int:
        return self._length

    def classes(self, field: str) -> NDArray[np.int64]:
        check_field(field, list(self.fields))
        return numbered(np.stack([self._item(row)[field] for row in range(self._length)]), field)

    def write(self, rows: NDArray[np.int64], file: BinaryIO, file_format: FileFormat) -> None:
        items = [self._item(int(row)) for row in rows]
        write_arrays({name: np.stack([item[name] for item in items]) for name in self.fields}, file, file_format)

    def _item(self, row: int) -> dict[str, NDArray[Any]]:
        """An item that is like the first one."""
        found = self._fields(row)
        if found.keys() != self.fields.keys():
            raise SpecError(
                f"{self._source}: item {row:,} has {', '.join(found)}, and item 0 has {', '.join(self.fields)}; all "
                "items need the same values."
            )
        for name, value in found.items():
            known = self.fields[name]
            same_type = value.dtype.str == known["dtype"] or value.dtype.kind in _TEXT
            if list(value.shape) != known["shape"] or not same_type:
                raise SpecError(
                    f"{self._source}: {name} of item {row:,} has shape {list(value.shape)} and type {value.dtype.str}, "
                    f"that of item 0 {known['shape']} and {known['dtype']}; make all items alike."
                )
        return found

    def _fields(self, row: int) -> dict[str, NDArray[Any]]:
        found = {}
        for name, value in _named(self._items[row]).items():
            try:
                array = np.asarray(value)
            except (TypeError, ValueError, RuntimeError) as error:  # of torch: on a GPU, or with a gradient
                raise SpecError(f"{self._source}: {name} of item {row:,} is no array ({error}).") from None
            if array.dtype.hasobject:
                raise SpecError(
                    f"{self._source}: {name} of item {row:,} is of type {type(value).__name__}, which is no number, "
                    "text or array; have the dataset transform it."
                )
            found[name] = array
        return found


def _named(item: Any) -> dict[str, Any]:
    """Values of an item by name: ``x`` and ``y`` of a pair, ``x`` of one value, ``field_0``, ... of more."""
    if isinstance(item, Mapping):
        return {str(name): value for name, value in item.items()}
    values = item if isinstance(item, tuple | list) else (item,)
    names = getattr(item, "_fields", None) or (
        _PAIR[: len(values)] if len(values) <= len(_PAIR) else [f"field_{i}" for i in range(len(values))]
    )
    return dict(zip(names, values, strict=True))


_FUNCTION = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")


def open_source(source: Any, file_format: FileFormat | None = None, folders: Sequence[str] = ()) -> Examples:
    """Open data to be split.

    Args:
        source: a path; ``package.module:function``, which is called without arguments; or what such a function returns.
        file_format: what will be written.
        folders: where modules are looked for first.

    Raises:
        SpecError: it is nothing that can be split.
        OSError: a file cannot be read.
    """
    if isinstance(source, str) and _FUNCTION.match(source) and not Path(source).exists():
        return _of_object(_called(source, folders), source)
    if isinstance(source, str | Path):
        return _of_path(Path(source).expanduser(), file_format)
    return _of_object(source, f"the {type(source).__name__}")


def _of_path(path: Path, file_format: FileFormat | None) -> Examples:
    if not path.exists():
        raise SpecError(f"{path}: no such file. Give a .npz, .npy, .parquet or .csv file, or package.module:function.")
    suffix = path.suffix.lower()
    if path.is_dir():
        suffixes = {file.suffix for file in path.iterdir()} & {".npy", ".parquet"}
        if len(suffixes) != 1:
            raise SpecError(
                f"{path}: is a folder; to be split it must hold .npy files, or .parquet files, and not both."
            )
        suffix = suffixes.pop()
    if suffix == ".npz":
        return read_npz(path)
    if suffix == ".npy":
        return read_npy(path)
    if suffix == ".csv" and file_format in (None, "csv"):
        return CsvLines(path)
    if suffix in (".csv", ".parquet"):
        return read_csv(path) if suffix == ".csv" else read_parquet(path)
    raise SpecError(
        f"{path}: files that end with {suffix or 'no suffix'} are not read. Give a .npz, .npy, .parquet or .csv file, "
        "or package.module:function that returns arrays, a DataFrame or a torch Dataset."
    )


def _of_object(found: Any, source: str) -> Examples:
    if hasattr(found, "iloc") or hasattr(found, "to_batches"):  # pandas; Arrow
        return table_of(found)
    if isinstance(found, Mapping) and type(found).__name__ == "Bunch" and found.keys() >= {"data", "target"}:
        # a data set of scikit-learn, whose other entries describe it
        return Arrays({"x": found["data"], "y": found["target"]}, source)
    if isinstance(found, Mapping):
        return Arrays(found, source)
    if isinstance(found, tuple) or hasattr(found, "__array__"):
        return Arrays(_named(found), source)
    if hasattr(found, "__len__") and hasattr(found, "__getitem__") and not isinstance(found, str | bytes):
        return Dataset(found, source)
    raise SpecError(
        f"{source}: gives {shown(found)} of type {type(found).__name__}; a dictionary or tuple of arrays, a DataFrame, "
        "or a dataset with a length and items (no stream) can be split."
    )


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
