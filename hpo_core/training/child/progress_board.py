"""How far a child is, in a page of memory that it shares with the zygote: no message, no wake-up.

Whatever the child writes there, right or wrong, is one number for a message and one for a limit; nothing else reads it.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import struct
import time
from collections.abc import Iterator

_LAYOUT = struct.Struct("<qdq")
_STORING = 0x53544F52494E47
"""Not a number that a stray write would leave."""


class Board:
    """Steps done, when the last of them ended, and whether a checkpoint is being written or read since."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE)
        self._resource = 0
        self._began = 0.0

    def begin(self, resource: int) -> None:
        """In the zygote, before each fork."""
        self._resource, self._began = resource, time.monotonic()
        self._note(resource, False)

    def step(self, resource: int) -> None:
        """A step has ended, or goes on visibly."""
        self._note(resource, False)

    @contextlib.contextmanager
    def storing(self, resource: int) -> Iterator[None]:
        """Around the time that a checkpoint takes: not the training function's, so no part of its stall limit."""
        self._note(resource, True)
        try:
            yield
        finally:
            self._note(resource, False)

    def _note(self, resource: int, storing: bool) -> None:
        _LAYOUT.pack_into(self._page, 0, resource, time.monotonic(), _STORING if storing else 0)

    def read(self, target: int) -> tuple[int, float, bool]:
        """(steps done, when that was noted, storing); a time that cannot be true counts as the attempt's start."""
        resource, when, storing = _LAYOUT.unpack_from(self._page, 0)
        if not (math.isfinite(when) and self._began <= when <= time.monotonic()):
            when = self._began
        return max(self._resource, min(resource, target)), when, storing == _STORING
