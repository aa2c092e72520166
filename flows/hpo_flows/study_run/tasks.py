"""Prefect task runs around jobs: one per job, or one per rung.

A task runs in the flow's own process and waits for the job: in a flow of a deployment for the Dask cluster, in that of
a command for the journal (``prefect_follower.py``). Workers need no route to the Prefect API, and every task run gets
its final state even when its worker dies. Prefect's own retries, caches and result storage are off: the journal is the
record.
"""

from __future__ import annotations

import hashlib
import logging
import queue
import re
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol

from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.context import TaskRunContext
from prefect.futures import PrefectFuture, wait
from prefect.logging import get_run_logger
from prefect.states import Completed, Crashed, Failed

from hpo_core.execution.executor import Executor, OnReport
from hpo_core.model.devices.inventory import Slot
from hpo_core.model.devices.usage import Usage
from hpo_core.model.stage import FURTHER, Further, Generation, Rung
from hpo_core.model.trial import RESULTS, Job, Outcome, Report
from hpo_core.security.untrusted_text import terminal_text
from hpo_core.views.hop_views import PartitionNames, epoch_lines, hops_in_short
from hpo_flows.liveness.api_watch import api_answers, api_is_unreachable

_REPORT_SECONDS = 10.0
"""How long the end of a flow waits for reports of attempts that were cancelled."""
_STATES_SECONDS = 30.0
"""How long it waits for the next final state of a task run."""
OPEN_RUNGS = 32
"""At most this many task runs of rungs are open at once."""
EPOCHS_LISTED = 200
"""In the log of one job whose model hops; the study's journal has all of them."""
_DEVICE_NAME = 24
"""Characters of a device's name in a tag."""
_AWAY = frozenset({Outcome.LOST, Outcome.PREEMPTED})


def final_state(report: Report, metric: str) -> State[Any]:
    """The state a person should see for a job that ended so."""
    if report.outcome in RESULTS:
        word = "" if report.outcome is Outcome.COMPLETED else "diverged: "
        if metric not in report.metrics and report.metrics:  # a population's fitness may have gaps
            reported = ", ".join(f"{name} = {value:.6g}" for name, value in report.metrics.items())
            return Completed(message=terminal_text(reported))
        value = f"{terminal_text(metric)} = {report.metrics.get(metric, float('nan')):.6g}"
        return Completed(message=f"{word}{value}{_where(report)}")
    message = f"{report.outcome}{_where(report)}: {terminal_text(report.message)}"
    return Crashed(message=message) if report.outcome in _AWAY else Failed(message=message)


def _where(report: Report) -> str:
    """On which of the devices that jobs share."""
    usage = report.usage
    if not isinstance(usage, Usage) or usage.share is None:
        return ""
    return f" on {terminal_text(usage.device)}"


def visit_lines(report: Report, partitions: PartitionNames | None) -> list[str]:
    """The partitions that a model visited, a line for each epoch; empty where models do not hop."""
    if partitions is None or not report.visits:
        return []
    return [terminal_text(line) for line in epoch_lines(report.visits, partitions, EPOCHS_LISTED, report.together)]


def job_name(job: Job) -> str:
    """Sorts by trial, then rung; in a population by generation, then member."""
    again = f" attempt-{job.attempt}" if job.retry else ""
    match job.stage:
        case Further():
            return f"trial-{job.trial:05d}/further/to-{job.target}{again}"
        case Generation(member, generation):
            return f"generation-{generation:03d}/member-{member:03d}/trial-{job.trial:05d}{again}"
        case Rung(rung=rung):
            return f"trial-{job.trial:05d}/rung-{rung}/to-{job.target}{again}"


def job_tags(job: Job) -> list[str]:
    """Bracket, rung and target; generation and member in a population. The trial is in the name alone: Prefect asks
    its API for a concurrency slot per set of tags, and a set of its own for every trial doubled the cost of a task run
    (213 to 77 ms, two cores)."""
    if isinstance(job.stage, Generation):
        return [*rung_tags(job), f"member-{job.stage.member}"]
    return rung_tags(job)


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


def rung_tags(job: Job) -> list[str]:
    """What all jobs of one rung, or of one generation, have in common."""
    match job.stage:
        case Further():
            return ["further", f"target-{job.target}"]
        case Generation(generation=generation):
            return [f"generation-{generation}"]
        case Rung(bracket, rung):
            return [f"bracket-{bracket}", f"rung-{rung}", f"target-{job.target}"]


def rung_name(job: Job) -> str:
    """Of the one task run for all jobs of a rung or generation, or for all of trials that are trained further."""
    match job.stage:
        case Further():
            return "further"
        case Generation(generation=generation):
            return f"generation-{generation:03d}"
        case Rung(bracket, rung):
            return f"bracket-{bracket}/rung-{rung}/to-{job.target}"


def _kind(job: Job, of_rung: str, of_population: str) -> str:
    match job.stage:
        case Further():
            return "further-training"
        case Generation():
            return of_population
        case Rung():
            return of_rung


End = Callable[[Report], None]
"""Called once with how the job ended, and never waits."""


class TaskRuns(Protocol):
    """Shows jobs as task runs of the present flow run."""

    @property
    def task_runs(self) -> int:
        """How many task runs were started."""
        ...

    def begin(self, job: Job, device: str = "") -> End:
        """Show that a job runs; what is returned shows how it ended.

        Args:
            device: that it shares; empty: there is none, or it is not known.
        """
        ...

    def close(self, seconds: float = _REPORT_SECONDS) -> None:
        """Wait until every task run has its final state.

        Args:
            seconds: how long jobs are waited for that have not ended.
        """
        ...


class TaskDispatcher:
    """Submits jobs, and shows them as task runs."""

    def __init__(self, executor: Executor, shown: TaskRuns) -> None:
        self._executor = executor
        self._shown = shown

    @property
    def task_runs(self) -> int:
        """How many task runs were started."""
        return self._shown.task_runs

    def dispatch(self, job: Job, slot: Slot, on_report: OnReport) -> None:
        end = self._shown.begin(job, "" if slot.portion is None else slot.portion.device)

        def ended(job: Job, report: Report) -> None:
            end(report)
            on_report(job, report)

        self._executor.submit(job, slot, ended)

    def close(self) -> None:
        """Wait until every task run has its final state."""
        self._shown.close()


def _not_shown(_: Report) -> None:
    """The end of a job that has no task run."""


class _Times:
    """When the job of a task run began and ended, where it is shown after that.

    Args:
        clock: tells the time that is shown; None: a task run is shown when it happens.
    """

    def __init__(self, clock: Callable[[], float] | None) -> None:
        self._clock = clock
        self._began = self._ended = self._now()

    def _now(self) -> datetime | None:
        return None if self._clock is None else datetime.fromtimestamp(self._clock(), UTC)

    def end(self) -> None:
        """The job has ended."""
        self._ended = self._now()

    def set(self) -> None:
        """Give them to the present task run, before its final state does."""
        context = TaskRunContext.get()
        if context is None or self._began is None or self._ended is None:
            return
        run: Any = context.task_run
        run.start_time, run.end_time = self._began, self._ended
        run.total_run_time = self._ended - self._began


class TaskPerJob:
    """Every job is a task run of its own: trial, rung and target in its name; bracket, rung and target as tags.

    Args:
        metric: of the study, for the words of a state.
        clock: see :class:`_Times`.
        partitions: of a study whose models hop: the log lists the visits.
    """

    def __init__(
        self, metric: str, clock: Callable[[], float] | None = None, *, partitions: PartitionNames | None = None
    ) -> None:
        self._metric = metric
        self._clock = clock
        self._partitions = partitions
        self._futures: list[PrefectFuture[Any]] = []
        self._unanswered: dict[tuple[int, int], tuple[Job, queue.SimpleQueue[Report]]] = {}
        self._told: frozenset[str] = frozenset()

    @property
    def task_runs(self) -> int:
        """How many task runs were started."""
        return len(self._futures)

    def begin(self, job: Job, device: str = "") -> End:
        if api_is_unreachable():
            return _not_shown
        answer: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self._unanswered[job.trial, job.attempt] = (job, answer)
        times = _Times(self._clock)

        def rung_job() -> State[Any]:
            report = answer.get()
            times.set()
            logger = get_run_logger()
            for line in visit_lines(report, self._partitions):
                logger.info("%s", line)
            if report.outcome not in RESULTS:
                logger.error("%s: %s", report.outcome, self._words(report))
            return final_state(report, self._metric)

        def end(report: Report) -> None:
            self._unanswered.pop((job.trial, job.attempt), None)
            times.end()
            answer.put(report)

        shown: Any = Task(
            rung_job,
            name=_kind(job, "rung-job", "generation-member"),
            task_run_name=job_name(job),
            tags=[*job_tags(job), *device_tags(device)],
            retries=0,
            persist_result=False,
            cache_policy=NO_CACHE,
        )
        self._futures.append(shown.submit())
        return end

    def _words(self, report: Report) -> str:
        """One traceback for each message: fifty trials that fail alike need no fifty of them."""
        known, self._told = report.message in self._told, self._told | {report.message}
        return terminal_text(report.message if known else f"{report.message}\n{report.detail}", lines=True)

    def close(self, seconds: float = _REPORT_SECONDS) -> None:
        """Wait until every task run has its final state.

        A task run waits for its job's report. After an interrupt a report may never come (the job was not
        submitted yet, the cluster does not answer); such a task run would keep Prefect's thread pool, and with it the
        whole process, alive. It gets a report that its attempt is lost.
        """
        deadline = time.monotonic() + seconds
        while self._unanswered and time.monotonic() < deadline:
            time.sleep(0.05)
        for job, answer in list(self._unanswered.values()):
            answer.put(
                Report(trial=job.trial, attempt=job.attempt, outcome=Outcome.LOST, message="its controller stopped")
            )
        _wait(self._futures)


class _Rung:
    """A task run that is open."""

    def __init__(self, clock: Callable[[], float] | None) -> None:
        self.reports: queue.SimpleQueue[tuple[Job, Report] | None] = queue.SimpleQueue()
        self.under_way = 0
        self.times = _Times(clock)


class TaskPerRung:
    """One long task run per bracket and rung, whose log has a line per job.

    Each holds a thread while it is open, and a study of many brackets has thousands of rungs: past ``OPEN_RUNGS`` of
    them those without a job under way are ended. Generations are ended once the population is past them. A later job
    there opens another task run.

    Args:
        metric: of the study, for the words of a state.
        clock: see :class:`_Times`.
        partitions: of a study whose models hop: the log lists the visits.
    """

    def __init__(
        self, metric: str, clock: Callable[[], float] | None = None, *, partitions: PartitionNames | None = None
    ) -> None:
        self._metric = metric
        self._clock = clock
        self._partitions = partitions
        self._lock = threading.Lock()
        self._rungs: dict[tuple[int, int], _Rung] = {}
        self._futures: list[PrefectFuture[Any]] = []

    @property
    def task_runs(self) -> int:
        """How many task runs were started."""
        return len(self._futures)

    def begin(self, job: Job, device: str = "") -> End:
        key = (0 if isinstance(job.stage, Further) else job.bracket, job.rung)
        if key not in self._rungs:
            if api_is_unreachable():
                return _not_shown
            self._make_room()
            if isinstance(job.stage, Generation):
                self._end_generations_before(job)
            self._rungs[key] = _Rung(self._clock)
            self._futures.append(self._open(job, self._rungs[key]))
        rung = self._rungs[key]
        with self._lock:
            rung.under_way += 1

        def end(report: Report) -> None:
            with self._lock:
                rung.under_way -= 1
                rung.times.end()
                rung.reports.put((job, report))

        return end

    def _make_room(self) -> None:
        if len(self._rungs) < OPEN_RUNGS:
            return
        with self._lock:
            for key in [key for key, rung in self._rungs.items() if not rung.under_way]:
                self._rungs.pop(key).reports.put(None)

    def _end_generations_before(self, job: Job) -> None:
        """A population goes on: no generation below the lowest one under way gets another job, but one that is lost."""
        with self._lock:
            rungs = {key: rung for key, rung in self._rungs.items() if key[1] != FURTHER}
            lowest = min([job.rung, *(number for (_, number), rung in rungs.items() if rung.under_way)])
            for key in [key for key in rungs if key[1] < lowest]:
                self._rungs.pop(key).reports.put(None)

    def _open(self, job: Job, open_rung: _Rung) -> PrefectFuture[Any]:
        def rung() -> State[Any]:
            logger = get_run_logger()
            counts = {True: 0, False: 0}
            while (item := open_rung.reports.get()) is not None:
                ended, report = item
                good = report.outcome in RESULTS
                counts[good] += 1
                line = final_state(report, self._metric).message
                if self._partitions is not None and report.visits:
                    line = f"{line} ({hops_in_short(report.visits, report.together)})"
                (logger.info if good else logger.error)("%s: %s", job_name(ended), line)
            open_rung.times.set()
            return Completed(message=f"{counts[True]} jobs completed, {counts[False]} attempts failed")

        shown: Any = Task(
            rung,
            name=_kind(job, "rung", "generation"),
            task_run_name=rung_name(job),
            tags=rung_tags(job),
            retries=0,
            persist_result=False,
            cache_policy=NO_CACHE,
        )
        future: PrefectFuture[Any] = shown.submit()
        return future

    def close(self, seconds: float = 0.0) -> None:
        """Let every rung end and wait for its final state; ``seconds`` are of no use here."""
        for rung in self._rungs.values():
            rung.reports.put(None)
        _wait(self._futures)


def _wait(futures: list[PrefectFuture[Any]]) -> None:
    """Wait for final states, as long as some come. Without the API they are missing in the UI alone.

    The study is complete in the journal whatever Prefect shows of it.
    """
    seconds = _STATES_SECONDS if api_answers() else _STATES_SECONDS / 3
    left = list(futures)
    try:
        while left:
            late = list(wait(left, timeout=seconds).not_done)
            if len(late) == len(left):  # no state came for so long
                logging.getLogger(__name__).warning("%d Prefect task runs without a final state", len(late))
                return
            left = late
    except Exception as error:
        logging.getLogger(__name__).warning("Prefect task runs without a final state: %s", error)
