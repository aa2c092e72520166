"""The configuration with the most remaining work elsewhere first: the default."""

from __future__ import annotations

from collections.abc import Sequence

from hpo_core.hopper.board import Board, HopWorker, Waiting


class Remaining:
    """Keeps the busiest worker and the longest configuration going: one of them bounds the makespan.

    The idle worker with the most work left chooses first. Of the configurations that wait for a partition that lies
    there, it takes the one with the most work left on other workers after this unit. Among equals, the first whose
    number is not below the worker's own, so that workers spread over equal configurations and go round in step.
    """

    def in_turn(self, idle: list[HopWorker], board: Board) -> Sequence[HopWorker]:
        return sorted(idle, key=board.load, reverse=True)

    def choose(self, worker: HopWorker, waiting: Sequence[Waiting], board: Board) -> tuple[int, int] | None:
        holds, first, prices = worker.holds, worker.number, board.prices
        least = min([prices[partition] for partition in worker.partitions], default=0)
        short = board.dearest * max(board.mean - least, 0)
        best, most, is_before = -1, 0.0, True
        for place, (negative, number, visiting) in enumerate(waiting):
            bound = short - negative
            if best >= 0 and (bound < most or (bound == most and not is_before)):
                break  # this one and those behind it have less left elsewhere
            here = visiting.open & holds
            if here:
                elsewhere = visiting.cost * (visiting.work - prices[here.bit_length() - 1])
                if best < 0 or elsewhere > most or (elsewhere == most and is_before and number >= first):
                    best, most, is_before = place, elsewhere, number < first
        if best < 0:
            return None
        here = waiting[best][2].open & holds
        if here & (here - 1):
            open_here = [partition for partition in worker.partitions if here >> partition & 1]
            return best, max(open_here, key=lambda partition: pressing(partition, board))
        return best, here.bit_length() - 1


def pressing(partition: int, board: Board) -> float:
    """Work left on the partition for each worker that could do it."""
    return board.loads[partition] * board.prices[partition] / len(board.holders[partition])
