"""Workers and partitions of the ranks of a gang unit."""

from __future__ import annotations

from collections.abc import Sequence

from hpo_core.hopper.board import Board, HopWorker


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
    """Choose a worker from each list, all different; None: there is no such choice.

    Each list in turn gets a worker along the shortest augmenting path: others that had one may move to another.
    """
    owner: dict[str, int] = {}
    chosen: list[HopWorker] = []
    for place in range(len(wanted)):
        reached: dict[str, int] = {}
        """List from which each worker was reached, by its name."""
        lists = [place]
        free: HopWorker | None = None
        for at in lists:
            for worker in wanted[at]:
                if worker.name not in reached:
                    reached[worker.name] = at
                    if worker.name not in owner:
                        free = worker
                        break
                    lists.append(owner[worker.name])
            if free is not None:
                break
        if free is None:
            return None
        chosen.append(free)
        while (at := reached[free.name]) != place:
            owner[free.name] = at
            chosen[at], free = free, chosen[at]
        owner[free.name], chosen[place] = place, free
    return chosen
