"""Which workers the ranks of a recorded gang get: against all choices there are, and for thousands of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_core.hopper.board import HopWorker, PlannedUnit
from hpo_core.hopper.gang_seats import recorded_seats

UNIT = PlannedUnit(configuration=0, epoch=1, partition=0, worker="", number=0)


def workers_of(busy: Sequence[bool]) -> list[HopWorker]:
    made = [HopWorker(f"w{number}", number, (), 1.0) for number in range(len(busy))]
    for worker, has_unit in zip(made, busy, strict=True):
        worker.unit = UNIT if has_unit else None
    return made


def choices(lists: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """All ways to take one of each list, all different."""
    return [choice for choice in product(*lists) if len(set(choice)) == len(choice)]


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_seats_are_what_a_list_of_all_choices_allows(data: st.DataObject) -> None:
    busy = data.draw(st.lists(st.booleans(), min_size=1, max_size=5))
    held = data.draw(st.lists(st.lists(st.integers(0, len(busy) - 1), unique=True), min_size=1, max_size=5))
    kept = data.draw(st.sets(st.integers(0, len(busy) - 1), max_size=2))
    workers = workers_of(busy)
    free = [[number for number in one if number not in kept] for one in held]
    idle = [[number for number in one if not busy[number]] for one in free]
    found = recorded_seats([[workers[n] for n in one] for one in held], [[workers[n] for n in one] for one in free])
    if choices(idle):
        assert found is not None and tuple(worker.number for worker in found) in choices(idle)
    elif choices(held) or not all(idle):
        assert found is None, "it waits for workers that there are"
    else:
        assert found is not None
        assert all(worker.number in one for worker, one in zip(found, idle, strict=True))


def test_a_path_that_ends_nowhere_is_left_step_by_step() -> None:
    """The last place asks the first, which asks the second, which asks the third in vain."""
    workers = workers_of([False] * 4)
    held = [[workers[number] for number in one] for one in ([0, 1, 3], [1, 2], [2], [0])]
    found = recorded_seats(held, held)
    assert found is not None and [worker.number for worker in found] == [3, 1, 2, 0]


@pytest.mark.parametrize("fits", [True, False])
def test_a_gang_of_5000_ranks_is_seated(fits: bool) -> None:
    """The last one fits only if each of the others moves to its second worker."""
    count = 5000
    workers = workers_of([False] * count)
    held = [[workers[place], workers[place + 1]] for place in range(count - 1)]
    held.append([workers[0]])
    if not fits:
        held[count - 2] = [workers[count - 2]]
    found = recorded_seats(held, held)
    assert found is not None
    numbers = [worker.number for worker in found]
    if fits:
        assert numbers == [*range(1, count), 0]
    else:  # a worker runs two ranks
        assert len(set(numbers)) < count
        assert all(worker in one for worker, one in zip(found, held, strict=True))
