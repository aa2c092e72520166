"""On which workers the ranks of a gang unit run, and on which partitions."""

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
    """One worker from each list, all different; None: there is no such choice (augmenting paths)."""
    owner: dict[str, int] = {}
    chosen: list[HopWorker | None] = [None] * len(wanted)

    def seat(place: int, seen: set[str]) -> bool:
        for worker in wanted[place]:
            if worker.name in seen:
                continue
            seen.add(worker.name)
            if worker.name not in owner or seat(owner[worker.name], seen):
                owner[worker.name], chosen[place] = place, worker
                return True
        return False

    if not all(seat(place, set()) for place in range(len(wanted))):
        return None
    return [worker for worker in chosen if worker is not None]
