"""One study on virtual workers: the real loop with the virtual executor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from hpo_core.execution.loop import Loop
from hpo_core.execution.virtual import NO_FAULTS, Faults, VirtualClock, VirtualExecutor, Worker
from hpo_core.model.trial import Job, Metrics, Outcome, Point
from hpo_core.placement import Slots
from hpo_core.study import Study


class Simulation:
    """Drives a study in virtual time.

    Args:
        study: its clock must be ``clock``.
        clock: moved forward by :meth:`run`.
        workers: how many of speed 1, or each one.
        train: what training a job gives: metrics at its target, or an outcome other than completed.
        seconds: virtual duration of a job on a worker of speed 1.
        speedup: how many times as fast a gang trains as one worker; default: as many times as it has ranks.
        curve: metrics on the way to the target, for methods that read curves (``study.method.reads_curves``).
        checkpoints: whether results carry a (made up) checkpoint, so that later jobs resume.
        faults: stragglers and drops.
    """

    def __init__(
        self,
        study: Study,
        clock: VirtualClock,
        *,
        workers: int | Sequence[Worker],
        train: Callable[[Job], Metrics | Outcome],
        seconds: Callable[[Job], float],
        speedup: Callable[[Job], float] | None = None,
        curve: Callable[[Job], Sequence[Point]] | None = None,
        checkpoints: bool = True,
        faults: Faults = NO_FAULTS,
    ) -> None:
        self.study = study
        self.clock = clock
        self.executor = VirtualExecutor(
            clock,
            workers=workers,
            train=train,
            seconds=seconds,
            speedup=speedup,
            objectives=[metric.name for metric in study.spec.objectives],
            curve=curve,
            checkpoints=checkpoints,
            faults=faults,
        )

        def expected(job: Job) -> float:
            return seconds(job) / (job.demand.slots if speedup is None else speedup(job))

        gangs = study.spec.gangs
        self._loop = Loop(study, self.executor, placer=Slots(expected) if gangs else None)

    def run(self, until: float = math.inf, max_reports: int | None = None) -> None:
        """Go on until the study has nothing to run, the clock says ``until``, or so many reports came.

        Ends early, with the study open, where the last worker left.
        """
        self._loop.run(until=until, max_reports=max_reports)

    @property
    def offered_seconds(self) -> float:
        """Time in which workers were there, until now."""
        return self.executor.offered_seconds

    @property
    def busy_seconds(self) -> float:
        """Time in which workers ran attempts, good or bad."""
        return self.executor.busy_seconds

    @property
    def lost_seconds(self) -> float:
        """Part of it that ended without a result."""
        return self.executor.lost_seconds

    @property
    def utilization(self) -> float:
        """Share of the workers' time so far in which they ran something."""
        return self.executor.utilization
