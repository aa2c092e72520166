"""CSV as text: records are copied as they stand, so no value changes its spelling."""

from __future__ import annotations

import csv
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hpo_core.model.errors import SpecError
from hpo_core.partitioning.sources.examples import FileFormat, check_field, numbered


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
    """With a line break at its end, which the last record of a file may lack."""
    return record if record.endswith(b"\n") else record + b"\n"
