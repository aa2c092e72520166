"""Functions that a Dask worker runs: over plain bytes, on the process's pool of trainers."""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from hpo_core.model.hops import Doubt, Unit
from hpo_core.model.trial import RESULTS, Outcome, Report
from hpo_core.placement.mps import MpsDaemons
from hpo_core.training.child.trainer import Trainer
from hpo_core.training.partition_data import doubt_partition, seen_signature, signature_here
from hpo_core.training.request import JobRequest, decode_request, encode_report
from hpo_core.training.visible_devices import seen_devices, watch_devices

_MAX_IDLE = 8
_Attempt = tuple[str, int, int, int]
"""Folder of the study, trial, attempt, rank: unique on a worker that serves several studies."""


def _name(attempt: _Attempt) -> str:
    """``FOLDER/trial-T/attempt-A[/rank-R]``."""
    folder, trial, number, rank = attempt
    return f"{folder}/trial-{trial}/attempt-{number}{f'/rank-{rank}' if rank else ''}"


class TrainerPool:
    """Lends a trainer to each running job and keeps idle ones for the next job of their objective.

    All methods may be called from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Trainer] = []
        self._running: dict[_Attempt, Trainer] = {}
        self._units: dict[_Attempt, int | None] = {}
        """Numbers of the units that they train, where models hop."""
        self._cancelled: deque[tuple[str, int, int, int | None]] = deque(maxlen=1000)
        """Attempts cancelled before they began, or units of them: these may still be on their way to this worker."""

    def run(self, request: JobRequest) -> Report:
        """Run one job in the calling thread."""
        attempt = (request.folder, request.job.trial, request.job.attempt, request.rank)
        unit = None if request.job.unit is None else request.job.unit.number
        trainer = self._take(request)
        with self._lock:
            self._running[attempt] = trainer
            self._units[attempt] = unit
            was_cancelled = any((*attempt[:3], which) in self._cancelled for which in {None, unit})
        if was_cancelled:
            trainer.cancel(request.job.trial, request.job.attempt)
        try:
            return trainer.run(request)
        finally:
            with self._lock:
                self._running.pop(attempt, None)
                self._units.pop(attempt, None)
            self._give_back(trainer)

    def cancel(self, trial: int, attempt: int, folder: str | None = None, unit: int | None = None) -> bool:
        """End an attempt that runs here or is on its way; return whether it was running.

        Args:
            folder: the study's folder; None matches every study, but only attempts that are running already.
            unit: only this unit of it; later ones of the same attempt may run here.
        """
        with self._lock:
            trainers = [
                trainer
                for key, trainer in self._running.items()
                if key[1:3] == (trial, attempt) and folder in (None, key[0]) and unit in (None, self._units[key])
            ]
            if not trainers and folder is not None:
                self._cancelled.append((folder, trial, attempt, unit))
        for trainer in trainers:
            trainer.cancel(trial, attempt)
        return bool(trainers)

    def limit(self, trial: int, attempt: int, folder: str, memory: int) -> bool:
        """Lower the limit of an attempt's memory, in bytes, see :meth:`Trainer.limit`; return whether it runs here."""
        with self._lock:
            trainer = self._running.get((folder, trial, attempt, 0))
        if trainer is not None:
            trainer.limit(trial, attempt, memory)
        return trainer is not None

    def cancel_study(self, folder: str) -> int:
        """End every running attempt of the study in ``folder``; return how many there were.

        A new controller calls it: on a cluster that outlived the previous one, its attempts still train in vain.
        """
        with self._lock:
            found = [(attempt, trainer) for attempt, trainer in self._running.items() if attempt[0] == folder]
        for (_, trial, attempt, _), trainer in found:
            trainer.cancel(trial, attempt)
        return len(found)

    def heartbeats(self) -> dict[str, int]:
        """A number that grows while its trainer's thread goes on, by name of every running attempt."""
        with self._lock:
            return {_name(attempt): trainer.heartbeats for attempt, trainer in self._running.items()}

    def processes(self) -> dict[str, list[int]]:
        """Process ids of the attempts that run, by folder of their study."""
        found: dict[str, list[int]] = {}
        with self._lock:
            for (folder, *_), trainer in self._running.items():
                if trainer.child:
                    found.setdefault(folder, []).append(trainer.child)
        return found

    def usages(self) -> dict[str, dict[str, Any]]:
        """Usage so far of every running attempt whose profile is complete, by its name without the rank.

        The usage is plain data: ``msgspec.convert(data, Usage)`` is the inverse.
        """
        with self._lock:
            found = {_name((*attempt[:3], 0)): trainer.usage for attempt, trainer in self._running.items()}
        return {name: msgspec.to_builtins(usage) for name, usage in found.items() if usage is not None}

    def prepare(
        self, objective: str, pythonpath: Sequence[str] = (), threads: int | None = None, *, load: str = ""
    ) -> None:
        """Import the objective afresh for the next job: idle trainers may hold an older version of its code.

        Args:
            threads: that its jobs compute with.
            load: ``data.load`` of the study, which is looked for as well.

        Raises:
            SpecError: there is no such module or function.
            ObjectiveError: it cannot be imported.
        """
        self.close_idle(objective, pythonpath)
        trainer = Trainer(objective, pythonpath, threads=threads)
        trainer.prepare(load)
        self._give_back(trainer)

    def close_idle(self, objective: str, pythonpath: Sequence[str] = ()) -> None:
        """End the idle trainers of an objective, on workers that live on and serve other studies."""
        key = (objective, tuple(pythonpath))
        with self._lock:
            closing = [trainer for trainer in self._idle if (trainer.objective, trainer.pythonpath) == key]
            self._idle = [trainer for trainer in self._idle if trainer not in closing]
        for trainer in closing:
            trainer.close()

    def close_all(self) -> None:
        """End every trainer, idle or not; running attempts report PREEMPTED."""
        with self._lock:
            trainers = [*self._idle, *self._running.values()]
            self._idle = []
        for trainer in trainers:
            trainer.close()

    def _take(self, request: JobRequest) -> Trainer:
        key = (request.objective, request.pythonpath, request.threads)
        with self._lock:
            for trainer in reversed(self._idle):
                if (trainer.objective, trainer.pythonpath, trainer.threads) == key:
                    self._idle.remove(trainer)
                    return trainer
        return Trainer(request.objective, request.pythonpath, threads=request.threads)

    def _give_back(self, trainer: Trainer) -> None:
        with self._lock:
            if not trainer.closed:
                self._idle.append(trainer)
            surplus = self._idle[:-_MAX_IDLE]
            self._idle = self._idle[-_MAX_IDLE:]
        for old in surplus:
            old.close()


_pool = TrainerPool()
"""The one pool of this process: tasks of all studies that the worker serves share it."""
atexit.register(_pool.close_all)
cancel_job = _pool.cancel
cancel_study = _pool.cancel_study
close_all = _pool.close_all
close_idle = _pool.close_idle
heartbeats = _pool.heartbeats
limit_job = _pool.limit
prepare_worker = _pool.prepare
usages = _pool.usages
_OF_NO_PARTITION = RESULTS | {Outcome.PREEMPTED, Outcome.STORAGE, Outcome.CHECKPOINT_BAD}
"""Outcomes of a unit that say nothing of its partition."""
_mps = MpsDaemons()
"""Daemons of the GPUs that jobs of this process share."""


def train_job(request_bytes: bytes) -> bytes:
    """Run one encoded JobRequest in a child process and return the encoded Report."""
    request = decode_request(request_bytes)
    if (unit := request.job.unit) is not None:
        return _train_unit(request, unit)
    share = request.portion
    if share is None or not share.gpu or not request.mps:
        return _encoded(request, _pool.run(request))
    with _mps.used(share.device) as pipes:
        shared = msgspec.structs.replace(request, portion=msgspec.structs.replace(share, mps=pipes))
        return _encoded(request, _pool.run(shared))


def _train_unit(request: JobRequest, unit: Unit) -> bytes:
    name, signature = unit.partition, seen_signature(request.folder, unit.partition)
    before = signature or signature_here(request, name)
    report = _pool.run(msgspec.structs.replace(request, signature=signature))
    unexplained = report.outcome not in _OF_NO_PARTITION and report.doubt is msgspec.UNSET
    if unexplained and signature_here(request, name) != before:
        message = f"Partition {name} changed, or went, while it was trained on: {report.message}"
        report = msgspec.structs.replace(report, outcome=Outcome.LOST, message=message, doubt=Doubt(name))
    if report.doubt is not msgspec.UNSET:
        report = msgspec.structs.replace(report, doubt=Doubt(name, doubt_partition(request.folder, name)))
    return _encoded(request, report)


def lost_report(request_bytes: bytes, message: str) -> bytes:
    """The encoded Report of a job that nobody trained."""
    request = decode_request(request_bytes)
    return _encoded(request, request.report(Outcome.LOST, message, started=0.0, ended=0.0))


def _encoded(request: JobRequest, report: Report) -> bytes:
    unit = request.job.unit
    return encode_report(report if unit is None else msgspec.structs.replace(report, unit=unit.number))


def share_devices(kind: str) -> str:
    """Look at the devices of this computer from now on, for jobs to share them (:mod:`visible_devices`).

    Args:
        kind: ``gpu``, ``cpu`` or ``auto``.

    Returns:
        Why no GPU can be seen; empty where one can, or none was asked for.
    """
    return watch_devices(kind, _pool.processes)


def start_mps() -> str:
    """Start the MPS daemons of the GPUs that :func:`share_devices` sees; returns why some have none, or nothing."""
    seen = {name: facts for devices in seen_devices().values() for name, facts in devices.items()}
    return _mps.prepare(name for name, facts in seen.items() if facts["gpu"])
