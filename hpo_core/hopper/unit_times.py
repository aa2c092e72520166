"""Expected seconds of units, from units that ended; of a configuration without any as of the others in the mean."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log

SPEEDS = 0.25
"""Variance of the logarithm of a worker's slowness before its first unit."""
NOISE = 0.01
"""Variance of a measurement: units of one configuration on one worker differ by about 10 %."""
DRIFT = 0.0002
"""Added to both variances at each measurement, so that old ones are forgotten."""

REMEMBERED = 100
"""Number of evaluations whose times count for the next."""


class UnitTimes:
    """Seconds of a unit = cost of the configuration x slowness of the worker x size of the partition.

    Each measurement corrects cost and slowness in proportion to how uncertain each of them is (a Kalman filter in
    logarithms, without the correlations). Only ratios matter to the schedulers.

    An evaluation on a partition takes a part of that, the same for all, which is learned as well.

    Args:
        sizes: examples of each partition, or anything proportional to them; all equal where not given.
        trained_on: so many of them, the first ones, are trained on, the others evaluated on; None: all.

    Raises:
        ValueError: a size is not above 0.

    >>> times = UnitTimes()
    >>> for _ in range(20):
    ...     times.observe(0, "slow", 0, 20.0)
    ...     times.observe(0, "fast", 1, 10.0)
    >>> round(times.slowness("slow") / times.slowness("fast"), 2)
    2.0
    >>> times.is_known(1), times.cost(1) == times.cost(0)  # nothing is known: as the others
    (False, True)
    """

    def __init__(self, sizes: Sequence[float] | None = None, *, trained_on: int | None = None) -> None:
        if sizes is not None and not all(0 < size < float("inf") for size in sizes):
            raise ValueError("UnitTimes(sizes): each partition's size must be finite and above 0.")
        trained = sizes[:trained_on] if sizes else [1.0]
        mean = sum(trained) / len(trained)
        self._trained_on = float("inf") if trained_on is None else trained_on
        self._evaluation, self._evaluations = 0.0, 0
        """Logarithm of an evaluation's time as a part of training's, and how often it was measured."""
        self._sizes = [size / mean for size in sizes or ()]
        self._costs: dict[int, list[float]] = {}
        """Logarithm of a configuration's cost, and the variance of that."""
        self._slowness: dict[str, list[float]] = {}
        self._sum_of_logs = 0.0

    def size(self, partition: int) -> float:
        """Size relative to the mean, for validation times the ratio of an evaluation's time to that of training."""
        size = self._sizes[partition] if self._sizes else 1.0
        return size if partition < self._trained_on else size * exp(self._evaluation)

    def observe(self, configuration: int, worker: str, partition: int, seconds: float) -> None:
        """Observe the seconds of a unit that ended. Times of 0 or less (a clock that was set back) are left out."""
        if not 0 < seconds < float("inf"):
            return
        measured = log(seconds / self.size(partition))
        slowness = self._slowness.get(worker)
        if slowness is None:
            slowness = self._slowness[worker] = [0.0, SPEEDS]
        cost = self._costs.get(configuration)
        if partition >= self._trained_on:
            if cost is not None:
                self._evaluations = min(self._evaluations + 1, REMEMBERED)
                self._evaluation += (measured - cost[0] - slowness[0]) / self._evaluations
            return
        if cost is None:
            self._costs[configuration] = [measured - slowness[0], slowness[1] + NOISE]
            self._sum_of_logs += measured - slowness[0]
            return
        off = measured - cost[0] - slowness[0]
        total = cost[1] + slowness[1] + NOISE
        self._sum_of_logs += off * cost[1] / total
        for estimate in (cost, slowness):
            gain = estimate[1] / total
            estimate[0] += off * gain
            estimate[1] += DRIFT - estimate[1] * gain

    @property
    def default(self) -> float:
        """Cost of a configuration that nothing is known about: the geometric mean of the others."""
        return exp(self._sum_of_logs / len(self._costs)) if self._costs else 1.0

    def is_known(self, configuration: int) -> bool:
        return configuration in self._costs

    def cost(self, configuration: int) -> float:
        """Seconds of a unit on a worker of slowness 1 and a partition of mean size."""
        known = self._costs.get(configuration)
        return exp(known[0]) if known else self.default

    def slowness(self, worker: str) -> float:
        known = self._slowness.get(worker)
        return exp(known[0]) if known else 1.0

    def seconds(self, configuration: int, worker: str, partition: int) -> float:
        return self.cost(configuration) * self.slowness(worker) * self.size(partition)
