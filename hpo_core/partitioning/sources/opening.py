"""Which class reads what: a path, a function's result, an object."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpo_core.model.errors import SpecError
from hpo_core.model.short_text import shown
from hpo_core.partitioning.sources.arrays import Arrays, read_npy, read_npz
from hpo_core.partitioning.sources.arrow_tables import read_csv, read_parquet, table_of
from hpo_core.partitioning.sources.csv_lines import CsvLines
from hpo_core.partitioning.sources.datasets import Dataset
from hpo_core.partitioning.sources.examples import Examples, FileFormat

_FUNCTION = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
_NAMES_OF_TUPLE = ("x", "y")


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
    if isinstance(found, tuple):
        short = len(found) <= len(_NAMES_OF_TUPLE)
        names = _NAMES_OF_TUPLE[: len(found)] if short else [f"field_{i}" for i in range(len(found))]
        return Arrays(dict(zip(names, found, strict=True)), source)
    if hasattr(found, "__array__"):
        return Arrays({_NAMES_OF_TUPLE[0]: found}, source)
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
