"""Cluster kind ``slurm``: Slurm jobs, one worker each (dask-jobqueue)."""

from __future__ import annotations

import fcntl
import logging
import re
import signal
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask

from hpo_core.model.errors import SpecError
from hpo_core.security.private_files import LockFile, private_folder
from hpo_core.spec.sections import SlurmClusterSpec
from hpo_flows.dask.clusters.kind import (
    NO_PAGES,
    ClusterError,
    ClusterKind,
    new_security,
    optional_package,
    scheduler_options,
    variables_elsewhere,
)
from hpo_flows.dask.clusters.slurm_queue import SlurmWatch, cancel_jobs, job_name, jobs_of, mark_of, watched_cluster

_one_at_a_time = threading.Lock()


@contextmanager
def signal_handlers_kept() -> Iterator[None]:
    """Let this thread set no signal handlers; other threads still may.

    A module that calls ``signal.signal`` when it is imported fails in any thread but the main one, and takes the
    handlers of Prefect, asyncio or ours away in the main one. A cluster starts in a thread of its own, and a flow run
    may be in any.
    """
    here = threading.get_ident()
    with _one_at_a_time:
        real = signal.signal

        def kept(number: int, handler: Any) -> Any:
            return signal.getsignal(number) if threading.get_ident() == here else real(number, handler)

        signal.signal = kept  # type: ignore[assignment]
        try:
            yield
        finally:
            signal.signal = real


_ENDED_UNSEEN = 3
"""Number of jobs, and at least one for each worker, that end before their worker comes until the start fails."""


class SlurmJobs(ClusterKind[SlurmClusterSpec]):
    """A scheduler in this process and workers as Slurm jobs.

    The key of the cluster's certificate lies in a file of the study's folder that its owner alone can read.
    """

    def __init__(self, settings: SlurmClusterSpec, study: str, folder: str) -> None:
        super().__init__(settings, study, folder)
        self._watch = SlurmWatch(study, folder)
        self._alone: LockFile | None = None

    def create(self) -> Any:
        """End jobs that a killed controller left, start the scheduler and submit the jobs.

        A study enters the journal only once workers came: the lock keeps a second controller that is started
        meanwhile from taking the jobs of the first one for left ones.
        """
        self._alone = LockFile(Path(self.folder) / "slurm.lock", f"whoever submits Slurm jobs of study {self.study!r}")
        if not self._alone.take(fcntl.LOCK_EX):
            self._release()
            raise ClusterError(
                f"study {self.study!r} has a controller on this machine that submits its Slurm jobs. Wait for it, or "
                "end it first."
            )
        try:
            return self._submit()
        except BaseException:
            self._release()
            raise

    def _submit(self) -> Any:
        cluster = self.scheduler()
        try:
            left = jobs_of(self.study, self.folder)
            cancel_jobs([number for number, job in left.items() if not job.has_ended])
        except ClusterError:
            cluster.close()
            raise
        cluster.scale(self.wanted)
        self._watch.start(cluster)
        self.keep_wanted(cluster)  # jobs that ended, for their walltime say, are submitted again
        return cluster

    def scheduler(self) -> Any:
        """Start the scheduler, with the script of its workers; nothing is submitted yet."""
        settings = self.settings
        if unfit := sorted(set(re.findall(r"[^\w./:@%+=,-]", self.folder))):
            raise SpecError(
                f"cluster.kind = 'slurm' writes the study folder {self.folder!r} into a job script, where {unfit} "
                "would end the path; use a home folder (--home, HPO_HOME) without them."
            )
        # A job that Slurm starts again would come on top of the one that is submitted instead of it.
        ours = ["--no-requeue", f"--comment={mark_of(self.folder)}"]
        passed = variables_elsewhere({} if self.dashboard else NO_PAGES)
        prologue = [f"export {name}='{value}'" for name, value in passed.items()]
        with signal_handlers_kept():  # dask-jobqueue (0.9) takes Ctrl-C for itself where it is imported
            jobqueue = optional_package("dask_jobqueue", "slurm", "slurm")
        return watched_cluster(jobqueue, self._watch)(
            job_name=job_name(self.study),
            cores=1,
            processes=1,
            memory=settings.memory,
            job_cpu=settings.cores,
            walltime=settings.walltime,
            job_extra_directives=[*ours, *settings.directives],
            job_script_prologue=[*prologue, *settings.prologue],
            security=new_security(),
            local_directory=str(self.scratch),
            shared_temp_directory=str(_own_folder(Path(self.folder) / "tls")),
            scheduler_options=dask.config.get("jobqueue.slurm.scheduler-options", {})
            | scheduler_options(self.dashboard),
            log_directory=str(Path(self.folder) / "logs" / "slurm"),
        )

    def check_start(self) -> None:
        watch, wanted = self._watch, self.wanted
        if len(watch.refusals) >= wanted and all(job.was_refused for job in list(watch.jobs.values())):
            raise ClusterError(f"Study {self.study!r} was not started: {watch.refusals[-1]}.")
        if len(watch.ended_unseen) >= max(wanted, _ENDED_UNSEEN):
            raise ClusterError(
                f"Study {self.study!r} was not started: {len(watch.ended_unseen)} Slurm jobs ended before their worker "
                f"came, the last one so: {watch.ended_unseen[-1]}. Look whether the nodes see the home folder and the "
                "Python environment under the same paths, and what cluster.prologue does."
            )

    def no_workers(self, seconds: float) -> ClusterError:
        queue = self._watch.waiting_words or "Slurm: no job waits in the queue."
        return ClusterError(
            f"No Slurm job of study {self.study!r} began to work within {seconds:.0f} s (cluster.wait). {queue} Raise "
            "cluster.wait, or ask for less or for another partition; `squeue --me --start` estimates when jobs begin."
        )

    def news(self) -> str:
        return self._watch.news()

    @property
    def dask_settings(self) -> dict[str, Any]:
        """A job that ended gives its slot free soon, so that another one is submitted."""
        return super().dask_settings | {"distributed.deploy.lost-worker-timeout": "10s"}

    @property
    def may_start(self) -> bool:
        return time.monotonic() >= self._watch.submit_from

    def withdraw(self, names: Collection[Any]) -> Collection[Any]:
        watch = self._watch
        found = {name: str(job.job_id) for name in names if (job := watch.jobs.get(name)) and job.job_id}
        watch.given_back.update(found.values())
        gone = []
        try:
            cancel_jobs(list(found.values()), waiting=True)
            queue = jobs_of(self.study, self.folder)
            gone = [name for name, number in found.items() if number not in queue or queue[number].has_ended]
        except ClusterError as error:  # tried again at the next look
            logging.getLogger(__name__).debug("%s", error)
        watch.given_back.difference_update(number for name, number in found.items() if name not in gone)
        return gone

    def close(self) -> None:
        self._watch.stop()
        self._release()
        cluster = self.cluster
        super().close()
        for name in ("ca_file", "cert", "key"):
            file = getattr(cluster, f"_job_{name}", None)
            if file is not None:
                file.close()

    def _release(self) -> None:
        if self._alone is not None:
            self._alone.close()
            self._alone = None


def _own_folder(path: Path) -> Path:
    # A folder for this user alone; keys that a controller left there when it was killed are removed.
    private_folder(path)
    for file in path.glob(".dask-jobqueue.*"):
        file.unlink(missing_ok=True)
    return path
