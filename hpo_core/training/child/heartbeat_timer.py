"""HeartbeatTimer: seconds since the last heartbeat of somebody else."""

from __future__ import annotations

import time
from collections.abc import Callable


class HeartbeatTimer:
    """Counts the seconds since the last heartbeat, from call to call of :meth:`elapsed`.

    A gap between two calls counts for at most ``max_gap`` seconds. Where this process itself stood still (a laptop
    that slept, a machine that swapped, SIGSTOP), it could not notice a heartbeat, so others get more time.

    >>> now = [0.0]
    >>> timer = HeartbeatTimer(max_gap=2.0, clock=lambda: now[0])
    >>> now[0] = 1.5; timer.elapsed()
    1.5
    >>> now[0] = 3600.0; timer.elapsed()
    3.5
    >>> timer.reset(); timer.elapsed()
    0.0
    """

    def __init__(self, max_gap: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_gap = max_gap
        self._clock = clock
        self._last_call = clock()
        self._seconds = 0.0

    def elapsed(self) -> float:
        """Seconds without a heartbeat as of now."""
        now = self._clock()
        self._seconds += min(now - self._last_call, self._max_gap)
        self._last_call = now
        return self._seconds

    def skip(self) -> None:
        """Leave out the time since the last call, in which no heartbeat could have been noticed."""
        self._last_call = self._clock()

    def reset(self) -> None:
        """Note a heartbeat: count from 0 again."""
        self._last_call = self._clock()
        self._seconds = 0.0
