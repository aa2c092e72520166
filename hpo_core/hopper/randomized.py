"""Algorithm 1 of Cerebro: a random unit that may start."""

from __future__ import annotations

from collections.abc import Sequence

from hpo_core.hopper.board import Board, HopWorker, Waiting
from hpo_core.model.rng import Stream

TRIES = 8
"""Draws before all units that may start are listed."""


class Randomized:
    """Each idle worker in turn takes one of the units that may start there, all with the same probability.

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
