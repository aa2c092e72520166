"""Registry of cluster kinds: how each kind of ``spec.cluster`` is started or joined."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hpo_core.spec import StudySpec
from hpo_core.spec.assembly import create_method
from hpo_flows.dask.clusters.kind import ClusterKind

KINDS = {
    "local": "local:LocalThreads",
    "address": "address:RunningScheduler",
    "slurm": "slurm:SlurmJobs",
    "local_cuda": "local:GpuThreads",
}
"""Module of this package and class, by ``cluster.kind``; a further kind is a further line."""


def cluster_of(spec: StudySpec, folder: str) -> ClusterKind[Any]:
    """Return the cluster that a study describes; nothing is started yet.

    Args:
        folder: absolute study folder; logs and keys of a cluster go below it.
    """
    kind = kind_class(spec.cluster.kind)(spec.cluster, spec.study, folder)
    kind.hops = spec.hops
    if (workers := spec.cluster.scales) is not None:  # until the study says more, what its search could begin with
        kind.wanted = max(1, workers.min, create_method(spec).grantable(workers.max))
    return kind


def kind_class(kind: str) -> type[ClusterKind[Any]]:
    module, _, name = KINDS[kind].partition(":")
    found: type[ClusterKind[Any]] = getattr(import_module(f"{__name__}.{module}"), name)
    return found
