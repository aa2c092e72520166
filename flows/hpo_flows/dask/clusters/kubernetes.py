"""Cluster kind ``kubernetes``: pods of the Dask operator (dask-kubernetes).

dask-kubernetes knows no TLS: a network policy has to keep others out.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from hpo_core.spec.sections import KubernetesClusterSpec
from hpo_flows.dask.clusters.kind import ClusterKind, optional_package, variables_elsewhere

KUBERNETES_WORKER = ["dask", "worker", "--nthreads", "1"]
KUBERNETES_SCHEDULER = ["dask", "scheduler", "--host", "0.0.0.0"]
"""dask-kubernetes (2026.3.0) would start the scripts dask-worker and dask-scheduler, which distributed has no more."""
IDLE_SECONDS = 3600
"""Pods of a dead controller go after so many seconds without a task."""


class KubernetesPods(ClusterKind[KubernetesClusterSpec]):
    """Pods made for the study, or those that a controller left which was killed."""

    @property
    def wait_seconds(self) -> float:
        return 3600.0

    def create(self) -> Any:
        operator = optional_package("dask_kubernetes.operator", "kubernetes", "kubernetes")
        return operator.KubeCluster(
            custom_cluster_spec=kubernetes_resource(self.settings, self.study),
            resource_timeout=int(self.wait_seconds),
            create_mode=operator.kubecluster.CreateMode.CREATE_OR_CONNECT,
            quiet=True,
        )

    @property
    def dashboard(self) -> bool:
        return True


def kubernetes_resource(cluster: KubernetesClusterSpec, study: str) -> dict[str, Any]:
    operator = optional_package("dask_kubernetes.operator", "kubernetes", "kubernetes")
    amounts = {"cpu": cluster.cpu, "memory": cluster.memory}
    resource: dict[str, Any] = operator.make_cluster_spec(
        name=kubernetes_name(study),
        image=cluster.image,
        n_workers=cluster.workers,
        resources={"requests": dict(amounts), "limits": dict(amounts)},
        env=variables_elsewhere({}),
        worker_command=KUBERNETES_WORKER,
        idle_timeout=IDLE_SECONDS,
    )
    resource["spec"]["scheduler"]["spec"]["containers"][0]["args"] = KUBERNETES_SCHEDULER
    worker = resource["spec"]["worker"]["spec"]
    if cluster.gpus:
        gpus = {"nvidia.com/gpu": str(cluster.gpus)}
        worker["containers"][0]["resources"] = {"requests": amounts | gpus, "limits": amounts | gpus}
    if cluster.volume_claim is not None:
        worker["volumes"] = [{"name": "home", "persistentVolumeClaim": {"claimName": cluster.volume_claim}}]
        worker["containers"][0]["volumeMounts"] = [{"name": "home", "mountPath": cluster.mount_path}]
    return resource


def kubernetes_name(study: str) -> str:
    """A study's name as Kubernetes takes it: lower case, letters, digits and dashes, at most 50 in all.

    The digits at its end are a digest of the whole name. What is left of two names may be equal, and a study connects
    to a cluster of its name, and removes it at its end.

    >>> kubernetes_name("Digits_2026.v1")
    'hpo-digits-2026-v1-9db85a4d'
    """
    stem = re.sub(r"[^a-z0-9]+", "-", study.lower()).strip("-")[:37].rstrip("-")
    return f"hpo-{stem}-{hashlib.sha256(study.encode()).hexdigest()[:8]}"
