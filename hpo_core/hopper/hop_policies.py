"""Hop policies: which unit an idle worker starts. The default is :class:`Remaining`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from hpo_core.hopper.board import Board, HopWorker, Waiting
from hpo_core.model.rng import Stream


class HopPolicy(Protocol):
    """Chooses which unit an idle worker starts. It never waits, does IO or changes what it is shown."""

    def in_turn(self, idle: list[HopWorker], board: Board) -> Sequence[HopWorker]:
        """Sort idle workers: the first one chooses first.

        Args:
            idle: at least two, in the order in which they joined.
        """
        ...

    def choose(self, worker: HopWorker, waiting: Sequence[Waiting], board: Board) -> tuple[int, int] | None:
        """Place in ``waiting`` of the configuration that the worker starts, and its partition.

        None only where no waiting configuration has an open partition on this worker: no worker stays idle on purpose.

        Args:
            waiting: configurations without a unit in flight, the one with the most remaining work first. Those that
                cannot have work for this worker may be left out.
        """
        ...


class Remaining:
    """Keeps the busiest worker and the longest configuration going: one of them bounds the makespan.

    The idle worker with the most work left chooses first; of several that share the same work, the fastest. Of the
    configurations that wait for a partition that lies there, it takes the one with the most work left elsewhere: after
    this unit, which counts as one of mean length. Among equals, it takes the first whose number is not below the
    worker's own, so that workers spread over equal configurations and go round in step.

    Of its open partitions that worker visits the one with the most work left; or, of those that lie on the same workers
    as that one, the one that it visited last. That is still in its memory, and the work of no worker changes by it.
    """

    def in_turn(self, idle: list[HopWorker], board: Board) -> Sequence[HopWorker]:
        return sorted(idle, key=lambda worker: (-board.load(worker), worker.slowness))

    def choose(self, worker: HopWorker, waiting: Sequence[Waiting], board: Board) -> tuple[int, int] | None:
        holds, first = worker.holds, worker.number
        best, most = -1, 0.0
        for place, (negative, number, visiting) in enumerate(waiting):
            if best >= 0 and negative != most:
                break
            if visiting.open & holds:
                if best < 0 or number >= first:
                    best, most = place, negative
                if number >= first:
                    break
        if best < 0:
            return None
        here = waiting[best][2].open & holds
        if here & (here - 1):
            open_here = [partition for partition in worker.partitions if here >> partition & 1]
            most_left = max(open_here, key=lambda partition: board.loads[partition] / board.speeds[partition])
            alike = board.holders[most_left]
            for partition in worker.recent:
                if here >> partition & 1 and board.holders[partition] == alike:
                    return best, partition
            return best, most_left
        return best, here.bit_length() - 1


TRIES = 8
"""Draws before all units that may start are listed."""


class Randomized:
    """Lets each idle worker in turn take one of the units that may start there, all with the same probability.

    Algorithm 1 shuffles all units and takes the first that may start, which is a uniform draw. With replicas a unit
    may start on each worker that holds its partition (Section 5.5). Here pairs of a waiting configuration and a
    partition are drawn until one may start, so that a choice does not cost the number of units.

    Args:
        rng: where the draws come from.
    """

    def __init__(self, rng: Stream) -> None:
        self._rng = rng

    def in_turn(self, idle: list[HopWorker], board: Board) -> Sequence[HopWorker]:
        return idle

    def choose(self, worker: HopWorker, waiting: Sequence[Waiting], board: Board) -> tuple[int, int] | None:
        partitions = worker.partitions
        pairs = len(waiting) * len(partitions)
        if not pairs:
            return None
        for _ in range(TRIES):
            place, which = divmod(self._rng.below(pairs), len(partitions))
            if waiting[place][2].open >> partitions[which] & 1:
                return place, partitions[which]
        may_start = [
            (place, partition)
            for place, (_, _, visiting) in enumerate(waiting)
            if visiting.open & worker.holds
            for partition in partitions
            if visiting.open >> partition & 1
        ]
        return self._rng.choice(may_start) if may_start else None


POLICIES: dict[str, Callable[[Stream], HopPolicy]] = {
    "remaining": lambda rng: Remaining(),
    "randomized": Randomized,
}
"""Policies by name; each is made with the stream that its draws come from."""
