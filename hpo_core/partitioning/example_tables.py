"""Columns: Parquet, pandas, and CSV that becomes another format. Needs pyarrow, which comes with mlflow."""

from __future__ import annotations

import csv
import zipfile
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from hpo_core.model.errors import SpecError
from hpo_core.model.short_text import some


def write_npz(arrays: Mapping[str, NDArray[Any]], file: BinaryIO) -> None:
    """Write arrays as ``numpy.savez`` does, uncompressed and without pickle."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():  # ZipInfo's own date is fixed; that of a file would be now
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


FileFormat = Literal["npz", "parquet", "csv"]


class Examples(Protocol):
    """Data with a number of examples, any of which can be written to a file."""

    own_format: FileFormat
    """What it is written as where nobody says otherwise."""
    fields: dict[str, dict[str, Any]]
    """Type (``dtype``) of each array or column, and of arrays the ``shape`` of one example."""

    def __len__(self) -> int: ...

    def classes(self, field: str) -> NDArray[np.int64]:
        """The class of each example, numbered.

        Raises:
            SpecError: there is no such field, or it has several values for an example.
        """
        ...

    def write(self, rows: NDArray[np.int64], file: BinaryIO, file_format: FileFormat) -> None:
        """Write examples in this order.

        Raises:
            SpecError: the format cannot hold them.
        """
        ...


def check_field(field: str, known: list[str]) -> None:
    """Refuse to stratify by a field that is not there.

    Raises:
        SpecError: it is absent, or there several times.
    """
    if known.count(field) != 1:
        how = "is there several times" if field in known else "is not there"
        raise SpecError(f"stratify = {field!r} {how}; the data have {some(known)}.")


def numbered(values: NDArray[Any], field: str) -> NDArray[np.int64]:
    """Classes from values.

    Raises:
        SpecError: there are several values for one example.
    """
    if values.ndim != 1:
        raise SpecError(
            f"stratify = {field!r} has values of shape {values.shape[1:]}; it must have one value for each example."
        )
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


class Table:
    """A table of Arrow, in memory."""

    def __init__(self, table: Any, own_format: FileFormat = "parquet") -> None:
        self._table = table
        self.own_format: FileFormat = own_format
        self.fields: dict[str, dict[str, Any]] = {field.name: {"dtype": str(field.type)} for field in table.schema}

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def classes(self, field: str) -> NDArray[np.int64]:
        check_field(field, list(self._table.column_names))
        import pyarrow

        try:
            codes = self._table.column(field).combine_chunks().dictionary_encode().indices.fill_null(-1)
        except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError, AttributeError):
            kind = self.fields[field]["dtype"]
            raise SpecError(
                f"stratify = {field!r} is of type {kind}; it must have one value for each example."
            ) from None
        return numbered(np.asarray(codes), field)

    def write(self, rows: NDArray[np.int64], file: BinaryIO, file_format: FileFormat) -> None:
        write_table(self._table.take(rows), file, file_format)


def read_parquet(path: Path) -> Table:
    """Read a Parquet file, or all of a folder.

    Raises:
        SpecError: it is none.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        return Table(parquet.read_table(path))
    except pyarrow.ArrowException as error:
        raise SpecError(f"{path}: cannot be read as Parquet ({error}).") from None


def read_csv(path: Path) -> Table:
    """Read a CSV file with the types that its values look like.

    Raises:
        SpecError: it is none.
    """
    import pyarrow
    from pyarrow import csv

    try:
        return Table(csv.read_csv(path, parse_options=csv.ParseOptions(newlines_in_values=True)), "csv")
    except pyarrow.ArrowException as error:
        raise SpecError(f"{path}: cannot be read as CSV ({error}).") from None


def table_of(frame: Any) -> Table:
    """The table of a pandas ``DataFrame``, without its index, or one of Arrow as it is."""
    import pyarrow

    return Table(frame if isinstance(frame, pyarrow.Table) else pyarrow.Table.from_pandas(frame, preserve_index=False))


def table_of_arrays(arrays: Mapping[str, NDArray[Any]]) -> Any:
    """Arrays as columns.

    Raises:
        SpecError: an example has several values in one of them.
    """
    import pyarrow

    if several := [name for name, array in arrays.items() if array.ndim > 1]:
        raise SpecError(f"format: {some(several)} has several values for each example, which no column holds; use npz.")
    return pyarrow.table(dict(arrays))


def write_table(table: Any, file: BinaryIO, file_format: FileFormat) -> None:
    """Write rows of a table.

    Raises:
        SpecError: the format cannot hold a column.
    """
    if file_format == "npz":
        write_npz({name: _array(table, name) for name in table.column_names}, file)
        return
    import pyarrow
    from pyarrow import csv, parquet

    try:
        if file_format == "csv":
            csv.write_csv(table, file)
        else:
            parquet.write_table(table, file)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError) as error:
        raise SpecError(f"format = {file_format} cannot hold these columns ({error}); use parquet or npz.") from None


def _array(table: Any, name: str) -> NDArray[Any]:
    column = table.column(name)
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


class CsvLines:
    """A CSV file in UTF-8 whose first record names its columns; quoted values may hold line breaks."""

    own_format: FileFormat = "csv"

    def __init__(self, path: Path) -> None:
        """Raises:
        SpecError: it is no such file; names the line.
        """
        self._path = path
        self._starts, self._lengths = array("q"), array("q")
        self._header = b""
        self._columns: list[str] = []
        for start, length, record in self._records():
            if not self._columns:
                self._columns = record
                with self._path.open("rb") as file:
                    self._header = _ended(file.read(length))
                continue
            self._starts.append(start)
            self._lengths.append(length)
        self.fields: dict[str, dict[str, Any]] = {name: {"dtype": "text"} for name in self._columns}

    def __len__(self) -> int:
        return len(self._starts)

    def classes(self, field: str) -> NDArray[np.int64]:
        check_field(field, self._columns)
        column = self._columns.index(field)
        number: dict[str, int] = {}
        found = array("q")
        for i, (_, _, record) in enumerate(self._records()):
            if i:
                found.append(number.setdefault(record[column], len(number)))
        return numbered(np.array(found, np.int64), field)

    def write(self, rows: NDArray[np.int64], file: BinaryIO, file_format: FileFormat) -> None:
        assert file_format == "csv", "opening reads a table for other formats"
        file.write(self._header)
        with self._path.open("rb") as source:
            for row in rows:
                source.seek(self._starts[row])
                file.write(_ended(source.read(self._lengths[row])))

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


def _ended(record: bytes) -> bytes:
    """Add the line break that the last record of a file may lack."""
    return record if record.endswith(b"\n") else record + b"\n"
