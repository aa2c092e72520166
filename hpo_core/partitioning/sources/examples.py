"""The protocol of what can be split."""

from __future__ import annotations

from typing import Any, BinaryIO, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from hpo_core.model.errors import SpecError
from hpo_core.model.short_text import some

FileFormat = Literal["npz", "parquet", "csv"]


class Examples(Protocol):
    """Data with a number of examples, any of which can be written to a file."""

    own_format: FileFormat
    """What it is written as where nobody says otherwise."""
    fields: dict[str, dict[str, Any]]
    """Its arrays or columns: ``dtype``, and of arrays the ``shape`` of one example."""

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
