"""OwnFigures: what a child knows best about itself, in memory shared with the zygote.

The child writes without a message; the zygote reads when it samples, and after the child has ended.
"""

from __future__ import annotations

import math
import mmap
import struct
import sys
import time
from typing import Any

from hpo_core.training.resources.proc_files import own_growth, resident

FIRST_SECONDS = 0.1
"""After its start, an attempt is looked at for the first time. Shorter ones are measured by themselves alone."""
PROFILE_ITERATIONS = 10
"""Iterations of a profile; the first, in which libraries compile and choose their kernels, is not timed."""
_LAYOUT = struct.Struct("<ddddqqqq")
_TORCH_SECONDS = 1.0
"""Between two questions to torch while units end; it takes some 50 microseconds to answer."""
_MOST_BYTES = 1 << 56


class OwnFigures:
    """When training began, how fast it goes, and the peaks of its memory."""

    began: float
    """Monotonic time at which the first unit began; 0: not yet."""
    mark: tuple[float, float]
    """Monotonic time and processor seconds of the child since which its cores are counted; (0, 0): none yet."""
    unit_ended: float
    """Monotonic time at which the last unit ended; 0: none yet."""
    iterations: int
    """Counted by ``trial.iteration()``; at most one more than a profile has."""
    memory: int
    """Own memory of the child at its end."""
    peak: int
    """Its largest own memory, known at its end; files that it had mapped then, and has closed since, are in it."""
    device_memory: int
    """Largest memory that torch held of its GPUs."""

    def __init__(self, page: mmap.mmap, offset: int) -> None:
        self._page, self._offset = page, offset
        self._resident = 0
        self._started = 0.0
        self._asked_torch = -_TORCH_SECONDS
        self.clear()

    def clear(self) -> None:
        """Before a fork, in the zygote."""
        self.began = self.unit_ended = 0.0
        self.mark = (0.0, 0.0)
        self.iterations = self.memory = self.peak = self.device_memory = 0
        self._write()

    def read(self) -> None:
        """What the child wrote so far; called in the zygote. Impossible values count as not known."""
        began, unit_ended, mark, cpu, iterations, *amounts = _LAYOUT.unpack_from(self._page, self._offset)
        now = time.monotonic()
        self.began, self.unit_ended, mark = (value if 0 < value <= now else 0.0 for value in (began, unit_ended, mark))
        self.mark = (mark, cpu) if mark and math.isfinite(cpu) and cpu >= 0 else (0.0, 0.0)
        self.iterations = max(0, iterations)
        self.memory, self.peak, self.device_memory = (value if 0 <= value <= _MOST_BYTES else 0 for value in amounts)

    def start(self) -> None:
        """First thing in the child: what it inherited is not its own."""
        self._resident = resident("self")
        self._started = time.monotonic()

    def begin_units(self) -> None:
        """The first unit begins."""
        self.began = time.monotonic()
        self.mark = (self.began, time.process_time())
        self._write()

    def end_unit(self) -> None:
        """A unit of training ended."""
        now = time.monotonic()
        if now - self._asked_torch >= _TORCH_SECONDS:
            self._asked_torch = now
            self.device_memory = max(self.device_memory, _torch_peak())
        self.unit_ended = now
        self._write()

    def iteration(self) -> None:
        """One iteration ended; only those of a profile are of interest."""
        if self.iterations > PROFILE_ITERATIONS:
            return
        self.iterations += 1
        if self.iterations == 1:
            self.mark = (time.monotonic(), time.process_time())
        elif self.iterations == PROFILE_ITERATIONS:
            self.device_memory = max(self.device_memory, _torch_peak())
        self._write()

    def finish(self) -> None:
        """Last thing before the child reports."""
        try:
            short = time.monotonic() - self._started < FIRST_SECONDS
            self.memory, self.peak = own_growth(self._resident, faults=short)
            self.device_memory = max(self.device_memory, _torch_peak())
        except Exception:  # whatever user code did to torch, or to /proc
            pass
        self._write()

    @property
    def profiled(self) -> bool:
        """Whether ten iterations, or one unit, were seen."""
        return self.iterations >= PROFILE_ITERATIONS or self.unit_ended > 0

    def _write(self) -> None:
        _LAYOUT.pack_into(
            self._page,
            self._offset,
            self.began,
            self.unit_ended,
            *self.mark,
            self.iterations,
            self.memory,
            self.peak,
            self.device_memory,
        )


def _torch_peak() -> int:
    """Largest memory that torch held of the GPUs of this process; 0 where it uses none.

    What it reserved, as others cannot have it; CUDA's context (some 100 MB) is not known to it.
    """
    torch: Any = sys.modules.get("torch")
    cuda: Any = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return 0
    return sum(int(cuda.max_memory_reserved(device)) for device in range(cuda.device_count()))
