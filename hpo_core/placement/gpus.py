"""The GPUs of this computer, as NVIDIA's management library (NVML) sees them now, and CPU cores of this process."""

from __future__ import annotations

import contextlib
import os
import re
import time
import types
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from hpo_core.model.errors import HpoError

T = TypeVar("T")

_MAKER = re.compile(r"^(NVIDIA|Tesla|Quadro)\s+", re.IGNORECASE)
_FORM = re.compile(r"[\s-]+(SXM\d*|PCI[Ee]|NVL\d*|HBM\d\w*|\d+\s?GB|OAM|MIG)(?=[\s-]|$)")
_SLICE = re.compile(r"MIG\s+(\d+g\.\d+gb\S*)", re.IGNORECASE)


class NoNvmlError(HpoError):
    """NVML cannot be asked: not installed, no driver, or no permission."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU, or one slice of a GPU (MIG): what a job sees as its device."""

    uuid: str
    """The name in ``CUDA_VISIBLE_DEVICES``."""
    index: int
    """Place among the computer's GPUs; a slice has that of its GPU."""
    name: str
    """As the driver calls it, such as ``NVIDIA A100-SXM4-80GB``."""
    memory: int
    """Bytes in all."""
    memory_free: int
    """Bytes that nobody holds: neither a process nor the driver."""
    processes: tuple[tuple[int, int | None], ...] | None = None
    """(process id, bytes or None); None where the driver does not say. In a container these are the host's ids."""

    @property
    def architecture(self) -> str:
        """Short name by which demands are told apart.

        >>> Gpu(uuid="u", index=0, name="NVIDIA A100-SXM4-80GB", memory=1, memory_free=1).architecture
        'A100'
        >>> Gpu(uuid="u", index=0, name="NVIDIA A100-SXM4-80GB MIG 1g.10gb", memory=1, memory_free=1).architecture
        'A100-1g.10gb'
        """
        return architecture(self.name)


def architecture(name: str) -> str:
    """The driver's name of a card without maker, form and size.

    >>> [architecture(name) for name in ("NVIDIA H100 80GB HBM3", "Tesla V100-PCIE-16GB", "NVIDIA GeForce RTX 3090")]
    ['H100', 'V100', 'GeForce RTX 3090']
    """
    found = _SLICE.search(name)
    short = _FORM.sub("", _MAKER.sub("", _SLICE.sub("", name).strip())).strip(" -")
    return f"{short}-{found[1]}" if found else short or name


def open_nvml() -> Any:
    """The module pynvml, initialized; each call needs a ``nvmlShutdown`` of its own.

    Raises:
        NoNvmlError: nvidia-ml-py is not installed, or the driver cannot be asked.
    """
    try:
        import pynvml
    except ImportError:
        raise NoNvmlError(
            "GPUs cannot be asked for their memory: nvidia-ml-py is not installed. "
            "Install it with: pip install 'hpo-core[gpu]'."
        ) from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NoNvmlError(
            f"GPUs cannot be asked for their memory: NVML says {_said(error)!r}. On a computer with an NVIDIA card, "
            "see that nvidia-smi works for this user (in a container: that it was started with its GPUs)."
        ) from None
    return pynvml


def read_gpus() -> list[Gpu]:
    """Look at every GPU once. One that does not answer is left out.

    GPUs with slices are listed by their slices, for no job can use such a GPU whole.

    Raises:
        NoNvmlError: nvidia-ml-py is not installed, or the driver cannot be asked.
    """
    pynvml = open_nvml()
    try:
        return _read(pynvml)
    finally:
        pynvml.nvmlShutdown()


def _read(pynvml: Any) -> list[Gpu]:
    gpus: list[Gpu] = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        with contextlib.suppress(pynvml.NVMLError):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            gpus += list(_devices_of(pynvml, handle, index))
    return gpus


def _devices_of(pynvml: Any, handle: Any, index: int) -> Iterator[Gpu]:
    mode = optional(pynvml, lambda: pynvml.nvmlDeviceGetMigMode(handle))
    if not mode or not mode[0]:
        yield _gpu(pynvml, handle, index)
        return
    for number in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        slice_handle = optional(pynvml, partial(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number))
        if slice_handle is not None:
            yield _gpu(pynvml, slice_handle, index)


def _gpu(pynvml: Any, handle: Any, index: int) -> Gpu:
    memory = optional(pynvml, lambda: pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2))
    if memory is None:  # drivers before 510
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    processes = compute_processes(pynvml, handle)
    return Gpu(
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        index=index,
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        memory=int(memory.total),
        memory_free=int(memory.free),
        processes=None
        if processes is None
        else tuple((int(one.pid), None if one.usedGpuMemory is None else int(one.usedGpuMemory)) for one in processes),
    )


def compute_processes(pynvml: Any, handle: Any) -> list[Any] | None:
    """The processes that compute on a GPU, those that share it through MPS included; None: the driver does not say.

    Raises:
        NVMLError: the GPU is lost, or does not answer at all.
    """
    alone = optional(pynvml, lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
    shared = optional(pynvml, lambda: pynvml.nvmlDeviceGetMPSComputeRunningProcesses(handle))
    if alone is None or not shared:
        return alone
    return [*alone, *(one for one in shared if one.pid not in {other.pid for other in alone})]


def optional(pynvml: Any, ask: Callable[[], T]) -> T | None:
    """Calls NVML; None if this card or driver does not support the query. A lost GPU is another matter.

    Raises:
        NVMLError: the GPU is lost, or does not answer at all.
    """
    silent = (
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_NO_DATA,
    )
    try:
        return ask()
    except pynvml.NVMLError as error:
        if error.value not in silent:
            raise
        return None


def _said(error: Any) -> str:
    return str(error) or type(error).__name__


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


_SAMPLE_SECONDS = 1.0
"""A driver samples the use of compute at least so often."""


class GpuLook(NamedTuple):
    """One look at one GPU."""

    memory: int | None
    """Bytes that the processes hold; None: the driver does not tell, or knows none of them by these ids."""
    compute: float | None
    """Share of the time since it was last known in which their kernels ran, 0 to 1; None: as above, or not yet."""


class GpuProcesses:
    """Looks at one GPU, or slice of one, again and again; close it in the end.

    A process that has NVML open must not fork another one that uses it, so the zygote does not.

    Args:
        uuid: as :class:`~hpo_core.placement.gpus.Gpu` has it.

    Raises:
        NoNvmlError: nvidia-ml-py is not installed, or the driver cannot be asked.
        NVMLError: there is no such GPU, or it does not answer.
    """

    def __init__(self, uuid: str) -> None:
        self._pynvml: Any = open_nvml()
        try:
            self._handle = self._pynvml.nvmlDeviceGetHandleByUUID(uuid)
        except BaseException:
            self._pynvml.nvmlShutdown()
            raise
        self._seen = 0
        """Time of the last sample of utilization, in the driver's microseconds."""
        self._heard = time.monotonic()
        """When there was the last sample of the processes."""

    def __enter__(self) -> GpuProcesses:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self._pynvml.nvmlShutdown()

    def look(self, pids: Collection[int], *, alone: bool = False) -> GpuLook:
        """Use of a GPU by these processes.

        Args:
            pids: in a container, the driver may know them by other ids.
            alone: nobody else is placed on the GPU, so that all its work is theirs.

        Raises:
            NVMLError: the GPU is lost, or does not answer.
        """
        pynvml, handle = self._pynvml, self._handle
        processes = compute_processes(pynvml, handle)
        used = None if processes is None else {int(one.pid): one.usedGpuMemory for one in processes}
        ours = {pid: used[pid] for pid in used if pid in pids} if used is not None else {}
        amounts = [int(amount) for amount in ours.values() if amount is not None]
        memory = sum(amounts) if amounts and len(amounts) == len(ours) else None
        alone = alone or (bool(used) and len(ours) == len(used or ()))
        return GpuLook(memory, self._compute(pids, known=bool(ours), alone=alone))

    def _compute(self, pids: Collection[int], *, known: bool, alone: bool) -> float | None:
        pynvml, handle = self._pynvml, self._handle
        samples = optional(pynvml, self._samples)
        if samples is not None:
            ours: dict[int, list[int]] = {}
            for one in samples:
                # some drivers give what they gave before, or a number that is no share
                if int(one.pid) in pids and int(one.timeStamp) > self._seen and int(one.smUtil) <= 100:
                    ours.setdefault(int(one.pid), []).append(int(one.smUtil))
            self._seen = max((int(one.timeStamp) for one in samples), default=self._seen)
            now = time.monotonic()
            if ours:
                self._heard = now
                return min(sum(sum(shares) / len(shares) for shares in ours.values()), 100.0) / 100
            if known:  # the driver samples up to once a second, and does not name who did nothing
                if now - self._heard < _SAMPLE_SECONDS:
                    return None
                self._heard = now
                return 0.0
        if not alone:
            return None
        rates = optional(pynvml, lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
        return None if rates is None else int(rates.gpu) / 100

    def _samples(self) -> list[Any]:
        pynvml = self._pynvml
        try:
            return list(pynvml.nvmlDeviceGetProcessUtilization(self._handle, self._seen))
        except pynvml.NVMLError as error:
            if error.value not in (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND):  # two ways to say: none
                raise
            return []


_ROOT = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def control_groups() -> list[Path]:
    """Folders of the group of this process and of those above it, up to the root that is seen here."""
    try:
        line = _MEMBERSHIP.read_text().rpartition("0::")[2].split("\n", 1)[0]
    except OSError:
        return [_ROOT]
    parts = [part for part in line.split("/") if part]
    if ".." in parts:  # the group lies outside what this container sees
        parts = []
    return [_ROOT.joinpath(*parts[:count]) for count in range(len(parts), -1, -1)]


def available_cores() -> int:
    """CPU cores that this process may use: of its affinity, and of the limits of its control groups."""
    cores = len(os.sched_getaffinity(0))
    for group in control_groups():
        with contextlib.suppress(OSError, ValueError):
            quota, _, period = (group / "cpu.max").read_text().partition(" ")
            if quota != "max":
                cores = min(cores, max(1, int(quota) // int(period)))
    return cores


CONTROL = "nvidia-cuda-mps-control"
DEFAULT_PIPES = Path("/tmp/nvidia-mps")
"""Where CUDA looks for a daemon if nobody says where."""
_GPU = re.compile(r"GPU-[0-9A-Za-z-]{1,60}")


def pipes_for(gpu: str, default: Path = DEFAULT_PIPES) -> str:
    """Folder of the daemon's pipes, for ``CUDA_MPS_PIPE_DIRECTORY``; empty where none runs, and for slices (MIG)."""
    if not _GPU.fullmatch(gpu):
        return ""
    if given := os.environ.get("CUDA_MPS_PIPE_DIRECTORY"):
        return given
    with contextlib.suppress(OSError, ValueError):
        pid = int((default / f"{CONTROL}.pid").read_text())
        if Path(f"/proc/{pid}/comm").read_text().startswith(CONTROL[:15]):
            return str(default)
    return ""


def why_off(gpus: Iterable[str], default: Path = DEFAULT_PIPES) -> str:
    """Names the GPUs whose jobs cannot use MPS, and the cure; empty: all can."""
    without = [gpu for gpu in gpus if not pipes_for(gpu, default)]
    if not without:
        return ""
    return (
        f"MPS is off for {', '.join(without)}: no daemon runs there, or it is a slice (MIG). Start a daemon on each "
        f"computer with {CONTROL} -d."
    )
