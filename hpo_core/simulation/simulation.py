"""One study on virtual workers: the real loop with the virtual executor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from hpo_core.execution.executor import Executor
from hpo_core.execution.loop import Loop, Observer
from hpo_core.execution.virtual import VirtualClock, VirtualExecutor, Worker
from hpo_core.model.trial import Job, Metrics, Outcome
from hpo_core.placement.placer import Placer
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
        least: workers that stay; the others are there while the study can use them. None: all stay.
        more: as of the virtual executor: ``curve`` (for methods that read curves, ``study.method.reads_curves``),
            ``checkpoints`` (whether results carry a made up one, so that later jobs resume), ``faults``.
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
        least: int | None = None,
        **more: Any,
    ) -> None:
        executor = VirtualExecutor(
            clock, workers=workers, train=train, seconds=seconds, speedup=speedup, **_metrics(study), **more
        )

        if least is not None:
            executor.follow(study.demand, least)

        def expected(job: Job) -> float:
            return seconds(job) / (job.demand.slots if speedup is None else speedup(job))

        self._drive(study, executor, executor, Placer(expected))

    def _drive(
        self,
        study: Study,
        virtual: VirtualExecutor,
        executor: Executor,
        placer: Placer | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.study = study
        self.clock = virtual.clock
        self.executor = virtual
        """Counts the seconds of its workers: offered, busy, lost."""
        self._loop = Loop(study, executor, placer=placer, observers=observers)

    def run(self, until: float = math.inf, max_reports: int | None = None) -> None:
        """Go on until the study has nothing to run, the clock says ``until``, or so many reports came.

        Ends early, with the study open, where the last worker left.
        """
        self._loop.run(until=until, max_reports=max_reports)


def _metrics(study: Study) -> dict[str, Any]:
    return {"objectives": [metric.name for metric in study.spec.objectives]}
