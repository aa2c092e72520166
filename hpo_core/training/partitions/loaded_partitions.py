"""What a unit of training sees of the data: the path of its partition, or what the study's loader made of it.

A worker holds its partitions in memory once: the zygote loads them, and the children that it forks share the pages.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hpo_core.model.errors import ObjectiveError
from hpo_core.model.partition_file import FOLDER_VARIABLE, Signature, folder_here, signature_of
from hpo_core.training.objective import load_objective
from hpo_core.training.request import JobRequest

_loaded: OrderedDict[tuple[str, str], tuple[Signature, Any]] = OrderedDict()
"""By (loader, path), the one used last at the end: which content it was, and what was loaded."""


class PartitionChangedError(ObjectiveError):
    """A partition is another file than the one that its worker looked at and said to hold."""


def partition_path(request: JobRequest, name: str) -> Path:
    """Where this worker has a partition.

    Raises:
        ObjectiveError: the file is not there, or not below the folder.
        PartitionChangedError: it was replaced, or written to, since its worker looked at it.
    """
    top = Path(folder_here(request.partition_folder, os.environ))
    path = top / name
    if not path.is_file():
        raise ObjectiveError(
            f"Partition {name!r} is not in {top}, where this worker has its partitions. Put it back, or correct "
            f"data.folder of the study or {FOLDER_VARIABLE} of the worker."
        )
    if not path.resolve().is_relative_to(top.resolve()):
        raise ObjectiveError(f"Partition {path} is a link out of {top}; put the file itself there.")
    if request.signature not in (None, _signature(path)):
        raise PartitionChangedError(f"Partition {path} changed since this worker looked at it; it is looked at again.")
    return path


def partition_data(request: JobRequest, name: str) -> Any:
    """A partition: its path, or what ``data.load`` made of it.

    Raises:
        SpecError: ``data.load`` names no function.
        ObjectiveError: it is not there, or the loader raised.
        PartitionChangedError: it is not the one that its worker looked at.
    """
    path = partition_path(request, name)
    if not request.load:
        return path
    key = (request.load, str(path))
    signature = _signature(path)
    known = _loaded.get(key)
    if known is None or known[0] != signature:
        load = find_loader(request.load, request.pythonpath)
        unit = request.job.unit
        most = 1 if unit is None else unit.cached
        while len(_loaded) >= most:  # before the next one is loaded: it may need the room
            _loaded.popitem(last=False)
        try:
            known = signature, load(path)
        except Exception as error:
            raise ObjectiveError(
                f"data.load = {request.load!r} could not load partition {path}: {type(error).__name__}: {error}"
            ) from error
        partition_path(request, name)  # still the one that was looked at
        _loaded[key] = known
    _loaded.move_to_end(key)
    return known[1]


def is_loaded(request: JobRequest) -> bool:
    """Whether this process holds the partition of the request's unit as it is now, or need not load it."""
    unit = request.job.unit
    if unit is None or not request.load:
        return True
    try:
        path = partition_path(request, unit.partition)
        known = _loaded.get((request.load, str(path)))
        return known is not None and known[0] == _signature(path)
    except (ObjectiveError, OSError):
        return True  # the child says what is wrong


def _signature(path: Path) -> Signature:
    return signature_of(path.stat())


def find_loader(name: str, pythonpath: Sequence[str]) -> Callable[[Path], Any]:
    """The function that ``data.load`` names.

    Raises:
        SpecError: there is no such module or function.
        ObjectiveError: its module cannot be imported.
    """
    return load_objective(name, pythonpath, setting="data.load")
