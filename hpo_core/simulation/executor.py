"""An executor without threads, processes or waiting: jobs end when the virtual clock says so."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

from hpo_core.study import Study
from hpo_core.trial import Checkpoint, Job, Outcome, Report


class VirtualClock:
    """Time as data; give it to :class:`~hpo_core.study.Study` as its clock."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class SimulatedExecutor:
    """Runs a study's jobs on ``workers`` virtual workers.

    Args:
        study: its clock must be ``clock``.
        clock: moved forward by :meth:`run`.
        workers: jobs at once.
        train: what training a job gives: metrics at its target, or an outcome other than completed.
        seconds: virtual duration of a job.
        checkpoints: whether results carry a (made up) checkpoint, so that later jobs resume.
    """

    def __init__(
        self,
        study: Study,
        clock: VirtualClock,
        *,
        workers: int,
        train: Callable[[Job], dict[str, float] | Outcome],
        seconds: Callable[[Job], float],
        checkpoints: bool = True,
    ) -> None:
        self.study = study
        self.clock = clock
        self.workers = workers
        self._train = train
        self._seconds = seconds
        self._checkpoints = checkpoints
        self._heap: list[tuple[float, int, int, float, Job]] = []
        self._count = 0
        self._idle = list(range(workers - 1, -1, -1))
        self.busy_seconds = 0.0

    def run(self, until: float = float("inf"), max_reports: int | None = None) -> None:
        """Go on until the study has nothing to run, ``until`` virtual seconds, or so many reports."""
        if not self._heap:
            self._start(self.study.set_capacity(self.workers) or self.study.state.wanted())
        reports = 0
        while self._heap and self._heap[0][0] <= until and (max_reports is None or reports < max_reports):
            end, _, worker, begin, job = heapq.heappop(self._heap)
            self.clock.now = end
            self._idle.append(worker)
            self.busy_seconds += end - begin
            self._start(self.study.tell_report(self._report(job, worker, begin, end)))
            reports += 1

    def _start(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            self._count += 1
            worker = self._idle.pop()
            begin = self.clock.now
            heapq.heappush(self._heap, (begin + self._seconds(job), self._count, worker, begin, job))

    def _report(self, job: Job, worker: int, begin: float, end: float) -> Report:
        result = self._train(job)
        name = f"worker-{worker}"
        if isinstance(result, Outcome):
            return Report(
                trial=job.trial, attempt=job.attempt, outcome=result, message="simulated", worker=name,
                started=begin, ended=end,
            )  # fmt: skip
        checkpoint = None
        if self._checkpoints:
            uri = f"checkpoints/trial-{job.trial:05d}/rung-{job.rung}-attempt-{job.attempt}"
            checkpoint = Checkpoint(uri, "", job.target, 0, job.checkpoint.uri if job.checkpoint else None)
        return Report(
            trial=job.trial, attempt=job.attempt, outcome=Outcome.COMPLETED, metrics=result,
            checkpoint=checkpoint, worker=name, started=begin, ended=end,
        )  # fmt: skip
