"""Partitions of the data: which lie on this worker, and what a unit of training sees of them.

A unit sees the path of its partition, or what the study's loader made of it. A worker holds loaded partitions in memory
once: the zygote loads them, and the children that it forks share the pages. The worker itself looks at the files in the
background, and says with its heartbeats which lie there.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hpo_core.model.errors import ObjectiveError
from hpo_core.model.partition_file import FOLDER_VARIABLE, PartitionFile, Signature, folder_here, signature_of
from hpo_core.model.trial import Metrics
from hpo_core.partitioning.holdings import Holdings
from hpo_core.training.child.processes import resident
from hpo_core.training.objective import load_objective
from hpo_core.training.reported_metrics import reported_value
from hpo_core.training.request import JobRequest
from hpo_core.training.user_code import causes

LOOK_SECONDS = 2.0
"""Seconds after which the files are looked at again."""
MOST_LOOKS = 100
"""Looks at once while files are doubted during each; then the next one begins when somebody asks."""
FIRST_SECONDS = 2.0
"""Seconds that the answer of the first look is waited for."""
SMALL_BYTES = 128 << 20
"""Loaded partitions of a study whose models hop all stay while they take no more than that together."""
_loaded: OrderedDict[tuple[str, str], tuple[Signature | None, Any, int]] = OrderedDict()
"""Signature of the file, what was loaded, and its bytes, by (loader, path); the one used last is at the end."""
_AWAY = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO, errno.ESTALE, errno.EIO, errno.EREMOTEIO,
                   errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ETIMEDOUT})  # fmt: skip
"""Errors of a file that is not there, or whose file system is not."""
_OF_STORAGE = frozenset({errno.EIO, errno.ESTALE, errno.EREMOTEIO})
"""Errors that only files can have, also where they name no file (reading an open one)."""


class PartitionGoneError(ObjectiveError):
    """A partition is not there, or is another file than the one that its worker looked at and said to hold."""


def partition_path(request: JobRequest, name: str) -> Path:
    """Path of a partition on this worker.

    Raises:
        PartitionGoneError: the file is not there, not below the folder, or was replaced or written to since its
            worker looked at it.
    """
    top = Path(folder_here(request.setup.partition_folder, os.environ))
    path = top / name
    if not path.is_file():
        raise PartitionGoneError(
            f"Partition {name!r} is not in {top}, where this worker has its partitions. Put it back, or correct "
            f"data.folder of the study or {FOLDER_VARIABLE} of the worker."
        )
    if not path.resolve().is_relative_to(top.resolve()):
        raise PartitionGoneError(f"Partition {path} is a link out of {top}; put the file itself there.")
    if request.signature not in (None, signature_here(request, name)):
        raise PartitionGoneError(f"Partition {path} changed since this worker looked at it; it is looked at again.")
    return path


def signature_here(request: JobRequest, name: str) -> Signature | None:
    try:
        return signature_of((Path(folder_here(request.setup.partition_folder, os.environ)) / name).stat())
    except OSError:
        return None


def is_away(error: BaseException, request: JobRequest) -> bool:
    """True if an exception came of a partition of the request: it, or its file system, was not there.

    That may be over when it is looked at: a mount that blinks brings back the very same file.
    """
    top = Path(folder_here(request.setup.partition_folder, os.environ))
    paths = {top / name for name in (*request.partitions, *request.validation)}
    for one in causes(error):
        if isinstance(one, PartitionGoneError):
            return True
        if isinstance(one, OSError) and one.errno in _AWAY:
            of = one.filename.decode(errors="replace") if isinstance(one.filename, bytes) else one.filename
            if one.errno in _OF_STORAGE if of is None else Path(str(of)) in paths:
                return True
    return False


def partition_data(request: JobRequest, name: str) -> Any:
    """A partition: its path, or what ``data.load`` made of it.

    Raises:
        SpecError: ``data.load`` names no function.
        ObjectiveError: the loader raised.
        PartitionGoneError: it is not there, or is not the one that its worker looked at.
    """
    path = partition_path(request, name)
    if not request.setup.load:
        return path
    key = (request.setup.load, str(path))
    signature = signature_here(request, name)
    known = _loaded.get(key)
    if known is None or known[0] != signature:
        load = load_objective(request.setup.load, request.setup.pythonpath, setting="data.load")
        unit = request.job.unit
        _loaded.pop(key, None)
        while _loaded and (
            unit is None or (len(_loaded) >= unit.cached and sum(size for *_, size in _loaded.values()) > SMALL_BYTES)
        ):
            _loaded.popitem(last=False)  # before the next one is loaded: it may need the room
        before = resident("self")
        try:
            data = load(path)
            known = signature, data, max(resident("self") - before, path.stat().st_size)
        except Exception as error:
            what = f"could not load partition {path}: {type(error).__name__}: {error}"
            gone = signature_here(request, name) != signature or is_away(error, request)
            raise (PartitionGoneError if gone else ObjectiveError)(
                f"data.load = {request.setup.load!r} {what}"
            ) from error
        partition_path(request, name)  # still the one that was looked at
        _loaded[key] = known
    _loaded.move_to_end(key)
    return known[1]


def is_loaded(request: JobRequest, name: str) -> bool:
    try:
        path = partition_path(request, name)
        known = _loaded.get((request.setup.load, str(path)))
        return known is not None and known[0] == signature_here(request, name)
    except (ObjectiveError, OSError):
        return True  # the child says what is wrong


Evaluate = Callable[[Any], dict[str, Any]]
"""A function that returns metrics of the model on a partition of the validation data."""


class PartitionPasses:
    """Which partition is the present one, and how a model is evaluated on those of validation.

    Args:
        request: of the attempt.
    """

    def __init__(self, request: JobRequest) -> None:
        self._request = request
        self._current = next(iter((*request.partitions, *request.validation)), "")
        self._last = len(request.partitions) <= 1
        self._seen = False
        self.evaluate: Evaluate | None = None

    @property
    def trains(self) -> bool:
        """True if the attempt trains; else it evaluates alone."""
        unit = self._request.job.unit
        return unit is None or unit.trains

    @property
    def ends_epoch(self) -> bool:
        """True if the present pass is the last one of its epoch that trains."""
        unit = self._request.job.unit
        return self._last if unit is None else unit.ends_epoch

    def data(self) -> Any:
        """The present partition: its path, or what was loaded from it.

        Raises:
            ObjectiveError: the data are not partitioned, or it cannot be loaded.
        """
        if not self._current:
            raise ObjectiveError(
                "trial.partition: the data of this study are not partitioned. Name them in the study "
                "(data: {partitions: 'shards/part-*.npz'}), or read the data yourself."
            )
        found = partition_data(self._request, self._current)
        self._seen = True
        return found

    def of_epoch(self) -> Iterator[None]:
        """The passes of one epoch that this attempt makes; a single one where the data are not partitioned."""
        names = self._request.partitions or ("",)
        for place, name in enumerate(names):
            self._current, self._last = name, place == len(names) - 1
            yield

    def evaluation(self) -> Metrics:
        """Means over the partitions of validation that this attempt evaluates on, weighted; nothing without any.

        Raises:
            ObjectiveError: the training function does not say how, or a value is no real number.
        """
        sums: dict[str, list[float]] = {}
        for name, weight in zip(self._request.validation, self._request.weights, strict=True):
            if self.evaluate is None:
                raise ObjectiveError(
                    "data.validation names partitions, but the training function does not say how a model is "
                    "evaluated on one. Call trial.evaluate_with(function) before the loop, or drop data.validation."
                )
            found = self.evaluate(partition_data(self._request, name))
            self._check_unchanged(name)
            for metric, value in found.items():
                entry = sums.setdefault(metric, [0.0, 0.0])
                entry[0] += weight * reported_value(metric, value)
                entry[1] += weight
        return {metric: total / weight for metric, (total, weight) in sums.items()}

    def check(self, *, tracked: bool) -> None:
        """Refuse a model that hops without its state, or past its data, or whose data changed under it.

        Raises:
            ObjectiveError: so it is.
        """
        if not self._request.partitions:
            return
        if not tracked:
            raise ObjectiveError(
                "The model hops from partition to partition (data.partitions), but nothing is tracked, so nothing "
                "would travel. Call trial.track(model=..., optimizer=...) before the loop."
            )
        if not self._seen:
            raise ObjectiveError(
                "The training function did not read trial.partition, so it would train on the same data in each unit. "
                "Train on trial.partition in the loop over trial.steps(), or drop data.partitions of the study."
            )
        self._check_unchanged(self._current)

    def _check_unchanged(self, name: str) -> None:
        # Check the file after a unit: nobody knows when a training function that gets the path has read it.
        if self._request.job.unit is not None and not self._request.setup.load:
            partition_path(self._request, name)


Held = tuple[list[int], dict[str, str], int, bool]
"""Places of the partitions that lie here; by name, why others that are here cannot be used; a number that is larger for
each look, and each doubt, than for those before, also where this process is started again; and whether a partition is
being read now, which may then count."""


class _Watched:
    """The partitions of one study."""

    def __init__(self, folder: str, files: Sequence[PartitionFile]) -> None:
        self.asked = folder, tuple(files)
        self._places = {file.name: place for place, file in enumerate(files)}
        self.holdings = Holdings(folder_here(folder, os.environ), files)
        self._lock = threading.Lock()
        """Lock around changes of ``held``: a doubt must not be forgotten for a look that ends at the same moment."""
        self._looking = False
        self._doubts = 0
        self._looked = -float("inf")
        self.held: tuple[list[int], dict[str, str], int] = ([], {}, 0)
        self.known = threading.Event()
        """Event that is set once the first look has ended."""

    def look_soon(self) -> None:
        with self._lock:
            if self._looking or time.monotonic() < self._looked + LOOK_SECONDS:
                return
            threading.Thread(target=self._look, name="look-at-partitions", daemon=True).start()
            self._looking = True

    def _look(self) -> None:
        try:
            for _ in range(MOST_LOOKS):  # a file that was looked at may have been replaced since, and doubted
                doubts = self._doubts
                found = self.holdings.look()
                with self._lock:
                    if doubts == self._doubts:
                        self._say(sorted(self._places[name] for name in found.names), dict(found.problems))
                        self._looked = time.monotonic()
                        break
        finally:
            with self._lock:
                self._looking = False
        self.known.set()

    def doubt(self, name: str) -> int:
        """Take a partition out of what lies here until it was read again; a look that is going on begins anew.

        Returns:
            The number of the new answer.
        """
        with self._lock:
            self._doubts += 1
            self.holdings.doubt(name)
            places, problems, _ = self.held
            self._say([place for place in places if place != self._places.get(name)], problems)
            self._looked = -float("inf")
            number = self.held[2]
        self.look_soon()
        return number

    def _say(self, places: list[int], problems: dict[str, str]) -> None:
        self.held = places, problems, max(self.held[2] + 1, time.time_ns())


_watched: dict[str, _Watched] = {}
"""Watched partitions by folder of their study."""


def watch_partitions(study_folder: str, folder: str, files: Sequence[PartitionFile]) -> None:
    """Watch which of these files lie here.

    The first look computes digests, which may take long: it goes on in the background, and nothing is said before it
    has ended. Who asks again meanwhile, or later, does not make it begin anew.

    Args:
        study_folder: of the study, which tells studies apart.
        folder: of the partitions, unless the environment of this process says otherwise.
    """
    watched = _watched.get(study_folder)
    if watched is None or watched.asked != (folder, tuple(files)):
        watched = _watched[study_folder] = _Watched(folder, files)
    watched.look_soon()
    watched.known.wait(FIRST_SECONDS)


def held_partitions() -> dict[str, Held]:
    """The partitions that lay here at the last look, by folder of the study; returns at once."""
    studies = dict(_watched)
    for watched in studies.values():
        watched.look_soon()
    return {
        folder: (*watched.held, watched.holdings.reading)
        for folder, watched in studies.items()
        if watched.known.is_set()
    }


def seen_signature(study_folder: str, name: str) -> Signature | None:
    """Signature of the file that a partition was at the last look; None: any file will do."""
    watched = _watched.get(study_folder)
    return None if watched is None else watched.holdings.signatures.get(name)


def doubt_partition(study_folder: str, name: str) -> int:
    """Note that a partition was gone, or another file: it counts again once it was read again.

    Returns:
        The number of the new answer for the study.
    """
    watched = _watched.get(study_folder)
    return 0 if watched is None else watched.doubt(name)


def forget_partitions(study_folder: str) -> None:
    _watched.pop(study_folder, None)
