"""Clusters on Slurm (dask-jobqueue), on Kubernetes (dask-kubernetes), and on the GPUs of one machine.

Every worker has one thread, for a thread is a slot. The packages are optional extras, imported on use. GPUs need
none: dask-cuda pins an older Dask, and what it adds (memory pools, spilling, UCX) is of no use to training children.
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

import distributed
import pynvml

from hpo_core.errors import SpecError
from hpo_core.spec import KubernetesClusterSpec, LocalCudaClusterSpec, SlurmClusterSpec, StudySpec

KUBERNETES_WORKER = ["dask", "worker", "--nthreads", "1"]
KUBERNETES_SCHEDULER = ["dask", "scheduler", "--host", "0.0.0.0"]
"""dask-kubernetes (2026.3.0) would start the scripts dask-worker and dask-scheduler, which distributed has no more."""


def start_cluster(spec: StudySpec, folder: str) -> Any:
    """Start the cluster that ``spec.cluster`` describes; its workers come when they come.

    Args:
        folder: the study's folder; Slurm's own logs of its jobs go below it.

    Raises:
        SpecError: the package that starts such clusters is not installed.
    """
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
    return local_cuda_cluster(spec.cluster.devices)


def local_cuda_cluster(devices: Sequence[int] | None) -> Any:
    """A worker for each GPU; each sees one alone, as do the processes it starts.

    Raises:
        SpecError: no devices are given, and none can be found.
    """
    numbers = visible_devices() if devices is None else [str(device) for device in devices]
    where = {"host": "127.0.0.1"}
    worker = {**where, "nthreads": 1, "memory_limit": None, "silence_logs": logging.CRITICAL}
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # as the driver counts them, not as CUDA guesses their speed
    return distributed.SpecCluster(  # type: ignore[no-untyped-call]
        scheduler={"cls": distributed.Scheduler, "options": {**where, "dashboard_address": "127.0.0.1:0"}},
        workers={
            f"gpu-{number}": {
                "cls": distributed.Nanny,
                "options": {**worker, "env": {**order, "CUDA_VISIBLE_DEVICES": number}},
            }
            for number in numbers
        },
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
        job_script_prologue=cluster.prologue,
        log_directory=str(Path(folder) / "logs" / "slurm"),
    )


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
