"""Which workers have work now, against schedules that are played one step further with that worker alone."""

from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st

from hpo_core.hopper.board import useful_workers
from hpo_core.hopper.hop_schedule import HopSchedule


@st.composite
def schedules(draw: st.DrawFn) -> tuple[HopSchedule, dict[str, list[int]]]:
    """A schedule some units after its beginning, and the workers that there are, held or not."""
    trained, evaluated = draw(st.integers(1, 3)), draw(st.integers(0, 2))
    validation = [f"v{number}" for number in range(evaluated)]
    schedule = HopSchedule([f"p{number}" for number in range(trained)], validation=validation)
    places = st.lists(st.integers(0, trained + evaluated - 1), unique=True)
    workers = {f"w{number}": draw(places) for number in range(draw(st.integers(1, 4)))}
    for name, lies in workers.items():
        schedule.worker_joined(name, lies if draw(st.booleans()) else [])
    for configuration in range(draw(st.integers(0, 3))):
        to = draw(st.integers(1, 2))
        orders = {epoch: draw(st.permutations(range(trained))) for epoch in range(1, to + 1) if draw(st.booleans())}
        schedule.add(configuration, to=to, orders=orders)
    for _ in range(draw(st.integers(0, 12))):
        schedule.next_units()
        flying = schedule.in_flight()
        if flying:
            schedule.unit_ended(draw(st.sampled_from(flying)))
    if draw(st.booleans()):
        schedule.next_units()
    return schedule, workers


def begins_there(schedule: HopSchedule, places: list[int]) -> bool:
    """Whether a unit begins on a worker with these partitions once all in flight have ended and all others are gone."""
    later = copy.deepcopy(schedule)
    for unit in later.in_flight():
        later.unit_ended(unit)
    for name in list(later.board.workers):
        later.worker_lost(name)
    later.worker_joined("alone", places)
    return bool(later.next_units())


@given(schedules())
def test_a_worker_is_useful_where_some_unit_would_begin_on_it_alone(
    drawn: tuple[HopSchedule, dict[str, list[int]]],
) -> None:
    schedule, workers = drawn
    useful = useful_workers(schedule.board, workers)
    assert set(useful) == {name for name, places in workers.items() if begins_there(schedule, places)}
    schedule.check()


def test_those_where_most_can_begin_at_once_come_first() -> None:
    schedule = HopSchedule(3)
    for number in range(3):
        schedule.worker_joined(str(number), [])
    schedule.add(0, to=1, visited=[0, 1])
    schedule.add(1, to=2, visited=[0])
    assert useful_workers(schedule.board, {"a": [0], "b": [1], "c": [2], "d": []}) == ["c", "b"]
