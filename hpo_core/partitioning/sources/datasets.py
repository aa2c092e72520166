"""Objects with a length and items, such as a torch ``Dataset``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hpo_core.model.errors import SpecError
from hpo_core.partitioning.sources.arrays import write_arrays
from hpo_core.partitioning.sources.examples import FileFormat, check_field, numbered

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
    if isinstance(item, Mapping):
        return {str(name): value for name, value in item.items()}
    if not isinstance(item, tuple | list):
        return {_PAIR[0]: item}
    names = getattr(item, "_fields", None) or (
        _PAIR[: len(item)] if len(item) <= len(_PAIR) else [f"field_{i}" for i in range(len(item))]
    )
    return dict(zip(names, item, strict=True))
