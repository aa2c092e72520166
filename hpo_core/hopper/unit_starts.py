"""Idle workers, and the units that start on them now."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hpo_core.hopper.board import Board, HopWorker, Visiting
from hpo_core.hopper.gang_limit import GangLimit
from hpo_core.hopper.gang_seats import further_seats, recorded_seats
from hpo_core.hopper.hop_policy import HopPolicy
from hpo_core.hopper.unit import Unit


class UnitStarts:
    """Knows which workers idle, and which units are in flight; starts units where both a worker and a model wait.

    Args:
        board: of the schedule.
        policy: chooses among the units that may start.
        gangs: how many ranks a unit may have; None: one. Recorded gangs are followed all the same.
    """

    def __init__(self, board: Board, policy: HopPolicy, gangs: GangLimit | None) -> None:
        self.policy = policy
        self.gangs = gangs
        self._board = board
        self._to_choose: dict[str, HopWorker] = {}
        """Idle workers that may find work among all that wait: they ended a unit, joined or gained a partition."""
        self._without_work: dict[str, HopWorker] = {}
        """Idle workers that found none: only configurations that have come to wait since then can have any."""
        self._fresh: list[Visiting] = []
        """Those configurations."""
        self._flying: dict[int, Unit] = {}
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

    def release(self, unit: Unit) -> Unit | None:
        """The same unit as it was started, its workers idle from now on; None where it is not in flight."""
        started = self._flying.pop(unit.number, None)
        for name in dict.fromkeys(worker for _, worker in unit.seats):
            worker = self._board.workers.get(name)
            if worker is not None and worker.unit is not None and worker.unit.number == unit.number:
                started, worker.unit = worker.unit, None
                self.idle(worker)
        return started

    # What follows.

    def in_flight(self) -> list[Unit]:
        """Units that run now."""
        single = [worker.unit for worker in self._workers if worker.unit is not None and not worker.unit.others]
        return [*single, *self._flying.values()]

    def next_units(self) -> list[Unit]:
        """The units that start now; from here on they are in flight."""
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
                others = self._further(worker, visiting, partition, reserved)
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

    def _recorded_gangs(self) -> tuple[list[Unit], int]:
        """Start those that can; where one cannot, the oldest keeps its workers free of other units.

        Returns what started, and the partitions whose holders begin nothing else; a bit for each.
        """
        started: list[Unit] = []
        waiting = [entry[2] for entry in self._board.waiting if entry[2].orders.has_gangs and entry[2].recorded_gang()]
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
        self, worker: HopWorker, visiting: Visiting, partition: int, reserved: int
    ) -> list[tuple[int, HopWorker]]:
        """Partitions and workers of the further ranks of a unit that begins here."""
        board = self._board
        if self.gangs is None or visiting.alone or partition >= board.trained_on:
            return []
        there = sum(1 for each in self._workers if each.holds & board.everything)
        known = self.gangs.takes(visiting.configuration)
        most = self.gangs.ranks(len(board.configurations), there) if known else 1
        if most > 1:  # as many units as with the largest size, of equal sizes
            left = visiting.left.bit_count()
            most = -(-left // -(-left // most))
        free = (each for each in self._workers if each.unit is None and each is not worker)
        idle = [each for each in free if not each.holds & reserved]
        found = further_seats(board, idle, visiting.open & ~(1 << partition), most - 1) if most > 1 else []
        return found[: self.gangs.fitting(len(found) + 1) - 1]

    def _start(self, seats: Sequence[tuple[int, HopWorker]], visiting: Visiting) -> Unit:
        (partition, first), *others = seats
        unit = Unit(
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
