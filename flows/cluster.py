"""Dask clusters: start or join one, run jobs on its slots, notice workers that come and go.

Settings that matter, each for a failure seen (Dask 2026.8):

- ``allowed-failures: 0``: a job whose worker died must not be run again behind our back.
- ``lost-worker-timeout: 1h``: LocalCluster drops a slot for ever when a worker dies twice within the default.
- work stealing off, futures released at once: completed work is not run again when a worker dies.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import dask
import distributed
import msgspec
from distributed.scheduler import KilledWorker

from flows.cluster_kinds import start_cluster
from hpo_core.errors import HpoError
from hpo_core.spec import KubernetesClusterSpec, LocalClusterSpec, LocalCudaClusterSpec, SlurmClusterSpec, StudySpec
from hpo_core.training.request import JobRequest, decode_report, encode_request
from hpo_core.training.worker import (
    cancel_job,
    cancel_study,
    close_all,
    close_idle,
    prepare_worker,
    train_job,
)
from hpo_core.trial import Job, Outcome, Report

_DASK_SETTINGS = {
    "distributed.scheduler.allowed-failures": 0,
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.worker-saturation": 1.0,
    "distributed.deploy.lost-worker-timeout": "1h",
    "distributed.worker.daemon": False,
    "distributed.admin.tick.limit": "60s",
    "distributed.comm.timeouts.connect": "30s",
}


_WORKERS_WITHIN = 20.0


class ClusterError(HpoError):
    """The Dask cluster cannot be started or reached."""


class DaskExecutor:
    """Runs jobs on Dask workers, one per worker thread, each in a child process of its worker.

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
        self._restore: Any = None
        self._address = ""
        self._futures: dict[tuple[int, int], Any] = {}

    def start(self) -> None:
        """Start or join the cluster, and import the objective once per worker.

        Raises:
            ClusterError: no scheduler answers, or no worker is there.
            ObjectiveError: the objective cannot be imported.
        """
        for name in ("distributed", "distributed.scheduler", "distributed.nanny", "distributed.worker"):
            logging.getLogger(name).setLevel(logging.ERROR)
        logging.getLogger("tornado.application").setLevel(logging.CRITICAL)
        cluster = self._spec.cluster
        gone = {"distributed.deploy.lost-worker-timeout": "10s"} if isinstance(cluster, SlurmClusterSpec) else {}
        self._restore = dask.config.set(_DASK_SETTINGS | gone)
        if isinstance(cluster, SlurmClusterSpec | KubernetesClusterSpec | LocalCudaClusterSpec):
            self._cluster = start_cluster(self._spec, self._folder)
            self._client = distributed.Client(self._cluster, set_as_default=False)  # type: ignore[no-untyped-call]
            wait = _WORKERS_WITHIN if isinstance(cluster, LocalCudaClusterSpec) else cluster.wait
            self._wait_for_workers(f"The {cluster.kind} cluster", wait, "see its own logs and queue")
        elif isinstance(cluster, LocalClusterSpec):
            self._cluster = distributed.LocalCluster(  # type: ignore[no-untyped-call]
                n_workers=cluster.workers,
                threads_per_worker=1,
                host="127.0.0.1",
                dashboard_address="127.0.0.1:0",
                memory_limit=None,
                silence_logs=logging.CRITICAL,
            )
            self._client = distributed.Client(self._cluster, set_as_default=False)  # type: ignore[no-untyped-call]
        else:
            try:
                self._client = distributed.Client(  # type: ignore[no-untyped-call]
                    cluster.address, timeout=10, set_as_default=False
                )
            except (OSError, TimeoutError) as error:
                raise ClusterError(
                    f"No Dask scheduler answers at {cluster.address} ({error}). Start one with `dask scheduler` and "
                    "`dask worker`, or mend cluster.address in the study."
                ) from error
            self._wait_for_workers(
                f"The Dask scheduler at {cluster.address}", _WORKERS_WITHIN, "start some with `dask worker`"
            )
        if not isinstance(cluster, LocalClusterSpec):
            self._client.run_on_scheduler(_no_repeats)
        self._address = str(self._client.scheduler.address)
        # Dask's client collects messages for 10 ms before it sends them; a job waits for its next one meanwhile.
        self._client.scheduler_comm.interval = 0.001
        if self._spec.objective is None:
            raise HpoError(f"Study {self._spec.study!r} has no objective: it can only be driven by hand.")
        for worker, problem in self._client.run(
            _prepare, self._spec.objective, tuple(self._spec.pythonpath), on_error="return"
        ).items():
            if isinstance(problem, HpoError):
                raise problem
            if isinstance(problem, BaseException):
                raise ClusterError(
                    f"Dask worker {worker} cannot run studies ({type(problem).__name__}: {problem}). Install this "
                    "package and the objective's requirements in the workers' environment."
                )

    def _wait_for_workers(self, what: str, seconds: float, cure: str) -> None:
        try:
            self._client.wait_for_workers(1, timeout=seconds)
        except TimeoutError:
            raise ClusterError(f"{what} has no workers after {seconds:.0f} s; {cure}.") from None

    def take_over(self) -> None:
        """The study is ours now: attempts that a controller before us left on the cluster train in vain."""
        if not isinstance(self._spec.cluster, LocalClusterSpec):
            self._client.run(cancel_study, self._folder, on_error="ignore")

    @property
    def dashboard(self) -> str:
        """URL of Dask's own dashboard."""
        return str(self._client.dashboard_link)

    def slots(self) -> int:
        """Jobs the workers known now can run at once.

        Raises:
            ClusterError: the scheduler is gone.
        """
        self._check_connection()
        info = self._client.scheduler_info(n_workers=-1)
        count: int = sum(worker["nthreads"] for worker in info.get("workers", {}).values())
        cluster = self._spec.cluster
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
        assert spec.objective is not None
        request = JobRequest(
            study=spec.study,
            job=job,
            objective=spec.objective,
            metric=spec.metric.name,
            more_metrics=tuple(metric.name for metric in spec.objectives[1:]),
            seed=spec.training_seed(job.trial),
            folder=self._folder,
            pythonpath=tuple(spec.pythonpath),
            timeout=spec.training.timeout,
            stall_timeout=spec.training.stall_timeout,
            storage_timeout=spec.training.storage_timeout,
            log_limit=spec.training.log_limit,
            grace=spec.training.grace,
            checkpoint_base=spec.checkpoint_base,
            style=spec.style,
            space=self._space,
        )
        future = self._client.submit(
            _train,
            encode_request(request),
            key=f"{spec.study}/trial-{job.trial:05d}/attempt-{job.attempt}/{id(self):x}",
            pure=False,
            retries=0,
        )
        self._futures[job.trial, job.attempt] = future

        def finished(ended: Any) -> None:
            report = _report(job, ended)
            try:
                self._futures.pop((job.trial, job.attempt), None)
                ended.release()  # a result still referenced is computed again when its worker dies
            finally:
                done(job, report)

        future.add_done_callback(finished)

    def cancel_all(self) -> None:
        """End every running attempt: SIGTERM, grace, SIGKILL in its worker."""
        self.cancel(list(self._futures))

    def cancel(self, attempts: list[tuple[int, int]]) -> None:
        """End these attempts (trial, attempt) likewise, wherever they run."""
        if self._client is None or not attempts or self._client.status != "running":
            return
        try:
            self._client.run(_cancel_each, self._folder, attempts, on_error="ignore")
        except Exception as error:  # we are ending anyway; what cannot be reached cannot be cancelled
            logging.getLogger(__name__).debug("cancelling: %s", error)

    def close(self) -> None:
        """End children, client and (a local) cluster."""
        if self._client is not None:
            try:
                if self._cluster is not None:
                    self._client.run(close_all, on_error="ignore")
                elif self._spec.objective is not None:
                    self._client.run(close_idle, self._spec.objective, tuple(self._spec.pythonpath), on_error="ignore")
            except Exception as error:
                logging.getLogger(__name__).debug("closing children: %s", error)
            self._client.close(timeout=5)
            self._client = None
        if self._cluster is not None:
            # A cancelled flow run's workers got the signal too: their nannies, busy starting others, miss the time.
            for name in ("distributed.nanny", "distributed.scheduler"):
                logging.getLogger(name).setLevel(logging.CRITICAL)
            try:
                self._cluster.close(timeout=10)
            except TimeoutError as error:
                logging.getLogger(__name__).debug("closing the local cluster: %s", error)
            self._cluster = None
        if self._restore is not None:
            self._restore.__exit__(None, None, None)
            self._restore = None


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
    return train_job(request), distributed.get_worker().address


def _lost(job: Job, message: str, worker: str) -> Report:
    return Report(trial=job.trial, attempt=job.attempt, outcome=Outcome.LOST, message=message, worker=worker)


def _cancel_each(folder: str, running: list[tuple[int, int]]) -> None:
    for trial, attempt in running:
        cancel_job(trial, attempt, folder)


async def _prepare(objective: str, pythonpath: tuple[str, ...]) -> None:
    """An import may take minutes; in the worker's event loop it would stop the heartbeats."""
    await asyncio.to_thread(prepare_worker, objective, pythonpath)


def _no_repeats(dask_scheduler: Any = None) -> None:
    dask_scheduler.allowed_failures = 0
