"""SharedProgress: how far a child is, in one page of memory shared with the zygote.

The child writes without a message or a wake-up. Whatever it writes, right or wrong, only feeds one number in a message
and one limit; nothing else reads it.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import struct
import time
from collections.abc import Iterator

from hpo_core.training.resources.own_figures import OwnFigures

_LAYOUT = struct.Struct("<qdq")
_STORING = 0x53544F52494E47
"""Flag value that a stray write is unlikely to leave."""
_FIGURES_AT = 64
"""Byte of the page at which the child's own figures begin."""


class SharedProgress:
    """Steps done, when the last step ended, and whether a checkpoint is being written or read."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE)
        self.figures = OwnFigures(self._page, _FIGURES_AT)
        self._start_resource = 0
        self._start_time = 0.0

    def begin(self, resource: int) -> None:
        """Reset before a fork; called in the zygote."""
        self._start_resource, self._start_time = resource, time.monotonic()
        self.figures.clear()
        self._write(resource, storing=False)

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
        _LAYOUT.pack_into(self._page, 0, resource, time.monotonic(), _STORING if storing else 0)

    def read(self, target: int) -> tuple[int, float, bool]:
        """Return (steps done, monotonic time of that record, whether a checkpoint is being stored).

        Steps are clipped to the attempt's start and ``target``; an impossible time is replaced by the start.
        """
        resource, when, storing = _LAYOUT.unpack_from(self._page, 0)
        if not (math.isfinite(when) and self._start_time <= when <= time.monotonic()):
            when = self._start_time
        return max(self._start_resource, min(resource, target)), when, storing == _STORING
