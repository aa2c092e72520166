"""The GPUs of this computer, as NVIDIA's management library (NVML) sees them now."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

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
    """What ``CUDA_VISIBLE_DEVICES`` names it by."""
    index: int
    """Place among the computer's GPUs; a slice has that of its GPU."""
    name: str
    """As the driver calls it, such as ``NVIDIA A100-SXM4-80GB``."""
    memory: int
    """Bytes in all."""
    memory_free: int
    """Bytes that nobody holds: neither a process nor the driver."""
    utilization: float | None = None
    """Share of the last moment in which a kernel ran, 0 to 1; None where the driver does not say (slices)."""
    processes: tuple[tuple[int, int | None], ...] | None = None
    """(process id, bytes or None); None where the driver does not say. In a container these are the host's ids."""
    parent: str = ""
    """UUID of the GPU that a slice is part of."""

    @property
    def architecture(self) -> str:
        """Short name by which demands are told apart.

        >>> Gpu(uuid="u", index=0, name="NVIDIA A100-SXM4-80GB", memory=1, memory_free=1).architecture
        'A100'
        >>> Gpu(uuid="u", index=0, name="NVIDIA A100-SXM4-80GB MIG 1g.10gb", memory=1, memory_free=1).architecture
        'A100-1g.10gb'
        """
        return architecture(self.name)


class LostGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU that the driver counts and that does not answer."""

    index: int
    reason: str


class GpuReading(msgspec.Struct, frozen=True):
    """One look at all GPUs."""

    gpus: tuple[Gpu, ...] = ()
    lost: tuple[LostGpu, ...] = ()


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


def read_gpus() -> GpuReading:
    """Look at every GPU once. A GPU that does not answer is among the lost; the others are read all the same.

    GPUs with slices are listed by their slices, for no job can use such a GPU whole.

    Raises:
        NoNvmlError: nvidia-ml-py is not installed, or the driver cannot be asked.
    """
    pynvml = open_nvml()
    try:
        return _read(pynvml)
    finally:
        pynvml.nvmlShutdown()


def _read(pynvml: Any) -> GpuReading:
    gpus: list[Gpu] = []
    lost: list[LostGpu] = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            gpus += list(_devices_of(pynvml, handle, index))
        except pynvml.NVMLError as error:
            lost.append(LostGpu(index=index, reason=_said(error)))
    return GpuReading(tuple(gpus), tuple(lost))


def _devices_of(pynvml: Any, handle: Any, index: int) -> Iterator[Gpu]:
    """The GPU itself, or its slices."""
    mode = optional(pynvml, lambda: pynvml.nvmlDeviceGetMigMode(handle))
    if not mode or not mode[0]:
        yield _gpu(pynvml, handle, index, parent="")
        return
    parent = _text(pynvml.nvmlDeviceGetUUID(handle))
    for number in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        slice_handle = optional(pynvml, partial(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number))
        if slice_handle is not None:
            yield _gpu(pynvml, slice_handle, index, parent=parent)


def _gpu(pynvml: Any, handle: Any, index: int, *, parent: str) -> Gpu:
    memory = optional(pynvml, lambda: pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2))
    if memory is None:  # drivers before 510
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    rates = optional(pynvml, lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
    processes = compute_processes(pynvml, handle)
    return Gpu(
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        index=index,
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        memory=int(memory.total),
        memory_free=int(memory.free),
        utilization=None if rates is None else rates.gpu / 100,
        processes=None
        if processes is None
        else tuple((int(one.pid), None if one.usedGpuMemory is None else int(one.usedGpuMemory)) for one in processes),
        parent=parent,
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
    """What some cards and drivers do not tell; None then. A lost GPU is another matter.

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
