"""What a Dask worker runs: functions over plain bytes, and the pool of trainers behind them.

Every thread that trains at the same time has a trainer of its own; idle ones wait for the next job of their
objective.
"""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Sequence

from hpo_core.training.child.trainer import Trainer
from hpo_core.training.request import decode_request, encode_report

_MOST_IDLE = 8
_lock = threading.Lock()
_idle: list[Trainer] = []
_running: dict[tuple[str, int, int], Trainer] = {}
_cancelled: deque[tuple[str, int, int]] = deque(maxlen=1000)
"""Attempts cancelled before they began: their job may still be on its way to this worker."""


def train_job(request_bytes: bytes) -> bytes:
    """Run one encoded JobRequest in a child process and return the encoded Report."""
    request = decode_request(request_bytes)
    fence = (request.folder, request.job.trial, request.job.attempt)
    trainer = _take(request.objective, request.pythonpath)
    with _lock:
        _running[fence] = trainer
        too_late = fence in _cancelled
    if too_late:
        trainer.cancel(*fence[1:])
    try:
        return encode_report(trainer.run(request))
    finally:
        with _lock:
            _running.pop(fence, None)
        _give_back(trainer)


def cancel_job(trial: int, attempt: int, folder: str | None = None) -> bool:
    """End an attempt, running or still to come; whether one of that number was running here.

    Give the study's folder where several studies share the workers: names may repeat, folders do not.
    """
    with _lock:
        found = [
            trainer
            for (where, *numbers), trainer in _running.items()
            if numbers == [trial, attempt] and folder in (None, where)
        ]
        if not found and folder is not None:
            _cancelled.append((folder, trial, attempt))
    for trainer in found:
        trainer.cancel(trial, attempt)
    return bool(found)


def beats() -> dict[str, int]:
    """For every attempt that runs here a number that grows as long as its trainer goes on."""
    with _lock:
        return {attempt_name(*fence): trainer.beats for fence, trainer in _running.items()}


def attempt_name(folder: str, trial: int, attempt: int) -> str:
    """One name for an attempt of a study on workers that serve several."""
    return f"{folder}/trial-{trial}/attempt-{attempt}"


def cancel_study(folder: str) -> int:
    """End every running attempt of the study in ``folder``; how many there were.

    A new controller calls it: on a cluster that outlived the one before, its attempts still train in vain.
    """
    with _lock:
        found = [(fence, trainer) for fence, trainer in _running.items() if fence[0] == folder]
    for (_, trial, attempt), trainer in found:
        trainer.cancel(trial, attempt)
    return len(found)


def prepare_worker(objective: str, pythonpath: Sequence[str] = ()) -> None:
    """Import the objective afresh for the next job: idle trainers may hold an older version of its code.

    Raises:
        SpecError: there is no such module or function.
        ObjectiveError: it cannot be imported.
    """
    close_idle(objective, pythonpath)
    trainer = Trainer(objective, tuple(pythonpath))
    trainer.prepare()
    _give_back(trainer)


def close_idle(objective: str, pythonpath: Sequence[str] = ()) -> None:
    """End the idle trainers of an objective: for workers that live on and serve other studies."""
    key = (objective, tuple(pythonpath))
    with _lock:
        done = [trainer for trainer in _idle if (trainer.objective, trainer.pythonpath) == key]
        _idle[:] = [trainer for trainer in _idle if trainer not in done]
    for trainer in done:
        trainer.close()


def close_all() -> None:
    """End every trainer of this process, idle or not; attempts that run are preempted."""
    with _lock:
        trainers = [*_idle, *_running.values()]
        _idle.clear()
    for trainer in trainers:
        trainer.close()


def _take(objective: str, pythonpath: tuple[str, ...]) -> Trainer:
    with _lock:
        for trainer in reversed(_idle):
            if (trainer.objective, trainer.pythonpath) == (objective, pythonpath):
                _idle.remove(trainer)
                return trainer
    return Trainer(objective, pythonpath)


def _give_back(trainer: Trainer) -> None:
    with _lock:
        if not trainer.closed:
            _idle.append(trainer)
        surplus = _idle[:-_MOST_IDLE]
        del _idle[:-_MOST_IDLE]
    for old in surplus:
        old.close()


atexit.register(close_all)
