"""Clusters on this machine, its GPUs, Slurm (dask-jobqueue) and Kubernetes (dask-kubernetes), started for a study.

Every worker has one thread, for a thread is a slot. The packages are optional extras, imported on use. GPUs need
none: dask-cuda pins an older Dask, and what it adds (memory pools, spilling, UCX) is of no use to training children.

Whoever reaches a port of Dask runs code: scheduler, nannies and workers of a cluster talk TLS, with one certificate
made for it, which both ends of every connection must show. Its key stays in memory (Slurm: in a file of the study's
folder that its owner alone can read). The web servers that Dask starts beside have no pages, unless ``dashboard`` is
set. dask-kubernetes knows no TLS: there a network policy is what keeps others out.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dask
import distributed
import pynvml
from distributed.security import Security

from hpo_core.model.errors import SpecError
from hpo_core.spec import (
    KubernetesClusterSpec,
    LocalClusterSpec,
    LocalCudaClusterSpec,
    SlurmClusterSpec,
    StudySpec,
)

KUBERNETES_WORKER = ["dask", "worker", "--nthreads", "1"]
KUBERNETES_SCHEDULER = ["dask", "scheduler", "--host", "0.0.0.0"]
"""dask-kubernetes (2026.3.0) would start the scripts dask-worker and dask-scheduler, which distributed has no more."""


_NO_PAGES: dict[str, list[str]] = {"distributed.scheduler.http.routes": [], "distributed.worker.http.routes": []}
_HERE = "127.0.0.1"


def web_settings(dashboard: bool) -> dict[str, Any]:
    """Dask's settings for its web servers, which listen whatever one says."""
    return {} if dashboard else {key: list(routes) for key, routes in _NO_PAGES.items()}


def _web(dashboard: bool) -> dict[str, Any]:
    return {"dashboard": dashboard, "dashboard_address": f"{_HERE}:0"}


def start_cluster(spec: StudySpec, folder: str) -> Any:
    """Start the cluster that ``spec.cluster`` describes; its workers come when they come.

    Args:
        folder: the study's folder; Slurm's own logs of its jobs go below it.

    Raises:
        SpecError: the package that starts such clusters is not installed.
    """
    if isinstance(spec.cluster, LocalClusterSpec):
        return local_cluster(spec.cluster)
    if isinstance(spec.cluster, SlurmClusterSpec):
        cluster = slurm_cluster(spec.cluster, spec.study, folder)
        cluster.scale(spec.cluster.workers)
        return cluster
    if isinstance(spec.cluster, KubernetesClusterSpec):
        operator = _optional("dask_kubernetes.operator", "kubernetes", "kubernetes")
        return operator.KubeCluster(
            custom_cluster_spec=kubernetes_resource(spec.cluster, spec.study),
            namespace=spec.cluster.namespace,
            resource_timeout=int(spec.cluster.wait),
            create_mode=operator.kubecluster.CreateMode.CREATE_OR_CONNECT,  # pods of a controller that was killed
            quiet=True,
        )
    assert isinstance(spec.cluster, LocalCudaClusterSpec)
    return local_cuda_cluster(spec.cluster.devices, dashboard=spec.cluster.dashboard)


def local_cluster(cluster: LocalClusterSpec) -> Any:
    """Worker processes of this one."""
    return distributed.LocalCluster(  # type: ignore[no-untyped-call]
        n_workers=cluster.workers,
        threads_per_worker=1,
        host=_HERE,
        security=Security.temporary(),  # type: ignore[no-untyped-call]
        scheduler_kwargs=_web(cluster.dashboard),
        memory_limit=None,
        silence_logs=logging.CRITICAL,
    )


def local_cuda_cluster(devices: Sequence[int] | None, *, dashboard: bool = False) -> Any:
    """A worker for each GPU; each sees one alone, as do the processes it starts.

    Raises:
        SpecError: no devices are given, and none can be found.
    """
    numbers = visible_devices() if devices is None else [str(device) for device in devices]
    security = Security.temporary()  # type: ignore[no-untyped-call]
    where = {"host": _HERE, "protocol": "tls://", "security": security}
    worker = {**where, "nthreads": 1, "memory_limit": None, "silence_logs": logging.CRITICAL}
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # as the driver counts them, not as CUDA guesses their speed
    return distributed.SpecCluster(  # type: ignore[no-untyped-call]
        scheduler={"cls": distributed.Scheduler, "options": {**where, **_web(dashboard)}},
        workers={
            f"gpu-{number}": {
                "cls": distributed.Nanny,
                "options": {**worker, "env": {**order, "CUDA_VISIBLE_DEVICES": number}},
            }
            for number in numbers
        },
        security=security,
        silence_logs=logging.CRITICAL,
    )


def visible_devices() -> list[str]:
    """``CUDA_VISIBLE_DEVICES`` of this process, or all GPUs the driver knows.

    Raises:
        SpecError: there is none.
    """
    chosen = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    if chosen:
        return chosen
    try:
        pynvml.nvmlInit()
        found = [str(number) for number in range(pynvml.nvmlDeviceGetCount())]
        pynvml.nvmlShutdown()
    except Exception as error:  # NVMLError, and another kind where library and driver differ
        raise SpecError(
            f"cluster.kind = 'local_cuda' finds no NVIDIA driver here ({error}). Install it, or use kind: local."
        ) from None
    if not found:
        raise SpecError("cluster.kind = 'local_cuda' finds no GPU on this machine. Use kind: local.")
    return found


def slurm_cluster(cluster: SlurmClusterSpec, study: str, folder: str) -> Any:
    """A scheduler in this process, and the script of its workers; nothing is submitted yet."""
    directives = [f"--gres=gpu:{cluster.gpus}"] if cluster.gpus else []
    prologue = [] if cluster.dashboard else [f"export {_environment(key)}='[]'" for key in _NO_PAGES]
    return _optional("dask_jobqueue", "slurm", "slurm").SLURMCluster(
        job_name=f"hpo-{study}",
        cores=1,
        processes=1,
        memory=cluster.memory,
        job_cpu=cluster.cores,
        walltime=cluster.walltime,
        queue=cluster.partition,
        account=cluster.account,
        interface=cluster.interface,
        job_extra_directives=[*directives, *cluster.directives],
        job_script_prologue=[*prologue, *cluster.prologue],
        security=Security.temporary(),  # type: ignore[no-untyped-call]
        shared_temp_directory=str(_own_folder(Path(folder) / "tls")),
        scheduler_options=dask.config.get("jobqueue.slurm.scheduler-options", {}) | _web(cluster.dashboard),
        log_directory=str(Path(folder) / "logs" / "slurm"),
    )


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


def forget_keys(cluster: Any) -> None:
    """Remove the files that hold a Slurm cluster's certificate and key: its workers are gone."""
    for name in ("ca_file", "cert", "key"):
        file = getattr(cluster, f"_job_{name}", None)
        if file is not None:
            file.close()


def kubernetes_resource(cluster: KubernetesClusterSpec, study: str) -> dict[str, Any]:
    """The ``DaskCluster`` resource, with the volume that holds the home folder."""
    operator = _optional("dask_kubernetes.operator", "kubernetes", "kubernetes")
    amounts = {"cpu": cluster.cpu, "memory": cluster.memory}
    resource: dict[str, Any] = operator.make_cluster_spec(
        name=kubernetes_name(study),
        image=cluster.image,
        n_workers=cluster.workers,
        resources={"requests": dict(amounts), "limits": dict(amounts)},
        env={},
        worker_command=KUBERNETES_WORKER,
        idle_timeout=cluster.idle_timeout,
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

    The digits at its end are of the whole name: what is left of two names may be equal, and a study connects to a
    cluster of its name, and removes it at its end.

    >>> kubernetes_name("Digits_2026.v1")
    'hpo-digits-2026-v1-9db85a4d'
    """
    stem = re.sub(r"[^a-z0-9]+", "-", study.lower()).strip("-")[:37].rstrip("-")
    return f"hpo-{stem}-{hashlib.sha256(study.encode()).hexdigest()[:8]}"


def _optional(module: str, kind: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SpecError(
            f"cluster.kind = {kind!r} needs a package that is not installed here ({error}). Install it with "
            f"`pip install 'hpo-core[{extra}]'`, or use another kind of cluster."
        ) from None
