"""Dask clusters: start or join one, run jobs on its slots, notice workers that come and go.

Settings that matter, each for a failure seen (Dask 2026.8):

- ``allowed-failures: 0``: a job whose worker died must not be run again behind our back.
- ``lost-worker-timeout: 1h``: LocalCluster drops a slot for ever when a worker dies twice within the default.
- work stealing off, futures released at once: completed work is not run again when a worker dies.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import dask
import distributed
import msgspec
from distributed.scheduler import KilledWorker

from hpo_core.model.errors import HpoError
from hpo_core.model.trial import Job, Outcome, Report
from hpo_core.security.masking import masked_report
from hpo_core.spec import (
    AddressClusterSpec,
    LocalClusterSpec,
    LocalCudaClusterSpec,
    SlurmClusterSpec,
    StudySpec,
)
from hpo_core.training.request import JobRequest, decode_report, encode_request
from hpo_core.training.worker import (
    cancel_job,
    cancel_study,
    close_all,
    close_idle,
    heartbeats,
    prepare_worker,
    train_job,
)
from hpo_flows.dask.certificates import security_of
from hpo_flows.dask.cluster_kinds import forget_keys, start_cluster, web_settings
from hpo_flows.dask.monitor import METRIC, ClusterWatch, look_at_workers
from hpo_flows.dask.processes import LocalProcesses, kill_tree

_DASK_SETTINGS = {
    "distributed.scheduler.allowed-failures": 0,
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.worker-saturation": 1.0,
    "distributed.deploy.lost-worker-timeout": "1h",
    "distributed.worker.daemon": False,
    "distributed.admin.tick.limit": "60s",
    "distributed.comm.timeouts.connect": "30s",
}


_WORKERS_WITHIN = 60.0
_CONNECT_SECONDS = 30.0
_IMPORT_SECONDS = 720.0
"""An import may take 600 s (``Trainer``), and its process then has to be ended."""
_CALL_SECONDS = 30.0
_CLOSE_SECONDS = 10.0


class ClusterError(HpoError):
    """The Dask cluster cannot be started or reached."""


class _UnderWay(NamedTuple):
    """A job that was submitted and has not been answered."""

    job: Job
    future: Any
    done: Callable[[Job, Report], None]


class DaskExecutor:
    """Runs jobs on Dask workers, one per worker thread, each in a child process of its worker.

    Nothing here waits for ever, and what the driver calls while a study runs does not wait for the cluster at all.

    Args:
        spec: the study; names cluster, objective, limits.
        folder: absolute study folder, reachable from every worker.
    """

    def __init__(self, spec: StudySpec, folder: str) -> None:
        self._spec = spec
        self._space = spec.plain()["space"] if spec.style == "optuna" else {}
        self._folder = folder
        self._cluster: Any = None
        self._client: Any = None
        self._watch: ClusterWatch | None = None
        self._processes: LocalProcesses | None = None
        self._restore: Any = None
        self._address = ""
        self._abandoned = threading.Event()
        self._lock = threading.Lock()
        self._under_way: dict[str, _UnderWay] = {}
        """By Dask's key."""
        self._to_cancel: dict[str, set[tuple[int, int]]] = {}
        """By worker: what it is still to be told. On the client's loop only."""
        self._telling: dict[str, asyncio.Task[None]] = {}
        self._replacing: set[asyncio.Task[None]] = set()

    # Start.

    def start(self) -> None:
        """Start or join the cluster, and import the objective once per worker.

        Raises:
            ClusterError: no scheduler answers, or no worker is there.
            ObjectiveError: the objective cannot be imported.
        """
        for name in ("distributed", "distributed.scheduler", "distributed.nanny", "distributed.worker"):
            logging.getLogger(name).setLevel(logging.ERROR)
        for name in ("tornado.application", "distributed.client"):  # a scheduler that is gone is said by ClusterError
            logging.getLogger(name).setLevel(logging.CRITICAL)
        cluster = self._spec.cluster
        if self._spec.objective is None:
            raise HpoError(f"Study {self._spec.study!r} has no objective: it can only be driven by hand.")
        gone = {"distributed.deploy.lost-worker-timeout": "10s"} if isinstance(cluster, SlurmClusterSpec) else {}
        web = web_settings(getattr(cluster, "dashboard", False))
        self._restore = dask.config.set(_DASK_SETTINGS | gone | web)
        if isinstance(cluster, AddressClusterSpec):
            self._client = _connected(cluster)
        else:
            if isinstance(cluster, LocalClusterSpec | LocalCudaClusterSpec):
                self._processes = LocalProcesses()
            self._cluster = self._started(cluster.kind)
            self._client = distributed.Client(self._cluster, set_as_default=False)  # type: ignore[no-untyped-call]
        self._address = str(self._client.scheduler.address)
        # Dask's client collects messages for 10 ms before it sends them; a job waits for its next one meanwhile.
        self._client.scheduler_comm.interval = 0.001
        self._start_watch()
        if not isinstance(cluster, LocalClusterSpec):
            self._call(lambda: self._client.run_on_scheduler(_no_repeats), "the scheduler")
        self._wait_for_workers()
        self._prepare_workers(self._spec.objective)

    def _started(self, kind: str) -> Any:
        try:
            return start_cluster(self._spec, self._folder)
        except RuntimeError as error:  # Dask's own: a worker died while it came up, or took too long
            causes: list[BaseException] = [error]
            while (cause := causes[-1].__cause__) is not None:
                causes.append(cause)
            raise ClusterError(
                f"The {kind} cluster of study {self._spec.study!r} could not be started "
                f"({'; '.join(str(cause) for cause in causes)}). A worker was killed, or the machine is very busy: "
                "start again, with fewer workers if that does not help."
            ) from error

    def _start_watch(self) -> None:
        training, patience = self._spec.training, self._spec.cluster.worker_timeout
        limit = None if training.timeout is None else _IMPORT_SECONDS + training.timeout + training.grace + 2 * patience
        self._watch = ClusterWatch(
            self._client,
            prefix=f"{self._spec.study}/",
            folder=self._folder,
            timeout=patience,
            limit=limit,
            on_out=self._worker_is_out,
            on_overdue=self._ran_too_long,
            on_back=self._forget_study_on,
        )
        self._call(lambda: self._client.run_on_scheduler(look_at_workers, "/"), "the scheduler")
        self._watch.start()

    def _wait_for_workers(self) -> None:
        cluster, watch = self._spec.cluster, self._watch
        assert watch is not None
        seconds: float = getattr(cluster, "wait", _WORKERS_WITHIN)
        wanted = cluster.workers if isinstance(cluster, LocalClusterSpec) else 1
        deadline = time.monotonic() + seconds
        while watch.slots() < wanted:
            self._stop_if_abandoned()
            if time.monotonic() >= deadline and watch.slots() == 0:
                if isinstance(cluster, AddressClusterSpec):
                    raise ClusterError(
                        f"The Dask scheduler at {cluster.address} has no workers after {seconds:.0f} s; start some "
                        "with `dask worker`."
                    )
                raise ClusterError(
                    f"The {cluster.kind} cluster has no workers after {seconds:.0f} s; see its own logs and queue."
                )
            if time.monotonic() >= deadline:
                return
            time.sleep(0.05)

    def _prepare_workers(self, objective: str) -> None:
        assert self._watch is not None
        waiting = {address: self._prepared(address, objective) for address in self._watch.well()}
        deadline = time.monotonic() + _IMPORT_SECONDS
        try:
            while waiting and time.monotonic() < deadline:
                self._stop_if_abandoned()
                for address in [address for address, answer in waiting.items() if answer.done()]:
                    self._check_prepared(address, waiting.pop(address))
                for address in waiting.keys() & set(self._watch.out()):
                    waiting.pop(address).cancel()
                time.sleep(0.01)
        finally:
            for answer in waiting.values():
                answer.cancel()
        if not self._watch.well():
            raise ClusterError(f"No Dask worker of {self._address} answers. Look at their processes and logs.")

    def _prepared(self, address: str, objective: str) -> concurrent.futures.Future[Any]:
        async def ask() -> Any:
            found = await self._client.run(
                _prepare, objective, tuple(self._spec.pythonpath), workers=[address], on_error="return"
            )
            return found.get(address)

        return asyncio.run_coroutine_threadsafe(ask(), self._client.loop.asyncio_loop)

    @staticmethod
    def _check_prepared(address: str, answer: concurrent.futures.Future[Any]) -> None:
        problem = answer.exception() or answer.result()
        if isinstance(problem, HpoError):
            raise problem
        if isinstance(problem, BaseException):
            raise ClusterError(
                f"Dask worker {address} cannot run studies ({type(problem).__name__}: {problem}). Install this "
                "package and the objective's requirements in the workers' environment."
            )

    def abandon_start(self) -> None:
        """Make a :meth:`start` that another thread is in end soon, with an error."""
        self._abandoned.set()
        if self._client is None and self._processes is not None:
            self._processes.kill()  # a worker that does not come up keeps Dask's constructor waiting

    def _stop_if_abandoned(self) -> None:
        if self._abandoned.is_set():
            raise ClusterError("The start of the cluster was given up.")

    def take_over(self) -> None:
        """The study is ours now: attempts that a controller before us left on the cluster train in vain."""
        if isinstance(self._spec.cluster, LocalClusterSpec):
            return
        self._each(_cancel_study, self._folder, seconds=self._spec.cluster.worker_timeout)

    @property
    def dashboard(self) -> str:
        """URL of Dask's own dashboard; empty where it is off."""
        if getattr(self._spec.cluster, "dashboard", True):
            return str(self._client.dashboard_link)
        return ""

    # Calls with a limit.

    def _call(self, ask: Callable[[], Awaitable[Any]], whom: str, seconds: float = _CALL_SECONDS) -> Any:
        """Wait for one answer; from any thread but the client's loop.

        Raises:
            ClusterError: there is none within these seconds.
        """

        async def limited() -> Any:
            return await asyncio.wait_for(ask(), seconds)

        answer = asyncio.run_coroutine_threadsafe(limited(), self._client.loop.asyncio_loop)
        try:
            return answer.result(seconds + 5.0)
        except (TimeoutError, OSError) as error:
            answer.cancel()
            raise ClusterError(
                f"Dask at {self._address}: no answer from {whom} within {seconds:g} s ({type(error).__name__}). Look "
                "whether it runs; nothing recorded is lost."
            ) from error

    def _each(self, function: Callable[..., Any], *arguments: Any, seconds: float) -> dict[str, Any]:
        """Run a function on every worker that is well; what came back in time, errors as values."""
        watch = self._watch
        if watch is None or watch.scheduler_is_silent() or self._client.status != "running":
            return {}

        async def on_one(address: str) -> tuple[str, Any]:
            try:
                found = await asyncio.wait_for(
                    self._client.run(function, *arguments, workers=[address], on_error="return"), seconds
                )
                return address, found.get(address)
            except Exception as error:
                return address, error

        async def on_all() -> dict[str, Any]:
            return dict(await asyncio.gather(*(on_one(address) for address in watch.well())))

        try:
            found: dict[str, Any] = self._call(on_all, "the workers", seconds + 5.0)
        except ClusterError as error:
            logging.getLogger(__name__).debug("%s", error)
            return {}
        return found

    # While a study runs: nothing below waits for the cluster.

    def slots(self) -> int:
        """Jobs the workers known now can run at once, those that give no sign of life left out.

        Raises:
            ClusterError: the scheduler is gone, or does not answer.
        """
        self._check_connection()
        assert self._watch is not None
        cluster = self._spec.cluster
        if self._watch.scheduler_is_silent():
            raise ClusterError(
                f"The Dask scheduler at {self._address} has not answered for {cluster.worker_timeout:g} s "
                "(cluster.worker_timeout). Nothing recorded is lost: look whether it runs, then "
                f"`hpo resume {self._spec.study}`."
            )
        count = self._watch.slots()
        if isinstance(cluster, SlurmClusterSpec) and count < cluster.workers:
            self._cluster.scale(cluster.workers)  # those whose job ended, for its walltime say, are submitted again
        return count

    def _check_connection(self) -> None:
        if self._client.status != "running":
            raise ClusterError(
                f"The Dask scheduler at {self._address} is gone. Nothing recorded is lost: start it again, then "
                f"`hpo resume {self._spec.study}`."
            )

    def submit(self, job: Job, done: Callable[[Job, Report], None]) -> None:
        """Start a job; ``done`` is called from another thread with its report, whatever happens."""
        self._check_connection()
        spec = self._spec
        assert spec.objective is not None and self._watch is not None
        request = JobRequest(
            study=spec.study,
            job=job,
            objective=spec.objective,
            metric=spec.metric.name,
            more_metrics=tuple(metric.name for metric in spec.objectives[1:]),
            required="any" if spec.any_metric else "all",
            seed=spec.training_seed(job.trial),
            folder=self._folder,
            pythonpath=tuple(spec.pythonpath),
            timeout=spec.training.timeout,
            stall_timeout=spec.training.stall_timeout,
            storage_timeout=spec.training.storage_timeout,
            log_limit=spec.training.log_limit,
            grace=spec.training.grace,
            zygote_timeout=spec.cluster.worker_timeout,
            checkpoint_base=spec.checkpoint_base,
            style=spec.style,
            space=self._space,
        )
        key = f"{spec.study}/trial-{job.trial:05d}/attempt-{job.attempt}/{id(self):x}"
        avoided = bool(self._watch.out())
        future = self._client.submit(
            _train,
            encode_request(request),
            key=key,
            pure=False,
            retries=0,
            workers=self._watch.well() if avoided else None,
            allow_other_workers=avoided,  # a worker that went meanwhile must not keep the job waiting for it
        )
        with self._lock:
            self._under_way[key] = _UnderWay(job, future, done)
        future.add_done_callback(lambda ended: self._answered(key, _report(job, ended)))

    def _answered(self, key: str, report: Report) -> None:
        """The first answer counts; for another one nobody waits any more."""
        with self._lock:
            found = self._under_way.pop(key, None)
        if found is None:
            return
        try:
            found.future.release()  # a result still referenced is computed again when its worker dies
        finally:
            # a worker elsewhere does not know this process's secrets
            found.done(found.job, masked_report(report))

    def cancel_all(self) -> None:
        """End every running attempt: SIGTERM, grace, SIGKILL in its worker."""
        with self._lock:
            attempts = [(one.job.trial, one.job.attempt) for one in self._under_way.values()]
        self.cancel(attempts)

    def cancel(self, attempts: list[tuple[int, int]]) -> None:
        """End these attempts (trial, attempt) likewise, wherever they run; returns at once."""
        if self._client is not None and attempts and self._client.status == "running":
            self._client.loop.add_callback(self._tell_to_cancel, set(attempts))

    # On the client's loop.

    def _tell_to_cancel(self, attempts: set[tuple[int, int]]) -> None:
        """One call at a time to each worker: one that does not answer is not called again and again."""
        assert self._watch is not None
        for address in self._watch.well():
            self._to_cancel.setdefault(address, set()).update(attempts)
            if address not in self._telling:
                task = self._telling[address] = asyncio.ensure_future(self._tell(address))
                task.add_done_callback(functools.partial(self._told, address))

    def _told(self, address: str, _: asyncio.Task[None]) -> None:
        self._telling.pop(address, None)

    async def _tell(self, address: str) -> None:
        while attempts := self._to_cancel.pop(address, None):
            with contextlib.suppress(Exception):  # what cannot be reached cannot be cancelled
                call = self._client.run(
                    _cancel_each, self._folder, sorted(attempts), workers=[address], on_error="ignore"
                )
                await asyncio.wait_for(call, self._spec.cluster.worker_timeout)

    def _worker_is_out(self, address: str, keys: list[str], why: str) -> None:
        """Its jobs are lost, whatever it may report later; a worker of ours is replaced."""
        for key in keys:
            with self._lock:
                found = self._under_way.get(key)
            if found is not None:
                self._answered(key, _lost(found.job, f"its Dask worker ({address}) {why}", address))
        if self._cluster is not None:
            task = asyncio.ensure_future(self._replace(address))
            self._replacing.add(task)
            task.add_done_callback(self._replacing.discard)

    def _ran_too_long(self, address: str, key: str, seconds: float) -> None:
        with self._lock:
            found = self._under_way.get(key)
        if found is not None:
            message = (
                f"The attempt ran for {seconds:.0f} s, far longer than training.timeout; its worker did not end it."
            )
            report = _lost(found.job, message, address)
            self._answered(key, msgspec.structs.replace(report, outcome=Outcome.TIMEOUT))

    async def _replace(self, address: str) -> None:
        """End the worker's process; the nanny, here or beside it, starts another one."""
        nannies = [nanny for nanny in list(self._cluster.workers.values()) if self._processes is not None]
        pids = [nanny.pid for nanny in nannies if nanny.worker_address == address and nanny.pid is not None]
        with contextlib.suppress(Exception):
            if self._processes is not None:
                for pid in pids:
                    await asyncio.to_thread(kill_tree, pid)
            else:
                call = self._client.restart_workers([address], timeout=_CALL_SECONDS, raise_for_error=False)
                await asyncio.wait_for(call, 2 * _CALL_SECONDS)

    async def _forget_study_on(self, address: str) -> None:
        """What a worker trained that is heard again was lost meanwhile."""
        await self._client.run(_cancel_study, self._folder, workers=[address])

    # End.

    def close(self) -> None:
        """End children, client and a cluster of ours, within a minute and for certain."""
        self._abandoned.set()
        if self._watch is not None:
            self._watch.stop()
        if self._processes is not None:
            self._processes.look()
        if self._client is not None:
            self._close_children()
            with contextlib.suppress(Exception):
                self._client.close(timeout=_CLOSE_SECONDS / 2)
            self._client = None
        if self._cluster is not None:
            self._close_cluster()
            self._cluster = None
        if self._processes is not None:
            self._processes.kill()
            self._processes = None
        if self._restore is not None:
            self._restore.__exit__(None, None, None)
            self._restore = None

    def _close_children(self) -> None:
        spec = self._spec
        if self._cluster is None:
            if spec.objective is not None:
                self._each(_close_idle, spec.objective, tuple(spec.pythonpath), seconds=2 * _CLOSE_SECONDS)
            return
        self._each(_close_all, seconds=_CLOSE_SECONDS)

    def _close_cluster(self) -> None:
        # A cancelled flow run's workers got the signal too: their nannies, busy starting others, miss the time.
        for name in ("distributed.nanny", "distributed.scheduler"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        try:
            self._cluster.close(timeout=_CLOSE_SECONDS)
        except Exception as error:
            logging.getLogger(__name__).debug("closing the cluster: %s: %s", type(error).__name__, error)
            self._cluster.shutdown_on_close = False  # tried; not again when the interpreter ends
        forget_keys(self._cluster)


def _connected(cluster: AddressClusterSpec) -> Any:
    security = security_of(cluster)
    try:
        return distributed.Client(  # type: ignore[no-untyped-call]
            cluster.address, timeout=_CONNECT_SECONDS, set_as_default=False, security=security
        )
    except (OSError, TimeoutError) as error:
        cure = "" if security is None else ", or the certificates"
        raise ClusterError(
            f"No Dask scheduler answers at {cluster.address} ({error}). Start one with `dask scheduler` and "
            f"`dask worker`, or mend cluster.address in the study{cure}."
        ) from error


def _report(job: Job, future: Any) -> Report:
    try:
        data, worker = future.result()
        return msgspec.structs.replace(decode_report(data), worker=worker)
    except KilledWorker as error:
        return _lost(job, f"its Dask worker died ({error.last_worker.address})", error.last_worker.address)
    except distributed.CancelledError:
        return _lost(job, "its Dask future was cancelled (scheduler gone or worker removed)", "")
    except Exception as error:
        return _lost(job, f"its Dask task failed: {type(error).__name__}: {error}", "")


def _train(request: bytes) -> tuple[bytes, str]:
    """Runs on a Dask worker: the answer is small, whatever was trained."""
    worker = distributed.get_worker()
    worker.metrics[METRIC] = lambda _: heartbeats()  # goes out with each heartbeat
    return train_job(request), worker.address


def _lost(job: Job, message: str, worker: str) -> Report:
    return Report(trial=job.trial, attempt=job.attempt, outcome=Outcome.LOST, message=message, worker=worker)


# What follows runs in a worker's event loop, which sends its heartbeats: whatever may take time goes to a thread.


async def _cancel_each(folder: str, running: list[tuple[int, int]]) -> None:
    for trial, attempt in running:
        await asyncio.to_thread(cancel_job, trial, attempt, folder)


async def _cancel_study(folder: str) -> None:
    await asyncio.to_thread(cancel_study, folder)


async def _close_all() -> None:
    await asyncio.to_thread(close_all)


async def _close_idle(objective: str, pythonpath: tuple[str, ...]) -> None:
    await asyncio.to_thread(close_idle, objective, pythonpath)


async def _prepare(objective: str, pythonpath: tuple[str, ...]) -> None:
    """An import may take minutes."""
    await asyncio.to_thread(prepare_worker, objective, pythonpath)


def _no_repeats(dask_scheduler: Any = None) -> None:
    dask_scheduler.allowed_failures = 0
