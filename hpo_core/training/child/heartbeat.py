"""Silence: how long somebody gave no sign of life, while we ourselves were able to notice one."""

from __future__ import annotations

import time
from collections.abc import Callable


class Silence:
    """Seconds without a sign, counted from look to look.

    Two looks that lie further apart than ``longest`` count for ``longest``: where this process itself stood still
    (a laptop that slept, a machine that swapped, SIGSTOP), everybody else gets time to be heard again.

    >>> now = [0.0]
    >>> silence = Silence(longest=2.0, clock=lambda: now[0])
    >>> now[0] = 1.5; silence.look()
    1.5
    >>> now[0] = 3600.0; silence.look()
    3.5
    >>> silence.end(); silence.look()
    0.0
    """

    def __init__(self, longest: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._longest = longest
        self._clock = clock
        self._looked = clock()
        self._seconds = 0.0

    def look(self) -> float:
        """Seconds of silence as of now."""
        now = self._clock()
        self._seconds += min(now - self._looked, self._longest)
        self._looked = now
        return self._seconds

    def skip(self) -> None:
        """The time since the last look does not count: nothing could have been heard in it."""
        self._looked = self._clock()

    def end(self) -> None:
        """There was a sign just now."""
        self._looked = self._clock()
        self._seconds = 0.0
