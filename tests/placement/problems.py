"""Assignment problems, drawn at random or by hypothesis, and an independent check of an answer."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import strategies as st

from hpo_core.model.devices.inventory import Demand
from hpo_core.packing.room import UNLIMITED, Assignment, Room, SharedDevice, WaitingJob

ARCHITECTURES = ("A100", "H100")
GIB = 2**30


def cluster(
    rng: random.Random,
    *,
    nodes: int = 3,
    ratios: Sequence[int] = (1000, 2500, 3000),
    most: Sequence[int] = (UNLIMITED,),
) -> Room:
    devices = [
        SharedDevice(
            name=f"gpu-{node}-{number}",
            node=f"node-{node}",
            architecture=rng.choice(ARCHITECTURES),
            memory=rng.choice([16, 40, 80]) * GIB,
            oversubscribe=rng.choice(ratios),
            most=rng.choice(most),
        )
        for node in range(rng.randint(1, nodes))
        for number in range(rng.randint(1, 4))
    ]
    return Room(devices, {f"node-{node}": 1000 * rng.choice([4, 16, 88]) for node in range(nodes)})


def waiting(rng: random.Random, count: int) -> list[WaitingJob]:
    jobs = []
    for key in range(count):
        compute, memory, seconds = rng.randint(0, 1100), rng.randint(0, 50) * GIB, float(rng.randint(1, 9))
        cores = 500 * rng.randint(0, 8)
        demand = {
            name: Demand(compute=compute // scale, memory=memory, cores=cores, seconds=seconds / scale)
            for name, scale in zip(ARCHITECTURES, (1, 2), strict=True)
            if rng.random() < 0.9
        }
        jobs.append(WaitingJob(key, demand))
    return jobs


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[WaitingJob], Room]:
    """A cluster that is partly taken, and jobs that wait."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    room = cluster(rng, most=(1, 2, 5, UNLIMITED))
    jobs = waiting(rng, draw(st.integers(0, 25)))
    for place in range(len(room.devices)):
        if draw(st.booleans()):
            room.take(
                Demand(compute=rng.randint(0, room.compute[place]), memory=rng.randint(0, room.memory[place])), place
            )
    return jobs, room


def check(jobs: Sequence[WaitingJob], room: Room, chosen: Sequence[Assignment]) -> None:
    """Equations 1 to 4 of HyperSack and jobs per device, counted anew; a device is of an architecture its job knows."""
    assert len({job for job, _ in chosen}) == len(chosen), "a job is placed once"
    assert all(room.devices[place].architecture in jobs[job].demand for job, place in chosen)
    held = [(place, jobs[job].demand[room.devices[place].architecture]) for job, place in chosen]
    for place in {place for place, _ in held}:
        assert sum(need.compute for at, need in held if at == place) <= room.compute[place]
        assert sum(need.memory for at, need in held if at == place) <= room.memory[place]
        assert sum(at == place for at, _ in held) <= room.slots[place]
    for node in {room.node_of[place] for place, _ in held}:
        assert sum(need.cores for at, need in held if room.node_of[at] == node) <= room.cores[node]


def assigned(jobs: Sequence[WaitingJob], room: Room, chosen: Sequence[Assignment]) -> int:
    """Compute assigned: what equation 5 maximizes."""
    return sum(jobs[job].demand[room.devices[place].architecture].compute for job, place in chosen)
