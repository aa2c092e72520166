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
    """Workers that the places of the path would take; the next place of the path has each of them now."""
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
