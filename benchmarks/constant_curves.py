"""A search with constant learning curves: same loss at every rung, one second per unit of training.

What the paper on ASHA says about schedules (latency, stragglers, scaling, mispromotions) holds or fails here, apart
from what real learning curves do.
"""

from __future__ import annotations

from typing import Any

from hpo_core.execution.virtual import NO_FAULTS
from hpo_core.model.trial import Job
from hpo_core.simulation import Faults, Simulation, VirtualClock
from hpo_core.study import Study

NO_END = 10_000_000
"""Configurations of a search that only the clock ends."""


class Search:
    """One study on virtual workers.

    Args:
        search: the ``search`` of its spec; ``max_resource`` is R.
        resume: whether a promoted trial goes on from its checkpoint, or begins again.
    """

    def __init__(
        self, search: dict[str, Any], workers: int, *, seed: int, resume: bool, faults: Faults = NO_FAULTS
    ) -> None:
        self.clock = VirtualClock()
        self.study = Study.create(
            {
                "study": "ideal",
                "metric": {"name": "loss"},
                "space": {"quality": {"type": "float", "low": 0, "high": 1}},
                "search": search,
                "seed": seed,
                "training": {"retries": {"lost": 1_000_000_000}, "fail_fast": None},
            },
            clock=self.clock,
        )
        self.executor = Simulation(
            self.study, self.clock, workers=workers, train=self._train, seconds=self._seconds,
            checkpoints=resume, faults=faults,
        )  # fmt: skip
        self.completed: list[float] = []
        """Seconds at which trials reached R."""
        self._top = search["max_resource"]

    def _train(self, job: Job) -> dict[str, float]:
        if job.target == self._top:
            self.completed.append(self.clock.now)
        return {"loss": job.params["quality"]}

    def _seconds(self, job: Job) -> float:
        return float(job.target - (job.checkpoint.resource if job.checkpoint else 0))

    def first_completed(self, most: float) -> float:
        """Run on until a trial reached R, and say when; ``most`` where none did by then."""
        now = self.clock.now
        while not self.completed and now < most and not self.study.finished:
            now = min(most, now + self._top)
            self.executor.run(until=now)
        return min([*self.completed[:1], most])
