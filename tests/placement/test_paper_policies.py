"""FF, FFD, WF and WFD against a transcription of Algorithms 1 and 2 of HyperSack, line by line and in fractions."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from hpo_core.model.devices.inventory import Demand
from hpo_core.packing.policies import FirstFit, PackingPolicy, WorstFit
from hpo_core.packing.room import WHOLE, Room, SharedDevice, WaitingJob
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


def test_a_device_that_is_full_still_wins_for_a_job_that_needs_no_compute() -> None:
    room = Room([SharedDevice(name="gpu", node="a", architecture="A100", memory=80)], {"a": 8000})
    room.take(Demand(compute=1000), 0)
    idle = WaitingJob(0, {"A100": Demand(compute=0, memory=1, cores=0, seconds=1.0)})
    assert WorstFit(decreasing=False).choose([idle], room) == [(0, 0)]  # C >= WorstFit holds at 0
