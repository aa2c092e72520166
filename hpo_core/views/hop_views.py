"""The units of training behind a study's results, and where the model came from."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec

from hpo_core.model.partition_file import PartitionFile, natural_order
from hpo_core.model.trial import Visit
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
        """True if the model hopped here from another worker."""
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


class WorkerUse(msgspec.Struct, frozen=True, kw_only=True):
    """A worker over all units."""

    worker: str
    units: int
    partitions: int
    """Different ones that models visited there."""
    seconds: float
    """Seconds that its units took."""
    utilization: float
    """Share of the time from the first unit of any worker to the end of the last one."""
    models: int
    """Times that a model came from another worker."""
    received: int
    """Bytes of their states."""


class PartitionUse(msgspec.Struct, frozen=True, kw_only=True):
    """A partition over all units."""

    name: str
    trains: bool
    """False: models are evaluated on it."""
    count: int | None
    """Examples, where that is known."""
    bytes: int | None
    units: int
    seconds: float
    workers: tuple[str, ...]
    """Workers where models visited it; the journal does not hold who else has a copy."""


def worker_uses(units: Sequence[HopUnit]) -> list[WorkerUse]:
    """Use of each worker, sorted by name."""
    by_worker: dict[str, list[HopUnit]] = defaultdict(list)
    for unit in units:
        by_worker[unit.worker].append(unit)
    whole = max((unit.ended for unit in units), default=0.0) - min((unit.started for unit in units), default=0.0)
    found = []
    for worker, own in sorted(by_worker.items(), key=lambda item: natural_order(item[0])):
        came = [unit for unit in own if unit.changed_worker]
        seconds = math.fsum(unit.seconds for unit in own)
        found.append(
            WorkerUse(
                worker=worker,
                units=len(own),
                partitions=len({unit.partition for unit in own}),
                seconds=seconds,
                utilization=seconds / whole if whole > 0 else 0.0,
                models=len(came),
                received=sum(unit.size for unit in came),
            )
        )
    return found


def mean_utilization(uses: Sequence[WorkerUse]) -> float:
    """Mean utilization of at least one worker."""
    return math.fsum(use.utilization for use in uses) / len(uses)


def partition_uses(files: Sequence[PartitionFile], trained_on: int, units: Sequence[HopUnit]) -> list[PartitionUse]:
    """Use of each partition in their order, also of those that no model visited yet.

    Args:
        files: all partitions, those of validation at the end.
        trained_on: so many of them are trained on.
        units: of the study.
    """
    by_place: dict[int, list[HopUnit]] = defaultdict(list)
    for unit in units:
        by_place[unit.partition].append(unit)
    return [
        PartitionUse(
            name=file.name,
            trains=place < trained_on,
            count=file.count,
            bytes=file.bytes,
            units=len(by_place[place]),
            seconds=math.fsum(unit.seconds for unit in by_place[place]),
            workers=tuple(sorted({unit.worker for unit in by_place[place]}, key=natural_order)),
        )
        for place, file in enumerate(files)
    ]


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


class PartitionNames(msgspec.Struct, frozen=True):
    """Names of a study's partitions."""

    all: tuple[str, ...]
    """Names of all partitions, those of validation at the end."""
    trained_on: int
    """Number of partitions that are trained on."""

    @classmethod
    def of(cls, spec: StudySpec) -> PartitionNames | None:
        """Names of a study's partitions; None where models do not hop."""
        names, trained_on = [file.name for file in spec.partitions], spec.trained_partitions
        if not names:
            return None
        return cls(tuple(names), trained_on)


VISITS_NAMED = 64
"""Maximum number of visits named in one line; an epoch may have thousands."""


Named = tuple[str, str, float]
"""Partition, worker and seconds of a visit."""


class EpochVisits(msgspec.Struct, frozen=True):
    """Visits of one epoch of a trial, unit by unit."""

    epoch: int
    """Epoch, from 0."""
    trained: list[Named]
    """In the order of the visits."""
    evaluated: list[Named]
    """Evaluations on validation data."""

    @property
    def seconds(self) -> float:
        """Seconds that its units took."""
        return math.fsum(seconds for *_, seconds in (*self.trained, *self.evaluated))

    @property
    def line(self) -> str:
        """``epoch 2: part-1 on w0 (4 s), part-0 on w1 (5 s); 9 s``."""
        validation = f"; validation {_listed(self.evaluated)}" if self.evaluated else ""
        return f"epoch {self.epoch}: {_listed(self.trained)}{validation}; {duration(self.seconds)}"


def epochs_of(visits: Sequence[Visit], names: PartitionNames) -> list[EpochVisits]:
    """Visits of one job, by epoch."""

    def named(visit: Visit) -> Named:
        known = visit.partition < len(names.all)
        name = names.all[visit.partition] if known else f"partition {visit.partition}"
        return name, worker_name(visit.worker), max(0.0, visit.ended - visit.started)

    found = []
    for epoch, group in groupby(visits, key=lambda visit: visit.epoch):
        trained: list[Named] = []
        evaluated: list[Named] = []
        for visit in group:
            (trained if visit.partition < names.trained_on else evaluated).append(named(visit))
        found.append(EpochVisits(epoch, trained, evaluated))
    return found


def worker_name(worker: str) -> str:
    """Address of a worker without its protocol; of one in its study's process, the numbers of both.

    >>> worker_name("tcp://127.0.0.1:40001"), worker_name("inproc://192.0.2.2/4711/6")
    ('127.0.0.1:40001', 'worker 6 of process 4711')
    """
    if worker.startswith("inproc://"):
        _, process, number = worker.rsplit("/", 2)
        return f"worker {number} of process {process}"
    return worker.removeprefix("tcp://").removeprefix("tls://")


def _listed(units: Sequence[Named]) -> str:
    return listed([f"{name} on {worker} ({duration(seconds)})" for name, worker, seconds in units], VISITS_NAMED)


def hopping_line(study: Study) -> str:
    """Line about the partitions and the units done on them; empty where models do not hop."""
    words = data_words(study.spec)
    return f"{words}; {done_words(study)}" if words else ""


def done_words(study: Study) -> str:
    units = hop_units(study.spec, study.state)
    moved = moved_bytes(units)
    if moved is None:
        return "no result yet"
    uses = worker_uses(units)
    words = [
        f"{plural(moved.units, 'unit')} of {plural(moved.epochs, 'epoch')} on {plural(len(uses), 'worker')}",
        f"busy {100 * mean_utilization(uses):.0f} % of the time",
    ]
    if moved.moved:
        words.append(f"{plural(moved.hops, 'hop')} moved {byte_count(moved.moved)}")
    return ", ".join(words)


def plain_hops(study: Study) -> dict[str, Any]:
    """Moves, workers and partitions of a study as JSON; empty where models do not hop, or no result is there."""
    spec = study.spec
    units = hop_units(spec, study.state)
    moved = moved_bytes(units)
    if moved is None:
        return {}
    return {
        "moved": msgspec.to_builtins(moved),
        "workers": msgspec.to_builtins(worker_uses(units)),
        "partitions": msgspec.to_builtins(partition_uses(spec.partitions, spec.trained_partitions, units)),
    }


def visit_lines(spec: StudySpec, trial: TrialRecord) -> Iterator[str]:
    """The partitions that a trial visited, a line for each epoch behind its results."""
    names = PartitionNames.of(spec)
    if names is None:
        return
    for result in trial.results:
        yield from (epoch.line for epoch in epochs_of(result.visits or (), names))


def plain_visits(spec: StudySpec, trial: TrialRecord) -> list[dict[str, Any]]:
    """The visits behind a trial's results in their order, for programs and tables."""
    names = [file.name for file in spec.partitions]
    return [
        {
            "epoch": visit.epoch,
            "partition": names[visit.partition],
            "worker": visit.worker,
            "started": visit.started,
            "ended": visit.ended,
            "bytes": visit.size,
        }
        for result in trial.results
        for visit in result.visits or ()
    ]
