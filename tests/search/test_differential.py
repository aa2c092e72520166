"""ASHA and random search on real, tabulated learning curves against reference figures.

Reference: mean normalised regret over 25 seeds, eta 3, r = 1, nine workers, of an independent implementation:
0.0036 (ASHA) and 0.0299 (random search) on this table; 433 / 151 / 56 / 21 / 6 results per rung.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np
import pytest

from hpo_core import Study
from hpo_core.simulation import CurveTable, Simulation, TableSampler, VirtualClock
from tests.conftest import make_spec

TABLE = Path(__file__).parents[1] / "data" / "mlp_digits.npz"
WORKERS, FULL_RUNS = 9, 21


@pytest.fixture(scope="module")
def table() -> CurveTable:
    return CurveTable.load(TABLE)


def run(table: CurveTable, method: str, seed: int) -> Study:
    rows = table.losses.shape[0]
    search = {"method": method, "configs": rows, "max_resource": table.max_resource}
    if method == "asha":
        search |= {"min_resource": 1, "reduction_factor": 3}
    spec = make_spec(space={"row": {"type": "int", "low": 0, "high": rows - 1}}, search=search)
    clock = VirtualClock()
    study = Study.create(spec, sampler=TableSampler(rows, seed), clock=clock)
    executor = Simulation(study, clock, workers=WORKERS, train=table.train, seconds=table.cost)
    executor.run(until=FULL_RUNS / WORKERS * float(np.nanmean(table.seconds[:, -1])))
    study.check()
    return study


def test_regret_is_that_of_the_reference(table: CurveTable) -> None:
    regret: dict[str, list[float]] = {"asha": [], "random": []}
    rungs = []
    for seed in range(15):
        for method, values in regret.items():
            study = run(table, method, seed)
            values.append(table.regret(study.state.trials[study.best.trial].params["row"]))
            if method == "asha":
                rungs.append([rung.results for rung in study.method.rungs()])
    for method, reference in (("asha", 0.0036), ("random", 0.0299)):
        values = regret[method]
        noise = statistics.stdev(values) / len(values) ** 0.5
        assert abs(statistics.mean(values) - reference) < 3 * 2**0.5 * noise, method
    wins = sum(a < r for a, r in zip(regret["asha"], regret["random"], strict=True))
    assert wins >= 12, "the reference wins 23 of 25 and ties 2"
    means = [statistics.mean(column) for column in zip(*rungs, strict=True)]
    assert means == pytest.approx([433.2, 151.0, 56.2, 20.9, 5.9], rel=0.15)


def test_nine_workers_give_a_full_result_after_the_time_of_one_training() -> None:
    """ASHA 3.2 with checkpoints: the first trial reaches R after 1 time(R); 13/9 without resume."""
    search = {"method": "asha", "configs": 500, "min_resource": 1, "max_resource": 9, "reduction_factor": 3}
    for resume, expected in ((True, 9.0), (False, 13.0)):
        clock = VirtualClock()
        study = Study.create(make_spec(search=search), clock=clock)
        executor = Simulation(
            study,
            clock,
            workers=9,
            train=lambda job: {"loss": job.params["x"]},
            seconds=lambda job: float(job.target - (job.checkpoint.resource if job.checkpoint else 0)),
            checkpoints=resume,
        )
        while not study.method.rungs()[2].results:
            executor.run(max_reports=1)
        assert clock.now == expected
