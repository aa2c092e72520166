"""Cluster kind ``slurm``: Slurm jobs, one worker each (dask-jobqueue)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
from distributed.security import Security

from hpo_core.spec import SlurmClusterSpec
from hpo_flows.dask.clusters.kind import NO_PAGES, ClusterKind, optional_package, scheduler_options
from hpo_flows.dask.clusters.signal_handlers import signal_handlers_kept


class SlurmJobs(ClusterKind[SlurmClusterSpec]):
    """A scheduler in this process and workers as Slurm jobs.

    The key of the cluster's certificate lies in a file of the study's folder that its owner alone can read.
    """

    def create(self) -> Any:
        """Start the scheduler and submit the jobs."""
        cluster = self.scheduler()
        cluster.scale(self.settings.workers)
        return cluster

    def scheduler(self) -> Any:
        """Start the scheduler, with the script of its workers; nothing is submitted yet."""
        settings = self.settings
        directives = [f"--gres=gpu:{settings.gpus}"] if settings.gpus else []
        prologue = [] if self.dashboard else [f"export {_environment(key)}='[]'" for key in NO_PAGES]
        with signal_handlers_kept():  # dask-jobqueue (0.9) takes Ctrl-C for itself where it is imported
            jobqueue = optional_package("dask_jobqueue", "slurm", "slurm")
        return jobqueue.SLURMCluster(
            job_name=f"hpo-{self.study}",
            cores=1,
            processes=1,
            memory=settings.memory,
            job_cpu=settings.cores,
            walltime=settings.walltime,
            queue=settings.partition,
            account=settings.account,
            interface=settings.interface,
            job_extra_directives=[*directives, *settings.directives],
            job_script_prologue=[*prologue, *settings.prologue],
            security=Security.temporary(),  # type: ignore[no-untyped-call]
            shared_temp_directory=str(_own_folder(Path(self.folder) / "tls")),
            scheduler_options=dask.config.get("jobqueue.slurm.scheduler-options", {})
            | scheduler_options(self.dashboard),
            log_directory=str(Path(self.folder) / "logs" / "slurm"),
        )

    @property
    def dask_settings(self) -> dict[str, Any]:
        """A job that ended gives its slot free soon, so that another one is submitted."""
        return super().dask_settings | {"distributed.deploy.lost-worker-timeout": "10s"}

    def keep_size(self, slots: int) -> None:
        """Submit again the jobs that ended, for their walltime say."""
        if slots < self.settings.workers:
            self.cluster.scale(self.settings.workers)

    def close(self) -> None:
        """End the jobs and the scheduler, and remove the files of certificate and key."""
        cluster = self.cluster
        super().close()
        for name in ("ca_file", "cert", "key"):
            file = getattr(cluster, f"_job_{name}", None)
            if file is not None:
                file.close()


def _environment(key: str) -> str:
    """The variable that sets a key of Dask's configuration."""
    return "DASK_" + key.upper().replace(".", "__").replace("-", "_")


def _own_folder(path: Path) -> Path:
    """A folder for this user alone; keys that a controller left there when it was killed are removed."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    for file in path.glob(".dask-jobqueue.*"):
        file.unlink(missing_ok=True)
    return path
