"""Data to be split: arrays by name, of a ``.npz`` file, of a function's result, or given as they are."""

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
from hpo_core.model.short_text import shown, some

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
        with np.load(path, allow_pickle=False) as found:
            if not isinstance(found, np.lib.npyio.NpzFile):
                raise SpecError(f"{path}: is no .npz archive; give it the suffix that it deserves.")
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
