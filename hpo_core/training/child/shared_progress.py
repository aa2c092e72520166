"""SharedProgress: how far a child is and what it uses, in one page of memory shared with the zygote.

The child writes without a message or a wake-up; the zygote reads when it looks, and after the child has ended.
Whatever the child writes, right or wrong, only feeds limits and measurements.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, get_type_hints

from hpo_core.training.child.processes import own_growth, page_faults, reset_peak, resident

FIRST_SECONDS = 0.1
"""Seconds after its start at which an attempt is first looked at. Shorter ones are measured by themselves alone."""
PROFILE_ITERATIONS = 10
"""Iterations of a profile; the first, in which libraries compile and choose their kernels, is not timed."""
_TORCH_SECONDS = 1.0
"""Least seconds between two questions to torch while units end; it takes some 50 microseconds to answer."""
_STORING = 0x53544F52494E47
"""Flag value that a stray write is unlikely to leave."""


class ChildFigures(NamedTuple):
    """Figures that a child measures of itself. Times are monotonic seconds, 0.0 where not known yet."""

    began: float
    """Begin of the first unit."""
    unit_ended: float
    """End of the last unit."""
    mark: float
    """Time since which its cores are counted."""
    mark_cpu: float
    """Processor seconds that the child had used at ``mark``."""
    iterations: int
    """Number of ``trial.iteration()`` calls; at most one more than a profile has."""
    memory: int
    """Own memory of the child at its end, in bytes."""
    peak: int
    """Largest own memory in bytes, known at its end; files that it had mapped then, and has closed since, count."""
    device_memory: int
    """Largest memory that torch held of its GPUs, in bytes."""

    @property
    def profiled(self) -> bool:
        """True if ten iterations, or one unit, were seen."""
        return self.iterations >= PROFILE_ITERATIONS or self.unit_ended > 0


_KINDS: dict[type, Any] = {float: ctypes.c_double, int: ctypes.c_int64}


class _Page(ctypes.Structure):
    _fields_ = [
        ("resource", ctypes.c_int64),
        ("when", ctypes.c_double),
        ("storing", ctypes.c_int64),
        ("begun", ctypes.c_int64),
        *((name, _KINDS[kind]) for name, kind in get_type_hints(ChildFigures).items()),
    ]


class SharedProgress:
    """Steps done, whether a checkpoint is being written or read, and the child's :class:`ChildFigures`."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE)
        self._at: Any = _Page.from_buffer(self._page)
        self._start_resource, self._start_time = 0, 0.0
        self._resident: int | None = None
        self._started = self._cpu = 0.0
        self._faults = 0
        self._asked_torch = -_TORCH_SECONDS

    def begin(self, resource: int) -> None:
        self._start_resource, self._start_time = resource, time.monotonic()
        ctypes.memset(ctypes.addressof(self._at), 0, ctypes.sizeof(self._at))
        self._write(resource, storing=False)

    @property
    def begun(self) -> bool:
        """True if the child has begun with the attempt."""
        return bool(self._at.begun)

    @begun.setter
    def begun(self, value: bool) -> None:
        self._at.begun = int(value)

    def read(self, target: int) -> tuple[int, float, bool]:
        """Return (steps done, monotonic time of that record, whether a checkpoint is being stored).

        Steps are clipped to the attempt's start and ``target``; an impossible time is replaced by the start.
        """
        resource, when = self._at.resource, self._at.when
        if not (math.isfinite(when) and self._start_time <= when <= time.monotonic()):
            when = self._start_time
        return max(self._start_resource, min(resource, target)), when, self._at.storing == _STORING

    def figures(self) -> ChildFigures:
        """The figures that the child wrote so far."""
        return ChildFigures(*(getattr(self._at, name) for name in ChildFigures._fields))

    def step(self, resource: int) -> None:
        """Record that ``resource`` steps are done, or that the current step still makes progress."""
        self._write(resource, storing=False)

    @contextlib.contextmanager
    def storing(self, resource: int) -> Iterator[None]:
        """Mark the time in which a checkpoint is written or read; ``stall_timeout`` does not count it."""
        self._write(resource, storing=True)
        try:
            yield
        finally:
            self._write(resource, storing=False)

    def _write(self, resource: int, *, storing: bool) -> None:
        at = self._at
        at.resource, at.when, at.storing = resource, time.monotonic(), _STORING if storing else 0

    def start(self) -> None:
        """Begin to measure an attempt; the first call in the child, so that inherited memory does not count."""
        self.begun = True
        if self._resident is None:
            self._resident = resident("self")
        else:
            reset_peak()
        self._cpu, self._faults = time.process_time(), page_faults()
        self._started = time.monotonic()

    def begin_units(self) -> None:
        self._at.began = time.monotonic()
        self._mark(self._at.began)

    def end_unit(self) -> None:
        now = time.monotonic()
        if now - self._asked_torch >= _TORCH_SECONDS:
            self._asked_torch = now
            self._note_torch()
        self._at.unit_ended = now

    def iteration(self) -> None:
        """One iteration ended; only those of a profile are of interest."""
        count = self._at.iterations + 1
        if count > PROFILE_ITERATIONS + 1:
            return
        if count == 1:
            self._mark(time.monotonic())
        elif count == PROFILE_ITERATIONS:
            self._note_torch()
        self._at.iterations = count

    def finish(self) -> None:
        """Note the final figures; the last call before the child reports."""
        with contextlib.suppress(Exception):  # whatever user code did to torch, or to /proc
            short = time.monotonic() - self._started < FIRST_SECONDS
            self._at.memory, self._at.peak = own_growth(
                self._resident or 0, page_faults() - self._faults if short else 0
            )
            self._note_torch()

    def _mark(self, now: float) -> None:
        self._at.mark, self._at.mark_cpu = now, time.process_time() - self._cpu

    def _note_torch(self) -> None:
        # Note the largest memory that torch reserved of the GPUs of this process: others cannot have it.
        # CUDA's context (some 100 MB) is not known to torch.
        torch: Any = sys.modules.get("torch")
        cuda: Any = getattr(torch, "cuda", None)
        if cuda is not None and cuda.is_initialized():
            peak = sum(int(cuda.max_memory_reserved(device)) for device in range(cuda.device_count()))
            self._at.device_memory = max(self._at.device_memory, peak)
