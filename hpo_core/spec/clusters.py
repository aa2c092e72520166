"""Where jobs train: one settings class for each kind of cluster, told apart by ``kind``.

How a kind is started is in ``hpo_flows/dask/clusters``; the core never imports Dask.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from hpo_core.model.settings import Part


class ClusterSettings(Part):
    """What all kinds of clusters have in common, and what others ask of a kind."""

    kind: str

    @property
    def size(self) -> int | None:
        """Workers with one slot each that the study asks for; None: as many as there are."""
        return getattr(self, "workers", None)

    def cores_each(self, machine: int) -> int | None:
        """CPU cores of one worker; None: nobody knows.

        Args:
            machine: cores of the machine of the study.
        """
        return None

    @property
    def place(self) -> str:
        """Where it runs, in words."""
        return f"a cluster of kind {self.kind}"

    @property
    def title(self) -> str:
        """What a person reads at the start of a study."""
        return f"Dask workers ({self.kind})"

    @property
    def permission(self) -> str | None:
        """The word that ``HPO_ALLOWED_CLUSTERS`` must hold for a deployment to use it; None: it needs none.

        By default the kind: settings may hold shell lines, container images and other people's machines.
        """
        return self.kind

    @property
    def encrypted(self) -> bool:
        """Whether scheduler, workers and client talk TLS."""
        return True

    @property
    def named(self) -> str:
        """The setting that says where jobs train, for messages."""
        return f"cluster.kind = {self.kind!r}"


class LocalClusterSpec(ClusterSettings):
    """Dask workers on this machine, started for the study and ended with it."""

    kind: Literal["local"] = "local"
    workers: int = Field(default=2, ge=1, le=1024, description="Jobs at once; one process each.")

    def cores_each(self, machine: int) -> int:
        """An equal share of the machine's cores."""
        return max(1, machine // self.workers)

    @property
    def title(self) -> str:
        """What a person reads at the start of a study."""
        return f"{self.workers} local Dask workers"

    @property
    def permission(self) -> None:
        """None: it stays on the machine of the study."""
        return None


class AddressClusterSpec(ClusterSettings):
    """A Dask scheduler that runs already; every worker thread is one slot.

    Behind ``tls://`` the certificates come from Dask's own configuration (``distributed.comm.tls``).
    """

    kind: Literal["address"] = "address"
    address: str = Field(description="For example tcp://127.0.0.1:8786, or tls://HOST:PORT")

    @field_validator("address")
    @classmethod
    def _check(cls, value: str) -> str:
        if "://" not in value:
            raise ValueError(f"address = {value!r} has no protocol; write tcp://HOST:PORT or tls://HOST:PORT")
        return value

    @property
    def place(self) -> str:
        """The scheduler's address."""
        return self.address

    @property
    def title(self) -> str:
        """What a person reads at the start of a study."""
        return f"Dask cluster {self.address}"

    @property
    def permission(self) -> str:
        """The address: whoever answers there is sent code."""
        return self.address

    @property
    def encrypted(self) -> bool:
        """Whether the address says so."""
        return self.address.startswith("tls://")

    @property
    def named(self) -> str:
        """The setting that says where jobs train, for messages."""
        return f"cluster.address = {self.address!r}"


class SlurmClusterSpec(ClusterSettings):
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
    interface: str | None = Field(default=None, description="Network interface between nodes, such as ib0.")
    directives: list[str] = Field(
        default_factory=list,
        description="Further #SBATCH lines: --partition=gpu, --gres=gpu:1, --account=lab.",
    )
    prologue: list[str] = Field(default_factory=list, description="Shell lines before the worker starts.")
    wait: float = Field(
        default=3600.0, gt=0, description="Seconds to wait for the first worker: the queue decides when it comes."
    )

    def cores_each(self, machine: int) -> int:
        """CPU cores of a Slurm job."""
        return self.cores

    @field_validator("memory")
    @classmethod
    def _check_memory(cls, value: str) -> str:
        if not any(digit in value for digit in "123456789"):
            raise ValueError(f"memory = {value!r}: a worker needs some; write an amount such as 4GB")
        return value


class KubernetesClusterSpec(ClusterSettings):
    """Pods of the Dask operator, made for the study and removed with it (dask-kubernetes); one slot each.

    The controller and the pods must see the home folder under the same path: ``volume_claim`` is mounted there.
    """

    kind: Literal["kubernetes"] = "kubernetes"
    workers: int = Field(default=2, ge=1, le=1024, description="Worker pods.")
    image: str = Field(min_length=1, description="Container image with this package and the objective's requirements.")
    cpu: str = Field(default="1", description="CPUs of one pod, as Kubernetes has them: 2, 500m.")
    memory: str = Field(default="4Gi", description="Memory of one pod.")
    gpus: int = Field(default=0, ge=0, description="GPUs of one worker pod (nvidia.com/gpu).")
    volume_claim: str | None = Field(default=None, description="PersistentVolumeClaim, ReadWriteMany.")
    mount_path: str | None = Field(default=None, pattern=r"^/", description="Where it is mounted in the pods.")

    def cores_each(self, machine: int) -> int | None:
        """CPU cores of a pod, rounded down."""
        try:
            whole = float(self.cpu.removesuffix("m")) / (1000 if self.cpu.endswith("m") else 1)
        except ValueError:
            return None
        return max(1, int(whole))

    @property
    def encrypted(self) -> bool:
        """Never: dask-kubernetes knows no TLS."""
        return False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.volume_claim is None) != (self.mount_path is None):
            raise ValueError("volume_claim and mount_path belong together; give both or none")
        return self


class LocalCudaClusterSpec(ClusterSettings):
    """One Dask worker for each NVIDIA GPU of this machine, which alone it sees, as device 0."""

    kind: Literal["local_cuda"] = "local_cuda"
    devices: list[Annotated[int, Field(ge=0)]] | None = Field(
        default=None, min_length=1, description="Numbers of the GPUs to use; default: all that are visible."
    )

    def cores_each(self, machine: int) -> int | None:
        """An equal share of the machine's cores, where the GPUs are listed."""
        return None if self.devices is None else max(1, machine // len(self.devices))

    @property
    def place(self) -> str:
        """Where it runs, in words."""
        return "the GPUs of a machine"

    @property
    def permission(self) -> None:
        """None: it stays on the machine of the study."""
        return None


Cluster = Annotated[
    LocalClusterSpec | AddressClusterSpec | SlurmClusterSpec | KubernetesClusterSpec | LocalCudaClusterSpec,
    Field(discriminator="kind"),
]
"""The registry of kinds: a further kind is a further line."""
