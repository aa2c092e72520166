"""How many ranks a unit may have, where fewer models are left than half of the workers (Cerebro, 5.7)."""

from __future__ import annotations

from collections.abc import Mapping

from hpo_core.hopper.unit_times import UnitTimes

TRIED = 2
"""So often a size is measured before it is said not to be worth it: the first time may import libraries."""


class GangLimit:
    """The largest size of a gang unit that is worth its while.

    With speed-ups given, only their sizes are used. Without, units are measured: a model trains alone first, a gang has
    at most twice as many ranks as the largest that was found fast enough, and fewer than the smallest that was found
    too slow.

    Args:
        times: estimates of unit times, which measure gangs.
        efficiency: a gang of g ranks is at least ``efficiency * g`` times as fast as one worker.
        most: ranks that a unit may have at most; None: as many as there are workers.
        gains: how many times as fast as one worker a gang is, by ranks.

    >>> limit = GangLimit(UnitTimes(), gains={2: 1.9, 4: 3.4, 8: 5.0})
    >>> [limit.ranks(2, workers) for workers in (3, 4, 5, 8, 40)], limit.ranks(4, 8)
    ([1, 1, 2, 4, 4], 1)
    """

    def __init__(
        self,
        times: UnitTimes,
        *,
        efficiency: float = 0.75,
        most: int | None = None,
        gains: Mapping[int, float] | None = None,
    ) -> None:
        self._times = times
        self._wanted = efficiency * (1 - 1e-12)  # 0.7 * 3 is below 2.1 in floats
        self._most = most
        self._sizes = None
        if gains:
            self._sizes = [1, *sorted(ranks for ranks, gain in gains.items() if gain >= self._wanted * ranks)]

    @property
    def measures(self) -> bool:
        """Whether sizes are those that were measured to be worth it; else they were given."""
        return self._sizes is None

    def ranks(self, configurations: int, workers: int) -> int:
        """At most so many for the next unit: an equal part of the workers, below half as many models as workers."""
        if 2 * configurations >= workers or not configurations:
            return 1
        return self.fitting(workers // configurations)

    def takes(self, configuration: int) -> bool:
        """Whether a model may train in gangs: where these are measured, once its time on one worker is known."""
        return not self.measures or self._times.is_known(configuration)

    def fitting(self, ranks: int) -> int:
        """The largest size that is worth its while and not above this."""
        ranks = max(1, min(ranks, self._most or ranks))
        if self._sizes is not None:
            return max(size for size in self._sizes if size <= ranks)
        return min(ranks, self._measured())

    def _measured(self) -> int:
        counts = self._times.measured_gangs()
        fast = {size for size in counts if self._times.gain(size) >= self._wanted * size}
        largest = max(fast, default=1)
        slow = min((size for size, count in counts.items() if size > largest and count >= TRIED), default=None)
        return 2 * largest if slow is None else min(2 * largest, slow - 1)
