from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_core.model.devices.inventory import Demand
from hpo_core.packing.fill import Fill
from hpo_core.packing.policies import ExactPacking
from hpo_core.packing.room import Room, SharedDevice, WaitingJob
from tests.placement.problems import assigned, check, cluster, waiting

pytest.importorskip("scipy", reason="SciPy comes with the extra 'samplers'")


def by_trying_everything(jobs: list[WaitingJob], room: Room) -> int:
    best = 0
    for places in itertools.product(range(-1, len(room.devices)), repeat=len(jobs)):
        left, total = room.copy(), 0
        for job, place in zip(jobs, places, strict=True):
            if place >= 0:
                need = job.demand.get(room.devices[place].architecture)
                if need is None or not left.fits(need, place):
                    break
                left.take(need, place)
                total += need.compute
        else:
            best = max(best, total)
    return best


@pytest.mark.parametrize("seed", range(4))
def test_no_assignment_is_better(seed: int) -> None:
    rng = random.Random(seed)
    room = cluster(rng, nodes=1)
    jobs = waiting(rng, 5)
    solver = ExactPacking()
    chosen = solver.choose(jobs, room)
    check(jobs, room, chosen)
    assert solver.is_optimal
    assert assigned(jobs, room, chosen) == by_trying_everything(jobs, room)
    assert assigned(jobs, room, Fill().choose(jobs, room)) <= assigned(jobs, room, chosen)


amounts = st.one_of(
    st.integers(1, 80).map(lambda gigabytes: gigabytes * 10**9),
    st.integers(1, 3000).map(lambda megabytes: megabytes * 10**6),
    st.integers(1, 80 * 10**9),
)


@st.composite
def tight_in_bytes(draw: st.DrawFn) -> tuple[list[WaitingJob], Room]:
    """Memory in bytes, decimal units or neither; devices that some of the jobs fill to the byte, or miss by one."""
    jobs = [
        WaitingJob(
            key,
            {
                "A100": Demand(
                    compute=draw(st.integers(1, 600)), memory=draw(amounts), cores=1000 * draw(st.integers(0, 4))
                )
            },
        )
        for key in range(draw(st.integers(1, 5)))
    ]
    devices = []
    for number in range(draw(st.integers(1, 2))):
        some = draw(st.lists(st.sampled_from(jobs), min_size=1, max_size=4, unique_by=lambda job: job.key))
        exact = sum(job.demand["A100"].memory for job in some)
        memory = exact + draw(st.sampled_from([-1000, -1, 0, 1]))
        devices.append(SharedDevice(name=f"gpu-{number}", node="a", architecture="A100", memory=max(memory, 0)))
    return jobs, Room(devices, {"a": 8000})


@given(problem=tight_in_bytes())
@settings(max_examples=40, deadline=None)
def test_limits_hold_to_the_byte_and_nothing_simpler_is_better(problem: tuple[list[WaitingJob], Room]) -> None:
    jobs, room = problem
    solver = ExactPacking()
    chosen = solver.choose(jobs, room)
    check(jobs, room, chosen)
    assert solver.is_optimal
    assert assigned(jobs, room, chosen) >= assigned(jobs, room, Fill().choose(jobs, room))


def test_without_time_for_the_solver_jobs_begin_all_the_same() -> None:
    rng = random.Random(1)
    room, jobs = cluster(rng), waiting(rng, 60)
    chosen = ExactPacking(seconds=0.0).choose(jobs, room)
    check(jobs, room, chosen)
    assert assigned(jobs, room, chosen) >= assigned(jobs, room, Fill().choose(jobs, room))
