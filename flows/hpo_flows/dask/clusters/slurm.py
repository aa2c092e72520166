"""Cluster kind ``slurm``: Slurm jobs, one worker each (dask-jobqueue)."""

from __future__ import annotations

import math
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
from distributed.core import Status

from hpo_core.model.errors import SpecError
from hpo_core.security.private_files import private_folder
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


_AGAIN_SECONDS = 60.0
"""Seconds after which a job that Slurm refused is submitted again."""


class SlurmJobs(ClusterKind[SlurmClusterSpec]):
    """A scheduler in this process and workers as Slurm jobs.

    The key of the cluster's certificate lies in a file of the study's folder that its owner alone can read.
    """

    wait_seconds = math.inf
    """As long as the queue takes: ``squeue --me --start`` estimates when jobs begin."""

    def __init__(self, settings: SlurmClusterSpec, study: str, folder: str) -> None:
        super().__init__(settings, study, folder)
        self._refused: dict[Any, tuple[float, str]] = {}
        """Time and reason of refusals, by the name of the job's worker."""
        self._told = ""

    def create(self) -> Any:
        cluster = self.scheduler()
        cluster.scale(self.wanted)
        self.keep_wanted(cluster)  # jobs that ended, for their walltime say, are submitted again
        return cluster

    def scheduler(self) -> Any:
        """Start the scheduler, with the script of its workers; nothing is submitted yet.

        Raises:
            SpecError: the study's folder cannot stand in a job script, or dask-jobqueue is missing.
        """
        settings = self.settings
        if unfit := sorted(set(re.findall(r"[^\w./:@%+=,-]", self.folder))):
            raise SpecError(
                f"cluster.kind = 'slurm' writes the study folder {self.folder!r} into a job script, where {unfit} "
                "would end the path; use a home folder (--home, HPO_HOME) without them."
            )
        # A job that Slurm starts again would come on top of the one that is submitted instead of it.
        ours = ["--no-requeue"]
        passed = variables_elsewhere({} if self.dashboard else NO_PAGES)
        prologue = [f"export {name}='{value}'" for name, value in passed.items()]
        with signal_handlers_kept():  # dask-jobqueue (0.9) takes Ctrl-C for itself where it is imported
            jobqueue = optional_package("dask_jobqueue", "slurm", "slurm")
        return _noting_refusals(jobqueue, self._refused)(
            job_name=f"hpo-{self.study}",
            cores=1,
            processes=1,
            memory=settings.memory,
            job_cpu=settings.cores,
            walltime=settings.walltime,
            job_extra_directives=[*ours, *settings.directives],
            job_script_prologue=[*prologue, *dask.config.get("jobqueue.slurm.job-script-prologue", [])],
            security=new_security(),
            local_directory=str(self.scratch),
            shared_temp_directory=str(_own_folder(Path(self.folder) / "tls")),
            scheduler_options=dask.config.get("jobqueue.slurm.scheduler-options", {})
            | scheduler_options(self.dashboard),
            log_directory=str(Path(self.folder) / "logs" / "slurm"),
        )

    def check_start(self) -> None:
        refused = list(self._refused.values())
        if len(refused) >= max(1, self.wanted):
            raise ClusterError(f"Study {self.study!r} was not started: {refused[-1][1]}.")

    def news(self) -> str:
        """A new reason for which Slurm refused a job; a minute later the job is submitted again."""
        reason = ""
        for name, (since, why) in list(self._refused.items()):
            if time.monotonic() < since + _AGAIN_SECONDS or self.cluster is None:
                continue
            del self._refused[name]
            self.cluster.loop.add_callback(self.cluster.workers.pop, name, None)  # Dask makes another one
            if why != self._told:
                reason = self._told = why
        return reason and f"{reason}. It is tried again."

    @property
    def dask_settings(self) -> dict[str, Any]:
        """A job that ended gives its slot free soon, so that another one is submitted."""
        return super().dask_settings | {"distributed.deploy.lost-worker-timeout": "10s"}

    def close(self) -> None:
        cluster = self.cluster
        super().close()
        for name in ("ca_file", "cert", "key"):
            file = getattr(cluster, f"_job_{name}", None)
            if file is not None:
                file.close()


def _noting_refusals(jobqueue: Any, refused: dict[Any, tuple[float, str]]) -> Any:
    # The class of the cluster; by itself a job that sbatch refuses is logged by Dask, and waited for.

    class NotingJob(jobqueue.SLURMCluster.job_cls):  # type: ignore[misc]
        async def start(self) -> None:
            try:
                await super().start()
            except (RuntimeError, OSError) as error:
                self.status = Status.running
                refused[self.name] = time.monotonic(), refusal(error)

    class NotingCluster(jobqueue.SLURMCluster):  # type: ignore[misc]
        job_cls = NotingJob

    return NotingCluster


def refusal(error: BaseException) -> str:
    """One sentence about a submission that failed, with its cure."""
    if isinstance(error, OSError):
        return (
            f"sbatch cannot be started here ({error.strerror or error}). Start the study on a login node, or mend PATH"
        )
    stderr = str(error).partition("stderr:\n")[2] or str(error)
    lines = [re.sub(r"^\w+: (error: )?", "", line.strip()) for line in stderr.splitlines() if line.strip()]
    reason = "; ".join(dict.fromkeys(lines)) or "no reason given"
    return f"sbatch refused the job: {reason}. Change the settings below cluster: in the study, or look at `sinfo`"


def _own_folder(path: Path) -> Path:
    # A folder for this user alone; keys that a controller left there when it was killed are removed.
    private_folder(path)
    for file in path.glob(".dask-jobqueue.*"):
        file.unlink(missing_ok=True)
    return path
