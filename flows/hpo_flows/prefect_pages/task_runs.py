"""Task runs of a study: its jobs, as the journal tells of them.

A task run is a projection of journal entries. Its states reach Prefect as events, the way Prefect's own engine (3.0 and
later) reports them, with the times of the journal; no task waits for a job, and no thread is held. The id of a task run
follows from flow run and job, so that a state which is sent again changes nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid5

from prefect.client.schemas.objects import State
from prefect.events import emit_event
from prefect.states import Completed, Crashed, Failed, Running

from hpo_core.model.devices.measurement import Usage
from hpo_core.model.events import AttemptReported, Entry, JobGranted, JobPlaced, StudyExtended
from hpo_core.model.hops import units_of
from hpo_core.model.trial import RESULTS, Further, Generation, Job, Outcome, Report, Rung
from hpo_core.security.untrusted_text import terminal_text
from hpo_core.spec import StudySpec
from hpo_core.spec.assembly import create_method
from hpo_core.study import Study
from hpo_core.views.hop_views import PartitionNames, epoch_lines, hops_in_short
from hpo_core.views.rungs import is_unlimited

JOB_GRAIN_LIMIT = 300
"""Most expected task runs of jobs, or of units; Prefect's timeline of more is a grey line."""
EPOCHS_LISTED = 200
"""Most epochs in the log of one job whose model hops; the study's journal has all of them."""
_DEVICE_NAME = 24
"""Most characters of a device's name in a tag."""
_AWAY = frozenset({Outcome.LOST, Outcome.PREEMPTED})

Log = Callable[[int, str, float, "UUID | None"], None]
"""Writes a line of the flow run's log: level, words, seconds since the epoch, and the task run that it is about."""


def is_per_rung(spec: StudySpec, extra: int = 0) -> bool:
    """Whether a study has a task run per rung, and not per job (``prefect`` of the spec)."""
    jobs = expected_jobs(spec, extra)
    return spec.prefect == "rungs" or (spec.prefect != "jobs" and (jobs is None or jobs > JOB_GRAIN_LIMIT))


def expected_jobs(spec: StudySpec, extra: int = 0) -> int | None:
    """Jobs a study will have if nothing fails, mispromotions aside; ``extra`` configurations were asked for later.

    Where only a stop rule ends it: as many as ``total_resource`` pays for at most, or None where that is not limited.
    """
    method = create_method(spec)
    if extra:
        method.apply(StudyExtended(extra))
    rungs = method.rungs()
    known = [] if is_unlimited(spec) else [sum(rung.expected for rung in rungs)]
    if spec.stop.total_resource is not None:
        known.append(spec.stop.total_resource // (spec.repeats * min(rung.level for rung in rungs)) + 1)
    return min(known, default=None)


@dataclasses.dataclass(slots=True)
class ShownTaskRun:
    """A task run as it was last sent."""

    key: str
    """Tells it from the flow run's others."""
    kind: str
    name: str
    tags: list[str]
    began: datetime
    last_end: datetime
    """When a job in it ended last."""
    id: UUID
    state: State[Any] | None = None
    ended: datetime | None = None
    under_way: int = 0
    """Jobs in it that run."""
    counts: list[int] = dataclasses.field(default_factory=lambda: [0, 0])
    """Jobs that completed, attempts that failed."""

    def enter(self, state: State[Any]) -> None:
        """Enter a state; Prefect takes one only where its time is later than that of the state before."""
        if self.state is not None and state.timestamp <= self.state.timestamp:
            state.timestamp = self.state.timestamp + timedelta(microseconds=1)
        self.state = state


class TaskRuns:
    """The task runs of a study in one flow run: one for each job, or one for each rung or generation.

    A task run begins when its job is granted; where jobs share devices, once the journal says on which, for its tags
    name the device. A rung's is over once none of its jobs runs and another rung begins, and runs again with its next
    job.

    Args:
        study: replayed by the caller, entry by entry.
        log: takes lines about single jobs.
    """

    def __init__(self, study: Study, flow_run: UUID, log: Log) -> None:
        self._study = study
        self._flow_run = flow_run
        self._log = log
        self._per_rung = is_per_rung(study.spec, study.state.extra_configs)
        self._partitions = PartitionNames.of(study.spec)
        self._shows_units = not self._per_rung and _expected_units(study, self._partitions) <= JOB_GRAIN_LIMIT
        self._waiting: dict[tuple[int, int], Job] = {}
        """(trial, attempt) granted, and not known to run."""
        self._running: dict[tuple[int, int], tuple[Job, ShownTaskRun]] = {}
        self._told: set[str] = set()
        """Messages of failures whose traceback is in a log already."""
        self.shown: dict[str, ShownTaskRun] = {}

    def show(self, entry: Entry) -> tuple[Report | None, list[Job]]:
        """Show an entry that the study has replayed; returns the report that it took, and the jobs it granted."""
        state = self._study.state
        for event in entry.events:
            if type(event) is JobPlaced:
                self._begin((event.trial, event.attempt), event.device, event.began)
        report = entry.stimulus.report if isinstance(entry.stimulus, AttemptReported) else None
        if report is not None:
            key = report.trial, report.attempt
            self._begin(key, _shared_device(report), min(report.started or entry.time, entry.time))
            self._end(key, report, entry.time)
        granted = [state.job(event) for event in entry.events if type(event) is JobGranted]
        if len(self._running) + len(self._waiting) + len(granted) != len(state.running):
            self._end_stopped(granted, entry.time)
        for job in granted:
            self._waiting[job.key] = job
            if state.trains(job.trial):
                self._begin(job.key, "", entry.time)
        return report, granted

    def close(self, time: float) -> None:
        """End what still runs: a job whose controller stopped gets no report."""
        for trial, attempt in list(self._running):
            lost = Report(trial=trial, attempt=attempt, outcome=Outcome.LOST, message="its controller stopped")
            self._end((trial, attempt), lost, time)
        self._end_idle_rungs()

    def send_again(self, known: set[UUID]) -> None:
        """Send the last state of each task run whose id is not among those that Prefect holds with a final state."""
        for shown in self.shown.values():
            if shown.id not in known:
                self._send(shown)

    def _end_stopped(self, granted: list[Job], time: float) -> None:
        """Trials were stopped while they train. Looked for in all that runs, so not at every entry."""
        running = self._study.state.running.values()
        wanted = {(grant.trial, grant.attempt) for grant in running} | {job.key for job in granted}
        for trial, attempt in self._running.keys() - wanted:
            stopped = Report(trial=trial, attempt=attempt, outcome=Outcome.PREEMPTED, message="stopped")
            self._end((trial, attempt), stopped, time)
        self._waiting = {key: job for key, job in self._waiting.items() if key in wanted}

    def _begin(self, key: tuple[int, int], device: str, time: float) -> None:
        job = self._waiting.pop(key, None)
        if job is None:
            return
        names = _Names(job)
        place = names.rung if self._per_rung else f"{job.trial}/{job.attempt}"
        when = _moment(time)
        shown = self.shown.get(place)
        if shown is None or shown.ended is not None:
            if self._per_rung:
                self._end_idle_rungs()
            if shown is None:
                if self._per_rung:
                    shown = self._new(place, place, names.rung_kind, tags=names.tags, began=when)
                else:
                    tags = [*names.tags, *names.member_tags, *device_tags(device)]
                    shown = self._new(place, names.job, names.job_kind, tags=tags, began=when)
            shown.ended = None
            shown.enter(Running(timestamp=when))
            self._send(shown)
        shown.under_way += 1
        self._running[key] = job, shown

    def _end(self, key: tuple[int, int], report: Report, time: float) -> None:
        job, shown = self._running.pop(key, (None, None))
        if job is None or shown is None:
            return
        shown.under_way -= 1
        good = report.outcome in RESULTS
        shown.counts[not good] += 1
        shown.last_end = when = _moment(time)
        state = final_state(report, self._study.spec.metric.name, when)
        if self._per_rung:
            line = state.message
            if self._partitions is not None and report.visits:
                line = f"{line} ({hops_in_short(report.visits, report.together)})"
            self._log(logging.INFO if good else logging.ERROR, f"{_Names(job).job}: {line}", time, shown.id)
            return
        for line in visit_lines(report, self._partitions):
            self._log(logging.INFO, line, time, shown.id)
        if not good:
            self._log(logging.ERROR, f"{report.outcome}: {self._failure(report)}", time, shown.id)
        shown.ended = when
        shown.enter(state)
        self._send(shown)
        if self._shows_units:
            self._show_units(job, report)

    def _end_idle_rungs(self) -> None:
        for shown in self.shown.values():
            if self._per_rung and shown.ended is None and not shown.under_way:
                completed, failed = shown.counts
                words = f"{completed} jobs completed, {failed} attempts failed"
                shown.ended = shown.last_end
                shown.enter(Completed(message=words, timestamp=shown.last_end))
                self._send(shown)

    def _show_units(self, job: Job, report: Report) -> None:
        """Show each unit of a model that hops: its sub-epoch on one partition, or on those of a gang."""
        assert self._partitions is not None
        of_job = _Names(job)
        for unit in units_of(report.visits or (), report.together):
            names = [terminal_text(self._partitions.all[visit.partition]) for visit in unit]
            first, last = min(visit.started for visit in unit), max(visit.ended for visit in unit)
            name = f"{of_job.job}/epoch-{unit[0].epoch}/{'+'.join(names)}"
            shown = self._new(f"{job.attempt}/{name}", name, "unit", tags=of_job.tags, began=_moment(first))
            shown.ended = _moment(last)
            where = ", ".join(terminal_text(visit.worker) for visit in unit)
            shown.enter(Completed(message=f"on {where}", timestamp=shown.ended))
            self._send(shown)

    def _failure(self, report: Report) -> str:
        """One traceback for each message: fifty trials that fail alike need no fifty of them."""
        known = report.message in self._told
        self._told.add(report.message)
        return terminal_text(report.message if known else f"{report.message}\n{report.detail}", lines=True)

    def _new(self, key: str, name: str, kind: str, *, tags: list[str], began: datetime) -> ShownTaskRun:
        shown = ShownTaskRun(
            key=key, kind=kind, name=name, tags=tags, began=began, last_end=began, id=uuid5(self._flow_run, key)
        )
        self.shown[key] = shown
        return shown

    def _send(self, shown: ShownTaskRun) -> None:
        """Tell Prefect the state of a task run."""
        state = shown.state
        assert state is not None
        began, ended = shown.began, shown.ended
        tags = sorted({*shown.tags, "hpo", self._study.name})
        run = {
            "task_key": f"hpo-{shown.kind}",
            "dynamic_key": shown.key,
            "name": shown.name,
            "tags": tags,
            "run_count": 1,
            "expected_start_time": began.isoformat(),
            "start_time": began.isoformat(),
            "end_time": None if ended is None else ended.isoformat(),  # null: it runs again
            "total_run_time": 0.0 if ended is None else max(0.0, (ended - began).total_seconds()),
        }
        emit_event(
            f"prefect.task-run.{state.name}",
            id=state.id,
            occurred=state.timestamp,
            resource={
                "prefect.resource.id": f"prefect.task-run.{shown.id}",
                "prefect.resource.name": shown.name,
                "prefect.run-count": "1",
                "prefect.state-message": state.message or "",
                "prefect.state-name": state.name or "",
                "prefect.state-timestamp": state.timestamp.isoformat(),
                "prefect.state-type": state.type.value,
                "prefect.orchestration": "client",
            },
            related=[
                {"prefect.resource.id": f"prefect.flow-run.{self._flow_run}", "prefect.resource.role": "flow-run"},
                *({"prefect.resource.id": f"prefect.tag.{tag}", "prefect.resource.role": "tag"} for tag in tags),
            ],
            payload={
                "intended": {"from": None if ended is None else "RUNNING", "to": state.type.value},
                "validated_state": {"type": state.type.value, "name": state.name, "message": state.message},
                "task_run": run,
            },
        )


def _expected_units(study: Study, partitions: PartitionNames | None) -> float:
    """Units that a study whose models hop will have; infinite where nothing says how many, or models do not hop."""
    if partitions is None or is_unlimited(study.spec):
        return float("inf")
    return len(partitions.all) * sum(rung.units for rung in study.method.rungs())


def final_state(report: Report, metric: str, when: datetime | None = None) -> State[Any]:
    """The state a person should see for a job that ended so."""
    at: dict[str, Any] = {} if when is None else {"timestamp": when}
    if report.outcome in RESULTS:
        word = "" if report.outcome is Outcome.COMPLETED else "diverged: "
        if metric not in report.metrics and report.metrics:  # a population's fitness may have gaps
            reported = ", ".join(f"{name} = {value:.6g}" for name, value in report.metrics.items())
            return Completed(message=terminal_text(reported), **at)
        value = f"{terminal_text(metric)} = {report.metrics.get(metric, float('nan')):.6g}"
        return Completed(message=f"{word}{value}{_where(report)}", **at)
    message = f"{report.outcome}{_where(report)}: {terminal_text(report.message)}"
    return Crashed(message=message, **at) if report.outcome in _AWAY else Failed(message=message, **at)


def _shared_device(report: Report) -> str:
    """The device that a job shared; empty: none."""
    usage = report.usage
    return usage.device if isinstance(usage, Usage) and usage.share is not None else ""


def _where(report: Report) -> str:
    device = _shared_device(report)
    return f" on {terminal_text(device)}" if device else ""


def visit_lines(report: Report, partitions: PartitionNames | None) -> Iterator[str]:
    """The partitions that a model visited, a line for each epoch; none where models do not hop."""
    if partitions is not None and report.visits:
        yield from map(terminal_text, epoch_lines(report.visits, partitions, EPOCHS_LISTED, report.together))


class _Names:
    """What Prefect calls a job's own task run, and that of all jobs of its rung or generation.

    Names of jobs sort by trial, then rung; in a population by generation, then member.
    """

    def __init__(self, job: Job) -> None:
        again = f" attempt-{job.attempt}" if job.retry else ""
        target = f"target-{job.target}"
        self.member_tags: list[str] = []
        match job.stage:
            case Further():
                self.rung = "further"
                self.job = f"trial-{job.trial:05d}/further/to-{job.target}{again}"
                self.tags = ["further", target]
                self.rung_kind = self.job_kind = "further-training"
            case Generation(member, generation):
                self.rung = f"generation-{generation:03d}"
                self.job = f"{self.rung}/member-{member:03d}/trial-{job.trial:05d}{again}"
                self.tags, self.member_tags = [f"generation-{generation}"], [f"member-{member}"]
                self.rung_kind, self.job_kind = "generation", "generation-member"
            case Rung(bracket, rung):
                self.rung = f"bracket-{bracket}/rung-{rung}/to-{job.target}"
                self.job = f"trial-{job.trial:05d}/rung-{rung}/to-{job.target}{again}"
                self.tags = [f"bracket-{bracket}", f"rung-{rung}", target]
                self.rung_kind, self.job_kind = "rung", "rung-job"


def device_tags(device: str) -> list[str]:
    """``device-NAME`` of the device that a job shares, in characters that tags may have; a long name is cut.

    >>> device_tags("cpu:vm"), device_tags("")
    (['device-cpu-vm'], [])
    """
    if not device:
        return []
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", device).strip("-")
    if len(name) > _DEVICE_NAME or not name:
        digest = hashlib.sha256(device.encode("utf-8", "replace")).hexdigest()[:6]
        name = f"{name[: _DEVICE_NAME - 7]}-{digest}"
    return [f"device-{name}"]


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
