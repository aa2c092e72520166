"""State of a hop schedule: configurations, workers, partitions, and the work that is left for each."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from math import exp, log

import msgspec

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


class PlannedUnit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A pass of one configuration over one partition, on one worker (a sub-epoch)."""

    configuration: int
    """Number of the trial."""
    epoch: int
    """Epoch, from 1: a job that trains from epoch 2 to epoch 4 has the units of epochs 3 and 4."""
    partition: int
    """Place among the schedule's partitions."""
    worker: str
    number: int
    """Number of the unit in its schedule, from 0. It tells a late end of a lost unit apart."""


class UnitEnd(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Consequences of the end of a unit."""

    counted: bool
    """False where the unit was lost, or its configuration removed, before it ended."""
    order: tuple[int, ...] | None = None
    """Partitions of the epoch in the order of the visits, where it ended with this unit."""
    job_ended: bool = False
    """True if this was the last epoch that the configuration was given."""


WHOLE = 1_000_000
"""Work of one unit on a partition of mean size and workers of slowness 1. Integers: equal work compares equal."""
NOTICED = 0.05
"""Relative change of an estimate below which sums are not made anew."""


class Visiting:
    """A configuration with epochs to go: the partitions that it visited in this epoch, and those left."""

    __slots__ = ("charged", "configuration", "entry", "epoch", "left", "number", "open", "orders", "priced", "to",
                 "unit", "visits", "work")  # fmt: skip

    def __init__(self, configuration: int, number: int, *, epoch: int, to: int) -> None:
        self.configuration = configuration
        self.number = number
        """Place in the order in which configurations were added, from 0."""
        self.epoch = epoch
        """The epoch under way."""
        self.to = to
        self.orders: Mapping[int, Sequence[int]] = {}
        """Recorded orders of visits that have to be followed, by epoch."""
        self.visits: list[int] = []
        """Partitions that were visited in this epoch."""
        self.left = 0
        """Bits of the partitions that are left in this epoch, the one in flight not counted."""
        self.open = 0
        """Bits of the partitions that may be next."""
        self.unit: PlannedUnit | None = None
        """The unit in flight."""
        self.entry: Waiting | None = None
        """Entry in :attr:`Board.waiting`; None while a unit is in flight."""
        self.work = 0
        """Work left up to the last epoch, see :data:`WHOLE`. Times the cost it is the remaining time."""
        self.charged = 0.0
        """The cost that the loads of the partitions were counted with."""
        self.priced = -1
        """The price list that ``work`` was summed with."""

    def open_after(self, behind: int) -> int:
        """Bits of the partitions that may follow so many visits of this epoch."""
        order = self.orders.get(self.epoch, ())
        return 1 << order[behind] if behind < len(order) else self.left


class HopWorker:
    """A worker, the partitions that it holds and the unit that it runs."""

    __slots__ = ("holds", "name", "number", "partitions", "recent", "slowness", "unit")

    def __init__(self, name: str, number: int, partitions: Sequence[int], slowness: float) -> None:
        self.name = name
        self.number = number
        """Counts the workers that joined, from 0."""
        self.slowness = slowness
        self.unit: PlannedUnit | None = None
        self.recent: tuple[int, ...] = ()
        """Partitions that it began units on, the last one first; the first of them are still in its memory."""
        self.hold(partitions)

    def hold(self, partitions: Sequence[int]) -> None:
        self.partitions = tuple(sorted(set(partitions)))
        self.holds = sum(1 << partition for partition in self.partitions)
        """A bit for each."""

    def visited(self, partition: int) -> None:
        """Note that a unit on this partition begins here."""
        if self.recent[:1] != (partition,):
            self.recent = (partition, *(each for each in self.recent if each != partition))


Waiting = tuple[float, int, Visiting]
"""(minus the time that remains after its next unit, on a mean worker; the configuration's number; itself)."""


class Board:
    """State of a schedule that policies see; only the schedule changes it.

    Args:
        names: of the partitions, those of validation at the end.
        times: estimates of unit times.
        evaluated: so many of them are of validation: visited once the others of the epoch were.
    """

    def __init__(self, names: Sequence[str], times: UnitTimes, *, evaluated: int = 0) -> None:
        self.names = tuple(names)
        self.times = times
        self.trained_on = len(names) - evaluated
        """Number of partitions that are trained on, the first ones."""
        self.everything = (1 << self.trained_on) - 1
        """Bits of the partitions that are trained on."""
        self.evaluated = (1 << len(names)) - 1 - self.everything
        """Bits of the partitions of validation."""
        self.configurations: dict[int, Visiting] = {}
        self.workers: dict[str, HopWorker] = {}
        self.waiting: list[Waiting] = []
        """Configurations without a unit in flight, the one with the most remaining time first."""
        self.holders: list[list[HopWorker]] = [[] for _ in names]
        """Workers that hold each partition."""
        self.prices = [round(WHOLE * times.size(partition)) for partition in range(len(names))]
        """Work of one unit on each partition: its size times the (harmonic) mean slowness of its holders."""
        self.speeds = [1.0] * len(names)
        """Sum of the speeds of each partition's holders; a worker of slowness 2 has 0.5."""
        self.total = sum(self.prices)
        """Work of one epoch."""
        self.mean = self.total // len(names)
        """Work of one unit."""
        self.loads = [0.0] * len(names)
        """Sum of the costs of all units that are left on each partition, in this epoch and later ones."""
        self._list = 0
        self._evaluated_size: dict[int, float] = {}
        """Size of each partition of validation when it was priced."""
        self._default = times.default

    def load(self, worker: HopWorker) -> float:
        """Seconds until the partitions of this worker are done if all their holders work on them alone."""
        size, loads, speeds = self.times.size, self.loads, self.speeds
        return sum(loads[each] * size(each) / speeds[each] for each in worker.partitions)

    def seat(self, worker: HopWorker, partitions: Sequence[int] | None) -> None:
        """Set the partitions that a worker holds; None: the worker has left."""
        for partition in worker.partitions:
            if worker in self.holders[partition]:
                self.holders[partition].remove(worker)
        changed = set(worker.partitions)
        if partitions is not None:
            worker.hold(partitions)
            changed.update(worker.partitions)
            for partition in worker.partitions:
                self.holders[partition].append(worker)
        self._price(changed)

    def _price(self, partitions: set[int]) -> None:
        for partition in partitions:
            holders = self.holders[partition]
            if holders:  # with none, what it was
                self.speeds[partition] = sum(1 / worker.slowness for worker in holders)
                mean = len(holders) / self.speeds[partition]
                self.prices[partition] = max(round(WHOLE * self.times.size(partition) * mean), 1)
        self.total = sum(self.prices)
        self.mean = self.total // len(self.prices)
        self._list += 1

    def measured(self, unit: PlannedUnit, seconds: float) -> None:
        """Take the seconds of a unit that ended; prices change where the worker's slowness moved."""
        worker = self.workers[unit.worker]
        self.times.observe(unit.configuration, unit.worker, unit.partition, seconds)
        slowness = self.times.slowness(worker.name)
        if abs(slowness - worker.slowness) > NOTICED * worker.slowness:
            worker.slowness = slowness
            self._price(set(worker.partitions))
        if unit.partition >= self.trained_on:
            size = self.times.size(unit.partition)
            if abs(size - self._evaluated_size.get(unit.partition, 0.0)) > NOTICED * size:
                evaluated = range(self.trained_on, len(self.names))
                self._evaluated_size = {partition: self.times.size(partition) for partition in evaluated}
                self._price(set(evaluated))
        default = self.times.default
        if abs(default - self._default) > 2 * NOTICED * self._default:
            self._default = default
            for visiting in list(self.configurations.values()):
                if visiting.entry is not None and not self.times.is_known(visiting.configuration):
                    self.withdraw(visiting)
                    self.wait(visiting)

    def wait(self, visiting: Visiting) -> None:
        """The configuration has no unit in flight: it waits, in its place by remaining work."""
        visiting.open = visiting.open_after(len(visiting.visits))
        cost = self.times.cost(visiting.configuration)
        if abs(cost - visiting.charged) > NOTICED * visiting.charged:
            self.charge(visiting, cost)
        if visiting.priced != self._list:
            visiting.priced = self._list
            left = sum(price for place, price in enumerate(self.prices) if visiting.left >> place & 1)
            visiting.work = left + (visiting.to - visiting.epoch) * self.total
        visiting.entry = entry = (-cost * (visiting.work - self.mean), visiting.number, visiting)
        insort(self.waiting, entry)

    def charge(self, visiting: Visiting, cost: float) -> None:
        more, later = cost - visiting.charged, visiting.to - visiting.epoch
        for partition in range(len(self.loads)):  # those of validation are charged when they are due
            epochs = later if partition < self.trained_on else 0
            self.loads[partition] += more * (epochs + (visiting.left >> partition & 1))
        visiting.charged = cost

    def withdraw(self, visiting: Visiting) -> None:
        assert visiting.entry is not None
        del self.waiting[bisect_left(self.waiting, visiting.entry)]
        visiting.entry = None

    def take(self, visiting: Visiting, partition: int) -> None:
        self.withdraw(visiting)
        visiting.left &= ~(1 << partition)
        visiting.work -= self.prices[partition]
        self.loads[partition] -= visiting.charged

    def put_back(self, visiting: Visiting, partitions: Sequence[int]) -> None:
        """These partitions of this epoch have to be visited again."""
        for partition in partitions:
            visiting.left |= 1 << partition
            self.loads[partition] += visiting.charged
        visiting.priced = -1

    def check(self) -> None:
        """Raises AssertionError where sums and lists are not what they were made from."""
        waiting = [each for each in self.configurations.values() if each.entry is not None]
        assert self.waiting == sorted(self.waiting) and len(self.waiting) == len(waiting)
        assert all(entry[2].entry is entry for entry in self.waiting)
        for partition, load in enumerate(self.loads):
            charged = [
                each.charged * ((each.to - each.epoch) * (partition < self.trained_on) + (each.left >> partition & 1))
                for each in self.configurations.values()
            ]
            assert abs(load - sum(charged)) <= 1e-6 * (1 + sum(charged)), "a load is not the sum of what is left"
            holders = [worker for worker in self.workers.values() if worker.holds >> partition & 1]
            assert sorted(map(id, self.holders[partition])) == sorted(map(id, holders))
        for each in self.configurations.values():
            flying = [] if each.unit is None else [each.unit.partition]
            left = [partition for partition in range(len(self.names)) if each.left >> partition & 1]
            known = sorted([*each.visits, *flying, *left])
            assert known in (list(range(self.trained_on)), list(range(len(self.names))))
            assert each.epoch <= each.to and not (each.open & ~each.left and each.entry is not None)
