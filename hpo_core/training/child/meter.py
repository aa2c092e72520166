"""Meters of one attempt: ``AttemptMeter`` (zygote) for memory and processors, ``GpuMeter`` (worker) for its GPU.

What an attempt took is a :class:`~hpo_core.model.devices.measurement.Usage`. Memory: what the computer would have free
again if the attempt ended, that is anonymous and shared memory of its whole process tree, in which a page that several
processes share counts once. What the zygote holds as well does not count, until the attempt writes to it. Files that it
maps do not count; only for an attempt that was over after half a second, those that it had mapped and closed again may,
for the kernel's own peak includes them.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterable

import msgspec

from hpo_core.model.devices.inventory import Portion
from hpo_core.model.devices.measurement import Usage
from hpo_core.placement.gpus import GpuProcesses
from hpo_core.training.child.processes import cpu_seconds, descendants, exceeded, pages
from hpo_core.training.child.shared_progress import FIRST_SECONDS, SharedProgress

MOST_SECONDS = 1.0
"""Longest time between two looks."""
WATCHED_SECONDS = 0.25
"""Longest time between two looks at an attempt whose memory is limited."""
_COST = 0.01
"""Part of the time that may go into looking; large memory is looked at less often."""
_COST_IF_LIMITED = 0.1
"""The same for an attempt whose memory is limited."""
_SHORT_SECONDS = 0.1
"""Seconds of training below which its cores are those of the whole attempt."""
_FEW_LOOKS = 2
"""Number of looks, made in half a second, that may have missed the peak: the kernel's own figure counts then."""
TOLERANCE = 1.1
"""Factor of its share of the memory beyond which an attempt is ended."""
_GPU_LOOKS = 4096
"""Looks at the use of its compute that are kept for the mean: those of the last hour."""
_JOIN_SECONDS = 2.0
"""Seconds that a driver that hangs is waited for."""


class AttemptMeter:
    """Samples the processes of one attempt.

    Args:
        share: what the attempt was given; None: its worker.
        progress: what the child tells.
        without: children of this process that are none of the attempt.
        cpu_before: processor seconds that its process took before.
    """

    def __init__(
        self,
        share: Portion | None,
        progress: SharedProgress,
        without: Container[int] = (),
        *,
        cpu_before: float = 0.0,
    ) -> None:
        """Call it right before the fork."""
        self._started = time.monotonic()
        self.next_at = self._started + FIRST_SECONDS
        """Monotonic time of the next look."""
        self.memory = 0
        """Peak of what was seen so far, in bytes."""
        self.share = share
        self._progress = progress
        self._without = without
        self._interval = FIRST_SECONDS
        self._cpu = 0.0
        self._cpu_before = cpu_before
        self._looks = 0
        self._profiled = False
        self._told: Usage | None = None

    @property
    def limit(self) -> int | None:
        return None if self.share is None or self.share.gpu else int(TOLERANCE * self.share.allowed)

    def lower(self, memory: int) -> None:
        """Lower the attempt's limit to ``memory`` bytes, if that is less than its share; it keeps what it took."""
        if self.share is not None:
            self.share = self.share.lowered(max(memory, 0 if self.share.gpu else self.memory))

    def sample(self) -> None:
        """Look at all processes of the attempt once, and say when to look again."""
        self._profiled = self._progress.figures().profiled  # before the look: it must show what the profile took
        now, began = time.monotonic(), time.thread_time()  # the time in which others ran is no cost
        processes = descendants(os.getpid(), self._without)
        self._cpu = max(self._cpu, sum(map(cpu_seconds, processes)) - self._cpu_before)
        self.memory = max(self.memory, _memory(processes))
        self._looks += 1
        most, cost = (MOST_SECONDS, _COST) if self.limit is None else (WATCHED_SECONDS, _COST_IF_LIMITED)
        self._interval = min(1.5 * self._interval, most)
        self.next_at = now + max(self._interval, (time.thread_time() - began) / cost)

    def news(self, units: int) -> Usage | None:
        """The usage of a running attempt, if its profile is complete and this is more than was told before."""
        if not self._profiled:
            return None
        usage, told = self.usage(time.monotonic(), units=units), self._told
        if told is None or (
            usage.memory > told.memory
            or (usage.device_memory or 0) > (told.device_memory or 0)
            or bool(usage.unit_seconds) > bool(told.unit_seconds)
        ):
            self._told = usage
            return usage
        return None

    def usage(self, now: float, *, cpu: float = 0.0, units: int = 0) -> Usage:
        """The usage of the attempt from its start until ``now`` (monotonic).

        Args:
            cpu: processor seconds of the child and of what it waited for, where it has ended.
            units: how many it has done; where it has no loop over ``trial.steps()``, in all its time.
        """
        figures, share = self._progress.figures(), self.share
        cpu = max(cpu, self._cpu)
        seconds, spent = now - self._started, cpu
        if figures.mark and now - figures.mark >= _SHORT_SECONDS and cpu > figures.mark_cpu:
            seconds, spent = now - figures.mark, cpu - figures.mark_cpu
        trained = figures.unit_ended - figures.began if figures.began else now - self._started
        peak = figures.peak if self._looks <= _FEW_LOOKS else figures.memory
        return Usage(
            memory=max(self.memory, figures.memory, peak),
            cores=round(min(spent / max(seconds, 1e-6), float(os.cpu_count() or 1)), 3),
            startup_seconds=round(max(0.0, figures.began - self._started), 6) if figures.began else 0.0,
            unit_seconds=round(max(0.0, trained) / units, 9) if units else 0.0,
            device_memory=figures.device_memory or None,
            architecture="" if share is None else share.architecture,
            device="" if share is None else share.device,
            share=None if share is None else share.amounts,
        )


def _memory(processes: Iterable[int]) -> int:
    held = 0
    for pid in processes:
        with contextlib.suppress(OSError):
            held += pages(pid).proportional
    own = pages("self")  # what all others take of the zygote's pages is what the zygote's proportional size lacks
    return max(0, held - (own.held - own.proportional))


class GpuMeter:
    """Looks at one GPU while an attempt runs on it; close it in the end.

    In a thread of its own, for a driver may hang; in the worker and not in the zygote, for NVML must not be open in a
    process that forks others. Where NVML is missing, or stops to answer, nothing is measured.

    Args:
        share: what the attempt was given of the GPU.
        root: the process below which its processes are.
        on_exceeded: called once, with the reason, if it holds more than its share and 10 %.
    """

    def __init__(self, share: Portion, root: int, on_exceeded: Callable[[str], None]) -> None:
        self._share = share
        self._root = root
        self._on_exceeded = on_exceeded
        self._started = time.monotonic()
        self._busy: deque[tuple[float, float, float]] = deque(maxlen=_GPU_LOOKS)
        """Begin and end of the time looked at, in seconds after the attempt's start, and the share that was used."""
        self._memory: int | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hpo-gpu-meter", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join(_JOIN_SECONDS)

    def lower(self, memory: int) -> int:
        """Lower the attempt's limit to ``memory`` bytes, if that is less than its share; it keeps what it held.

        Returns:
            How many it may hold.
        """
        self._share = self._share.lowered(max(memory, self._memory or 0))
        return self._share.memory

    def with_gpu(self, usage: Usage) -> Usage:
        """The same usage, with what was seen of the GPU so far.

        Its memory is the larger of two peaks: that of NVML, which is not always looking, and that of torch, which does
        not know of CUDA's context.
        """
        known = [amount for amount in (self._memory, usage.device_memory) if amount is not None]
        looks = list(self._busy)
        looks = [one for one in looks if one[0] >= usage.startup_seconds] or looks  # the time in which it trained
        seconds = sum(until - since for since, until, _ in looks)
        busy = sum(share * (until - since) for since, until, share in looks)
        compute = round(busy / seconds, 4) if seconds else None
        return msgspec.structs.replace(usage, device_memory=max(known, default=None), compute=compute)

    def _watch(self) -> None:
        if self._ended.wait(FIRST_SECONDS):  # NVML takes longer to open than such an attempt to train
            return
        # no NVML, a lost GPU, a driver of another version: not measured
        with contextlib.suppress(Exception), GpuProcesses(self._share.device) as gpu:
            told = False
            interval, before = 0.0, 0.0
            while not self._ended.wait(interval):
                found = gpu.look(descendants(self._root), alone=self._share.alone)
                now = time.monotonic() - self._started
                if found.compute is not None:
                    self._busy.append((before, now, found.compute))
                    before = now
                if found.memory is not None:
                    self._memory = max(self._memory or 0, found.memory)
                    share = self._share
                    if found.memory > TOLERANCE * share.allowed and not told:
                        told = True
                        self._on_exceeded(exceeded(share, found.memory))
                interval = min(1.5 * max(interval, FIRST_SECONDS), MOST_SECONDS)
