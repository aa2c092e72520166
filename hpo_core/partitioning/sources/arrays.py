"""Arrays of one length: ``.npz`` files, ``.npy`` files, dictionaries of arrays."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hpo_core.model.errors import SpecError
from hpo_core.partitioning.sources.arrow_tables import table_of_arrays, write_table
from hpo_core.partitioning.sources.examples import FileFormat, check_field, numbered
from hpo_core.partitioning.sources.npz_files import write_npz

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
        self.fields = fields_of(self._arrays)

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


def fields_of(arrays: Mapping[str, NDArray[Any]]) -> dict[str, dict[str, Any]]:
    """Type and shape of one example, as a manifest says them."""
    return {name: {"dtype": array.dtype.str, "shape": list(array.shape[1:])} for name, array in arrays.items()}


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
