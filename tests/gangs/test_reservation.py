"""The oldest job that waits for its slots is not delayed by younger ones, and what cannot delay it begins."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_core.execution.executor import Inbox
from hpo_core.execution.virtual import VirtualClock, VirtualExecutor
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


class Mix:
    """Gangs and single jobs that arrive over time, played with the real placer on virtual workers."""

    def __init__(self, seed: int, *, known: bool) -> None:
        rng = random.Random(seed)
        self.workers = rng.choice([2, 3, 4, 8, 16])
        count = rng.randint(10, 40)
        sizes = [1, 1, 1, 2, 3, 4, self.workers]
        self.jobs = [job_of(number, min(self.workers, rng.choice(sizes))) for number in range(count)]
        self.seconds = {job.trial: float(rng.randint(1, 20)) for job in self.jobs}
        self.arrives = {job.trial: float(rng.randint(0, 30)) for job in self.jobs}
        self.clock = VirtualClock()
        self.executor = VirtualExecutor(
            self.clock,
            workers=self.workers,
            train=lambda job: {},
            seconds=lambda job: self.seconds[job.trial] * job.demand.slots,
        )
        self.slots = Placer((lambda job: self.seconds[job.trial]) if known else None)
        self.began: dict[int, float] = {}
        self.promised: dict[int, float] = {}
        self.order: list[int] = []

    def play(self) -> None:
        inbox, waiting = Inbox(), []
        coming = sorted(self.jobs, key=lambda job: (self.arrives[job.trial], job.trial))
        self.slots.update(self.executor.inventory())
        while coming or waiting or len(self.slots):
            while coming and self.arrives[coming[0].trial] <= self.clock.now:
                waiting.append(coming.pop(0))
            for job, slot in self.slots.place(waiting, now=self.clock.now).begun:
                assert len(slot.ranks) == job.demand.slots
                self.began[job.trial] = self.clock.now
                self.order.append(job.trial)
                waiting.remove(job)
                self.executor.submit(job, slot, inbox.put)
            assert len(self.slots) <= self.workers
            self._promise(waiting)
            until = self.arrives[coming[0].trial] if coming else math.inf
            going_on = self.executor.wait(inbox, until)
            assert going_on or coming or not (waiting or len(self.slots)), "nothing runs, and jobs wait: a deadlock"
            while inbox.reports:
                report = inbox.reports.popleft()
                self.slots.release((report.trial, report.attempt))

    def _promise(self, waiting: Sequence[Job]) -> None:
        """The oldest waiting job is told when it begins at the latest; once told, that stands."""
        if waiting and waiting[0].trial not in self.promised:
            running = [
                (self.began[job.trial] + self.seconds[job.trial], job.demand.slots)
                for job in self.jobs
                if job.trial in self.began and self.began[job.trial] + self.seconds[job.trial] > self.clock.now
            ]
            self.promised[waiting[0].trial] = earliest(waiting[0].demand.slots, self.clock.now, self.workers, running)


def test_fifty_mixes_end_and_no_promise_is_broken() -> None:
    filled = promised = 0
    for seed in range(50):
        mix = Mix(seed, known=True)
        mix.play()
        assert mix.began.keys() == {job.trial for job in mix.jobs}
        late = {job: mix.began[job] - when for job, when in mix.promised.items() if mix.began[job] > when}
        assert not late, f"seed {seed}: {late}"
        arrival = sorted(mix.jobs, key=lambda job: (mix.arrives[job.trial], job.trial))
        filled += mix.order != [job.trial for job in arrival]
        promised += bool(mix.promised)
    assert promised > 30 and filled > 20, "the mixes must have gangs that wait, and gaps that are filled"


def test_without_durations_gaps_stay_empty_and_nobody_is_overtaken() -> None:
    for seed in range(20):
        mix = Mix(seed, known=False)
        mix.play()
        arrival = sorted(mix.jobs, key=lambda job: (mix.arrives[job.trial], job.trial))
        assert mix.order == [job.trial for job in arrival], f"seed {seed}"


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


def test_a_gang_larger_than_all_devices_waits_and_delays_nobody() -> None:
    slots = Placer()
    slots.update(Inventory.of(3, "a"))
    assert [job.trial for job, _ in slots.place([job_of(0, 4), job_of(1, 1), job_of(2, 2)]).begun] == [1, 2]
    slots.update(Inventory((Device("a", 3), Device("b", 1))))
    assert not slots.place([job_of(0, 4), job_of(3, 1)]).begun, "it fits by now, so it reserves"
    slots.release((1, 0))
    slots.release((2, 0))
    assert [job.trial for job, _ in slots.place([job_of(0, 4), job_of(3, 1)]).begun] == [0]


def test_slots_of_a_device_that_left_do_not_come_back_with_a_gang() -> None:
    slots = Placer()
    slots.update(Inventory((Device("a", 2), Device("b", 2))))
    assert len(slots.place([job_of(0, 4)]).begun) == 1
    slots.update(Inventory((Device("a", 1),)))
    assert not slots.place([job_of(1, 1)]).begun and len(slots) == 4
    slots.release((0, 0))
    assert [(slot.name, slot.number) for _, slot in slots.place([job_of(1, 1), job_of(2, 1)]).begun] == [("a", 0)]
