"""What a unit of training sees of the data: the path of its partition, or what the study's loader made of it.

A worker holds its partitions in memory once: the zygote loads them, and the children that it forks share the pages.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hpo_core.model.errors import ObjectiveError, SpecError
from hpo_core.model.partition_file import FOLDER_VARIABLE, folder_here
from hpo_core.training.objective import load_objective
from hpo_core.training.request import JobRequest

_Signature = tuple[int, int, int]
_loaded: OrderedDict[tuple[str, str], tuple[_Signature, Any]] = OrderedDict()
"""By (loader, path), the one used last at the end: which content it was, and what was loaded."""


def partition_path(folder: str, name: str) -> Path:
    """Where this worker has a partition.

    Raises:
        ObjectiveError: the file is not there, or not below the folder.
    """
    top = Path(folder_here(folder, os.environ))
    path = top / name
    if not path.is_file():
        raise ObjectiveError(
            f"Partition {name!r} is not in {top}, where this worker has its partitions. Put it back, or correct "
            f"data.folder of the study or {FOLDER_VARIABLE} of the worker."
        )
    if not path.resolve().is_relative_to(top.resolve()):
        raise ObjectiveError(f"Partition {path} is a link out of {top}; put the file itself there.")
    return path


def partition_data(request: JobRequest, name: str) -> Any:
    """A partition: its path, or what ``data.load`` made of it.

    Raises:
        ObjectiveError: it is not there, or the loader raised.
    """
    path = partition_path(request.partition_folder, name)
    if not request.load:
        return path
    key = (request.load, str(path))
    signature = _signature(path)
    known = _loaded.get(key)
    if known is None or known[0] != signature:
        load = _loader(request.load, request.pythonpath)
        try:
            known = signature, load(path)
        except Exception as error:
            raise ObjectiveError(
                f"data.load = {request.load!r} could not load partition {path}: {type(error).__name__}: {error}"
            ) from error
        _loaded[key] = known
    _loaded.move_to_end(key)
    unit = request.job.unit
    most = len(request.partitions) + len(request.validation) if unit is None else unit.cached
    while len(_loaded) > max(1, most):
        _loaded.popitem(last=False)
    return known[1]


def is_loaded(request: JobRequest) -> bool:
    """Whether this process holds the partition of the request's unit as it is now, or need not load it."""
    unit = request.job.unit
    if unit is None or not request.load:
        return True
    try:
        path = partition_path(request.partition_folder, unit.partition)
        known = _loaded.get((request.load, str(path)))
        return known is not None and known[0] == _signature(path)
    except (ObjectiveError, OSError):
        return True  # the child says what is wrong


def _signature(path: Path) -> _Signature:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _loader(name: str, pythonpath: Sequence[str]) -> Callable[[Path], Any]:
    try:
        return load_objective(name, pythonpath)
    except (SpecError, ObjectiveError) as error:
        raise ObjectiveError(str(error).replace(f"objective = {name!r}", f"data.load = {name!r}", 1)) from error
