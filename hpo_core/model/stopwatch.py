"""Stopwatch: seconds in which a watching process itself was awake."""

from __future__ import annotations

from collections.abc import Callable


class Stopwatch:
    """Counts seconds for a limit, from look to look of the process that watches it.

    The time between two looks counts for at most ``max_gap`` seconds. Where the watching process itself stood still
    (SIGSTOP, a suspended Slurm job, a machine that slept or swapped), what it watches may have stood still as well, or
    had no chance to be heard: that is nobody's fault.

    Args:
        max_gap: longer than the time between two looks.
        clock: such as ``time.monotonic``.

    >>> now = [0.0]
    >>> watch = Stopwatch(2.0, lambda: now[0])
    >>> now[0] = 1.5; watch.elapsed()
    1.5
    >>> now[0] = 3600.0; watch.elapsed(), watch.stood_still
    (3.5, 3596.5)
    >>> watch.reset(); watch.elapsed()
    0.0
    """

    def __init__(self, max_gap: float, clock: Callable[[], float]) -> None:
        self.max_gap = max_gap
        self._clock = clock
        self._last_look = clock()
        self._seconds = 0.0
        self.stood_still = 0.0
        """Seconds since the reset that do not count."""

    def elapsed(self) -> float:
        now = self._clock()
        gap = now - self._last_look
        counted = min(gap, self.max_gap)
        self._seconds += counted
        self.stood_still += gap - counted
        self._last_look = now
        return self._seconds

    def skip(self) -> None:
        """Leave out the time since the last look, in which nothing could have been noticed."""
        self._last_look = self._clock()

    def reset(self, seconds: float = 0.0) -> None:
        self._last_look = self._clock()
        self._seconds, self.stood_still = seconds, 0.0
