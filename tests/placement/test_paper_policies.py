"""FF, FFD, WF and WFD against a transcription of Algorithms 1 and 2 of HyperSack, line by line and in fractions."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from hpo_core.model.devices.inventory import Demand
from hpo_core.placement.policies import FirstFit, PackingPolicy, WorstFit
from hpo_core.placement.room import WHOLE, Room, SharedDevice, WaitingJob
from tests.placement.problems import cluster, waiting

INSTANCES = 60


def algorithm(number: int, grid: list[WaitingJob], room: Room, decreasing: bool) -> list[tuple[int, int]]:
    """The listing's own variables: C and r of a device as fractions, D its memory, Q the cores of its node."""
    r = [Fraction(device.oversubscribe, WHOLE) for device in room.devices]
    c_left = [Fraction(room.compute[m]) / r[m] for m in range(len(r))]  # so that r * C is what equation 2 leaves
    d_left, q_left = list(room.memory), list(room.cores)
    jobs = list(range(len(grid)))
    if decreasing:
        jobs.sort(key=lambda p: grid[p].seconds, reverse=True)
    queue = []
    for p in jobs:
        worst_fit = Fraction(0)
        assigned_gpu = None
        for m, device in enumerate(room.devices):
            if device.architecture not in grid[p].demand:
                continue
            need = grid[p].demand[device.architecture]
            constraint_1 = r[m] * c_left[m] >= need.compute
            constraint_2 = d_left[m] >= need.memory
            constraint_3 = q_left[room.node_of[m]] >= need.cores
            constraint_4 = c_left[m] >= worst_fit
            if number == 1 and constraint_1 and constraint_2 and constraint_3:
                assigned_gpu = m
                break
            if number == 2 and constraint_1 and constraint_2 and constraint_3 and constraint_4:
                worst_fit = c_left[m]
                assigned_gpu = m
        if assigned_gpu is not None:
            need = grid[p].demand[room.devices[assigned_gpu].architecture]
            c_left[assigned_gpu] -= need.compute / r[assigned_gpu]
            d_left[assigned_gpu] -= need.memory
            q_left[room.node_of[assigned_gpu]] -= need.cores
            queue.append((p, assigned_gpu))
    return queue


@pytest.mark.parametrize("decreasing", [False, True])
@pytest.mark.parametrize(("number", "kind"), [(1, FirstFit), (2, WorstFit)])
def test_assignments_are_those_of_the_listings(number: int, kind: type, decreasing: bool) -> None:
    policy: PackingPolicy = kind(decreasing=decreasing)
    for seed in range(INSTANCES):
        rng = random.Random(seed)
        room, jobs = cluster(rng), waiting(rng, rng.randint(1, 40))
        assert policy.choose(jobs, room) == algorithm(number, jobs, room, decreasing), f"seed {seed}"


def gpus(count: int, *, memory: int = 80, oversubscribe: int = WHOLE) -> Room:
    return Room(
        [
            SharedDevice(
                name=f"gpu-{number}", node="a", architecture="A100", memory=memory, oversubscribe=oversubscribe
            )
            for number in range(count)
        ],
        {"a": 8000},
    )


def job(key: int, compute: int, *, memory: int = 1, cores: int = 0, seconds: float = 1.0) -> WaitingJob:
    return WaitingJob(key, {"A100": Demand(compute=compute, memory=memory, cores=cores, seconds=seconds)})


def test_the_last_device_wins_a_tie_of_worst_fit() -> None:
    assert WorstFit(decreasing=False).choose([job(0, 500)], gpus(3)) == [(0, 2)]


def test_a_device_that_is_full_still_wins_for_a_job_that_needs_no_compute() -> None:
    room = gpus(1)
    room.take(Demand(compute=1000), 0)
    assert WorstFit(decreasing=False).choose([job(0, 0)], room) == [(0, 0)]  # C >= WorstFit holds at 0


def test_decreasing_is_by_run_time_and_not_by_size() -> None:
    jobs = [job(0, 900, seconds=1.0), job(1, 200, seconds=5.0)]
    assert FirstFit(decreasing=True).choose(jobs, gpus(1)) == [(1, 0)]
    assert FirstFit(decreasing=False).choose(jobs, gpus(1)) == [(0, 0)]


def test_oversubscription_scales_compute_alone() -> None:
    jobs = [job(key, 900, memory=30) for key in range(3)]
    assert FirstFit(decreasing=False).choose(jobs, gpus(1, oversubscribe=3000)) == [(0, 0), (1, 0)]  # memory: 2 fit


def test_cores_are_summed_over_the_devices_of_a_node() -> None:
    jobs = [job(key, 100, cores=3000) for key in range(4)]
    assert len(WorstFit(decreasing=False).choose(jobs, gpus(4))) == 2
