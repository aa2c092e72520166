"""The schedule of model hopper parallelism: told what happened, it answers which units start now."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter

from hpo_core.hopper.board import Board, HopWorker, PlannedUnit, UnitEnd, UnitTimes, Visiting
from hpo_core.hopper.hop_policies import HopPolicy, Remaining

OrdersByEpoch = Mapping[int, Sequence[int]]
"""Places of partitions in the order of the visits, by epoch."""


class HopSchedule:
    """Configurations visit partitions; each partition once an epoch, one at a time, where it lies.

    A configuration that ended its epoch begins the next one at once; there is no barrier. Nothing here waits, and no
    worker that holds what a waiting configuration needs stays idle after :meth:`next_units`.

    Args:
        partitions: their names, or how many.
        policy: chooses among the units that may start; ``remaining`` by default.
        times: estimates of unit times, with what a pilot or the history told.
        validation: partitions that each configuration is evaluated on at the end of each epoch, in any order; they
            have the places after those of ``partitions``.

    Raises:
        ValueError: there is no partition, or a name twice.

    >>> schedule = HopSchedule(2)
    >>> schedule.worker_joined("a", [0])
    >>> schedule.worker_joined("b", [1])
    >>> schedule.add(7, to=1)
    >>> (first,) = schedule.next_units()
    >>> schedule.unit_ended(first, seconds=3.0).order is None
    True
    >>> (second,) = schedule.next_units()
    >>> sorted([first.worker, second.worker]), second.partition == 1 - first.partition
    (['a', 'b'], True)
    >>> end = schedule.unit_ended(second, seconds=3.0)
    >>> end.order == (first.partition, second.partition), end.job_ended, schedule.next_units()
    (True, True, [])
    """

    def __init__(
        self,
        partitions: int | Sequence[str],
        policy: HopPolicy | None = None,
        *,
        times: UnitTimes | None = None,
        validation: Sequence[str] = (),
    ) -> None:
        names = [str(place) for place in range(partitions)] if isinstance(partitions, int) else list(partitions)
        if not names or len(set(names)) < len(names):
            raise ValueError(f"HopSchedule(partitions): {names} must be at least one name, and none of them twice.")
        self.times = times or UnitTimes()
        self.board = Board([*names, *validation], self.times, evaluated=len(validation))
        self._policy = policy or Remaining()
        self._to_choose: dict[str, HopWorker] = {}
        """Idle workers that may find work among all that wait: they ended a unit, joined or gained a partition."""
        self._without_work: dict[str, HopWorker] = {}
        """Idle workers that found none: only configurations that have come to wait since then can have any."""
        self._fresh: list[Visiting] = []
        """Configurations that have come to wait since then."""
        self._added = self._joined = self._started = 0

    # What the caller tells.

    def add(
        self,
        configuration: int,
        *,
        to: int,
        after: int = 0,
        visited: Sequence[int] = (),
        orders: OrdersByEpoch | None = None,
    ) -> None:
        """A granted job: train the configuration to the end of epoch ``to``.

        Args:
            after: epochs that it has behind it.
            visited: partitions of epoch ``after + 1`` that are behind it as well, in their order (a job that goes on
                from a durable hop).
            orders: by epoch, the recorded order of the visits; it is followed exactly, on any number of workers.

        Raises:
            ValueError: the configuration is under way, there is nothing to train, or an order does not visit each
                partition once, or not those visited first.
        """
        if configuration in self.board.configurations:
            raise ValueError(f"HopSchedule.add(): configuration {configuration} is under way already; remove it first.")
        if not 0 <= after < to:
            raise ValueError(f"HopSchedule.add(): after = {after} must be at least 0 and less than to = {to}.")
        count = self.board.trained_on
        if len(set(visited)) < len(visited) or len(visited) >= count or not set(visited) <= set(range(count)):
            raise ValueError(
                f"HopSchedule.add(): visited = {list(visited)} must name some of {count} partitions, by their places "
                "from 0, each at most once, and leave at least one."
            )
        visiting = Visiting(configuration, self._added, epoch=after + 1, to=to)
        self._added += 1
        visiting.visits = list(visited)
        visiting.orders = {epoch: self._checked(visiting, epoch, order) for epoch, order in (orders or {}).items()}
        visiting.left = self.board.everything & ~sum(1 << partition for partition in visited)
        self.board.charge(visiting, self.times.cost(configuration))
        self.board.configurations[configuration] = visiting
        if all(unit.configuration != configuration for unit in self.in_flight()):
            self._wait(visiting)
        # else for the end of a unit that was in flight when the configuration was removed

    def _checked(self, visiting: Visiting, epoch: int, order: Sequence[int]) -> Sequence[int]:
        if sorted(order) != list(range(self.board.trained_on)):
            raise ValueError(
                f"HopSchedule.add(): the order {list(order)} of configuration {visiting.configuration} in epoch "
                f"{epoch} must visit each of {self.board.trained_on} partitions once."
            )
        if epoch == visiting.epoch and list(order[: len(visiting.visits)]) != visiting.visits:
            raise ValueError(
                f"HopSchedule.add(): configuration {visiting.configuration} visited {visiting.visits} in epoch "
                f"{epoch}; the order {list(order)} must begin with that."
            )
        return order

    def remove(self, configuration: int) -> PlannedUnit | None:
        """The configuration trains no further: it was stopped, or failed for good.

        Returns its unit in flight. No unit is preempted: the worker is busy until that unit is said to have ended or
        failed; it does not count.

        Raises:
            KeyError: the configuration is not under way.
        """
        visiting = self.board.configurations.pop(configuration)
        if visiting.entry is not None:
            self.board.withdraw(visiting)
        self.board.charge(visiting, 0.0)
        return visiting.unit

    def worker_joined(self, worker: str, partitions: Collection[int]) -> None:
        """A worker takes units from now on; it holds these partitions.

        Raises:
            ValueError: it is here already, or a partition is not known.
        """
        if worker in self.board.workers:
            raise ValueError(f"HopSchedule.worker_joined(): {worker!r} is here already; say first that it was lost.")
        held = self._known(partitions)
        here = HopWorker(worker, self._joined, held, self.times.slowness(worker))
        self._joined += 1
        self.board.workers[worker] = here
        self.board.seat(here, held)
        self._idle(here)

    def worker_holds(self, worker: str, partitions: Collection[int]) -> None:
        """The worker holds these partitions now: some came, or went. Its unit in flight goes on.

        Raises:
            KeyError: the worker is not here.
            ValueError: a partition is not known.
        """
        here = self.board.workers[worker]
        self.board.seat(here, self._known(partitions))
        if here.unit is None:
            self._idle(here)

    def worker_lost(self, worker: str) -> PlannedUnit | None:
        """The worker is gone. Its unit in flight, if any, goes back and is returned.

        Raises:
            KeyError: the worker is not here.
        """
        here = self.board.workers.pop(worker)
        self.board.seat(here, None)
        self._leave(worker)
        unit, here.unit = here.unit, None
        if unit is not None:
            self._give_back(unit)
        return unit

    def unit_ended(self, unit: PlannedUnit, *, seconds: float | None = None) -> UnitEnd:
        """The unit is complete: its model state is where the next unit finds it.

        Args:
            seconds: how long it took, for the estimates.
        """
        started = self._release(unit)
        if started is None:
            return NOT_COUNTED
        if seconds is not None:
            self.board.measured(started, seconds)
        visiting = self.board.configurations.get(unit.configuration)
        if visiting is None or visiting.unit is None:
            self._give_back(started)
            return NOT_COUNTED
        visiting.unit = None
        visiting.visits.append(started.partition)
        if visiting.left:
            self._wait(visiting)
            return COUNTED
        if self.board.evaluated and started.partition < self.board.trained_on:
            self.board.put_back(visiting, range(self.board.trained_on, len(self.board.names)))
            self._wait(visiting)
            return COUNTED
        order = tuple(visiting.visits[: self.board.trained_on])
        if visiting.epoch == visiting.to:
            del self.board.configurations[unit.configuration]
            return UnitEnd(counted=True, order=order, job_ended=True)
        visiting.epoch += 1
        visiting.visits = []
        visiting.left = self.board.everything
        self._wait(visiting)
        return UnitEnd(counted=True, order=order)

    def unit_failed(self, unit: PlannedUnit) -> bool:
        """The unit ended without a result, its worker is idle; the configuration goes back as after a lost worker.

        Returns whether the unit was in flight. Whoever tries no further removes the configuration.
        """
        started = self._release(unit)
        if started is not None:
            self._give_back(started)
        return started is not None

    # What it answers.

    def next_units(self) -> list[PlannedUnit]:
        """The units that start now; from here on they are in flight."""
        fresh = sorted({each.number: each.entry for each in self._fresh if each.entry is not None}.values())
        self._fresh.clear()
        started: list[PlannedUnit] = []
        turns = list(self._to_choose.values())
        if fresh and self._without_work:
            turns += [
                worker for worker in self._without_work.values() if any(entry[2].open & worker.holds for entry in fresh)
            ]
        board = self.board
        if len(turns) > 1:
            turns.sort(key=attrgetter("number"))
            turns = list(self._policy.in_turn(turns, board))
        for worker in turns:
            waiting = board.waiting
            if worker.name in self._without_work:
                waiting = fresh = [entry for entry in fresh if entry[2].entry is not None]
            chosen = self._policy.choose(worker, waiting, board) if waiting else None
            if chosen is None:
                self._without_work[worker.name] = worker
            else:
                started.append(self._start(worker, waiting[chosen[0]][2], chosen[1]))
        self._to_choose.clear()
        return started

    def halted(self) -> dict[str, tuple[int, ...]]:
        """Configurations under way that still have to visit a partition without a worker, by the partition's name."""
        board = self.board
        found = {}
        for partition, holders in enumerate(board.holders):
            needing = () if holders else tuple(
                visiting.configuration
                for visiting in board.configurations.values()
                if visiting.left >> partition & 1 or visiting.epoch < visiting.to
            )  # fmt: skip
            if needing:
                found[board.names[partition]] = needing
        return found

    def in_flight(self) -> list[PlannedUnit]:
        return [worker.unit for worker in self.board.workers.values() if worker.unit is not None]

    def configurations(self) -> list[int]:
        return list(self.board.configurations)

    def visits(self, configuration: int) -> tuple[int, ...]:
        """Partitions visited in the epoch under way, in their order.

        Raises:
            KeyError: the configuration is not under way.
        """
        return tuple(self.board.configurations[configuration].visits)

    def check(self) -> None:
        """Raises AssertionError where the schedule contradicts itself; for tests."""
        self.board.check()
        flying = {unit.number for unit in self.in_flight()}
        for visiting in self.board.configurations.values():
            assert visiting.unit is None or visiting.unit.number in flying, "its unit in flight has no worker"
        for worker in self.board.workers.values():
            places = (worker.unit is not None, worker.name in self._to_choose, worker.name in self._without_work)
            assert sum(places) == 1, f"{worker.name} is neither busy nor idle, or both"

    def _known(self, partitions: Collection[int]) -> list[int]:
        count = len(self.board.names)
        if not all(0 <= partition < count for partition in partitions):
            raise ValueError(f"Partitions {sorted(partitions)} of a worker must be places from 0 to {count - 1}.")
        return sorted(set(partitions))

    def _wait(self, visiting: Visiting) -> None:
        self.board.wait(visiting)
        self._fresh.append(visiting)

    def _idle(self, worker: HopWorker) -> None:
        self._without_work.pop(worker.name, None)
        self._to_choose[worker.name] = worker

    def _leave(self, worker: str) -> None:
        self._to_choose.pop(worker, None)
        self._without_work.pop(worker, None)

    def _release(self, unit: PlannedUnit) -> PlannedUnit | None:
        # Make the unit's worker idle; returns the unit as it was started, None where it is not in flight.
        worker = self.board.workers.get(unit.worker)
        if worker is None or worker.unit is None or worker.unit.number != unit.number:
            return None
        started, worker.unit = worker.unit, None
        self._idle(worker)
        return started

    def _start(self, worker: HopWorker, visiting: Visiting, partition: int) -> PlannedUnit:
        unit = PlannedUnit(
            configuration=visiting.configuration,
            epoch=visiting.epoch,
            partition=partition,
            worker=worker.name,
            number=self._started,
        )
        self._started += 1
        self.board.take(visiting, partition)
        visiting.unit = worker.unit = unit
        worker.visited(partition)
        self._leave(worker.name)
        return unit

    def _give_back(self, unit: PlannedUnit) -> None:
        visiting = self.board.configurations.get(unit.configuration)
        if visiting is None:
            return
        if visiting.unit is not None:  # else it was added anew, and has waited for this unit to end
            visiting.unit = None
            self.board.put_back(visiting, [unit.partition])
        self._wait(visiting)


COUNTED, NOT_COUNTED = UnitEnd(counted=True), UnitEnd(counted=False)
