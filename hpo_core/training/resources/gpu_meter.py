"""GpuMeter: measures the GPU of one attempt through NVML, in a thread of the worker."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from hpo_core.model.devices.share import Share
from hpo_core.model.devices.usage import Usage
from hpo_core.placement.gpu_processes import GpuProcesses
from hpo_core.training.resources.meter import MOST_SECONDS, TOLERANCE
from hpo_core.training.resources.own_figures import FIRST_SECONDS
from hpo_core.training.resources.process_tree import ProcessTree

_LOOKS = 4096
"""Looks at the use of its compute that are kept for the mean: those of the last hour."""
_JOIN_SECONDS = 2.0
"""A driver that hangs is not waited for longer."""


class _Busy(NamedTuple):
    since: float
    """Seconds after the attempt's start at which the time looked at began."""
    until: float
    share: float


class GpuMeter:
    """Looks at one GPU while an attempt runs on it; close it in the end.

    In a thread of its own, for a driver may hang; in the worker and not in the zygote, for NVML must not be open in a
    process that forks others. Where NVML is missing, or stops to answer, nothing is measured.

    Args:
        share: what the attempt was given of the GPU.
        root: the process below which its processes are.
        on_exceeded: called once, with its share and the bytes that it holds, if they are more than that and 10 %.
    """

    def __init__(self, share: Share, root: int, on_exceeded: Callable[[Share, int], None]) -> None:
        self._share = share
        self._on_exceeded = on_exceeded
        self._tree = ProcessTree(root)
        self._started = time.monotonic()
        self._busy: deque[_Busy] = deque(maxlen=_LOOKS)
        self._memory: int | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hpo-gpu-meter", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._ended.set()
        self._thread.join(_JOIN_SECONDS)

    def lower(self, memory: int) -> int:
        """The attempt may hold so many bytes from now on, if that is less than its share; what it held, it keeps.

        Returns:
            How many it may hold.
        """
        self._share = self._share.lowered(max(memory, self._memory or 0))
        return self._share.memory

    def with_gpu(self, usage: Usage) -> Usage:
        """The same, with what was seen of the GPU so far.

        Its memory is the larger of two peaks: that of NVML, which is not always looking, and that of torch, which does
        not know of CUDA's context.
        """
        known = [amount for amount in (self._memory, usage.device_memory) if amount is not None]
        return msgspec.structs.replace(
            usage, device_memory=max(known, default=None), compute=self._mean(usage.startup_seconds)
        )

    def _mean(self, startup: float) -> float | None:
        """Over the time in which it trained, where that was looked at."""
        looks = list(self._busy)
        looks = [one for one in looks if one.since >= startup] or looks
        seconds = sum(one.until - one.since for one in looks)
        if not seconds:
            return None
        return round(sum(one.share * (one.until - one.since) for one in looks) / seconds, 4)

    def _watch(self) -> None:
        # no NVML, a lost GPU, a driver of another version: not measured
        with contextlib.suppress(Exception), GpuProcesses(self._share.device) as gpu:
            self._look_on(gpu)

    def _look_on(self, gpu: GpuProcesses) -> None:
        told = False
        interval, before = FIRST_SECONDS, 0.0
        while not self._ended.wait(interval):
            found = gpu.look({*self._tree.descendants()}, alone=self._share.alone)
            now = time.monotonic() - self._started
            if found.compute is not None:
                self._busy.append(_Busy(before, now, found.compute))
                before = now
            if found.memory is not None:
                self._memory = max(self._memory or 0, found.memory)
                share = self._share
                if found.memory > TOLERANCE * share.allowed and not told:
                    told = True
                    self._on_exceeded(share, found.memory)
            interval = min(1.5 * interval, MOST_SECONDS)
