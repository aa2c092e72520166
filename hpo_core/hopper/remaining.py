"""The configuration with the most remaining work elsewhere first: the default."""

from __future__ import annotations

from collections.abc import Sequence

from hpo_core.hopper.board import Board, HopWorker, Waiting


class Remaining:
    """Keeps the busiest worker and the longest configuration going: one of them bounds the makespan.

    The idle worker with the most work left chooses first; of several that share the same work, the fastest. Of the
    configurations that wait for a partition that lies there, it takes the one with the most work left elsewhere: after
    this unit, which counts as one of mean length. Among equals, it takes the first whose number is not below the
    worker's own, so that workers spread over equal configurations and go round in step.
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
            return best, max(open_here, key=lambda partition: board.loads[partition] / board.speeds[partition])
        return best, here.bit_length() - 1
