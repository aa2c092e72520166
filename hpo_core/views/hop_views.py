"""The units of training behind a study's results, and where the model came from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec

from hpo_core.spec import StudySpec
from hpo_core.state import StudyState, TrialRecord
from hpo_core.study import Study
from hpo_core.views.formatting import byte_count, duration, listed, plural
from hpo_core.views.summary import data_words


class HopUnit(msgspec.Struct, frozen=True, gc=False):
    """Model on a partition: a unit behind a result."""

    trial: int
    epoch: int
    """Epoch, from 0."""
    partition: int
    """Index among the study's partitions; those of validation come after the ones trained on."""
    worker: str
    started: float
    ended: float
    size: int
    """Bytes of the state that the model came with; 0: it began there."""
    trains: bool
    came_from: str
    """Worker of the trial's unit before; empty: there was none."""

    @property
    def changed_worker(self) -> bool:
        return bool(self.came_from) and self.came_from != self.worker

    @property
    def seconds(self) -> float:
        return self.ended - self.started


def hop_units(spec: StudySpec, state: StudyState, *, clock: Callable[[float], float] = float) -> list[HopUnit]:
    """Trial by trial, each in the order of its visits; empty where models do not hop.

    Args:
        clock: from recorded seconds to those that are shown.
    """
    trained_on = spec.trained_partitions
    found = []
    for trial in state.trials:
        before = ""
        for result in trial.results:
            for visit in result.visits or ():
                began = clock(visit.started)
                found.append(
                    HopUnit(
                        trial=trial.number,
                        epoch=visit.epoch,
                        partition=visit.partition,
                        worker=visit.worker,
                        started=began,
                        ended=max(began, clock(visit.ended)),
                        size=visit.size,
                        trains=visit.partition < trained_on,
                        came_from=before,
                    )
                )
                before = visit.worker
    return found


def workers_busy(units: Sequence[HopUnit]) -> float:
    """Share of the time, from the first unit to the end of the last one, that workers trained in the mean."""
    whole = max(unit.ended for unit in units) - min(unit.started for unit in units)
    workers = {unit.worker for unit in units}
    return math.fsum(unit.seconds for unit in units) / (whole * len(workers)) if whole > 0 else 0.0


class MovedBytes(msgspec.Struct, frozen=True, kw_only=True):
    """Hops of a study's models, and the bytes that they moved."""

    units: int
    epochs: int
    """Epochs of all trials together."""
    hops: int
    """Units that a model came to with a state."""
    moved: int
    """Bytes of these states."""
    changed_worker: int
    """Hops to another worker than that of the trial's unit before."""
    moved_to_others: int
    """Bytes of the states of these hops."""


def moved_bytes(units: Sequence[HopUnit]) -> MovedBytes | None:
    """Bytes that the models moved; None where no unit has ended."""
    came = [unit for unit in units if unit.size]
    changed = [unit for unit in came if unit.changed_worker]
    return None if not units else MovedBytes(
        units=len(units),
        epochs=len({(unit.trial, unit.epoch) for unit in units}),
        hops=len(came),
        moved=sum(unit.size for unit in came),
        changed_worker=len(changed),
        moved_to_others=sum(unit.size for unit in changed),
    )  # fmt: skip


VISITS_NAMED = 64
"""Maximum number of visits named in one line; an epoch may have thousands."""


def worker_name(worker: str) -> str:
    """Address of a worker without its protocol; of one in its study's process, the numbers of both.

    >>> worker_name("tcp://127.0.0.1:40001"), worker_name("inproc://192.0.2.2/4711/6")
    ('127.0.0.1:40001', 'worker 6 (pid 4711)')
    """
    if worker.startswith("inproc://"):
        _, process, number = worker.rsplit("/", 2)
        return f"worker {number} (pid {process})"
    return worker.removeprefix("tcp://").removeprefix("tls://")


def hopping_line(study: Study) -> str:
    """Line about the partitions and the units done on them; empty where models do not hop."""
    words = data_words(study.spec)
    return f"{words}; {done_words(study)}" if words else ""


def done_words(study: Study) -> str:
    units = hop_units(study.spec, study.state)
    moved = moved_bytes(units)
    if moved is None:
        return "no result yet"
    workers = plural(len({unit.worker for unit in units}), "worker")
    words = [
        f"{plural(moved.units, 'unit')} of {plural(moved.epochs, 'epoch')} on {workers}",
        f"busy {100 * workers_busy(units):.0f} % of the time",
    ]
    if moved.moved:
        words.append(f"{plural(moved.hops, 'hop')} moved {byte_count(moved.moved)}")
    return ", ".join(words)


def plain_hops(study: Study) -> dict[str, Any]:
    """Moves of a study as JSON; empty where models do not hop, or no result is there."""
    units = hop_units(study.spec, study.state)
    moved = moved_bytes(units)
    return {} if moved is None else {"moved": msgspec.to_builtins(moved), "utilization": workers_busy(units)}


def visit_lines(spec: StudySpec, trial: TrialRecord) -> Iterator[str]:
    """The partitions that a trial visited, a line for each epoch behind its results.

    ``epoch 2: part-1 on w0 (4 s), part-0 on w1 (5 s); 9 s``
    """
    names, trained_on = [file.name for file in spec.partitions], spec.trained_partitions
    for result in trial.results if names else ():
        for epoch, group in groupby(result.visits or (), key=lambda visit: visit.epoch):
            trained: list[str] = []
            evaluated: list[str] = []
            whole = 0.0
            for visit in group:
                seconds = max(0.0, visit.ended - visit.started)
                whole += seconds
                found = trained if visit.partition < trained_on else evaluated
                found.append(f"{names[visit.partition]} on {worker_name(visit.worker)} ({duration(seconds)})")
            validation = f"; validation {listed(evaluated, VISITS_NAMED)}" if evaluated else ""
            yield f"epoch {epoch}: {listed(trained, VISITS_NAMED)}{validation}; {duration(whole)}"
