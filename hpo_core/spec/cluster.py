"""Where jobs train: one class for each kind of cluster, told apart by ``kind``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from hpo_core.spec.part import Part


class LocalClusterSpec(Part):
    """Dask workers on this machine, started for the study and ended with it."""

    kind: Literal["local"] = "local"
    workers: int = Field(default=2, ge=1, le=1024, description="Jobs at once; one process each.")


class AddressClusterSpec(Part):
    """A Dask scheduler that runs already; every worker thread is one slot."""

    kind: Literal["address"] = "address"
    address: str = Field(description="For example tcp://127.0.0.1:8786")

    @field_validator("address")
    @classmethod
    def _check(cls, value: str) -> str:
        if "://" not in value:
            raise ValueError(f"address = {value!r} has no protocol; write tcp://HOST:PORT")
        return value


_WAIT = "Seconds to wait for the first worker: the queue decides when it comes."


class SlurmClusterSpec(Part):
    """Slurm jobs, submitted for the study and ended with it (dask-jobqueue); each is one worker with one slot.

    The home folder and the Python environment must be on storage that all nodes see. A worker that ended, for
    its walltime too, is submitted anew.
    """

    kind: Literal["slurm"] = "slurm"
    workers: int = Field(default=2, ge=1, le=1024, description="Slurm jobs; each trains one thing at a time.")
    cores: int = Field(default=1, ge=1, description="CPUs of one Slurm job (--cpus-per-task).")
    memory: str = Field(default="4GB", pattern=r"^\d+(\.\d+)? ?[KMGT]i?B$", description="Memory of one, such as 16GB.")
    walltime: str = Field(
        default="01:00:00", pattern=r"^(\d+-)?\d+(:\d\d){0,2}$", description="How long one may run, as Slurm has it."
    )
    gpus: int = Field(default=0, ge=0, description="GPUs of one (--gres=gpu:N).")
    partition: str | None = None
    account: str | None = None
    interface: str | None = Field(default=None, description="Network interface between nodes, such as ib0.")
    directives: list[str] = Field(default_factory=list, description="Further #SBATCH lines, such as --qos=long.")
    prologue: list[str] = Field(default_factory=list, description="Shell lines before the worker starts.")
    wait: float = Field(default=3600.0, gt=0, description=_WAIT)


class KubernetesClusterSpec(Part):
    """Pods of the Dask operator, made for the study and removed with it (dask-kubernetes); one slot each.

    The controller and the pods must see the home folder under the same path: ``volume_claim`` is mounted there.
    """

    kind: Literal["kubernetes"] = "kubernetes"
    workers: int = Field(default=2, ge=1, le=1024, description="Worker pods.")
    image: str = Field(min_length=1, description="Container image with this package and the objective's requirements.")
    namespace: str | None = Field(default=None, description="Default: the one of the current context.")
    cpu: str = Field(default="1", description="CPUs of one pod, as Kubernetes has them: 2, 500m.")
    memory: str = Field(default="4Gi", description="Memory of one pod.")
    gpus: int = Field(default=0, ge=0, description="GPUs of one worker pod (nvidia.com/gpu).")
    volume_claim: str | None = Field(default=None, description="PersistentVolumeClaim, ReadWriteMany.")
    mount_path: str | None = Field(default=None, pattern=r"^/", description="Where it is mounted in the pods.")
    idle_timeout: int = Field(
        default=3600, ge=0, description="Seconds without a task after which pods of a dead controller go; 0: never."
    )
    wait: float = Field(default=600.0, gt=0, description=_WAIT)

    @model_validator(mode="after")
    def _check(self) -> KubernetesClusterSpec:
        if (self.volume_claim is None) != (self.mount_path is None):
            raise ValueError("volume_claim and mount_path belong together; give both or none")
        return self


class LocalCudaClusterSpec(Part):
    """One Dask worker for each NVIDIA GPU of this machine, which alone it sees, as device 0."""

    kind: Literal["local_cuda"] = "local_cuda"
    devices: list[Annotated[int, Field(ge=0)]] | None = Field(
        default=None, min_length=1, description="Numbers of the GPUs to use; default: all that are visible."
    )


Cluster = Annotated[
    LocalClusterSpec | AddressClusterSpec | SlurmClusterSpec | KubernetesClusterSpec | LocalCudaClusterSpec,
    Field(discriminator="kind"),
]
