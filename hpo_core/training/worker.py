"""Functions that a Dask worker runs, on the process's pool of trainers."""

from __future__ import annotations

import atexit
import math
import queue
import threading
from collections import deque
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from hpo_core.model.trial import RESULTS, Doubt, Outcome, Report, Unit
from hpo_core.placement.gpus import pipes_for
from hpo_core.training.child.trainer import Trainer
from hpo_core.training.partition_data import doubt_partition, seen_signature, signature_here
from hpo_core.training.request import JobRequest

_MAX_IDLE = 8
"""Trainers that are kept for the next job, for each GPU that workers of this process have of their own."""
_Attempt = tuple[str, int, int, int]
"""Folder of the study, trial, attempt, rank: unique on a worker that serves several studies."""


def _name(attempt: _Attempt) -> str:
    folder, trial, number, rank = attempt
    return f"{folder}/trial-{trial}/attempt-{number}{f'/rank-{rank}' if rank else ''}"


class _Lent(NamedTuple):
    """A trainer that runs an attempt."""

    trainer: Trainer
    unit: int | None
    """Number of the unit that it trains, where models hop."""
    worker: str
    """Address of its worker."""


class TrainerPool:
    """Lends a trainer to each running job and keeps idle ones for the next job of their objective and GPU.

    Several workers may share it, each with a GPU of its own: a trainer serves one GPU. All methods may be called from
    any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Trainer] = []
        self._running: dict[_Attempt, _Lent] = {}
        self._preparing: dict[Trainer, str] = {}
        """Trainers that import their objective, and the folder of the study that they do it for."""
        self._leaving: set[Trainer] = set()
        """Trainers that end with the attempt that they run, with the training within which their process waits, or with
        their import: their study has ended, or a newer one imports anew."""
        self._cancelled: deque[tuple[str, int, int, int | None]] = deque(maxlen=1000)
        """Attempts cancelled before they began, or units of them: these may still be on their way to this worker."""

    def run(self, request: JobRequest, folder: str | None = None) -> Report:
        """Run one job in the calling thread.

        A trainer whose process waits within the training of another trial is not lent: its answer is on its way.

        Args:
            folder: that it trains in where this computer does not see the study's, which its attempts are named by.
        """
        job = request.job
        attempt = (request.setup.folder, job.trial, job.attempt, request.gang.rank)
        unit = None if job.unit is None else job.unit.number
        setup = request.setup
        key = setup.objective, setup.pythonpath, setup.threads, request.gpu
        if folder is not None:
            request = request.with_setup(folder=folder)
        for over in request.over:  # their cancels may come later than this job
            self._let_go(attempt[0], *over)
        with self._lock:
            alike = [
                (one.distance(request), one)
                for one in reversed(self._idle)
                if one.key == key and (one not in self._leaving or one.asks_for())
            ]
            importing = [one for one, of in self._preparing.items() if (one.key, of) == (key, attempt[0])]
            nearest, trainer = min(alike, key=itemgetter(0), default=(math.inf, None))
            if trainer is not None and nearest < math.inf:
                self._idle.remove(trainer)
            elif importing:
                trainer = importing[0]
                del self._preparing[trainer]
            else:
                trainer = Trainer(setup.objective, setup.pythonpath, threads=setup.threads, gpu=request.gpu)
            trainer.study_folder = attempt[0]
            self._running[attempt] = _Lent(trainer, unit, request.worker)
            was_cancelled = any((*attempt[:3], which) in self._cancelled for which in {None, unit})
        if was_cancelled:
            trainer.cancel(job.trial, job.attempt)
        try:
            return trainer.run(request)
        finally:
            with self._lock:
                self._running.pop(attempt, None)
            self._give_back(trainer)

    def cancel(
        self, folder: str, trial: int | None = None, attempt: int | None = None, unit: int | None = None
    ) -> bool:
        """End an attempt that runs here or is on its way; return whether it was running.

        One that has reported, and whose process waits for the trial's next job, is let go.

        Args:
            folder: the study's folder.
            trial: None: every running attempt of the study. A new controller cancels these: on a cluster that outlived
                the previous one, its attempts still train in vain.
            unit: only this unit of it; later ones of the same attempt may run here.
        """
        with self._lock:
            found = [
                (key, one.trainer)
                for key, one in self._running.items()
                if key[0] == folder
                and trial in (None, key[1])
                and attempt in (None, key[2])
                and unit in (None, one.unit)
            ]
            if not found and trial is not None and attempt is not None:
                self._cancelled.append((folder, trial, attempt, unit))
        for (_, number, run, _), trainer in found:
            trainer.cancel(number, run)
        self._let_go(folder, trial, attempt)
        return bool(found)

    def _let_go(self, folder: str, trial: int | None = None, attempt: int | None = None) -> None:
        with self._lock:
            for one in self._idle:
                if (job := one.asks_for(folder)) and trial in (None, job.trial) and attempt in (None, job.attempt):
                    one.let_go()

    def cancel_on(self, worker: str) -> None:
        """End every attempt that runs on a worker, by its address."""
        with self._lock:
            found = [(key, one.trainer) for key, one in self._running.items() if one.worker == worker]
        for (_, trial, attempt, _), trainer in found:
            trainer.cancel(trial, attempt)

    def limit(self, trial: int, attempt: int, folder: str, memory: int) -> bool:
        with self._lock:
            found = self._running.get((folder, trial, attempt, 0))
        if found is not None:
            found.trainer.limit(trial, attempt, memory)
        return found is not None

    def heartbeats(self, worker: str | None = None) -> dict[str, int]:
        """A number that grows while its trainer's thread goes on, by name of every running attempt.

        Args:
            worker: address of the worker to tell of; None: all.
        """
        with self._lock:
            return {
                _name(attempt): one.trainer.heartbeats
                for attempt, one in self._running.items()
                if worker in (None, one.worker)
            }

    def processes(self, gpu: str = "") -> dict[str, list[int]]:
        """Process ids of the attempts that run, or wait for the study's answer, by folder of their study.

        Args:
            gpu: of those workers that have it of their own; empty: of those that have none.
        """
        found: dict[str, list[int]] = {}
        with self._lock:
            for (folder, *_), one in self._running.items():
                if one.trainer.child and one.trainer.gpu == gpu:
                    found.setdefault(folder, []).append(one.trainer.child)
            for trainer in self._idle:
                waiting = trainer.waiting
                if waiting is not None and trainer.gpu == gpu and trainer.asks_for():
                    found.setdefault(trainer.study_folder, []).append(waiting.pid)
        return found

    def usages(self, worker: str | None = None) -> dict[str, dict[str, Any]]:
        """Usage so far of every running attempt whose profile is complete, by its name without the rank.

        The usage is plain data: ``msgspec.convert(data, Usage)`` is the inverse.

        Args:
            worker: see :meth:`heartbeats`.
        """
        with self._lock:
            found = {
                _name((*attempt[:3], 0)): one.trainer.usage
                for attempt, one in self._running.items()
                if worker in (None, one.worker)
            }
        return {name: msgspec.to_builtins(usage) for name, usage in found.items() if usage is not None}

    def prepare(
        self,
        objective: str,
        pythonpath: Sequence[str] = (),
        threads: int | None = None,
        *,
        load: str = "",
        gpu: str = "",
        folder: str = "",
        jobs: int = 1,
    ) -> None:
        """Import the objective afresh for the next job: idle trainers may hold an older version of its code.

        It returns once one trainer has imported it.

        Args:
            threads: that its jobs compute with.
            load: ``data.load`` of the study, which is looked for as well.
            gpu: that they see; trainers of another one stay.
            folder: of the study; the import ends with it.
            jobs: number that may run here at once; each gets a trainer of its own, and these import side by side.

        Raises:
            SpecError: there is no such module or function.
            ObjectiveError: it cannot be imported.
        """
        self.close_idle(objective, pythonpath, gpu, folder=folder)
        new = [Trainer(objective, pythonpath, threads=threads, gpu=gpu) for _ in range(max(1, min(jobs, _MAX_IDLE)))]
        with self._lock:
            self._leaving |= {one for one, of in self._preparing.items() if one.key == new[0].key and of != folder}
            self._preparing |= dict.fromkeys(new, folder)
        ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

        def make_ready(trainer: Trainer) -> None:
            error: BaseException | None = None
            try:
                trainer.prepare(load)
            except BaseException as raised:
                error = raised
            with self._lock:
                is_lent = self._preparing.pop(trainer, None) is None
            if not is_lent:
                if error is not None:
                    trainer.close()
                self._give_back(trainer)
            ended.put(error)

        for trainer in new:
            threading.Thread(target=make_ready, args=[trainer], name="import-objective", daemon=True).start()
        if (error := ended.get()) is not None:
            for trainer in new:
                trainer.close()
            raise error

    def close_idle(
        self, objective: str, pythonpath: Sequence[str] = (), gpu: str | None = None, *, folder: str = ""
    ) -> None:
        """End the idle trainers of an objective, on workers that live on and serve other studies.

        One whose process waits within a training of another study ends with that training.

        Args:
            gpu: only those that see this one; None: all.
            folder: of the study that wants it.
        """
        own = objective, tuple(pythonpath)
        with self._lock:
            idle = [one for one in self._idle if one.key[:2] == own and gpu in (None, one.gpu)]
            closing = [one for one in idle if not one.asks_for() or one.study_folder == folder]
            self._leaving.difference_update(closing)
            self._leaving.update(set(idle).difference(closing))
            self._idle = [trainer for trainer in self._idle if trainer not in closing]
        for trainer in closing:
            trainer.close()

    def forget(self, folder: str, objective: str, pythonpath: Sequence[str] = ()) -> None:
        """End the trainers of a study that has ended: idle ones now, others once their cancelled attempts are over."""
        with self._lock:
            self._leaving |= {one.trainer for key, one in self._running.items() if key[0] == folder}
            preparing = [trainer for trainer, of in self._preparing.items() if of == folder]
        for trainer in preparing:
            trainer.close()
        self.close_idle(objective, pythonpath, folder=folder)

    def close_all(self, folder: str = "") -> None:
        """End every trainer, idle or not; running attempts report PREEMPTED.

        Args:
            folder: of a study: only what runs for it, whatever it does: an import may take minutes.
        """
        with self._lock:
            trainers = [one.trainer for key, one in self._running.items() if folder in ("", key[0])]
            trainers += [trainer for trainer, of in self._preparing.items() if folder in ("", of)]
            if not folder:
                trainers += self._idle
                self._idle = []
        for trainer in trainers:
            trainer.close()

    def _give_back(self, trainer: Trainer) -> None:
        with self._lock:
            if trainer.closed:
                self._leaving.discard(trainer)
            else:
                self._idle.append(trainer)
            free = [one for one in self._idle if not one.asks_for()]
            surplus = [one for one in free if one in self._leaving]
            surplus += [one for one in free if one.gpu == trainer.gpu and one not in surplus][:-_MAX_IDLE]
            self._leaving.difference_update(surplus)
            self._idle = [one for one in self._idle if one not in surplus]
        for old in surplus:
            old.close()


trainers = TrainerPool()
"""The one pool of this process: tasks of all studies that the worker serves share it."""
atexit.register(trainers.close_all)
_OF_NO_PARTITION = RESULTS | {Outcome.PREEMPTED, Outcome.STORAGE, Outcome.CHECKPOINT_BAD}
"""Outcomes of a unit that say nothing of its partition."""


def train_job(request: JobRequest, *, worker: str = "", gpu: str = "", folder: str | None = None) -> Report:
    """Run one job in a child process.

    Args:
        worker: address of the worker that runs it.
        gpu: see :attr:`JobRequest.gpu`.
        folder: see :meth:`TrainerPool.run`.
    """
    request = msgspec.structs.replace(request, worker=worker, gpu=gpu)
    portion = request.portion
    if request.job.unit is not None:
        return _train_unit(request, request.job.unit, folder)
    if portion is not None and portion.gpu and request.setup.mps:
        portion = msgspec.structs.replace(portion, mps=pipes_for(portion.device))
        request = msgspec.structs.replace(request, portion=portion)
    return trainers.run(request, folder)


def _train_unit(request: JobRequest, unit: Unit, folder: str | None) -> Report:
    name, signature = unit.partition, seen_signature(request.setup.folder, unit.partition)
    before = signature or signature_here(request, name)
    report = trainers.run(msgspec.structs.replace(request, signature=signature), folder=folder)
    unexplained = report.outcome not in _OF_NO_PARTITION and report.doubt is msgspec.UNSET
    if unexplained and signature_here(request, name) != before:
        message = f"Partition {name} changed, or went, while it was trained on: {report.message}"
        report = msgspec.structs.replace(report, outcome=Outcome.LOST, message=message, doubt=Doubt(name))
    if report.doubt is not msgspec.UNSET:
        report = msgspec.structs.replace(report, doubt=Doubt(name, doubt_partition(request.setup.folder, name)))
    return report
