"""Which workers have something to do for the configurations under way: those that a study wants in a pool."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hpo_core.hopper.board import Board, Visiting


def useful_workers(board: Board, partitions: Mapping[str, Collection[int]]) -> list[str]:
    """Workers where some configuration can visit a partition now or after its unit in flight, the most useful first.

    First those where most of the configurations that wait can begin at once; of these, where most work is left.

    Args:
        board: of the schedule.
        partitions: by worker, here or not: the places of those that lie there.

    >>> from hpo_core.hopper.hop_schedule import HopSchedule
    >>> schedule = HopSchedule(2)
    >>> for worker in "ab":
    ...     schedule.worker_joined(worker, ())
    >>> schedule.add(0, to=1, visited=[0])
    >>> useful_workers(schedule.board, {"a": [0], "b": [1]})
    ['b']
    """
    held = {worker: sum(1 << place for place in set(places)) for worker, places in partitions.items()}
    waiting = [visiting.open for visiting in board.configurations.values() if visiting.entry is not None]
    later = 0
    for visiting in board.configurations.values():
        later |= _after_flight(visiting, board) if visiting.entry is None else visiting.open

    def rank(worker: str) -> tuple[int, float, str]:
        begin = sum(1 for open_now in waiting if open_now & held[worker])
        load = sum(board.loads[place] for place in set(partitions[worker]))
        return -begin, -load, worker

    return sorted((worker for worker, bits in held.items() if bits & later), key=rank)


def _after_flight(visiting: Visiting, board: Board) -> int:
    """What may be next once the unit in flight has ended; a bit for each partition."""
    order = visiting.orders.of(visiting.epoch) or ()
    behind = len(visiting.visits) + (1 if visiting.unit is None else len(visiting.unit.partitions))
    if behind < len(order):
        return 1 << order[behind]
    if visiting.left:
        return visiting.left
    if board.evaluated and (visiting.unit is None or visiting.unit.partition < board.trained_on):
        return board.evaluated
    if visiting.epoch == visiting.to:
        return 0
    following = visiting.orders.of(visiting.epoch + 1)
    return board.everything if following is None else 1 << following[0]
