"""Idle workers, and the units that start on them now."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hpo_core.hopper.board import Board, HopWorker, PlannedUnit, Visiting
from hpo_core.hopper.hop_policies import HopPolicy
from hpo_core.hopper.unit_times import GangLimit


def further_seats(board: Board, idle: Sequence[HopWorker], left: int, most: int) -> list[tuple[int, HopWorker]]:
    """A partition for each of at most so many idle workers, all different.

    Workers with the fewest of these partitions choose first, each the one with most work left, as ``remaining`` does.

    Args:
        left: partitions that the model has not seen; a bit for each.
    """
    found: list[tuple[int, HopWorker]] = []
    able = [worker for worker in idle if worker.holds & left]
    for worker in sorted(able, key=lambda each: ((each.holds & left).bit_count(), each.slowness, each.number)):
        if len(found) == most:
            break
        here = [partition for partition in worker.partitions if left >> partition & 1]
        if here:
            partition = max(here, key=lambda each: board.loads[each] / board.speeds[each])
            left &= ~(1 << partition)
            found.append((partition, worker))
    return found


def recorded_seats(
    holders: Sequence[Sequence[HopWorker]], free: Sequence[Sequence[HopWorker]]
) -> list[HopWorker] | None:
    """A worker for each partition of a recorded gang; None: not now.

    Each has a worker of its own, where the workers that are there could do so at all. Else idle ones take several.

    Args:
        holders: by partition, the workers that hold it.
        free: those of them that are not kept for another gang; of these the ones without a unit count.
    """
    idle = [[worker for worker in held if worker.unit is None] for held in free]
    apart = _matched(idle)
    if apart is not None:
        return apart
    if not all(idle) or _matched(holders) is not None:
        return None
    ranks: dict[str, int] = {}
    seats = []
    for held in idle:
        best = min(held, key=lambda worker: (ranks.get(worker.name, 0), worker.number))
        ranks[best.name] = ranks.get(best.name, 0) + 1
        seats.append(best)
    return seats


def _matched(wanted: Sequence[Sequence[HopWorker]]) -> list[HopWorker] | None:
    """One worker from each list, all different; None: there is no such choice.

    Augmenting paths, as many in one pass as there are apart from each other (Hopcroft and Karp, 1973, without the
    layers): a gang of thousands of ranks takes few passes. A pass that finds none proves that there is none.
    """
    owner: dict[str, int] = {}
    chosen: list[HopWorker | None] = [None] * len(wanted)
    without = list(range(len(wanted)))
    while without:
        seen: set[str] = set()
        left = [place for place in without if not _augmented(place, wanted, owner, chosen, seen)]
        if len(left) == len(without):
            return None
        without = left
    return [worker for worker in chosen if worker is not None]


def _augmented(
    place: int,
    wanted: Sequence[Sequence[HopWorker]],
    owner: dict[str, int],
    chosen: list[HopWorker | None],
    seen: set[str],
) -> bool:
    """Give the place a worker; others that had one may move to another. Not recursive: paths may visit all places.

    Args:
        owner: places by worker.
        chosen: workers by place.
        seen: workers that need not be tried any more in this pass.
    """
    path = [(place, iter(wanted[place]))]
    workers: list[HopWorker] = []
    """Those that the places of the path would take, the next place of the path has it now."""
    while path:
        worker = next((each for each in path[-1][1] if each.name not in seen), None)
        if worker is None:
            path.pop()
            del workers[-1:]
            continue
        seen.add(worker.name)
        workers.append(worker)
        if worker.name not in owner:
            for (at, _), taken in zip(path, workers, strict=True):
                owner[taken.name], chosen[at] = at, taken
            return True
        other = owner[worker.name]
        path.append((other, iter(wanted[other])))
    return False


class UnitStarts:
    """Knows which workers idle, and which units are in flight; starts units where both a worker and a model wait.

    Args:
        board: of the schedule.
        policy: chooses among the units that may start.
    """

    def __init__(self, board: Board, policy: HopPolicy) -> None:
        self.policy = policy
        self._board = board
        self._to_choose: dict[str, HopWorker] = {}
        """Idle workers that may find work among all that wait: they ended a unit, joined or gained a partition."""
        self._without_work: dict[str, HopWorker] = {}
        """Idle workers that found none: only configurations that have come to wait since then can have any."""
        self._fresh: list[Visiting] = []
        """Those configurations."""
        self._flying: dict[int, PlannedUnit] = {}
        """Gang units in flight, by number: they outlive their workers."""
        self._units = 0

    # What changed.

    def idle(self, worker: HopWorker) -> None:
        """The worker has no unit, and may find one among all that wait."""
        self._without_work.pop(worker.name, None)
        self._to_choose[worker.name] = worker

    def left(self, worker: str) -> None:
        """The worker is gone, or busy."""
        self._to_choose.pop(worker, None)
        self._without_work.pop(worker, None)

    def waits(self, visiting: Visiting) -> None:
        """The configuration has come to wait for its next unit."""
        self._fresh.append(visiting)

    def release(self, unit: PlannedUnit) -> PlannedUnit | None:
        """The same unit as it was started, its workers idle from now on; None where it is not in flight."""
        started = self._flying.pop(unit.number, None)
        for name in dict.fromkeys(worker for _, worker in unit.seats):
            worker = self._board.workers.get(name)
            if worker is not None and worker.unit is not None and worker.unit.number == unit.number:
                started, worker.unit = worker.unit, None
                self.idle(worker)
        return started

    # What follows.

    def in_flight(self) -> list[PlannedUnit]:
        """Units that run now."""
        single = [worker.unit for worker in self._workers if worker.unit is not None and not worker.unit.others]
        return [*single, *self._flying.values()]

    def next_units(self, gangs: GangLimit | None) -> list[PlannedUnit]:
        """The units that start now, of as many ranks as ``gangs`` says; from here on they are in flight."""
        fresh = sorted({each.number: each.entry for each in self._fresh if each.entry is not None}.values())
        self._fresh.clear()
        started, reserved = self._recorded_gangs()
        turns = [worker for worker in self._to_choose.values() if not worker.holds & reserved]
        if fresh and self._without_work:
            turns += [
                worker
                for worker in self._without_work.values()
                if not worker.holds & reserved and any(entry[2].open & worker.holds for entry in fresh)
            ]
        board = self._board
        if len(turns) > 1:
            turns.sort(key=_joined)
            turns = list(self.policy.in_turn(turns, board))
        for worker in turns:
            if worker.unit is not None:  # it is a rank of a gang that began just now
                continue
            waiting = board.waiting
            if worker.name in self._without_work:
                waiting = fresh = [entry for entry in fresh if entry[2].entry is not None]
            chosen = self.policy.choose(worker, waiting, board) if waiting else None
            if chosen is None:
                self._without_work[worker.name] = worker
            else:
                visiting, partition = waiting[chosen[0]][2], chosen[1]
                others = self._further(worker, visiting, partition, reserved, gangs) if gangs is not None else []
                started.append(self._start([(partition, worker), *others], visiting))
        self._to_choose = {
            name: worker for name, worker in self._to_choose.items() if worker.unit is None and worker.holds & reserved
        }
        return started

    def check(self) -> None:
        """Raises AssertionError where a worker is neither busy nor idle, or both."""
        for worker in self._workers:
            places = (worker.unit is not None, worker.name in self._to_choose, worker.name in self._without_work)
            assert sum(places) == 1, f"{worker.name} is neither busy nor idle, or both"

    @property
    def _workers(self) -> Collection[HopWorker]:
        return self._board.workers.values()

    def _recorded_gangs(self) -> tuple[list[PlannedUnit], int]:
        """Start those that can; where one cannot, the oldest keeps its workers free of other units.

        Returns what started, and the partitions whose holders begin nothing else; a bit for each.
        """
        started: list[PlannedUnit] = []
        waiting = [entry[2] for entry in self._board.waiting if entry[2].recorded_gang()]
        reserved = 0
        for visiting in sorted(waiting, key=lambda each: each.since):
            gang = visiting.recorded_gang()
            holders = [self._board.holders[partition] for partition in gang]
            free = [[worker for worker in held if not worker.holds & reserved] for held in holders]
            seats = recorded_seats(holders, free)
            if seats is not None:
                started.append(self._start(list(zip(gang, seats, strict=True)), visiting))
            elif not reserved and all(holders):
                reserved = sum(1 << partition for partition in gang)
        return started, reserved

    def _further(
        self, worker: HopWorker, visiting: Visiting, partition: int, reserved: int, gangs: GangLimit
    ) -> list[tuple[int, HopWorker]]:
        """Partitions and workers of the further ranks of a unit that begins here."""
        board = self._board
        if visiting.alone or partition >= board.trained_on:
            return []
        there = sum(1 for each in self._workers if each.holds & board.everything)
        known = gangs.takes(visiting.configuration)
        most = gangs.ranks(len(board.configurations), there) if known else 1
        if most > 1:  # as many units as with the largest size, of equal sizes
            left = visiting.left.bit_count()
            most = -(-left // -(-left // most))
        free = (each for each in self._workers if each.unit is None and each is not worker)
        idle = [each for each in free if not each.holds & reserved]
        found = further_seats(board, idle, visiting.open & ~(1 << partition), most - 1) if most > 1 else []
        return found[: gangs.fitting(len(found) + 1) - 1]

    def _start(self, seats: Sequence[tuple[int, HopWorker]], visiting: Visiting) -> PlannedUnit:
        (partition, first), *others = seats
        unit = PlannedUnit(
            configuration=visiting.configuration,
            epoch=visiting.epoch,
            partition=partition,
            worker=first.name,
            number=self._units,
            others=tuple((each, worker.name) for each, worker in others),
        )
        self._units += 1
        self._board.take(visiting, unit.partitions)
        visiting.unit = unit
        if others:
            self._flying[unit.number] = unit
        for _, worker in seats:
            worker.unit = unit
            self.left(worker.name)
        return unit


def _joined(worker: HopWorker) -> int:
    return worker.number
