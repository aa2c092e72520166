"""Jobs of a study that another process drives, shown as task runs as its journal tells of them."""

from __future__ import annotations

from collections.abc import Callable

from hpo_core.model.devices.usage import Usage
from hpo_core.model.events import AttemptReported, Entry, JobGranted, JobPlaced
from hpo_core.model.trial import Job, Outcome, Report
from hpo_core.study import Study
from hpo_flows.study_run.tasks import End, TaskRuns

Clock = Callable[[], float]


class FollowedJobs:
    """A task run begins when its job is granted; where jobs share devices, once the journal says on which.

    The tags of a task run, of which one names the device, are fixed from its beginning.

    Args:
        make: the task runs, from a clock that tells the time of what is shown.
    """

    def __init__(self, study: Study, make: Callable[[Clock], TaskRuns]) -> None:
        self._study = study
        self._time = 0.0
        self._waiting: dict[tuple[int, int], Job] = {}
        """Granted, and not known to run."""
        self._ends: dict[tuple[int, int], End] = {}
        """By (trial, attempt) under way: shows its end."""
        self.tasks = make(lambda: self._time)

    def show(self, entry: Entry) -> tuple[Report | None, list[Job]]:
        """Show an entry that the study has replayed; returns the report that it took, and the jobs it granted."""
        state = self._study.state
        for event in entry.events:
            if type(event) is JobPlaced:
                self._begin((event.trial, event.attempt), event.device, event.began)
        report = entry.stimulus.report if isinstance(entry.stimulus, AttemptReported) else None
        if report is not None:
            key = report.trial, report.attempt
            self._begin(key, _device(report), min(report.started or entry.time, entry.time))
            self._end(key, report, entry.time)
        granted = [state.job(event) for event in entry.events if type(event) is JobGranted]
        if len(self._ends) + len(self._waiting) + len(granted) != len(state.running):
            self._end_stopped(granted, entry.time)
        for job in granted:
            self._waiting[job.key] = job
            if self._study.spec.packing is None:
                self._begin(job.key, "", entry.time)
        return report, granted

    def _end_stopped(self, granted: list[Job], time: float) -> None:
        """Trials were stopped while they train. Looked for in all that runs, so not at every entry."""
        running = self._study.state.running.values()
        wanted = {(grant.trial, grant.attempt) for grant in running} | {job.key for job in granted}
        for trial, attempt in self._ends.keys() - wanted:
            stopped = Report(trial=trial, attempt=attempt, outcome=Outcome.PREEMPTED, message="stopped")
            self._end((trial, attempt), stopped, time)
        self._waiting = {key: job for key, job in self._waiting.items() if key in wanted}

    def _begin(self, key: tuple[int, int], device: str, time: float) -> None:
        job = self._waiting.pop(key, None)
        if job is not None:
            self._time = time
            self._ends[key] = self.tasks.begin(job, device)

    def _end(self, key: tuple[int, int], report: Report, time: float) -> None:
        end = self._ends.pop(key, None)
        if end is not None:
            self._time = time
            end(report)


def _device(report: Report) -> str:
    """That it shared; empty: none."""
    usage = report.usage
    return usage.device if isinstance(usage, Usage) and usage.share is not None else ""
