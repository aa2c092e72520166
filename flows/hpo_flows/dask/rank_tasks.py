"""Jobs as Dask tasks: a task for each rank of a job, or several short jobs in turn in a task that stays open.

A rank is one process that trains a job: a plain job has one, a gang several.

Dask's task is the authority on what became of a rank. The shortcut beside it (open tasks, ``on_worker.py``) only saves
time.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import distributed
import msgspec
from distributed.scheduler import KilledWorker

from hpo_core.checkpoints.storage import GANGS, gang_store_path
from hpo_core.execution.executor import OnReport
from hpo_core.model.devices.inventory import Slot
from hpo_core.model.features import feature
from hpo_core.model.trial import RESULTS, Job, JobKey, Outcome, Report
from hpo_core.security.masking import masked_report
from hpo_core.security.private_files import private_folder
from hpo_core.training.request import ALONE, JobRequest, JobRequests, decode_report, encode_request
from hpo_flows.dask.cluster_calls import Cancellation, SchedulerClient
from hpo_flows.dask.cluster_room import ClusterRoom, host_of
from hpo_flows.dask.lost_workers import ClusterWatch
from hpo_flows.dask.on_worker import SharedFolder, offer_next, studies_here, train

OWN_END_SECONDS = 5.0
"""Time for the ranks of a gang to end by themselves, and say why, when one is gone; then they are cancelled."""


_Key = tuple[int, int, int | msgspec.UnsetType]
"""Trial, attempt, and number of the unit where it is one, as reports name them."""


@dataclass
class _Submitted:
    """A job, or a unit of one, that is not reported: one rank for each of its slots."""

    job: Job
    key: _Key
    on_report: OnReport
    reports: list[Report | None]
    """End of each rank; None: it has not ended."""
    store: Path | None
    """File where the ranks of a gang find each other."""
    failed_at: float | None = None
    """Monotonic time of the first report that is no result."""


class _Rank(NamedTuple):
    """One rank of a job: what a Dask task trains."""

    submitted: _Submitted
    number: int
    request: JobRequest
    workers: tuple[str, ...] | None
    """Workers that may train it; None: any."""
    home: str = ""
    """Address of the worker where a process of its trial waits for it; empty: there is none."""

    def without_result(self, outcome: Outcome, message: str, worker: str = "") -> Report:
        return self.request.report(outcome, message, worker=worker, started=0.0, ended=0.0)


@dataclass
class _Task:
    """A Dask task of the study that has not ended."""

    key: str
    rank: _Rank | None
    """Rank that it trains and has not reported; None: the task is open."""
    address: str = ""
    """Address of its worker, once it is open, or from the start where the rank was placed on one."""
    future: Any = None


class RankTasks:
    """The jobs of one study on a Dask cluster.

    A rank that has a place goes to the worker there with most free threads. Its thread leaves the worker's pool
    (``secede``), so it never waits in Dask's queue for another one: how many jobs a worker runs is the placement's to
    say.

    Args:
        connection: to the scheduler.
        watch: of the workers.
        room: says which workers are where.
        requests: of the study, whose name Dask's keys begin with.
        shared: the study's folder, as workers are told of it.
        timeout: seconds that a worker may take to answer.
    """

    def __init__(
        self,
        connection: SchedulerClient,
        watch: ClusterWatch,
        room: ClusterRoom,
        *,
        requests: JobRequests,
        shared: SharedFolder,
        timeout: float,
    ) -> None:
        self._connection, self._client = connection, connection.client
        self._watch, self._room, self._requests, self._shared = watch, room, requests, shared
        self._study, self._folder = requests.setup.study, Path(requests.setup.folder)
        self._cancellation = Cancellation(connection, watch, folder=requests.setup.folder, timeout=timeout)
        self._id = uuid.uuid4().hex[:12]
        self._lock = threading.Lock()
        self._submitted: dict[_Key, _Submitted] = {}
        """Jobs and units that are not reported."""
        self._tasks: dict[str, _Task] = {}
        """Tasks that have not ended, by Dask's key."""
        self._asking: dict[JobKey, str] = {}
        """By (trial, attempt) that reported and whose process waits for the study's answer: address of the worker."""
        self._open: dict[str, _Task] = {}
        """Tasks that wait for a job, the one that waits longest first."""
        studies_here[self._id] = self._open_task_reported
        stores = self._folder / GANGS
        if stores.is_dir():  # left by a controller before this one that was killed
            for left in private_folder(stores, below=self._folder).iterdir():
                with contextlib.suppress(OSError):
                    left.unlink()

    def close(self) -> None:
        studies_here.pop(self._id, None)

    def submit(self, job: Job, slot: Slot, on_report: OnReport) -> None:
        self._connection.check()
        candidates = self._candidates(slot)
        if candidates is None:
            names = ", ".join(sorted({one.name for one in slot.ranks}))
            message = f"no Dask worker is at {names} any more"
            on_report(job, Report(trial=job.trial, attempt=job.attempt, outcome=Outcome.LOST, message=message))
            return
        store: Path | None = None
        gang = [ALONE]
        if len(candidates) > 1:
            private_folder(self._folder / GANGS, below=self._folder)
            store = self._folder / gang_store_path(job.trial, job.attempt, uuid.uuid4().hex)
            hosts = [host_of(workers[0]) if workers else "" for workers in candidates]
            gang = feature("gangs", "process_group").rank_places(hosts, store)
        key = (*job.key, msgspec.UNSET if job.unit is None else job.unit.number)
        submitted = _Submitted(job, key, on_report, [None] * len(candidates), store)
        with self._lock:
            self._submitted[key] = submitted
        for number, (one, workers) in enumerate(zip(slot.ranks, candidates, strict=True)):
            request = self._requests.of(job, one.portion, gang[number])
            with self._lock:
                home = self._asking.pop(before := (job.trial, job.attempt - 1), "")
            if home and not (self._watch.is_well(home) and (workers is None or home in workers)):
                self._cancellation.let_go({before: home})
                home = ""
            request = msgspec.structs.replace(request, over=self._cancellation.over)
            rank = _Rank(submitted, number, request, workers, home)
            try:
                self._start(rank, may_be_open=True)
            except Exception as error:
                if store is None:
                    with self._lock:
                        self._submitted.pop(key, None)
                    raise
                # ranks before it wait for it, and are cancelled
                self._take_report(
                    rank, rank.without_result(Outcome.LOST, f"it could not be submitted: {_words(error)}")
                )

    def cancel(self, attempts: Iterable[tuple[int, ...]]) -> None:
        """End attempts (trial, attempt), or units (trial, attempt, number), wherever they run; returns at once.

        Those that reported, and whose process waits for an answer, are let go.
        """
        with self._lock:
            asking = {key: self._asking.pop((key[0], key[1]), "") for key in attempts}
        self._cancellation.let_go({(key[0], key[1]): home for key, home in asking.items() if home})
        self._cancellation.request([key for key, home in asking.items() if not home])

    def end_broken(self) -> None:
        """Cancel what is left of gangs of which a rank failed; called about once a second."""
        late = time.monotonic() - OWN_END_SECONDS
        with self._lock:
            gangs = [
                each.key[:2]
                for each in self._submitted.values()
                if each.failed_at is not None and each.failed_at <= late
            ]
        self._cancellation.request(gangs)

    def end(self, key: str, outcome: Outcome, message: str, worker: str) -> None:
        """Report this for the rank of a task, and ignore whatever may come from it later."""
        with self._lock:
            task = self._forget(key)
        if task is not None and task.rank is not None:
            self._take_report(task.rank, task.rank.without_result(outcome, message, worker))

    def _candidates(self, slot: Slot) -> list[tuple[str, ...] | None] | None:
        # For each rank its workers (None: Dask picks one), the preferred one first; None where a rank has none.
        found: list[tuple[str, ...] | None] = []
        free: Counter[str] | None = None
        for one in slot.ranks:
            workers = self._room.workers_at(one.name)
            if workers is not None and not workers:
                return None
            if workers is not None and len(workers) > 1:
                if free is None:
                    free = self._free_threads()
                best = min(workers, key=lambda address: (-free[address], address))
                free[best] -= 1
                workers = (best,) if slot.others else (best, *(each for each in workers if each != best))
            found.append(workers)
        return found

    def _free_threads(self) -> Counter[str]:
        # Free slots by worker; one where a process waits for the study's answer is its trial's still.
        free = Counter(self._room.threads())
        with self._lock:
            free.subtract(task.address for task in self._tasks.values() if task.rank is not None)
            free.subtract(self._asking.values())
        return free

    def _start(self, rank: _Rank, *, may_be_open: bool = False, again: bool = False) -> None:
        # Have a task train the rank: one that is open, else a new one. ``again``: a task of the rank's own has ended
        # without training it, and Dask may know its key still.
        wanted = self._workers_for(rank)
        with self._lock:
            for key, task in list(self._open.items()) if may_be_open else ():
                if (wanted is None or task.address in wanted) and self._watch.is_well(task.address):
                    self._open.pop(key).rank = rank
                    if offer_next(key, rank.request):
                        return
                    task.rank = None  # it is ending
        job = rank.request.job
        unit = "" if job.unit is None else f"/unit-{job.unit.number}"
        if len(rank.submitted.reports) > 1:
            unit = f"{unit}/rank-{rank.number}"
        if again:
            unit = f"{unit}/again"
        key = f"{self._study}/trial-{job.trial:05d}/attempt-{job.attempt}{unit}/{self._id}"
        address = wanted[0] if wanted else ""
        workers = [address] if address else list(self._watch.well()) if self._watch.some_are_out() else None
        task = _Task(key, rank, address)
        with self._lock:
            self._tasks[key] = task
        try:
            task.future = self._client.submit(
                train,
                encode_request(rank.request),
                key,
                self._id,
                rank.workers,
                self._shared,
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

    def _workers_for(self, rank: _Rank) -> Sequence[str] | None:
        # Addresses of the workers that may take the rank, the best first; None: Dask picks one.
        # Of a search whose processes wait for answers, each job has its worker chosen here: a slot that is kept for a
        # trial looks free to Dask.
        if rank.workers is not None:
            return (rank.home,) if rank.home else rank.workers
        if not (rank.home or rank.request.asks or self._asking):
            return None
        free = self._free_threads()
        if free[rank.home] > 0:
            return (rank.home,)
        there = [(count, address) for address, count in free.items() if count > 0]
        return [address for _, address in sorted(there, reverse=True)]

    def _forget(self, key: str) -> _Task | None:
        self._open.pop(key, None)
        return self._tasks.pop(key, None)

    def _task_ended(self, future: Any) -> None:
        # Take the report that a task ends with; a rank that the task did not reach gets a task of its own.
        with self._lock:
            task = self._tasks.get(future.key)
        rank = None if task is None else task.rank
        report = None if rank is None else self._report_of(rank, future)
        with self._lock:  # until here its slot was taken
            if self._forget(future.key) is None or rank is None:  # or it was reported meanwhile
                return
            if report is not None and report.outcome in RESULTS and rank.request.asks:
                self._asking[rank.submitted.key[:2]] = report.worker
        if report is None:
            try:
                self._start(rank, again=True)
                return
            except Exception as error:
                report = rank.without_result(Outcome.LOST, f"it could not be submitted again: {_words(error)}")
        self._take_report(rank, report)

    def _report_of(self, rank: _Rank, future: Any) -> Report | None:
        try:
            data, worker = future.result()
            report = decode_report(data)
        except KilledWorker as error:
            worker = error.last_worker.address
            return rank.without_result(Outcome.LOST, f"its Dask worker died ({worker})", worker)
        except distributed.CancelledError:
            message = "its Dask future was cancelled (scheduler gone or worker removed)"
            return rank.without_result(Outcome.LOST, message)
        except Exception as error:
            return rank.without_result(Outcome.LOST, f"its Dask task failed: {_words(error)}")
        if rank.submitted.key != (report.trial, report.attempt, report.unit):
            return None
        return msgspec.structs.replace(report, worker=worker)

    def _take_report(self, rank: _Rank, report: Report) -> None:
        # Keep the report of a rank; the last rank's makes the report of the job (a plain job has one rank).
        submitted = rank.submitted
        if report.doubt is not msgspec.UNSET:
            self._room.doubt_partition(report.worker, report.doubt)
        if submitted.store is not None and feature("gangs", "process_group").is_cause(report):
            self._room.doubt_worker(report.worker)
        with self._lock:
            submitted.reports[rank.number] = masked_report(report)  # a worker does not know this process's secrets
            if report.outcome not in RESULTS and submitted.failed_at is None and submitted.store is not None:
                submitted.failed_at = time.monotonic()
            reports = [one for one in submitted.reports if one is not None]
            if len(reports) < len(submitted.reports):
                return
            if self._submitted.get(submitted.key) is submitted:
                del self._submitted[submitted.key]
        if submitted.store is not None:
            with contextlib.suppress(OSError):
                submitted.store.unlink(missing_ok=True)
            reports = [feature("gangs", "process_group").gang_report(reports)]
        submitted.on_report(submitted.job, reports[0])

    def _open_task_reported(self, key: str, address: str, report: Report) -> None:
        report = msgspec.structs.replace(report, worker=address)
        with self._lock:
            task = self._tasks.get(key)
            rank = None if task is None else task.rank
            if task is None or rank is None or rank.submitted.key != (report.trial, report.attempt, report.unit):
                return
            task.rank, task.address = None, address
            self._open[key] = task
            if rank.request.asks:
                self._asking[rank.submitted.key[:2]] = address
        self._take_report(rank, report)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
