"""Registry of cluster kinds: how each kind of ``spec.cluster`` is started or joined."""

from __future__ import annotations

from typing import Any

from hpo_core.spec import StudySpec
from hpo_flows.dask.clusters.address import RunningScheduler
from hpo_flows.dask.clusters.kind import ClusterKind
from hpo_flows.dask.clusters.kubernetes import KubernetesPods
from hpo_flows.dask.clusters.local import LocalWorkers
from hpo_flows.dask.clusters.local_cuda import LocalGpuWorkers
from hpo_flows.dask.clusters.slurm import SlurmJobs

KINDS: dict[str, type[ClusterKind[Any]]] = {
    "local": LocalWorkers,
    "address": RunningScheduler,
    "slurm": SlurmJobs,
    "kubernetes": KubernetesPods,
    "local_cuda": LocalGpuWorkers,
}


def cluster_of(spec: StudySpec, folder: str) -> ClusterKind[Any]:
    """Return the cluster that a study describes; nothing is started yet.

    Args:
        folder: absolute study folder; logs and keys of a cluster go below it.
    """
    return KINDS[spec.cluster.kind](spec.cluster, spec.study, folder)
