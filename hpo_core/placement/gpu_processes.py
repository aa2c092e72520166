"""What some processes use of one GPU, as NVML sees it now."""

from __future__ import annotations

import types
from collections.abc import Collection
from typing import Any, NamedTuple

from hpo_core.placement.nvml import open_nvml, optional


class GpuLook(NamedTuple):
    """One look at one GPU."""

    memory: int | None
    """Bytes that the processes hold; None: the driver does not tell, or knows none of them by these ids."""
    compute: float | None
    """Share of the time since the last look in which their kernels ran, 0 to 1; None: as above."""


class GpuProcesses:
    """Looks at one GPU, or slice of one, again and again; close it in the end.

    A process that has NVML open must not fork another one that uses it, so the zygote does not.

    Args:
        uuid: as :class:`~hpo_core.placement.nvml.Gpu` has it.

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

    def __enter__(self) -> GpuProcesses:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self._pynvml.nvmlShutdown()

    def look(self, pids: Collection[int], *, alone: bool = False) -> GpuLook:
        """What these processes use.

        Args:
            pids: in a container, the driver may know them by other ids.
            alone: nobody else is placed on the GPU, so that all its work is theirs.

        Raises:
            NVMLError: the GPU is lost, or does not answer.
        """
        pynvml, handle = self._pynvml, self._handle
        processes = optional(pynvml, lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
        used = None if processes is None else {int(one.pid): one.usedGpuMemory for one in processes}
        ours = {pid: used[pid] for pid in used if pid in pids} if used is not None else {}
        amounts = [int(amount) for amount in ours.values() if amount is not None]
        memory = sum(amounts) if amounts and len(amounts) == len(ours) else None
        alone = alone or (bool(used) and len(ours) == len(used or ()))
        return GpuLook(memory, self._compute(pids, known=bool(ours), alone=alone))

    def _compute(self, pids: Collection[int], *, known: bool, alone: bool) -> float | None:
        pynvml, handle = self._pynvml, self._handle
        try:
            samples = pynvml.nvmlDeviceGetProcessUtilization(handle, self._seen)
        except pynvml.NVMLError as error:
            # no process did anything since: said in either of two ways
            samples = [] if error.value in (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND) else None
            if samples is None:
                optional(pynvml, _raising(error))
        if samples is not None:
            self._seen = max((int(one.timeStamp) for one in samples), default=self._seen)
            ours = [int(one.smUtil) for one in samples if int(one.pid) in pids]
            if ours or known:
                return min(sum(ours), 100) / 100
        if not alone:
            return None
        rates = optional(pynvml, lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
        return None if rates is None else int(rates.gpu) / 100


def _raising(error: Exception) -> Any:
    def again() -> None:
        raise error

    return again
