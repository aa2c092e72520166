"""What some processes use of one GPU, as NVML sees it now."""

from __future__ import annotations

import time
import types
from collections.abc import Collection
from typing import Any, NamedTuple

from hpo_core.placement.nvml import compute_processes, open_nvml, optional

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
        self._heard = time.monotonic()
        """When there was the last sample of the processes."""

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
        """Of all processes that did something since the last look."""
        pynvml = self._pynvml
        try:
            return list(pynvml.nvmlDeviceGetProcessUtilization(self._handle, self._seen))
        except pynvml.NVMLError as error:
            if error.value not in (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND):  # two ways to say: none
                raise
            return []
