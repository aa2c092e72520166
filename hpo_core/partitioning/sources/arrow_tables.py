"""Columns: Parquet, pandas, and CSV that becomes another format. Needs pyarrow, which comes with mlflow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hpo_core.model.errors import SpecError
from hpo_core.model.short_text import some
from hpo_core.partitioning.sources.examples import FileFormat, check_field, numbered
from hpo_core.partitioning.sources.npz_files import write_npz


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
