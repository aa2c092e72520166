"""Data to be split: arrays, datasets, tables and CSV files, from a path, a function's result or an object.

Tables need pyarrow, which comes with mlflow.
"""

from __future__ import annotations

import csv
import importlib
import itertools
import re
import sys
import zipfile
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from hpo_core.model.errors import SpecError
from hpo_core.model.short_text import shown, some

FileFormat = Literal["npz", "parquet", "csv"]
_NO_PICKLE = "reading them back would unpickle them, which can run any code; store numbers, booleans, dates or text"


class Examples(ABC):
    """Data with a number of examples, any of which can be written to a file.

    Args:
        length: number of examples.
        fields: name of each array or column, with its type (``dtype``) and, of arrays, the ``shape`` of one example.
    """

    own_format: FileFormat = "npz"
    """Format of the partitions where the user names none."""

    def __init__(self, length: int, fields: Iterable[tuple[str, dict[str, Any]]]) -> None:
        listed = list(fields)
        self._length, self._names = length, [name for name, _ in listed]
        self.fields: dict[str, dict[str, Any]] = dict(listed)

    def __len__(self) -> int:
        return self._length

    @abstractmethod
    def column(self, field: str) -> NDArray[Any]:
        """Values of a field, or numbers that are equal where these are."""

    @abstractmethod
    def rows(self, rows: NDArray[np.int64]) -> Any:
        """Examples in this order: arrays by name, or a table of Arrow."""

    def classes(self, field: str) -> NDArray[np.int64]:
        """The class of each example, numbered.

        Raises:
            SpecError: there is no such field, it is there several times, or has several values for an example.
        """
        if self._names.count(field) != 1:
            how = "is there several times" if field in self._names else "is not there"
            raise SpecError(f"stratify = {field!r} {how}; the data have {some(self._names)}.")
        values = self.column(field)
        if values.ndim != 1:
            raise SpecError(
                f"stratify = {field!r} has values of shape {values.shape[1:]}; it must have one value for each example."
            )
        return np.unique(values, return_inverse=True)[1].astype(np.int64)

    def write(self, rows: NDArray[np.int64], file: BinaryIO, file_format: FileFormat) -> None:
        """Write examples in this order.

        Raises:
            SpecError: the format cannot hold them.
        """
        found = self.rows(rows)
        if file_format == "npz":
            write_npz(found if isinstance(found, dict) else _arrays_of(found), file)
            return
        import pyarrow
        from pyarrow import csv, parquet

        if isinstance(found, dict):
            if several := [name for name, array in found.items() if array.ndim > 1]:
                raise SpecError(
                    f"format: {some(several)} has several values for each example, which no column holds; use npz."
                )
            found = pyarrow.table(found)
        try:
            if file_format == "csv":
                csv.write_csv(found, file)
            else:
                parquet.write_table(found, file)
        except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError) as error:
            raise SpecError(
                f"format = {file_format} cannot hold these columns ({error}); use parquet or npz."
            ) from None


def write_npz(arrays: Mapping[str, NDArray[Any]], file: BinaryIO) -> None:
    """Write arrays as ``numpy.savez`` does, uncompressed and without pickle."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():  # ZipInfo's own date is fixed; that of a file would be now
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _arrays_of(table: Any) -> dict[str, NDArray[Any]]:
    return {name: _array(table.column(name), name) for name in table.column_names}


def _array(column: Any, name: str) -> NDArray[Any]:
    if column.null_count and str(column.type) not in ("float", "double", "halffloat"):
        raise SpecError(
            f"format = npz: column {name!r} has missing values, which an array of NumPy has not; use parquet."
        )
    array = np.asarray(column.to_numpy())
    if array.dtype.hasobject and all(isinstance(value, str) for value in array):
        return array.astype(np.str_)
    if array.dtype.hasobject:
        raise SpecError(f"format = npz: column {name!r} of type {column.type} becomes objects; use parquet.")
    return array


class Arrays(Examples):
    """Arrays whose first dimension counts examples."""

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
        kinds = ((name, _kind(array, array.shape[1:])) for name, array in self._arrays.items())
        super().__init__(next(iter(lengths.values())), kinds)

    def column(self, field: str) -> NDArray[Any]:
        return self._arrays[field]

    def rows(self, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        return {name: array[rows] for name, array in self._arrays.items()}


def _kind(array: NDArray[Any], shape: Sequence[int]) -> dict[str, Any]:
    return {"dtype": array.dtype.str, "shape": list(shape)}


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


def _unreadable(path: Path, error: Exception) -> SpecError:
    if any(words in str(error) for words in ("allow_pickle", "Object arrays", "Python objects")):
        return SpecError(f"{path}: holds Python objects: {_NO_PICKLE}.")
    return SpecError(f"{path}: cannot be read ({error}); it is incomplete, or no file of NumPy.")


_PAIR = ("x", "y")
_TEXT = "SU"


class Dataset(Examples):
    """Items are read when they are written: each once, and once more to stratify.

    The names of an item's values: its keys, or those of a named tuple; else ``x`` and ``y`` of a pair, ``x`` of one
    value, ``field_0``, ``field_1``, ... of more.
    """

    def __init__(self, items: Any, source: str) -> None:
        """Raises:
        SpecError: it is empty, or its first item holds what is no number.
        """
        self._items, self._source = items, source
        first = self._fields(0) if len(items) else {}
        super().__init__(len(items), ((name, _kind(value, value.shape)) for name, value in first.items()))

    def column(self, field: str) -> NDArray[Any]:
        return np.stack([self._item(row)[field] for row in range(len(self))])

    def rows(self, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        items = [self._item(int(row)) for row in rows]
        return {name: np.stack([item[name] for item in items]) for name in self.fields}

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


class Table(Examples):
    """A table of Arrow, in memory."""

    def __init__(self, table: Any, own_format: FileFormat = "parquet") -> None:
        self._table = table
        self.own_format = own_format
        super().__init__(table.num_rows, ((field.name, {"dtype": str(field.type)}) for field in table.schema))

    def column(self, field: str) -> NDArray[Any]:
        import pyarrow

        try:
            return np.asarray(self._table.column(field).combine_chunks().dictionary_encode().indices.fill_null(-1))
        except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError, AttributeError):
            kind = self.fields[field]["dtype"]
            raise SpecError(
                f"stratify = {field!r} is of type {kind}; it must have one value for each example."
            ) from None

    def rows(self, rows: NDArray[np.int64]) -> Any:
        return self._table.take(rows)


def read_table(path: Path, suffix: str) -> Table:
    """Read a Parquet file, all of a folder, or a CSV file with the types that its values look like.

    Raises:
        SpecError: it is none.
    """
    import pyarrow
    from pyarrow import csv, parquet

    try:
        if suffix == ".parquet":
            return Table(parquet.read_table(path))
        return Table(csv.read_csv(path, parse_options=csv.ParseOptions(newlines_in_values=True)), "csv")
    except pyarrow.ArrowException as error:
        raise SpecError(
            f"{path}: cannot be read as {'Parquet' if suffix == '.parquet' else 'CSV'} ({error})."
        ) from None


class CsvLines(Examples):
    """A CSV file in UTF-8 whose first record names its columns; quoted values may hold line breaks."""

    own_format: FileFormat = "csv"

    def __init__(self, path: Path) -> None:
        """Raises:
        SpecError: it is no such file; names the line.
        """
        self._path = path
        self._starts, self._lengths = array("q"), array("q")
        columns: list[str] = []
        for start, length, record in self._records():
            columns = columns or record
            self._starts.append(start)
            self._lengths.append(length)
        super().__init__(max(0, len(self._starts) - 1), ((name, {"dtype": "text"}) for name in columns))

    def column(self, field: str) -> NDArray[Any]:
        column = self._names.index(field)
        number: dict[str, int] = {}
        records = itertools.islice(self._records(), 1, None)
        return np.array(array("q", (number.setdefault(record[column], len(number)) for *_, record in records)))

    def rows(self, rows: NDArray[np.int64]) -> Iterator[bytes]:
        """The column names and these records, as they stand."""
        with self._path.open("rb") as source:
            for row in (0, *(rows + 1)) if self._starts else ():
                source.seek(self._starts[row])
                record = source.read(self._lengths[row])
                yield record if record.endswith(b"\n") else record + b"\n"

    def write(self, rows: NDArray[np.int64], file: BinaryIO, file_format: FileFormat) -> None:
        assert file_format == "csv", "opening reads a table for other formats"
        file.writelines(self.rows(rows))

    def _records(self) -> Iterator[tuple[int, int, list[str]]]:
        """(first byte, bytes, values) of each record, that of the column names included."""
        start = end = 0
        line = 0

        def lines() -> Iterator[str]:
            nonlocal end, line
            with self._path.open("rb") as file:
                for raw in file:
                    end += len(raw)
                    line += 1
                    yield raw.decode("utf-8-sig" if line == 1 else "utf-8")

        try:
            columns = 0
            for record in csv.reader(lines(), strict=True):
                if record:
                    columns = columns or len(record)
                    if len(record) != columns:
                        raise SpecError(
                            f"{self._path}:{line}: has {len(record)} values where the first record has {columns}."
                        )
                    yield start, end - start, record
                start = end
        except UnicodeDecodeError:
            raise SpecError(f"{self._path}:{line}: is no UTF-8; convert the file (iconv -t utf-8).") from None
        except csv.Error as error:
            raise SpecError(f"{self._path}:{line}: is no CSV with commas and double quotes ({error}).") from None


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
        return read_table(path, suffix)
    raise SpecError(
        f"{path}: files that end with {suffix or 'no suffix'} are not read. Give a .npz, .npy, .parquet or .csv file, "
        "or package.module:function that returns arrays, a DataFrame or a torch Dataset."
    )


def _of_object(found: Any, source: str) -> Examples:
    if hasattr(found, "iloc") or hasattr(found, "to_batches"):  # pandas, without its index; Arrow
        import pyarrow

        return Table(
            found if isinstance(found, pyarrow.Table) else pyarrow.Table.from_pandas(found, preserve_index=False)
        )
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
