"""Functions that run on a Dask worker, or on the scheduler, for the executor.

Coroutines run in a worker's event loop, which sends its heartbeats: whatever may take time goes to a thread.

*Open tasks* train several short jobs in turn on a worker in the study's process. A task that is younger than
:data:`OPEN_SECONDS` when its job ends stays open: it reports at once and takes the next job from the thread of the
study. Dask's scheduler still knows of the task: the slot is taken, and an adaptive cluster keeps the worker. The task's
result is the report of its last job.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import queue
import shutil
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import distributed
import msgspec

from hpo_core.checkpoints.storage import check_base, is_remote
from hpo_core.model.errors import StorageError
from hpo_core.model.trial import RESULTS, Outcome, Report
from hpo_core.placement.gpus import why_off
from hpo_core.security.private_files import open_private, private_folder
from hpo_core.spec.sent_functions import digest_of
from hpo_core.training.partition_data import forget_partitions, held_partitions, watch_partitions
from hpo_core.training.request import JobRequest, StudySetup, decode_request, encode_report
from hpo_core.training.visible_devices import seen_devices, watch_devices
from hpo_core.training.worker import train_job, trainers
from hpo_flows.dask.worker_facts import DEVICES, METRIC, PARTITIONS, USAGES, WorkerQuestions

TOKEN = "token"
"""File in the study's folder by which a worker sees that it is the same folder."""


class SharedFolder(msgspec.Struct, frozen=True):
    """The study's folder, as a worker is told of it."""

    path: str
    token: str

    @classmethod
    def of(cls, folder: str) -> SharedFolder:
        path = private_folder(Path(folder)) / TOKEN
        with contextlib.suppress(FileExistsError), open_private(path, "xb") as file:
            file.write(uuid.uuid4().hex.encode())
        with open_private(path, "rb") as file:
            return cls(folder, file.read(64).decode("ascii", "replace"))

    def is_seen(self) -> bool:
        try:
            return Path(self.path, TOKEN).read_text() == self.token
        except (OSError, ValueError):
            return False

    def check_not_needed(self, setup: StudySetup, *, gang: bool = False) -> None:
        """Refuse to train without it what needs it.

        Raises:
            StorageError: with the cure.
        """
        is_sent = any(digest_of(name.rpartition("/")[2]) is not None for name in (setup.objective, setup.load))
        if is_remote(setup.checkpoint_base) and not gang and not is_sent:
            return
        raise StorageError(
            f"This worker does not see the study's folder {self.path}. Mount the home folder there under the same path "
            "(a shared file system). Or install the code on the workers as a package and set checkpoints.folder to a "
            "URL; gangs need the folder all the same."
        )

    def instead(self, scratch: str) -> str:
        """The folder for logs on a worker that does not see the study's.

        Args:
            scratch: private folder of the worker.
        """
        name = hashlib.sha256(f"{self.path}\0{self.token}".encode()).hexdigest()[:16]
        return str(Path(scratch) / f"hpo-{name}")


OPEN_SECONDS = 1.0
"""Age at which a task takes no further job. A study that shares the cluster waits for the slot at most so much longer,
and for a job that began meanwhile."""


_Requests = queue.SimpleQueue[JobRequest | None]
_open: dict[str, _Requests] = {}
"""By Dask's key, for each task of this process that may take further jobs: its requests from the study's thread."""
_lock = threading.Lock()
"""Held while a task begins, is given a request, or ends: it gets none afterwards."""
studies_here: dict[str, Callable[[str, str, Report], None]] = {}
"""Functions that take the reports of studies of this process, by the id of their run: key, worker, report."""


def offer_next(key: str, request: JobRequest) -> bool:
    """Give an open task of this process a job; False where it takes no more."""
    with _lock:
        if (task := _open.get(key)) is not None:
            task.put(request)
    return task is not None


def close_open_tasks(prefix: str) -> None:
    for key in [one for one in list(_open) if one.startswith(prefix)]:
        _close(key)


def _close(key: str) -> None:
    with _lock:
        if (task := _open.pop(key, None)) is not None:
            task.put(None)


def _next(key: str, requests: _Requests, ends: float) -> JobRequest | None:
    with contextlib.suppress(queue.Empty):
        return requests.get(timeout=max(0.0, ends - time.monotonic()))
    _close(key)
    return requests.get()  # one that came in the last moment, or the end


def gpu_of(worker: distributed.Worker) -> str:
    return getattr(worker, "gpu", "")


def train(
    request: bytes, key: str, run: str, workers: tuple[str, ...] | None = None, shared: SharedFolder | None = None
) -> tuple[bytes, str]:
    """The Dask task: train a job, and those that follow while it is open; return the last report and the address.

    Args:
        run: see :data:`studies_here`; of a study elsewhere no job follows.
        shared: the study's folder; None: this worker sees it.
        workers: addresses of those that see the device that the job was placed on; None: it was placed on none. A
            placed job's thread leaves the worker's pool: how many jobs a worker runs is the placement's to say.
    """
    worker, asked = distributed.get_worker(), decode_request(request)
    address, folder = worker.address, None
    worker.metrics[METRIC] = lambda _: trainers.heartbeats(address)  # goes out with each heartbeat
    if workers is not None:
        if address not in workers:
            gone = "its Dask worker went before the job reached it"
            return encode_report(asked.report(Outcome.LOST, gone, started=0.0, ended=0.0)), ""
        distributed.secede()  # type: ignore[no-untyped-call]
    if shared is not None and not shared.is_seen():
        try:
            shared.check_not_needed(asked.setup, gang=asked.gang.size > 1)
        except StorageError as error:
            return encode_report(asked.report(Outcome.STORAGE, str(error))), address
        folder = shared.instead(worker.local_directory)
        private_folder(Path(folder))
    requests, ends, take_report = _Requests(), time.monotonic() + OPEN_SECONDS, studies_here.get(run)
    following: JobRequest | None = asked
    if take_report is not None:
        with _lock:
            _open[key] = requests
    try:
        while following is not None:
            report = train_job(following, worker=address, gpu=gpu_of(worker), folder=folder)
            if take_report is None or time.monotonic() >= ends or report.outcome not in RESULTS:
                break
            take_report(key, address, report)
            following = _next(key, requests, ends)
    finally:
        _close(key)
    return encode_report(report), address


async def cancel_attempts(folder: str, running: list[tuple[int, ...]]) -> None:
    for trial, attempt, *unit in running:
        await asyncio.to_thread(trainers.cancel, folder, trial, attempt, *unit)


async def limit_attempt(folder: str, trial: int, attempt: int, memory: int) -> None:
    await asyncio.to_thread(trainers.limit, trial, attempt, folder, memory)


async def cancel_attempts_of(folder: str) -> None:
    await asyncio.to_thread(trainers.cancel, folder)


async def close_all_children() -> None:
    await asyncio.to_thread(trainers.close_all)


async def forget_study(
    study: str,
    folder: str,
    objective: str,
    pythonpath: tuple[str, ...],
    shared: SharedFolder,
    dask_worker: distributed.Worker,
) -> None:
    """Leave a worker of others: end tasks and trainers of this study, watch no partitions, tell nothing more."""
    close_open_tasks(f"{study}/")
    await asyncio.to_thread(trainers.forget, folder, objective, pythonpath)
    await asyncio.to_thread(shutil.rmtree, shared.instead(dask_worker.local_directory), ignore_errors=True)
    await asyncio.to_thread(forget_partitions, folder)
    if not trainers.heartbeats(dask_worker.address):  # no other study trains; one between two jobs asks again
        for metric in (METRIC, DEVICES, USAGES, PARTITIONS):
            dask_worker.metrics.pop(metric, None)


async def prepare(setup: StudySetup, shared: SharedFolder, dask_worker: distributed.Worker) -> None:
    """Import the objective, find ``data.load``, which may take minutes, and write to the checkpoints' URL."""
    if not await asyncio.to_thread(shared.is_seen):
        shared.check_not_needed(setup)
    await asyncio.to_thread(check_base, setup.checkpoint_base)
    gpu, jobs = gpu_of(dask_worker), dask_worker.state.nthreads
    function = setup.objective, setup.pythonpath, setup.threads
    await asyncio.to_thread(trainers.prepare, *function, load=setup.load, gpu=gpu, folder=shared.path, jobs=jobs)


async def tell_with_heartbeats(asked: WorkerQuestions, dask_worker: distributed.Worker) -> tuple[str, str]:
    """Send what a study asks with each heartbeat; returns why no GPU can be seen here, and why MPS is off."""
    problem = no_mps = ""
    address, gpu = dask_worker.address, gpu_of(dask_worker)
    if asked.partitions:
        await asyncio.to_thread(watch_partitions, asked.folder, asked.partition_folder, asked.partitions)
        dask_worker.metrics[PARTITIONS] = lambda _: held_partitions()
    if asked.devices:
        own = partial(trainers.processes, gpu)
        problem = await asyncio.to_thread(watch_devices, own, gpu)
        dask_worker.metrics[DEVICES] = lambda _: seen_devices(gpu)
        dask_worker.metrics[USAGES] = lambda _: trainers.usages(address)
    await dask_worker.heartbeat()
    if asked.mps:
        seen = [name for name, facts in (seen_devices(gpu) or {}).items() if facts["gpu"]]
        no_mps = await asyncio.to_thread(why_off, seen)
    return problem, no_mps


class NoRepetition(distributed.SchedulerPlugin):
    """Scheduler plugin: a task of one client whose worker died ends with an error; Dask does not run it again.

    ``allowed-failures`` would do this to everybody's tasks. The plugin goes when its client does, however that ends.

    Args:
        client: ID of the client.
    """

    def __init__(self, client: str) -> None:
        self._client = client
        self.name = f"hpo-no-repetition-{client}"

    def update_graph(self, scheduler: Any, *, client: str, tasks: list[Any], **_more: Any) -> None:
        for key in tasks if client == self._client else ():
            if (task := scheduler.tasks.get(key)) is not None:
                task.suspicious = scheduler.allowed_failures

    def remove_client(self, scheduler: Any, client: str) -> None:
        if client == self._client:
            scheduler.remove_plugin(self.name)


def forbid_repetition(client: str, dask_scheduler: Any = None) -> None:
    plugin = NoRepetition(client)
    dask_scheduler.add_plugin(plugin, name=plugin.name)
