"""The oldest job that waits for its slots is not delayed by younger ones, and what cannot delay it begins."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_core.model.devices.inventory import Device, Inventory, slots_demand
from hpo_core.model.trial import Job, Rung
from hpo_core.placement.placer import Placer


def job_of(number: int, slots: int) -> Job:
    return Job(number, 0, Rung(0, 0), 1, {}, demand=slots_demand(slots))


def free_at(moment: float, capacity: int, running: Sequence[tuple[float, int]]) -> int:
    """Slots that are free at a moment, jobs that end at it being over; each counted, one by one."""
    return capacity - sum(slots for end, slots in running if end > moment)


def earliest(need: int, now: float, capacity: int, running: Sequence[tuple[float, int]]) -> float:
    """The first moment at which a job of ``need`` slots could begin if nothing else did."""
    moments = sorted({now, *(max(now, end) for end, _ in running)})
    live = [(max(now, end), slots) for end, slots in running]  # who is overdue ends now, as far as anybody knows
    return next(
        (moment for moment in moments if moment < math.inf and free_at(moment, capacity, live) >= need), math.inf
    )


class Judge:
    """Reads the rule from its text, one decision at a time, and by trying every job that was left waiting."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity

    def judge(
        self,
        now: float,
        running: Sequence[tuple[float, int]],
        waiting: Sequence[tuple[int, int, float]],
        begun: Sequence[int],
    ) -> None:
        """``waiting``: (job, slots, seconds), the oldest first; ``running``: (end, slots) before the decision."""
        live = [(end, slots) for end, slots in running]
        used = sum(slots for _, slots in live)
        promise, need, holder = math.inf, 0, None
        for job, slots, seconds in waiting:
            fits = slots <= self.capacity - used
            if holder is None:
                if slots > self.capacity:
                    assert job not in begun
                elif fits:
                    assert job in begun, "nothing older waits, and it fits"
                    live.append((now + seconds, slots))
                    used += slots
                else:
                    assert job not in begun
                    holder, need = job, slots
                    promise = earliest(slots, now, self.capacity, live)
                continue
            if slots > self.capacity:
                assert job not in begun
                continue
            # what a newcomer takes is no longer there for jobs that end later, so a queue of many is tried in turn
            with_it = earliest(need, now, self.capacity, [*live, (now + seconds, slots)])
            harmless = fits and promise < math.inf and with_it <= promise
            assert (job in begun) == harmless, f"job {job} of {slots} slots, promise {promise}, with it {with_it}"
            if harmless:
                live.append((now + seconds, slots))
                used += slots
        assert used <= self.capacity


JOBS = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 9).map(float)), max_size=7)


@settings(max_examples=60, deadline=None)
@given(capacity=st.integers(1, 8), running=JOBS, waiting=JOBS, unknown=st.sets(st.integers(0, 6)))
def test_every_decision_is_what_an_independent_judge_reads_from_the_rule(
    capacity: int, running: list[tuple[int, float]], waiting: list[tuple[int, float]], unknown: set[int]
) -> None:
    seconds = {number: math.inf if number in unknown else one for number, (_, one) in enumerate([*running, *waiting])}
    slots = Placer(lambda job: None if seconds[job.trial] == math.inf else seconds[job.trial])
    slots.update(Inventory.of(capacity, "a"))
    before = [job_of(number, size) for number, (size, _) in enumerate(running)]
    held = [(seconds[job.trial], job.demand.slots) for job in before if slots.place([job], now=0.0).begun]
    jobs = [job_of(len(before) + number, size) for number, (size, _) in enumerate(waiting)]
    placed = slots.place(jobs, now=0.5).begun
    begun = [job.trial for job, _ in placed]
    queue = [(job.trial, job.demand.slots, seconds[job.trial]) for job in jobs]
    if any(job.demand.slots > 1 for job in jobs):
        Judge(capacity).judge(0.5, held, queue, begun)
    taken = [(slot.name, slot.number) for _, first in placed for slot in first.ranks]
    assert len(taken) == len(set(taken))
    assert all(len(first.ranks) == job.demand.slots for job, first in placed)
    assert len(slots) == sum(count for _, count in held) + len(taken)


def test_a_gang_gets_one_node_where_one_has_room_and_else_as_few_as_can_be() -> None:
    slots = Placer()
    slots.update(Inventory((Device("a", 2), Device("b", 4), Device("c", 3))))
    (_, first), (_, second) = slots.place([job_of(0, 3), job_of(1, 4)]).begun
    assert [slot.name for slot in first.ranks] == ["c"] * 3 and [slot.name for slot in second.ranks] == ["b"] * 4
    slots.release((1, 0))
    (_, third), (_, fourth) = slots.place([job_of(2, 2), job_of(3, 4)]).begun
    assert {slot.name for slot in third.ranks} == {"a"} and {slot.name for slot in fourth.ranks} == {"b"}
    slots.release((0, 0))
    slots.release((2, 0))
    ((_, both),) = slots.place([job_of(4, 5)]).begun
    assert [slot.name for slot in both.ranks] == ["c"] * 3 + ["a"] * 2


def test_slots_of_a_device_that_left_do_not_come_back_with_a_gang() -> None:
    slots = Placer()
    slots.update(Inventory((Device("a", 2), Device("b", 2))))
    assert len(slots.place([job_of(0, 4)]).begun) == 1
    slots.update(Inventory((Device("a", 1),)))
    assert not slots.place([job_of(1, 1)]).begun and len(slots) == 4
    slots.release((0, 0))
    assert [(slot.name, slot.number) for _, slot in slots.place([job_of(1, 1), job_of(2, 1)]).begun] == [("a", 0)]
