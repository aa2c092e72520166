"""Whole studies on virtual workers that hold partitions, and a judge that reads nothing but their journal."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from hpo_core.execution.hopping.hopping_executor import HoppingExecutor
from hpo_core.execution.loop import Loop
from hpo_core.execution.virtual import NO_FAULTS, Faults, VirtualClock, Worker
from hpo_core.journal.memory import MemoryJournal
from hpo_core.model.events import JobCompleted, JobGranted
from hpo_core.model.trial import Job, Metrics
from hpo_core.spec import StudySpec
from hpo_core.study import Study
from tests.methods import facts
from tests.virtual_units import VirtualUnits

SPACE = {"x": {"type": "float", "low": 0.0, "high": 1.0}}
METHODS: dict[str, dict[str, Any]] = {
    "random": {"method": "random", "max_resource": 2, "configs": 6},
    "asha": {"method": "asha", "min_resource": 1, "max_resource": 9, "reduction_factor": 3, "configs": 9},
    "sha": {"method": "sha", "min_resource": 1, "max_resource": 9, "reduction_factor": 3, "configs": 9},
    "hyperband": {"method": "hyperband", "max_resource": 9, "reduction_factor": 3},
    "pasha": {"method": "pasha", "min_resource": 1, "max_resource": 9, "reduction_factor": 3, "configs": 9},
    "pbt": {"method": "pbt", "population": 4, "generations": 3},
}


class VirtualHopping:
    """One study, its workers and the partitions that they hold."""

    def __init__(
        self,
        *,
        search: dict[str, Any] | None = None,
        spec: StudySpec | None = None,
        partitions: int = 3,
        validation: int = 0,
        workers: Sequence[Worker] = (Worker(), Worker()),
        holdings: Mapping[str, Iterable[str]] | None = None,
        faults: Faults = NO_FAULTS,
        counts: Sequence[int] | None = None,
        data: dict[str, Any] | None = None,
        more: dict[str, Any] | None = None,
        journal: MemoryJournal | None = None,
    ) -> None:
        self.names = [f"part-{place}" for place in range(partitions)]
        self.validation = [f"val-{place}" for place in range(validation)]
        counts = counts or [1] * (partitions + validation)
        files = [{"name": name, "count": n} for name, n in zip([*self.names, *self.validation], counts, strict=True)]
        described: dict[str, Any] = {"partitions": files[:partitions], **(data or {})}
        if validation:
            described["validation"] = files[partitions:]
        plain: Any = spec or {
            "study": "hopping",
            "objective": "lab:train",
            "metric": {"name": "loss", "mode": "min"},
            "space": SPACE,
            "search": search,
            "data": described,
            **(more or {}),
        }
        self.clock = VirtualClock()
        self.journal = journal or MemoryJournal()
        self.study = Study.create(plain, self.journal, clock=self.clock)
        everything = [*self.names, *self.validation]
        self.held = {
            f"worker-{number}": tuple((holdings or {}).get(f"worker-{number}", everything))
            for number in range(len(workers))
        }
        self.workers = workers
        self.units = VirtualUnits(
            self.clock,
            workers=workers,
            train=_train,
            seconds=_seconds,
            objectives=["loss"],
            faults=faults,
            sizes=counts,
            trained_on=partitions,
            holdings=self.held,
            state=100,
        )
        self.executor = HoppingExecutor(self.units, self.study.spec, None)
        self.loop = Loop(self.study, self.executor)

    def run(self) -> VirtualHopping:
        self.loop.run()
        return self

    def completed(self) -> list[JobCompleted]:
        return facts(self.journal.entries(self.study.name), JobCompleted)

    def orders(self) -> dict[tuple[int, int], tuple[int, ...]]:
        """By trial and epoch: the partitions that its model trained on, in order."""
        found: dict[tuple[int, int], tuple[int, ...]] = {}
        for event in self.completed():
            for visit in event.visits if isinstance(event.visits, tuple) else ():
                if visit.partition < len(self.names):
                    key = event.trial, visit.epoch
                    found[key] = (*found.get(key, ()), visit.partition)
        return found

    def judge(self) -> None:
        """The invariants of Cerebro (Section 3), from the journal alone."""
        at_worker: dict[str, list[tuple[float, float]]] = defaultdict(list)
        of_trial: dict[int, list[tuple[float, float]]] = defaultdict(list)
        origins = {
            (event.trial, event.attempt): 0 if event.checkpoint is None else event.checkpoint.resource
            for entry in self.journal.entries(self.study.name)
            for event in entry.events
            if isinstance(event, JobGranted)
        }
        names = [*self.names, *self.validation]
        for event in self.completed():
            visits = event.visits
            assert isinstance(visits, tuple)
            epochs: dict[int, list[int]] = defaultdict(list)
            for visit in visits:
                epochs[visit.epoch].append(visit.partition)
                assert names[visit.partition] in self.held[visit.worker], "a unit runs where its partition lies"
                worker = self.workers[int(visit.worker.removeprefix("worker-"))]
                assert worker.joins - 1e-3 <= visit.started <= visit.ended <= worker.leaves + 1e-3, "while it was there"
                at_worker[visit.worker].append((visit.started, visit.ended))
                of_trial[event.trial].append((visit.started, visit.ended))
            first = min(epochs)
            assert sorted(epochs) == list(range(first, event.resource)), "each epoch up to the target"
            assert first == origins[event.trial, event.attempt], "from the job's checkpoint on"
            for order in epochs.values():
                trained, evaluated = order[: len(self.names)], order[len(self.names) :]
                assert sorted(trained) == list(range(len(self.names))), "each partition once an epoch"
                assert sorted(evaluated) == list(range(len(self.names), len(names))), "then each of validation"
        for spans in (*at_worker.values(), *of_trial.values()):
            spans.sort()
            for (_, ended), (started, _) in pairwise(spans):
                assert ended <= started + 1e-9, "one unit at a time, on a worker and of a trial"


def _train(job: Job) -> Metrics:
    return {"loss": abs(job.params["x"] - 0.3) + 1.0 / job.target}


def _seconds(job: Job) -> float:
    return 6.0 + 3.0 * math.sin(7.0 * job.params["x"]) ** 2
