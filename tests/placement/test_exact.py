"""The exact solution against every assignment there is."""

from __future__ import annotations

import itertools
import random

import pytest

from hpo_core.placement.packing.exact import Exact
from hpo_core.placement.packing.fill import Fill
from hpo_core.placement.packing.need import WaitingJob
from hpo_core.placement.packing.room import Room
from tests.placement.problems import assigned, check, cluster, waiting

pytest.importorskip("scipy", reason="SciPy comes with the extra 'samplers'")


def by_trying_everything(jobs: list[WaitingJob], room: Room) -> int:
    """Each job on each device or on none."""
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


@pytest.mark.parametrize("seed", range(12))
def test_no_assignment_is_better(seed: int) -> None:
    rng = random.Random(seed)
    room = cluster(rng, nodes=1)
    jobs = waiting(rng, 5)
    solver = Exact()
    chosen = solver.choose(jobs, room)
    check(jobs, room, chosen)
    assert solver.is_optimal
    assert assigned(jobs, room, chosen) == by_trying_everything(jobs, room)
    assert assigned(jobs, room, Fill().choose(jobs, room)) <= assigned(jobs, room, chosen)
