"""Runs jobs in Dask tasks: a task each, or several short jobs in turn in a task that stays open.

Dask's task is the authority on what became of a job. The shortcut beside it (``open_tasks.py``) only saves time: where
a call fails, the task's end tells whether the job was trained, and one that was not is given a task of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import distributed
import msgspec
from distributed.scheduler import KilledWorker

from hpo_core.execution.executor import OnReport
from hpo_core.execution.requests import JobRequests
from hpo_core.model.devices.share import Share
from hpo_core.model.trial import Job, Outcome, Report
from hpo_core.security.masking import masked_report
from hpo_core.training.gang.rank_place import RankPlace
from hpo_core.training.request import decode_report, encode_request
from hpo_flows.dask.lost_workers import ClusterWatch
from hpo_flows.dask.on_worker import OPEN_SECONDS, train, train_next
from hpo_flows.dask.start_up import Connection


class _Submission(NamedTuple):
    """A job and who waits for its report."""

    job: Job
    request: bytes
    on_report: OnReport
    workers: tuple[str, ...] | None
    """Those that may run it, as they see its device; None: any."""
    rank: int | None = None
    """Of a gang."""


@dataclass
class _Task:
    """A Dask task of ours that has not ended."""

    key: str
    submission: _Submission | None
    """The job that was sent to it and not reported; None: it is open."""
    address: str = ""
    """Of its worker, once it is open, or from the start where the job was placed on a device."""
    future: Any = None


class JobTasks:
    """The jobs of one study on a Dask cluster.

    Args:
        connection: to the scheduler.
        watch: of its workers.
        requests: of the study.
        study: its name, which Dask's keys begin with.
        timeout: seconds that a worker may take to answer.
    """

    def __init__(
        self, connection: Connection, watch: ClusterWatch, *, requests: JobRequests, study: str, timeout: float
    ) -> None:
        self._client = connection.client
        self._watch = watch
        self._requests = requests
        self._study = study
        self._timeout = timeout
        self._id = uuid.uuid4().hex[:12]
        self._lock = threading.Lock()
        self._tasks: dict[str, _Task] = {}
        """By Dask's key."""
        self._open: dict[str, _Task] = {}
        """Those that wait for a job, the one that waits longest first."""
        self._calls: set[asyncio.Task[None]] = set()
        self._client.subscribe_topic(self._topic, self._published)

    @property
    def _topic(self) -> str:
        return f"{self._study}/{self._id}"

    def submit(
        self,
        job: Job,
        on_report: OnReport,
        *,
        share: Share | None = None,
        workers: Sequence[str] | None = None,
        gang: RankPlace | None = None,
    ) -> None:
        """Start a job, or a rank of a gang; ``on_report`` is called once, from another thread, with its report.

        Args:
            share: the part of a device that it may use.
            workers: addresses of those that see the device; None: any worker will do.
            gang: which rank it is; None: the whole job.
        """
        request = encode_request(self._requests.of(job, share, gang))
        rank = None if gang is None else gang.rank
        submission = _Submission(job, request, on_report, None if workers is None else tuple(workers), rank)
        task = self._take_open(submission)
        if task is None:
            self._start(submission)
        else:
            self._client.loop.add_callback(self._begin_call, task, submission)

    def attempts(self) -> list[tuple[int, int]]:
        """(trial, attempt) of the jobs that are not reported."""
        with self._lock:
            return [task.submission.job.key for task in self._tasks.values() if task.submission is not None]

    def busy(self) -> Counter[str]:
        """By address of a worker: jobs and ranks that were placed there and are not reported."""
        with self._lock:
            return Counter(task.address for task in self._tasks.values() if task.submission is not None)

    def end(self, key: str, outcome: Outcome, message: str, worker: str) -> None:
        """Report this for the job of a task, and ignore whatever may come from it later."""
        with self._lock:
            task = self._forget(key)
        if task is not None and task.submission is not None:
            self._tell(task.submission, _without_result(task.submission.job, outcome, message, worker))

    def _take_open(self, submission: _Submission) -> _Task | None:
        wanted = submission.workers
        with self._lock:
            able = (key for key, task in self._open.items() if wanted is None or task.address in wanted)
            key = next((key for key in able if self._watch.is_well(self._open[key].address)), None)
            if key is None:
                return None
            task = self._open.pop(key)
            task.submission = submission
            return task

    def _start(self, submission: _Submission) -> None:
        """Submit a Dask task. Which worker runs it, Dask decides, but for a job that was placed on a device."""
        job = submission.job
        unit = "" if job.unit is None else f"/unit-{job.unit.number}"
        if submission.rank is not None:
            unit = f"{unit}/rank-{submission.rank}"
        key = f"{self._study}/trial-{job.trial:05d}/attempt-{job.attempt}{unit}/{self._id}"
        avoided = bool(self._watch.out())
        workers = (self._watch.well() if avoided else None) if submission.workers is None else [self._least(submission)]
        task = _Task(key, submission, workers[0] if submission.workers and workers else "")
        with self._lock:
            self._tasks[key] = task
        try:
            task.future = self._client.submit(
                train,
                submission.request,
                key,
                self._topic,
                submission.workers,
                key=key,
                pure=False,
                retries=0,
                workers=workers,
                allow_other_workers=workers is not None,  # one that went meanwhile must not keep the job waiting for it
            )
        except BaseException:
            with self._lock:
                self._forget(key)
            raise
        task.future.add_done_callback(self._task_ended)

    def _least(self, submission: _Submission) -> str:
        """Of the workers that see the device, the one that trains least of ours."""
        assert submission.workers
        with self._lock:
            busy = Counter(task.address for task in self._tasks.values())
        return min(submission.workers, key=lambda address: (busy[address], address))

    def _forget(self, key: str) -> _Task | None:
        self._open.pop(key, None)
        return self._tasks.pop(key, None)

    def _task_ended(self, future: Any) -> None:
        with self._lock:
            task = self._forget(future.key)
        if task is None or task.submission is None:
            return
        job = task.submission.job
        report = _report_of(job, future)
        if report is None:
            try:
                self._start(task.submission)
                return
            except Exception as error:
                message = f"it could not be submitted again: {type(error).__name__}: {error}"
                report = _without_result(job, Outcome.LOST, message, "")
        self._tell(task.submission, report)

    def _tell(self, submission: _Submission, report: Report) -> None:
        if report.doubt is not msgspec.UNSET:
            self._watch.doubt(report.worker, report.doubt)
        # a worker elsewhere does not know this process's secrets
        submission.on_report(submission.job, masked_report(report))

    # On the client's loop.

    def _published(self, event: tuple[float, Any]) -> None:
        key, address, data = event[1]
        self._reported(key, data, address)

    def _begin_call(self, task: _Task, submission: _Submission) -> None:
        call = asyncio.ensure_future(self._call(task, submission))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _call(self, task: _Task, submission: _Submission) -> None:
        with contextlib.suppress(Exception):  # then the task's end tells
            found = await asyncio.wait_for(
                self._client.run(train_next, task.key, submission.request, workers=[task.address], on_error="ignore"),
                OPEN_SECONDS + self._timeout,
            )
            if found.get(task.address) is not None:
                self._reported(task.key, found[task.address], task.address)

    def _reported(self, key: str, data: bytes, address: str) -> None:
        """An open task has trained its job and waits for the next."""
        report = decode_report(data)
        with self._lock:
            task = self._tasks.get(key)
            if task is None or task.submission is None or not _is_of(task.submission.job, report):
                return
            submission, task.submission, task.address = task.submission, None, address
            self._open[key] = task
        self._tell(submission, msgspec.structs.replace(report, worker=address))


def _report_of(job: Job, future: Any) -> Report | None:
    """How the job ended, from the end of its task; None: the task ended before the job reached it."""
    try:
        data, worker = future.result()
        report = decode_report(data)
    except KilledWorker as error:
        worker = error.last_worker.address
        return _without_result(job, Outcome.LOST, f"its Dask worker died ({worker})", worker)
    except distributed.CancelledError:
        message = "its Dask future was cancelled (scheduler gone or worker removed)"
        return _without_result(job, Outcome.LOST, message, "")
    except Exception as error:
        return _without_result(job, Outcome.LOST, f"its Dask task failed: {type(error).__name__}: {error}", "")
    return msgspec.structs.replace(report, worker=worker) if _is_of(job, report) else None


def _is_of(job: Job, report: Report) -> bool:
    """Whether it is the report of this very job, not of what its task trained before."""
    number = msgspec.UNSET if job.unit is None else job.unit.number
    return (report.trial, report.attempt, report.unit) == (*job.key, number)


def _without_result(job: Job, outcome: Outcome, message: str, worker: str) -> Report:
    return Report(trial=job.trial, attempt=job.attempt, outcome=outcome, message=message, worker=worker)
